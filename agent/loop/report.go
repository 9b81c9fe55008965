package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	coordination "k8s.io/client-go/applyconfigurations/coordination/v1"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/version"
)

// writeTimeout is how long an API server may take to answer a write. writeRetry and
// writeRetryMost are the first and the longest pause after a failure.
const writeTimeout, writeRetry, writeRetryMost = 10 * time.Second, time.Second, 5 * time.Second

// Change is how much a status differs from the one that was written.
type Change int

// Same is not written, Measured at most once per interval, and Changed at once.
const (
	Same Change = iota
	Measured
	Changed
)

// Reporter writes an agent's status when it changes, and renews the agent's Lease. It
// runs in parallel with the loop, one request at a time: an API server that is silent must not
// keep an agent from looking after its kernel.
//
// The Lease is renewed only while the last write of the status has succeeded. So a fresh
// Lease says that the status is what the agent sees. Its holder is the agent that wrote it.
type Reporter[T any] struct {
	// Interval is that of measured values, and of the Lease.
	Interval time.Duration
	Compare  func(now, written T) Change
	// Write writes the status, Renew the Lease.
	Write func(context.Context, T) error
	Renew func(context.Context) error
	// Renewed is when the Lease was made, zero if it was there.
	Renewed time.Time
}

// run reports until ctx ends, or an error is a Stop. Errors are logged where they are
// news.
func (r Reporter[T]) run(ctx context.Context, log *slog.Logger, statuses <-chan T) error {
	// written is nil while it is not known what the object holds.
	var written *T
	var wroteAt, renewAt time.Time
	// Agents that were started at once need not write at once.
	next := func(last time.Time) time.Time { return last.Add(wait.Jitter(r.Interval*9/10, 0.2)) }
	if !r.Renewed.IsZero() {
		renewAt = next(r.Renewed)
	}
	retry, failed := retries(writeRetry, writeRetryMost), ""
	for {
		var status T
		select {
		case <-ctx.Done():
			return nil
		case status = <-statuses:
		}
		write := written == nil || r.due(status, *written, wroteAt)
		renew := !time.Now().Before(renewAt)
		var err error
		if write {
			written = nil
			if err = request(ctx, func(ctx context.Context) error { return r.Write(ctx, status) }); err == nil {
				written, wroteAt = &status, time.Now()
			}
		}
		if renew && err == nil {
			if err = request(ctx, r.Renew); err == nil {
				renewAt = next(time.Now())
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, new(Stop)):
			return err
		case err == nil && (write || renew):
			retry, failed = retries(writeRetry, writeRetryMost), ""
		case err != nil:
			if err.Error() != failed {
				failed = err.Error()
				log.Error("cannot report", "error", err)
			}
			if pause := retry.Step(); written == nil {
				Sleep(ctx, pause)
			} else {
				renewAt = time.Now().Add(pause) // a Lease that is not there must not delay the status
			}
		}
	}
}

func (r Reporter[T]) due(status, written T, wroteAt time.Time) bool {
	change := r.Compare(status, written)
	return change == Changed || change == Measured && time.Since(wroteAt) >= r.Interval
}

func request(ctx context.Context, send func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return send(ctx)
}

// Moved says that a measured time has changed by a factor of two.
func Moved(now, before int64) bool { return now > 2*before || before > 2*now }

// Lease is an agent's heartbeat.
type Lease struct {
	Client client.Client
	// Name is the object's, Holder that of the agent's pod, Manager the field manager.
	Name, Holder, Manager string
	// UID is the object's that is renewed, and no other of that name. It is empty where the CLI makes the object.
	UID types.UID
	// Pod is that of the agent where Holder is its node.
	Pod string
	// Measured is told with each renewal, unless it is nil.
	Measured atomic.Pointer[v1alpha1.Measured]
	// Punctuality says whether the agent gets a processor.
	Punctuality Punctuality
	// Owner is whom the object goes with, nil where the CLI makes and removes it.
	Owner *applymeta.OwnerReferenceApplyConfiguration
}

