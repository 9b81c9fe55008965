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

// gatewaySilence is how long a gateway may not renew its Lease until it is taken for dead. Nodes begin to look
// within as long, each at another time: the first one that finds out tells for all.
const gatewaySilence = 3 * v1alpha1.ReportInterval

// silentGateways sets a Peering's conditions to Unknown if all of its gateways are dead. They cannot do so themselves, and whoever
// waits for one would believe what they have said last.
type silentGateways struct {
	client client.Client
	log    *slog.Logger
	// suspects are the peerings that this node does not reach, while their condition says that they are connected.
	suspects atomic.Pointer[[]v1alpha1.Peering]
}

// see is told of all peerings, and which of them this node reaches. It does not wait for an API server.
func (s *silentGateways) see(peerings []v1alpha1.Peering, reached map[string]bool) {
	s.suspects.Store(new(lo.Filter(peerings, func(p v1alpha1.Peering, _ int) bool {
		isReached, known := reached[p.Name]
		return known && !isReached && meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionConnected)
	})))
}

// run looks at the suspects until ctx ends.
func (s *silentGateways) run(ctx context.Context) {
	var before map[string]map[string]string
	for pause := rand.N(gatewaySilence); loop.Sleep(ctx, pause); pause = gatewaySilence {
		before = s.look(ctx, before)
	}
}

// look returns the versions of the Leases of all suspects' gateways, by the peering. If none of a peering has changed since the look
// before, it tells. The looks after this one try again what fails.
func (s *silentGateways) look(ctx context.Context, before map[string]map[string]string) map[string]map[string]string {
	ctx, cancel := context.WithTimeout(ctx, gatewaySilence)
	defer cancel()
	now := map[string]map[string]string{}
	for _, p := range ptr.Deref(s.suspects.Load(), nil) {
		leases, err := s.readLeases(ctx, p)
		if err == nil {
			now[p.Name] = leases
			if before[p.Name] != nil && maps.Equal(before[p.Name], leases) { // otherwise a gateway lives, and says what it sees
				err = s.tell(ctx, p.DeepCopy())
			}
		}
		if err != nil {
			s.log.Debug("cannot find out whether gateways are dead", "peering", p.Name, "error", err)
		}
	}
	return now
}

// readLeases returns the versions of the Leases of a Peering's gateways, empty for those that are not there.
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

// tell writes the conditions if the Peering is as it was seen. The agents' admission policy allows these words only.
func (s *silentGateways) tell(ctx context.Context, p *v1alpha1.Peering) error {
	patch := client.MergeFromWithOptions(p.DeepCopy(), client.MergeFromWithOptimisticLock{})
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		c.Status, c.LastTransitionTime = metav1.ConditionUnknown, metav1.Now()
		c.Reason, c.Message = v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageGatewaysSilent
	}
	return s.client.Status().Patch(ctx, p, patch)
}
