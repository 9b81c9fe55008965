// Package history keeps an agent's record of state changes: what has changed in a peering or a plane, from which
// state to which, and why. The record is one ConfigMap with the last entries (pkg/history), which nothing watches. A
// gateway also sends an Event about its Peering for each entry. A node agent does not, since thousands of nodes
// change their plane at once.
//
// Without changes there are no writes, and the agent never waits for one. Changes at the same time share a write. If
// the API server cannot be reached, they are written later: the last Size entries, if there are more.
//
// The agent has no permission to read its record. The response to a patch contains it, so a restarted agent continues
// where its predecessor ended.
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
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/notify"
)

const (
	// batchDelay is how long to wait for further changes after the first one, up to twice as long: all nodes notice the
	// failure of a gateway at the same time.
	batchDelay = time.Second
	// writeTimeout is how long the API server may take to answer, and lastTimeout the same when the agent ends.
	writeTimeout, lastTimeout = 10 * time.Second, time.Second
	// maxEvents is how many Events wait while they cannot be sent.
	maxEvents = 32
	// eventBurst Events may follow each other immediately, then there is one per eventGap. Others can change a plane's
	// state as often as they like.
	eventBurst, eventGap = 25, 10 * time.Second
	// peersBurst changes of the peer's endpoint or MTU may follow each other immediately, then one is recorded and logged
	// per peersGap. The peer can cause one with every packet. They must not replace the entries about planes.
	peersBurst, peersGap = 16, 10 * time.Minute
)

// Change is a change to record.
type Change struct {
	history.Entry
	// IsDegradation is set if the new state is worse.
	IsDegradation bool
	// Event is the reason of the Event, in CamelCase, and PeeringUID the Peering's UID. If Event is empty, no Event is
	// sent.
	Event      string
	PeeringUID types.UID
}

// Record is the record of one agent. Its methods are safe for concurrent use.
type Record struct {
	Client client.Client
	Log    *slog.Logger
	// Name is the ConfigMap's name, and Manager the field manager. Owner is the object with which the ConfigMap is
	// deleted, nil where the CLI creates and removes it.
	Name, Manager string
	Owner         *metav1.OwnerReference
	// Interval is the minimum time between two writes. Jitter makes it up to half as long again.
	Interval time.Duration
	// Pod and Node identify the sender of Events.
	Pod, Node string

	changed      notify.Signal
	event, peers *rate.Limiter
	mu           sync.Mutex
	// pending and events are not written yet. retained are the peerings whose entries are kept, nil for all.
	pending  []history.Entry
	events   []*corev1.Event
	retained sets.Set[string]
	// next is the number of the next entry, 0 while the record's content is unknown. peeringByKey maps the keys of
	// entries to their peerings. Only run uses both.
	next         int64
	peeringByKey map[string]string
}

// New completes a record, which is written from Start on. The exported fields of r have to be set.
func New(r *Record) *Record {
	r.changed, r.event = notify.NewSignal(), rate.NewLimiter(rate.Every(eventGap), eventBurst)
	r.peers = rate.NewLimiter(rate.Every(peersGap), peersBurst)
	return r
}

// Add logs and records a change. It omits changes that the peer causes too often.
func (r *Record) Add(c Change) {
	if (c.Subject == "endpoint" || c.Subject == "MTU") && !r.peers.Allow() {
		return
	}
	c.Time = time.Now()
	level, attrs := lo.Ternary(c.IsDegradation, slog.LevelWarn, slog.LevelInfo), []any{"peering", c.Peering}
	if c.Plane != nil {
		attrs = append(attrs, "plane", *c.Plane)
	}
	r.Log.Log(context.Background(), level, c.Subject+" has changed", append(attrs, "from", c.From, "to", c.To, "reason", c.Reason)...)
	r.mu.Lock()
	r.pending = append(r.pending, c.Entry)
	r.pending = r.pending[max(0, len(r.pending)-history.Size):]
	if c.Event != "" && len(r.events) < maxEvents && r.event.Allow() {
		r.events = append(r.events, r.newEvent(c))
	}
	r.mu.Unlock()
	r.changed.Send()
}

