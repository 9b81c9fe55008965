// Package history keeps an agent's record of changes of state: what has changed in a peering or a
// plane, from what to what, and why. It is one ConfigMap with the last entries (pkg/history), which nobody
// watches. A gateway sends an Event about its Peering for each entry as well. A node's agent does not, since
// thousands of nodes change their plane at once.
//
// Writing costs nothing while nothing changes, and nobody waits for it. What changes at the same time is
// written at once. An API server that cannot be reached gets it later, of very much the last Size entries.
//
// The agent has no permission to read its record. The answer to a patch has it, and so an agent that
// has restarted continues where its predecessor ended.
package history

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/notify"
)

const (
	// settle is how long changes are waited for that come with the first one. It may be twice as
	// long: all nodes notice the failure of a gateway at the same time.
	settle = time.Second
	// writeTimeout is how long the API server may take to answer. When the agent ends it is lastTimeout.
	writeTimeout, lastTimeout = 10 * time.Second, time.Second
	// maxEvents is how many Events wait while they cannot be sent.
	maxEvents = 32
	// eventBurst Events may follow each other, then there is one in eventGap. Others can have a
	// plane change its state as often as they like.
	eventBurst, eventGap = 25, 10 * time.Second
)

// Change is what is noted.
type Change struct {
	history.Entry
	// Bad says that something is worse than before.
	Bad bool
	// Event is what an Event calls it, in CamelCase, and About the Peering's UID. Without a
	// name there is none.
	Event string
	About types.UID
}

// Record is an agent's. Its methods may be called at once from several goroutines.
type Record struct {
	Client client.Client
	Log    *slog.Logger
	// Name is the ConfigMap's, Manager the field manager. Owner is whom the object goes with; nil
	// where the CLI makes and removes it.
	Name, Manager string
	Owner         *metav1.OwnerReference
	// Interval is the least time between two writes, longer by up to a half.
	Interval time.Duration
	// Pod and Node say in Events who sends them.
	Pod, Node string

	news  notify.Signal
	event *rate.Limiter
	mu    sync.Mutex
	// pending and events are not written yet. kept are the peerings of which something is kept, nil for all.
	pending []history.Entry
	events  []*corev1.Event
	kept    sets.Set[string]
	// next is the number of the next entry, 0 if it is not known what the record has.
	// By key, whose says of which peerings it has entries. Only run uses both.
	next  int64
	whose map[string]string
}

// New returns a record that is written once it is started. The fields of r say whose it is.
func New(r *Record) *Record {
	r.news, r.event = notify.NewSignal(), rate.NewLimiter(rate.Every(eventGap), eventBurst)
	return r
}

// Note notes a change, and logs it. Without a record it does nothing.
func (r *Record) Note(c Change) {
	if r == nil {
		return
	}
	c.Time = time.Now()
	level, attrs := lo.Ternary(c.Bad, slog.LevelWarn, slog.LevelInfo), []any{"peering", c.Peering}
	if c.Plane != nil {
		attrs = append(attrs, "plane", *c.Plane)
	}
	r.Log.Log(context.Background(), level, c.What+" has changed", append(attrs, "from", c.From, "to", c.To, "reason", c.Reason)...)
	r.mu.Lock()
	r.pending = append(r.pending, c.Entry)
	r.pending = r.pending[max(0, len(r.pending)-history.Size):]
	if c.Event != "" && len(r.events) < maxEvents && r.event.Allow() {
		r.events = append(r.events, r.newEvent(c))
	}
	r.mu.Unlock()
	r.news.Send()
}

func (r *Record) newEvent(c Change) *corev1.Event {
	kind, about := lo.Ternary(c.Bad, corev1.EventTypeWarning, corev1.EventTypeNormal), c.What
	if c.Plane != nil && c.What != "plane" {
		about = fmt.Sprintf("%s of plane %d", c.What, *c.Plane)
	} else if c.Plane != nil {
		about = fmt.Sprintf("plane %d", *c.Plane)
	}
	const component = "liqonet-gateway"
	at := metav1.NewTime(c.Time)
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, GenerateName: c.Peering + ".",
			Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager, v1alpha1.LabelPeering: c.Peering},
		},
		InvolvedObject: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Peering", Name: c.Peering, UID: c.About},
		Type:           kind, Reason: c.Event, Message: loop.Short(fmt.Sprintf("%s: %s → %s: %s", about, cmp.Or(c.From, "-"), c.To, c.Reason)),
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		Source: corev1.EventSource{Component: component, Host: r.Node}, ReportingController: component, ReportingInstance: r.Pod,
	}
}

// Keep forgets what was noted of other peerings than these.
func (r *Record) Keep(peerings []string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := sets.New(peerings...)
	gone := r.kept.Difference(kept)
	r.kept = kept
	r.pending = slices.DeleteFunc(r.pending, func(e history.Entry) bool { return !kept.Has(e.Peering) })
	if gone.Len() > 0 {
		r.news.Send()
	}
}

