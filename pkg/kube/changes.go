package kube

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/samber/lo"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// Recording returns a copy of the cluster that records for [Unchanged] whether requests may have changed anything.
func (c *Cluster) Recording() *Cluster {
	if recorderOf(c) != nil || c.Client == nil {
		return c
	}
	own, changed := *c, &atomic.Bool{}
	record := func(obj any, dryRun []string) {
		_, isLock := obj.(*coordinationv1.Lease)
		_, isReview := obj.(*authorizationv1.SelfSubjectAccessReview)
		if !isLock && !isReview && !slices.Contains(dryRun, metav1.DryRunAll) {
			changed.Store(true)
		}
	}
	own.Client = &recorder{changed: changed, WithWatch: interceptor.NewClient(c.Client, interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			record(obj, (&client.CreateOptions{}).ApplyOptions(opts).DryRun)
			return api.Create(ctx, obj, opts...)
		},
		Update: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			record(obj, (&client.UpdateOptions{}).ApplyOptions(opts).DryRun)
			return api.Update(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, api client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			record(obj, (&client.PatchOptions{}).ApplyOptions(opts).DryRun)
			return api.Patch(ctx, obj, patch, opts...)
		},
		Apply: func(ctx context.Context, api client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			record(obj, (&client.ApplyOptions{}).ApplyOptions(opts).DryRun)
			return api.Apply(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			record(obj, (&client.DeleteOptions{}).ApplyOptions(opts).DryRun)
			return api.Delete(ctx, obj, opts...)
		},
		DeleteAllOf: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.DeleteAllOfOption) error {
			record(obj, nil)
			return api.DeleteAllOf(ctx, obj, opts...)
		},
		SubResource: func(api client.WithWatch, name string) client.SubResourceClient {
			changed.Store(true) // commands only write to them
			return api.SubResource(name)
		},
	})}
	return &own
}

// recorder is a client that records requests which may have changed something.
type recorder struct {
	client.WithWatch
	changed *atomic.Bool
}

// recorderOf returns the recorder of a cluster, nil if it has none.
func recorderOf(c *Cluster) *recorder {
	api := c.Client
	for {
		switch inner := api.(type) {
		case *recorder:
			return inner
		case timedClient:
			api = inner.WithWatch
		default:
			return nil
		}
	}
}

// Unchanged begins a hint: it says that nothing was changed, unless requests may have changed something in one of the clusters. It is
// about those that record it.
func Unchanged(clusters ...*Cluster) string {
	hasChanged := func(c *Cluster) bool { r := recorderOf(c); return r != nil && r.changed.Load() }
	return lo.Ternary(slices.ContainsFunc(clusters, hasChanged), "", "nothing was changed; ")
}
