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

// writeTimeout is how long an API server may take to answer a write. writeRetry and writeRetryMost are the shortest
// and the longest pause after a failure.
const writeTimeout, writeRetry, writeRetryMost = 10 * time.Second, time.Second, 5 * time.Second

// Change is how much a status differs from the one last written.
type Change int

// A status is not written if it is Same, at most once per interval if it is Measured, and immediately if it has
// Changed.
const (
	Same Change = iota
	Measured
	Changed
)

// Reporter writes an agent's status when it changes, and renews the agent's Lease. It runs in parallel with the loop,
// one request at a time: an API server that does not answer must not stop an agent from maintaining its kernel.
//
// It renews the Lease only if the last write of the status succeeded. So a fresh Lease means that the status is
// current. The Lease's holder is the agent that wrote it.
type Reporter[T any] struct {
	// Interval is how often measured values are written and the Lease is renewed.
	Interval time.Duration
	Compare  func(now, written T) Change
	// Write writes the status, and Renew renews the Lease.
	Write func(context.Context, T) error
	Renew func(context.Context) error
	// Renewed is when the Lease was created, zero if it already existed.
	Renewed time.Time
}

// run reports until ctx ends or an error is a Stop. It logs every error: the agents' loggers omit repetitions.
func (r Reporter[T]) run(ctx context.Context, log *slog.Logger, statuses <-chan T) error {
	// written is nil while the object's content is not known.
	var written *T
	var wroteAt, renewAt time.Time
	// Agents that start at the same time should not write at the same time.
	next := func(last time.Time) time.Time { return last.Add(wait.Jitter(r.Interval*9/10, 0.2)) }
	if !r.Renewed.IsZero() {
		renewAt = next(r.Renewed)
	}
	retry := retries(writeRetry, writeRetryMost)
	for {
		var status T
		select {
		case <-ctx.Done():
			return nil
		case status = <-statuses:
		}
		write := written == nil || r.needsWrite(status, *written, wroteAt)
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
			retry = retries(writeRetry, writeRetryMost)
		case err != nil:
			log.Error("cannot report", "error", err)
			if pause := retry.Step(); written == nil {
				Sleep(ctx, pause)
			} else {
				renewAt = time.Now().Add(pause) // a missing Lease must not delay the status
			}
		}
	}
}

func (r Reporter[T]) needsWrite(status, written T, wroteAt time.Time) bool {
	change := r.Compare(status, written)
	return change == Changed || change == Measured && time.Since(wroteAt) >= r.Interval
}

func request(ctx context.Context, send func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return send(ctx)
}

// ChangedByHalf reports whether a measured time has changed by a factor of two.
func ChangedByHalf(now, before int64) bool { return now > 2*before || before > 2*now }

// Condition returns a condition of a status.
func Condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

// Truncate truncates a message to the length that a status has room for.
func Truncate(message string) string {
	const end = "…"
	if len(message) > v1alpha1.MaxMessageLength {
		return strings.ToValidUTF8(message[:v1alpha1.MaxMessageLength-len(end)], "") + end
	}
	return message
}

// ApplyStatus applies the status of one of our objects, by kind and name. With a resourceVersion, it returns a
// conflict if the object has changed or been replaced since. Without one, a replacement of that name gets the status:
// an API server does not compare the UID.
func ApplyStatus(ctx context.Context, c client.Client, kind string, obj client.Object, status any, manager string) error {
	meta := map[string]any{"name": obj.GetName()}
	if version := obj.GetResourceVersion(); version != "" {
		meta["resourceVersion"] = version
	}
	raw, _ := json.Marshal(map[string]any{ // all that a status contains can be encoded
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind, "metadata": meta, "status": status,
	})
	return c.Status().Patch(ctx, obj, client.RawPatch(types.ApplyPatchType, raw), client.FieldOwner(manager), client.ForceOwnership)
}

// Lease is an agent's heartbeat.
type Lease struct {
	Client client.Client
	// Name is the object's name, Holder the agent's pod, and Manager the field manager.
	Name, Holder, Manager string
	// UID is the UID of the object to renew, so that no other object of that name is renewed. It is empty where the CLI
	// creates the object.
	UID types.UID
	// Pod is the agent's pod where Holder is its node.
	Pod string
	// Measurements is written with each renewal, unless it is nil.
	Measurements atomic.Pointer[v1alpha1.Measurements]
	// DelayMonitor measures whether the agent gets a processor in time.
	DelayMonitor DelayMonitor
	// Owner is the object with which the Lease is deleted, nil where the CLI creates and removes it.
	Owner *applymeta.OwnerReferenceApplyConfiguration
}

// Renew renews the Lease. It returns a conflict if the Lease with the UID is gone, and an invalid error if another
// one has replaced it.
func (l *Lease) Renew(ctx context.Context) error {
	if _, err := l.apply(ctx, client.ForceOwnership); err != nil {
		return fmt.Errorf("renew Lease %s/%s: %w", v1alpha1.Namespace, l.Name, err)
	}
	return nil
}

// Claim creates the Lease, or takes over the one of the same holder, and returns its UID. It returns a conflict if
// another one holds it.
func (l *Lease) Claim(ctx context.Context) (types.UID, error) { return l.apply(ctx) }

// apply writes the Lease. The renewal time is by the agent's own clock.
func (l *Lease) apply(ctx context.Context, opts ...client.ApplyOption) (types.UID, error) {
	notes := map[string]string{v1alpha1.AnnotationVersion: version.String()}
	if m := l.Measurements.Load(); m != nil {
		notes[v1alpha1.AnnotationMeasurements] = m.String()
	}
	if percent := l.DelayMonitor.Starved(); percent >= minStarved {
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

const (
	// beatEvery is the interval of a DelayMonitor's checks, and beats how many of them count.
	beatEvery, beats = time.Second, 60
	// minStarved is the percentage from which a Lease reports it.
	minStarved = 20
)

// DelayMonitor measures how late an agent runs: how long it waits for a processor when it is due. The cause may be its
// own limit or a busy machine. It needs no help from the kernel. The zero value is punctual.
type DelayMonitor struct {
	mu     sync.Mutex
	delays []time.Duration
}

// Watch checks until ctx ends.
func (p *DelayMonitor) Watch(ctx context.Context) {
	for slept := time.Now(); Sleep(ctx, beatEvery); slept = time.Now() {
		p.record(time.Since(slept) - beatEvery)
	}
}

func (p *DelayMonitor) record(late time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delays = append(p.delays[max(0, len(p.delays)+1-beats):], late)
}

// Starved returns how late the agent was at the last checks, in percent of the time between two. One long delay
// counts as one, however long it was.
func (p *DelayMonitor) Starved() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var late time.Duration
	for _, l := range p.delays {
		late += min(max(l, 0), beatEvery)
	}
	return int(100 * late / (beats * beatEvery))
}