func (r *Record) newEvent(c Change) *corev1.Event {
	kind, about := lo.Ternary(c.IsDegradation, corev1.EventTypeWarning, corev1.EventTypeNormal), c.Subject
	if c.Plane != nil && c.Subject != "plane" {
		about = fmt.Sprintf("%s of plane %d", c.Subject, *c.Plane)
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
		InvolvedObject: corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "Peering", Name: c.Peering, UID: c.PeeringUID,
		},
		Type: kind, Reason: c.Event, Message: loop.Truncate(fmt.Sprintf("%s: %s → %s: %s", about, cmp.Or(c.From, "-"), c.To, c.Reason)),
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		Source: corev1.EventSource{Component: component, Host: r.Node}, ReportingController: component, ReportingInstance: r.Pod,
	}
}

// RetainPeerings drops the entries of all other peerings.
func (r *Record) RetainPeerings(peerings []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := sets.New(peerings...)
	gone := r.retained.Difference(kept)
	r.retained = kept
	r.pending = slices.DeleteFunc(r.pending, func(e history.Entry) bool { return !kept.Has(e.Peering) })
	if gone.Len() > 0 {
		r.changed.Send()
	}
}

// Start runs the record until the caller calls end, which waits until the pending changes are written.
func (r *Record) Start(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { r.run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// run writes changes until ctx ends, and then those still pending.
func (r *Record) run(ctx context.Context) {
	retry := loop.DialPauses()
	for {
		select {
		case <-ctx.Done():
		case <-r.changed:
			failure.Pause(ctx, wait.Jitter(batchDelay, 1))
		}
		if ctx.Err() != nil {
			if err := r.write(context.WithoutCancel(ctx), lastTimeout); err != nil {
				r.Log.Debug("cannot write the history", "error", err)
			}
			return
		}
		err := r.write(ctx, writeTimeout)
		pause := wait.Jitter(r.Interval, 0.5)
		if err == nil {
			retry = loop.DialPauses()
		} else if ctx.Err() == nil {
			r.Log.Warn("cannot write the history", "error", err)
			pause = max(pause, retry.Step())
			r.changed.Send()
		}
		failure.Pause(ctx, pause)
	}
}

// write writes pending changes. Those that it cannot write stay pending.
func (r *Record) write(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return errors.Join(r.writeEntries(ctx), r.sendEvents(ctx))
}

// writeEntries writes pending entries, and removes those of dropped peerings.
func (r *Record) writeEntries(ctx context.Context) error {
	r.mu.Lock()
	batch, kept := r.pending, r.retained
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
		r.next, r.peeringByKey = 0, nil
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
	isGone := func(_, peering string) bool { return gone(peering) }
	values := lo.MapValues(lo.PickBy(r.peeringByKey, isGone), func(string, string) *string { return nil }) // nil removes a value
	whose, next := lo.OmitBy(r.peeringByKey, isGone), r.next
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
	r.next, r.peeringByKey = next, whose
	return nil
}

// load reads the content of the record, and creates the object where the agent does that itself.
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
	r.next, r.peeringByKey = 1, map[string]string{}
	for _, e := range history.Decode(object.Data) {
		r.next, r.peeringByKey[history.Key(e.Number)] = e.Number+1, e.Peering
	}
	return nil
}

// patch changes values of the object, and returns all of its content.
func (r *Record) patch(ctx context.Context, values map[string]*string) (*corev1.ConfigMap, error) {
	values[history.ClockKey] = new(time.Now().UTC().Format(time.RFC3339Nano))
	raw, _ := json.Marshal(map[string]any{"data": values}) // strings
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: r.Name}}
	return object, r.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, raw), client.FieldOwner(r.Manager))
}

// sendEvents sends Events in the order of the changes.
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
