package loop

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
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

// run reports until ctx ends or an error is a Stop. It logs an error once until it changes.
func (r Reporter[T]) run(ctx context.Context, log *slog.Logger, statuses <-chan T) error {
	// written is nil while the object's content is not known.
	var written *T
	var wroteAt, renewAt time.Time
	// Agents that start at the same time should not write at the same time.
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
				renewAt = time.Now().Add(pause) // a missing Lease must not delay the status
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

// Moved reports whether a measured time has changed by a factor of two.
func Moved(now, before int64) bool { return now > 2*before || before > 2*now }

// Condition returns a condition of a status.
func Condition(kind string, is metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: is, Reason: reason, Message: message}
}

// Short truncates a message to the length that a status has room for.
func Short(message string) string {
	const end = "…"
	if len(message) > v1alpha1.MaxMessage {
		return strings.ToValidUTF8(message[:v1alpha1.MaxMessage-len(end)], "") + end
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
	raw, err := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind, "metadata": meta, "status": status})
	if err != nil {
		return err
	}
	return c.Status().Patch(ctx, obj, client.RawPatch(types.ApplyPatchType, raw), client.FieldOwner(manager), client.ForceOwnership)
}
