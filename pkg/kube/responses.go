package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/lock"
)

const (
	// ResponseTimeout is how long a cluster may be unresponsive before commands on two clusters abort.
	ResponseTimeout = 20 * time.Second
	// probeTimeout is how long a response to a probe may take: a cluster that is slow all the time holds up others, too. At least minFailedProbes
	// have to fail, as this process may have been suspended.
	probeTimeout    = time.Second
	minFailedProbes = 3
)

type responsiveKey struct{}

// WatchResponses returns a context that ends, with an Error, once the cluster is unresponsive, and a copy of the
// cluster with it.
func (c *Cluster) WatchResponses(ctx context.Context) (watched *Cluster, watching context.Context, stop context.CancelFunc) {
	responding, end := context.WithCancelCause(context.WithoutCancel(ctx))
	before, _ := ctx.Value(responsiveKey{}).(context.Context)
	responsive, _ := withEndOf(cmp.Or(before, context.Background()), responding)
	watching, _ = withEndOf(context.WithValue(ctx, responsiveKey{}, responsive), responding)
	go func() {
		awaitUnresponsive(responding, c.Client)
		end(c.unresponsive())
	}()
	own := *c
	own.Responsive = responding
	own.Client = timedClient{c.Client, func() { end(c.unresponsive()) }}
	return &own, watching, func() { end(context.Canceled) }
}

// unresponsive is the error of a command that no longer waits for a response.
func (c *Cluster) unresponsive() error {
	hint := "run the command again when it answers (try: " + c.Kubectl + " cluster-info)"
	return c.Errorf(Busy, "wait for its API server", hint, "it has answered nothing, or very slowly, for %s", ResponseTimeout)
}

// awaitUnresponsive returns once an API server has been unresponsive for [ResponseTimeout], or ctx ends. Any response counts.
func awaitUnresponsive(ctx context.Context, api client.Client) {
	answered, unanswered := time.Now(), 0
	for unanswered < minFailedProbes || time.Since(answered) < ResponseTimeout {
		select {
		case <-time.After(lock.Renewal):
		case <-ctx.Done():
			return
		}
		asked := time.Now()
		asking, cancel := context.WithTimeout(ctx, probeTimeout)
		err := api.Get(asking, types.NamespacedName{Name: metav1.NamespaceSystem}, &corev1.Namespace{})
		cancel()
		if unanswered++; err == nil || errors.As(err, new(apierrors.APIStatus)) {
			answered, unanswered = asked, 0
		}
	}
}

// withEndOf returns a context that also ends when other does, with the same cause.
func withEndOf(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

// IsAbandoned reports whether to leave the rest to the next command: a lock was taken over, or a cluster is
// unresponsive.
func IsAbandoned(ctx context.Context) bool {
	return errors.As(context.Cause(ctx), new(*Error)) || lock.Lost(ctx) != nil
}

// Isolated returns a context for changes in one cluster, even if another one is unresponsive. It outlives the command's
// own timeout, needs only that cluster's locks, and ends when that cluster is unresponsive.
func (c *Cluster) Isolated(ctx context.Context, atMost time.Duration) (context.Context, context.CancelFunc) {
	return detached(lock.In(ctx, c.ID), atMost, c.Responsive)
}

// detached returns a context that outlives ctx, and ends with until unless that is nil.
func detached(ctx context.Context, atMost time.Duration, until context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := withEndOf(context.WithoutCancel(ctx), cmp.Or(until, context.Background()))
	ctx, cancel := context.WithTimeoutCause(ctx, atMost, fmt.Errorf("not done after %s", atMost))
	return ctx, func() { cancel(); stop() }
}

// timedClient calls expire when a single request gets no response within [ResponseTimeout], even while others get one.
type timedClient struct {
	client.WithWatch
	expire func()
}

// do counts time in steps, as this process may have been suspended.
func (t timedClient) do(request func() error) error {
	answered := make(chan struct{})
	defer close(answered)
	go func() {
		for range ResponseTimeout / lock.Renewal {
			select {
			case <-time.After(lock.Renewal):
			case <-answered:
				return
			}
		}
		t.expire()
	}()
	return request()
}

// Get implements [client.Reader].
func (t timedClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return t.do(func() error { return t.WithWatch.Get(ctx, key, obj, opts...) })
}

// List implements [client.Reader].
func (t timedClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return t.do(func() error { return t.WithWatch.List(ctx, list, opts...) })
}

// Watch implements [client.WithWatch].
func (t timedClient) Watch(ctx context.Context, list client.ObjectList, opts ...client.ListOption) (w watch.Interface, err error) {
	err = t.do(func() error {
		w, err = t.WithWatch.Watch(ctx, list, opts...)
		return err
	})
	return w, err
}

// Create implements [client.Writer].
func (t timedClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	return t.do(func() error { return t.WithWatch.Create(ctx, obj, opts...) })
}

// Update implements [client.Writer].
func (t timedClient) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	return t.do(func() error { return t.WithWatch.Update(ctx, obj, opts...) })
}

// Patch implements [client.Writer].
func (t timedClient) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return t.do(func() error { return t.WithWatch.Patch(ctx, obj, patch, opts...) })
}

// Apply implements [client.Writer].
func (t timedClient) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	return t.do(func() error { return t.WithWatch.Apply(ctx, obj, opts...) })
}

// Delete implements [client.Writer].
func (t timedClient) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	return t.do(func() error { return t.WithWatch.Delete(ctx, obj, opts...) })
}
