package node

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync/atomic"

	"github.com/samber/lo"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// gatewaySilence is how long a gateway may not renew its Lease before it counts as dead. Each node waits a random
// time of up to that long before its first check. The first node that finds dead gateways reports them for all.
const gatewaySilence = 3 * v1alpha1.ReportInterval

// silentGateways sets a Peering's conditions to Unknown if all of its gateways are dead. Dead gateways cannot do so
// themselves, and clients that wait would trust their last report.
type silentGateways struct {
	client client.Client
	log    *slog.Logger
	// suspects are the peerings that this node does not reach although their condition is Connected.
	suspects atomic.Pointer[[]v1alpha1.Peering]
}

// update sets the suspects. reached contains the peerings that this node reaches. It does not wait for an API
// server.
func (s *silentGateways) update(peerings []v1alpha1.Peering, reached map[string]bool) {
	s.suspects.Store(new(lo.Filter(peerings, func(p v1alpha1.Peering, _ int) bool {
		isReached, known := reached[p.Name]
		return known && !isReached && meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionConnected)
	})))
}

// run checks the suspects until ctx ends.
func (s *silentGateways) run(ctx context.Context) {
	var before map[string]map[string]string
	for pause := rand.N(gatewaySilence); loop.Sleep(ctx, pause); pause = gatewaySilence {
		before = s.check(ctx, before)
	}
}

// check returns the resource versions of the Leases of all suspects' gateways, by peering. If none of a peering has
// changed since the last check, it marks the peering. Later checks retry failures.
func (s *silentGateways) check(ctx context.Context, before map[string]map[string]string) map[string]map[string]string {
	ctx, cancel := context.WithTimeout(ctx, gatewaySilence)
	defer cancel()
	now := map[string]map[string]string{}
	for _, p := range ptr.Deref(s.suspects.Load(), nil) {
		leases, err := s.readLeases(ctx, p)
		if err == nil {
			now[p.Name] = leases
			if before[p.Name] != nil && maps.Equal(before[p.Name], leases) { // otherwise a gateway is alive, and writes them itself
				err = s.markUnknown(ctx, p.DeepCopy())
			}
		}
		if err != nil {
			s.log.Debug("cannot find out whether gateways are dead", "peering", p.Name, "error", err)
		}
	}
	return now
}

// readLeases returns the resource versions of the Leases of a Peering's gateways, empty for missing ones.
func (s *silentGateways) readLeases(ctx context.Context, p v1alpha1.Peering) (map[string]string, error) {
	out := map[string]string{}
	for _, plane := range p.Spec.Planes {
		name := v1alpha1.GatewayName(p.Name, plane.Index)
		var l coordinationv1.Lease
		if err := s.client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: name}, &l); client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		out[name] = l.ResourceVersion
	}
	return out, nil
}

// markUnknown writes the conditions unless the Peering has changed since it was read. The agents' admission policy
// allows only these texts.
func (s *silentGateways) markUnknown(ctx context.Context, p *v1alpha1.Peering) error {
	patch := client.MergeFromWithOptions(p.DeepCopy(), client.MergeFromWithOptimisticLock{})
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		c.Status, c.LastTransitionTime = metav1.ConditionUnknown, metav1.Now()
		c.Reason, c.Message = v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageGatewaysSilent
	}
	return s.client.Status().Patch(ctx, p, patch)
}
