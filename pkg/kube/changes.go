package kube

import (
	"slices"
	"sync/atomic"

	"github.com/samber/lo"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Recording returns a copy of the cluster that records for [Unchanged] whether requests may have changed anything.
func (c *Cluster) Recording() *Cluster {
	if recorded(c) != nil || c.Client == nil {
		return c
	}
	own, changed := *c, &atomic.Bool{}
	own.Client = around{WithWatch: c.Client, changed: changed, pass: func(w written, send func() error) error {
		_, isLock := w.obj.(*coordinationv1.Lease)
		_, isReview := w.obj.(*authorizationv1.SelfSubjectAccessReview)
		if w.obj != nil && !isLock && !isReview && !slices.Contains(w.dryRun, metav1.DryRunAll) {
			changed.Store(true)
		}
		return send()
	}}
	return &own
}

// recorded returns what Recording records about a cluster, nil if it does not.
func recorded(c *Cluster) *atomic.Bool {
	for a, is := c.Client.(around); is; a, is = a.WithWatch.(around) {
		if a.changed != nil {
			return a.changed
		}
	}
	return nil
}

// Unchanged begins a hint: it says that nothing was changed, unless requests may have changed something in one of the clusters. It is
// about those that record it.
func Unchanged(clusters ...*Cluster) string {
	hasChanged := func(c *Cluster) bool { changed := recorded(c); return changed != nil && changed.Load() }
	return lo.Ternary(slices.ContainsFunc(clusters, hasChanged), "", "nothing was changed; ")
}
