package peering

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// patience is how long a request is repeated while an API server does not serve.
const patience = 30 * time.Second

// conflictBackoff spreads writers of one object: twenty commands may change a
// ledger at the same time.
var conflictBackoff = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 1.15, Jitter: 0.5, Steps: 40}

// retryOnConflict repeats what was refused because somebody else has changed the
// object meanwhile.
func retryOnConflict(do func() error) error { return retry.RetryOnConflict(conflictBackoff, do) }

// isTransient recognizes an API server, or the way to it, that does not serve for a
// while: one that restarts, is overloaded, or has lost its own storage.
func isTransient(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		// A namespace that is being deleted, say, is refused with a reason of its own.
		return apierrors.IsTooManyRequests(err) || status.Status().Code >= 500 && !apierrors.IsMethodNotSupported(err) && status.Status().Code != 501
	}
	var netErr net.Error
	var urlErr *url.Error
	return utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) || utilnet.IsHTTP2ConnectionLost(err) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE) || errors.As(err, &netErr) || errors.As(err, &urlErr)
}

// patiently repeats a request that fails for a reason that passes by itself. It may
// have been carried out without an answer, so do has to stand repetition.
func patiently(ctx context.Context, do func() error) error {
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 30, Cap: 2 * time.Second}
	start := time.Now()
	for blip := false; ; {
		err := do()
		// A server that has just started does not know permissions and tokens yet.
		starting := blip && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err))
		if !isTransient(err) && !starting || ctx.Err() != nil || time.Since(start) > patience {
			return err
		}
		blip = true
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
			return err
		}
	}
}

// patient returns the same cluster with a client whose requests outlast a blip of
// the API server. A command is given it as soon as the cluster has answered once.
func (c *Cluster) patient() *Cluster {
	out := *c
	out.Client = interceptor.NewClient(c.Client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			return patiently(ctx, func() error { return c.Get(ctx, key, obj, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return patiently(ctx, func() error { return c.List(ctx, list, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			return patiently(ctx, func() error { return c.Create(ctx, obj, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			return patiently(ctx, func() error { return c.Update(ctx, obj, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return patiently(ctx, func() error { return c.Patch(ctx, obj, patch, opts...) })
		},
		Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			return patiently(ctx, func() error { return c.Apply(ctx, obj, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			return patiently(ctx, func() error { return c.Delete(ctx, obj, opts...) })
		},
		DeleteAllOf: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteAllOfOption) error {
			return patiently(ctx, func() error { return c.DeleteAllOf(ctx, obj, opts...) })
		},
		SubResourceApply: func(ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			return patiently(ctx, func() error { return c.SubResource(sub).Apply(ctx, obj, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			return patiently(ctx, func() error { return c.SubResource(sub).Update(ctx, obj, opts...) })
		},
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) (apiwatch.Interface, error) {
			return c.Watch(ctx, list, opts...) // an informer has a back-off of its own
		},
	})
	return &out
}

// pollBackoff is for the few things that cannot be watched.
var pollBackoff = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 50, Cap: time.Second}

// poll calls condition until it is true, fails, or ctx ends. A timeout is
// reported with the last reason that condition gave for not being true.
func (c *Cluster) poll(ctx context.Context, doing, hint string, condition func(context.Context) (reason string, err error)) error {
	backoff := pollBackoff
	for {
		reason, err := condition(ctx)
		switch {
		case ctx.Err() != nil:
			return c.timedOut(ctx, doing, hint, reason)
		case isTransient(err):
			reason = err.Error()
		case err != nil:
			return c.fail(doing, err)
		case reason == "":
			return nil
		}
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
			return c.timedOut(ctx, doing, hint, reason)
		}
	}
}

// timedOut is the error of a wait that ends before what it waits for.
func (c *Cluster) timedOut(ctx context.Context, doing, hint, reason string) error {
	e := &Error{Kind: NotReady, Cluster: c.Name, Doing: doing, Hint: hint, Err: context.Cause(ctx)}
	if reason != "" {
		e.Err = fmt.Errorf("%s (%w)", reason, context.Cause(ctx))
	}
	if warning := c.lastWarning(); warning != "" {
		e.Err = fmt.Errorf("%w; the cluster says: %s", e.Err, warning)
	}
	return e
}