// Renew writes the Lease. It is a conflict if the one with the UID is gone, and not valid if there is another one.
func (l *Lease) Renew(ctx context.Context) error {
	if _, err := l.apply(ctx, client.ForceOwnership); err != nil {
		return fmt.Errorf("renew Lease %s/%s: %w", v1alpha1.Namespace, l.Name, err)
	}
	return nil
}

// Claim makes the Lease, or takes the one that the same holder has, and returns its UID. It is a conflict if there is another holder.
func (l *Lease) Claim(ctx context.Context) (types.UID, error) { return l.apply(ctx) }

// apply writes the Lease. The time is that of the agent's own clock.
func (l *Lease) apply(ctx context.Context, opts ...client.ApplyOption) (types.UID, error) {
	notes := map[string]string{v1alpha1.AnnotationVersion: version.String()}
	if m := l.Measured.Load(); m != nil {
		notes[v1alpha1.AnnotationMeasured] = m.String()
	}
	if percent := l.Punctuality.Starved(); percent >= starvedLeast {
		notes[v1alpha1.AnnotationStarved] = strconv.Itoa(percent)
	}
	if l.Pod != "" {
		notes[v1alpha1.AnnotationPod] = l.Pod
	}
	lease := coordination.Lease(l.Name, v1alpha1.Namespace).WithAnnotations(notes).
		WithSpec(coordination.LeaseSpec().WithHolderIdentity(l.Holder).WithRenewTime(metav1.NewMicroTime(time.Now())))
	if l.Owner != nil {
		lease.WithOwnerReferences(l.Owner).WithLabels(map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager})
	}
	if l.UID != "" {
		lease.WithUID(l.UID)
	}
	if err := l.Client.Apply(ctx, lease, append(opts, client.FieldOwner(l.Manager))...); err != nil {
		return "", err
	}
	return ptr.Deref(lease.UID, ""), nil
}

// Condition is one of a status.
func Condition(kind string, is metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: is, Reason: reason, Message: message}
}

// Short cuts a message to what a status has room for.
func Short(message string) string {
	const end = "…"
	if len(message) > v1alpha1.MaxMessage {
		return strings.ToValidUTF8(message[:v1alpha1.MaxMessage-len(end)], "") + end
	}
	return message
}

// ApplyStatus applies the status of an object of ours of that kind and name. With a resourceVersion it is a conflict if the object has
// changed since, or is another one. Without one, another object of that name gets the status: an API server does not compare the UID.
func ApplyStatus(ctx context.Context, c client.Client, kind string, obj client.Object, status any, manager string) error {
	meta := map[string]any{"name": obj.GetName()}
	if version := obj.GetResourceVersion(); version != "" {
		meta["resourceVersion"] = version
	}
	raw, err := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind, "metadata": meta, "status": status})
	if err != nil {
		return err
	}
	return c.Status().Patch(ctx, obj, client.RawPatch(types.ApplyPatchType, raw), client.FieldOwner(manager), client.ForceOwnership)
}

const (
	// beatEvery is how often a Punctuality looks, beats how many of its looks count.
	beatEvery, beats = time.Second, 60
	// starvedLeast is from how many percent on a Lease tells it.
	starvedLeast = 20
)

// Punctuality tells how late an agent is: how long it waits for a processor when its time has come. That may be for a limit
// of its own, or because the machine is busy. It needs no help of the kernel's. The zero value is punctual.
type Punctuality struct {
	mu   sync.Mutex
	late [beats]time.Duration
	next int
}

// Watch looks until ctx ends.
func (p *Punctuality) Watch(ctx context.Context) {
	for {
		due := time.Now().Add(beatEvery)
		select {
		case <-ctx.Done():
			return
		case <-time.After(beatEvery):
			p.note(time.Since(due))
		}
	}
}

func (p *Punctuality) note(late time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late[p.next] = late
	p.next = (p.next + 1) % beats
}

// Starved is how late the agent was at the last looks, in percent of the time between two. One that was held up once, for
// however long, was late once.
func (p *Punctuality) Starved() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var late time.Duration
	for _, l := range p.late {
		late += min(max(l, 0), beatEvery)
	}
	return int(100 * late / (beats * beatEvery))
}
