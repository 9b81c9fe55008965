package kube

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/lock"
)

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
