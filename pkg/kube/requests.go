package kube

import (
	"context"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// around is a client that passes each request through a function, which sends it.
type around struct {
	client.WithWatch
	pass func(w written, send func() error) error
	// changed is set for [Unchanged] if requests may have changed anything. Nil if that is not recorded.
	changed *atomic.Bool
}

// written is what a request may change: nothing if obj is nil, or for a dry run.
type written struct {
	obj    any
	dryRun []string
}

// Get implements [client.Reader].
func (a around) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return a.pass(written{}, func() error { return a.WithWatch.Get(ctx, key, obj, opts...) })
}

// List implements [client.Reader].
func (a around) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return a.pass(written{}, func() error { return a.WithWatch.List(ctx, list, opts...) })
}

// Watch implements [client.WithWatch].
func (a around) Watch(ctx context.Context, list client.ObjectList, opts ...client.ListOption) (w watch.Interface, err error) {
	err = a.pass(written{}, func() error {
		w, err = a.WithWatch.Watch(ctx, list, opts...)
		return err
	})
	return w, err
}

// Create implements [client.Writer].
func (a around) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	w := written{obj, (&client.CreateOptions{}).ApplyOptions(opts).DryRun}
	return a.pass(w, func() error { return a.WithWatch.Create(ctx, obj, opts...) })
}

// Update implements [client.Writer].
func (a around) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	w := written{obj, (&client.UpdateOptions{}).ApplyOptions(opts).DryRun}
	return a.pass(w, func() error { return a.WithWatch.Update(ctx, obj, opts...) })
}

// Patch implements [client.Writer].
func (a around) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	w := written{obj, (&client.PatchOptions{}).ApplyOptions(opts).DryRun}
	return a.pass(w, func() error { return a.WithWatch.Patch(ctx, obj, patch, opts...) })
}

// Apply implements [client.Writer].
func (a around) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	w := written{obj, (&client.ApplyOptions{}).ApplyOptions(opts).DryRun}
	return a.pass(w, func() error { return a.WithWatch.Apply(ctx, obj, opts...) })
}

// Delete implements [client.Writer].
func (a around) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	w := written{obj, (&client.DeleteOptions{}).ApplyOptions(opts).DryRun}
	return a.pass(w, func() error { return a.WithWatch.Delete(ctx, obj, opts...) })
}

// DeleteAllOf implements [client.Writer].
func (a around) DeleteAllOf(ctx context.Context, obj client.Object, opts ...client.DeleteAllOfOption) error {
	return a.pass(written{obj: obj}, func() error { return a.WithWatch.DeleteAllOf(ctx, obj, opts...) })
}

// Status implements [client.StatusClient].
func (a around) Status() client.SubResourceWriter { return a.SubResource("status") }

// SubResource implements [client.SubResourceClientConstructor]. Commands only write to the client that it returns.
func (a around) SubResource(name string) (out client.SubResourceClient) {
	_ = a.pass(written{obj: name}, func() error {
		out = a.WithWatch.SubResource(name)
		return nil
	})
	return out
}
