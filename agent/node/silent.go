package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/watch"
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

	mu    sync.Mutex
	cases map[string]*silentCase
}

// silentCase is a peering that this node does not reach, while its condition says that it is connected.
type silentCase struct {
	due     time.Time
	looking bool
	// leases are the versions of the gateways' Leases, nil before the first look.
	leases map[string]string
}

// see is told of all peerings, and which of them this node reaches. It does not wait for an API server.
func (s *silentGateways) see(ctx context.Context, peerings []v1alpha1.Peering, reached map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, open := time.Now(), map[string]*silentCase{}
	for i := range peerings {
		p := &peerings[i]
		isReached, known := reached[p.Name]
		if !known || isReached || !meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionConnected) {
			continue
		}
		c := s.cases[p.Name]
		if c == nil {
			c = &silentCase{due: now.Add(rand.N(gatewaySilence))}
		}
		open[p.Name] = c
		if !c.looking && !now.Before(c.due) {
			c.looking = true
			go func() {
				if err := s.look(ctx, p.DeepCopy(), c); err != nil {
					s.log.Debug("cannot find out whether gateways are dead", "peering", p.Name, "error", err)
				}
			}()
		}
	}
	s.cases = open
}

// look compares the Leases with those of the look before, and tells if none has changed. The next look tries again what fails.
func (s *silentGateways) look(ctx context.Context, p *v1alpha1.Peering, c *silentCase) error {
	ctx, cancel := context.WithTimeout(ctx, gatewaySilence)
	defer cancel()
	leases, err := s.readLeases(ctx, p)
	s.mu.Lock()
	before := c.leases
	c.leases, c.looking, c.due = leases, false, time.Now().Add(gatewaySilence)
	s.mu.Unlock()
	if err != nil || before == nil || !maps.Equal(before, leases) { // otherwise a gateway lives, and says what it sees
		return err
	}
	return s.tell(ctx, p)
}

// readLeases returns the versions of the Leases of a Peering's gateways, empty for those that are not there.
func (s *silentGateways) readLeases(ctx context.Context, p *v1alpha1.Peering) (map[string]string, error) {
	out := map[string]string{}
	for _, plane := range p.Spec.Planes {
		name := v1alpha1.GatewayName(p.Name, plane.Index)
		var lease coordinationv1.Lease
		if err := s.client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: name}, &lease); client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		out[name] = lease.ResourceVersion
	}
	return out, nil
}

// tell writes the conditions if they are as they were seen. The agents' admission policy allows these words only.
func (s *silentGateways) tell(ctx context.Context, p *v1alpha1.Peering) error {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	var operations []operation
	for i, c := range p.Status.Conditions {
		at := fmt.Sprintf("/status/conditions/%d/", i)
		operations = append(operations,
			operation{"test", at + "type", c.Type},
			operation{"test", at + "status", c.Status},
			operation{"replace", at + "status", metav1.ConditionUnknown},
			operation{"replace", at + "reason", v1alpha1.ReasonGatewaysSilent},
			operation{"replace", at + "message", v1alpha1.MessageGatewaysSilent},
			operation{"replace", at + "lastTransitionTime", metav1.Now()},
		)
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		return err
	}
	return s.client.Status().Patch(ctx, &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: p.Name}}, client.RawPatch(types.JSONPatchType, patch))
}

// lookForSilence looks at the peerings if there is one that this node does not reach.
func (a *agent) lookForSilence(ctx context.Context) {
	var peerings v1alpha1.PeeringList
	if slices.Contains(slices.Collect(maps.Values(a.reached)), false) {
		if err := a.view.List(ctx, &peerings, watch.Shared); err != nil {
			return // Reconcile reads the same, and says so
		}
	}
	a.silent.see(ctx, peerings.Items, a.reached)
}