// Start runs it until what it returns is called. That waits until what is left is written.
func (r *Record) Start(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { r.run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// run writes what is noted until ctx ends, and then what is left.
func (r *Record) run(ctx context.Context) {
	retry, failed := loop.DialPauses(), ""
	for {
		select {
		case <-ctx.Done():
		case <-r.news:
			loop.Sleep(ctx, wait.Jitter(settle, 1))
		}
		if ctx.Err() != nil {
			if err := r.write(context.WithoutCancel(ctx), lastTimeout); err != nil {
				r.Log.Debug("cannot write the history", "error", err)
			}
			return
		}
		err := r.write(ctx, writeTimeout)
		pause := wait.Jitter(r.Interval, 0.5)
		switch {
		case err == nil:
			retry, failed = loop.DialPauses(), ""
		case err.Error() != failed && ctx.Err() == nil:
			failed = err.Error()
			r.Log.Warn("cannot write the history", "error", err)
			fallthrough
		default:
			pause = max(pause, retry.Step())
			r.news.Send()
		}
		loop.Sleep(ctx, pause)
	}
}

// write writes what is pending. What cannot be written stays so.
func (r *Record) write(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return errors.Join(r.writeEntries(ctx), r.sendEvents(ctx))
}

// writeEntries writes pending entries, and takes those away that are to be forgotten.
func (r *Record) writeEntries(ctx context.Context) error {
	r.mu.Lock()
	batch, kept := r.pending, r.kept
	r.pending = nil
	r.mu.Unlock()
	err := r.writeBatch(ctx, batch, func(peering string) bool { return kept != nil && !kept.Has(peering) })
	if err == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = append(batch, r.pending...)
	r.pending = r.pending[max(0, len(r.pending)-history.Size):]
	if apierrors.IsNotFound(err) {
		r.next, r.whose = 0, nil
	}
	return fmt.Errorf("write ConfigMap %s/%s: %w", v1alpha1.Namespace, r.Name, err)
}

func (r *Record) writeBatch(ctx context.Context, batch []history.Entry, gone func(peering string) bool) error {
	if r.next == 0 && len(batch) == 0 {
		return nil
	}
	if r.next == 0 {
		if err := r.load(ctx); err != nil {
			return err
		}
	}
	values := map[string]*string{} // nil takes one away
	whose := lo.OmitBy(r.whose, func(_, peering string) bool { return gone(peering) })
	for key := range r.whose {
		if _, stays := whose[key]; !stays {
			values[key] = nil
		}
	}
	next := r.next
	for _, e := range lo.Reject(batch, func(e history.Entry, _ int) bool { return gone(e.Peering) }) {
		e.Number = next
		value, err := history.Encode(e)
		if err != nil {
			return err
		}
		next++
		values[history.Key(e.Number)], whose[history.Key(e.Number)] = &value, e.Peering
	}
	if len(values) == 0 {
		return nil
	}
	if _, err := r.patch(ctx, values); err != nil {
		return err
	}
	r.next, r.whose = next, whose
	return nil
}

// load learns what the record has, and makes the object where that is this agent's to do.
func (r *Record) load(ctx context.Context) error {
	object, err := r.patch(ctx, map[string]*string{})
	if apierrors.IsNotFound(err) && r.Owner != nil {
		object = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.Namespace, Name: r.Name, OwnerReferences: []metav1.OwnerReference{*r.Owner},
			Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager},
		}}
		err = r.Client.Create(ctx, object, client.FieldOwner(r.Manager))
	}
	if err != nil {
		return err
	}
	r.next, r.whose = 1, map[string]string{}
	for _, e := range history.Decode(object.Data) {
		r.next, r.whose[history.Key(e.Number)] = e.Number+1, e.Peering
	}
	return nil
}

// patch changes values of the object, and returns all that it has.
func (r *Record) patch(ctx context.Context, values map[string]*string) (*corev1.ConfigMap, error) {
	values[history.ClockKey] = new(time.Now().UTC().Format(time.RFC3339Nano))
	raw, err := json.Marshal(map[string]any{"data": values})
	if err != nil {
		return nil, err
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: r.Name}}
	return object, r.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, raw), client.FieldOwner(r.Manager))
}

// sendEvents sends Events, in the order of what they tell.
func (r *Record) sendEvents(ctx context.Context) error {
	r.mu.Lock()
	waiting := slices.Clone(r.events)
	r.mu.Unlock()
	for _, e := range waiting {
		if err := r.Client.Create(ctx, e, client.FieldOwner(r.Manager)); err != nil {
			return fmt.Errorf("send an Event about Peering %s: %w", e.InvolvedObject.Name, err)
		}
		r.mu.Lock()
		r.events = r.events[1:]
		r.mu.Unlock()
	}
	return nil
}
