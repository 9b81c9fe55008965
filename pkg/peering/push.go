package peering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// push makes the plan with what the agents have reported, and carries it out.
func (p *run) push(ctx context.Context) error {
	if err := p.both(ctx, p.allocate); err != nil {
		return err
	}
	// Not before the other side has chosen ranges: it looks at this one's endpoints.
	if err := p.both(ctx, p.makeKeys); err != nil {
		return err
	}
	if p.turn.pass != nil {
		p.turn.pass()
	}
	if err := p.makePlan(); err != nil {
		return err
	}
	// The client needs to be told where the server is; all else goes side by side.
	exposed := make(chan [][]string, 1)
	return p.both(ctx, func(ctx context.Context, s, peer *side) (changed []string, err error) {
		c := p.planOf(s)
		for _, g := range c.Gateways {
			more, err := s.applyGateway(ctx, g)
			changed = append(changed, more...)
			if err != nil {
				return changed, err
			}
		}
		var endpoints [][]string
		if c.Role == v1alpha1.Server {
			if endpoints, err = s.endpointsOf(ctx, c.Gateways); err != nil {
				return changed, err
			}
			exposed <- endpoints
		} else {
			select {
			case endpoints = <-exposed:
			case <-ctx.Done():
				return changed, s.fail("wait for the address of the other's gateway", context.Cause(ctx))
			}
		}
		more, err := s.applyPeering(ctx, c, peer, endpoints)
		return append(changed, more...), err
	})
}

// allocate writes into the ledger by which ranges the cluster knows the peer.
func (p *run) allocate(ctx context.Context, s, peer *side) (changed []string, err error) {
	isNew := false
	s.facts.Ledger, err = s.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) (err error) {
		isNew, err = plan.Allocate(cn, &s.facts, &peer.facts)
		if err == nil && !isNew {
			return errUnchanged
		}
		return err
	})
	if err != nil {
		return nil, s.fail("allocate ranges", err)
	}
	if isNew {
		s.rangesChanged = true
		changed = append(changed, s.Name+": ranges of the ledger")
	}
	return changed, nil
}

// makeKeys gives each gateway a key that has none.
func (p *run) makeKeys(ctx context.Context, s, peer *side) (changed []string, err error) {
	name := plan.Allocation(s.facts.Ledger, peer.ID).Name
	if err := s.readPeering(ctx, name, &s.facts); err != nil {
		return changed, err
	}
	for _, g := range p.planOf(s).Gateways {
		g.Peering = name // the ledger may have given another one than was planned
		public, isNew, err := s.ensureKey(ctx, g.Gateway)
		if isNew {
			changed = append(changed, s.Name+": WireGuard key")
		}
		if err != nil {
			return changed, err
		}
		facts := s.facts.Planes[g.Plane]
		facts.PublicKey = public
		s.facts.Planes[g.Plane] = facts
	}
	return changed, nil
}

// applyGateway applies the objects of a gateway, and deletes a Service that it does
// not need any more.
func (s *side) applyGateway(ctx context.Context, g plan.GatewayPlan) (changed []string, err error) {
	first, deployment := g.Objects()
	if g.Service != nil {
		first = append(first, g.Service)
	}
	for _, objs := range [][]manifests.Object{first, {deployment}} {
		more, err := s.applyNoting(ctx, s.journal, objs...)
		changed = append(changed, more...)
		if err != nil {
			return changed, err
		}
	}
	if g.StaleService != nil {
		deletion, err := deletionOf(g.StaleService)
		if err == nil {
			err = s.journal.note(ctx, deletion)
		}
		if err == nil {
			err = s.delete(ctx, g.StaleService)
		}
		if err != nil {
			return changed, err
		}
		changed = append(changed, s.Name+": "+describe(g.StaleService))
	}
	return changed, nil
}

// applyPeering applies the Peering with what came about during the run: the keys of
// the peer's gateways, and where these are called.
func (s *side) applyPeering(ctx context.Context, c *plan.ClusterPlan, peer *side, endpoints [][]string) ([]string, error) {
	for i := range c.Peering.Spec.Planes {
		plane := &c.Peering.Spec.Planes[i]
		plane.RemotePublicKey = peer.facts.Planes[plane.Index].PublicKey
		if c.Role == v1alpha1.Client {
			plane.Endpoints = endpoints[i]
		}
	}
	var changed []string
	err := retryOnConflict(func() error {
		_, live, err := s.read(ctx, c.Peering)
		if err != nil {
			return err
		}
		// In this order: a host that is exposed after the Peering was read is a conflict.
		if c.Peering.Spec.Local.Hosts, err = s.currentHosts(ctx, peer.Cluster, c.Peering.Spec.Local.ExternalCIDR.Prefix); err != nil {
			return err
		}
		c.Peering.ResourceVersion = live.GetResourceVersion()
		changed, err = s.applyNoting(ctx, s.journal, c.Peering)
		return err
	})
	if err != nil {
		return changed, err
	}
	return changed, s.applyTranslation(ctx, c.Peering, c.Translation)
}

// endpointsOf waits until the Services of gateways have addresses. For each it returns
// where it can be called, as host:port, the first one to try first. Where the user gave
// endpoints it returns those.
func (s *side) endpointsOf(ctx context.Context, gateways []plan.GatewayPlan) (out [][]string, err error) {
	for _, g := range gateways {
		endpoints := s.facts.GivenEndpoints(g.Plane)
		if len(endpoints) == 0 {
			if endpoints, err = s.serviceEndpoints(ctx, g.Gateway); err != nil {
				return nil, err
			}
		}
		out = append(out, endpoints)
	}
	return out, nil
}

func (s *side) serviceEndpoints(ctx context.Context, g manifests.Gateway) (out []string, err error) {
	hint := fmt.Sprintf("%s -n %s describe service %s; or choose another --service-type", s.kubectl(), v1alpha1.Namespace, g.Name())
	err = s.await(ctx, fmt.Sprintf("wait for an address of Service %s (%s)", g.Name(), g.ServiceType), hint,
		[]kind{inNamespace(&corev1.ServiceList{})}, func(_ context.Context, o objects) (string, error) {
			if svc := byName[*corev1.Service](o, g.Name()); svc != nil {
				out = plan.ServiceEndpoints(svc, s.facts.Nodes)
			}
			if len(out) == 0 {
				return "it has none yet", nil
			}
			return "", nil
		})
	return out, err
}

// wait returns when both gateways and all nodes measure that packets pass, and
// their agents are those that were applied. Then what was changed is to stay.
func (p *run) wait(ctx context.Context) error {
	err := p.both(ctx, func(ctx context.Context, s, _ *side) ([]string, error) {
		return s.updateNodeAgents(ctx, p.planOf(s).Gateways)
	})
	if err != nil {
		return err
	}
	if err := p.both(ctx, p.waitForPackets); err != nil {
		return err
	}
	err = p.both(ctx, func(ctx context.Context, s, _ *side) ([]string, error) { return nil, s.journal.end(ctx) })
	if err != nil {
		return err
	}
	return p.both(ctx, func(ctx context.Context, s, peer *side) ([]string, error) {
		_, err := s.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) error {
			entry := plan.Allocation(cn, peer.ID)
			switch {
			case entry == nil || entry.Claim == claimGoing:
				return errUnpeered
			case entry.Established && entry.Previous == nil:
				return errUnchanged
			}
			s.established = s.established || !entry.Established
			entry.Established, entry.Previous = true, nil
			return nil
		})
		return nil, s.fail("write to the ledger that the peering works", err)
	})
}

// waitForPackets is one side's part.
func (p *run) waitForPackets(ctx context.Context, s, peer *side) ([]string, error) {
	hint := fmt.Sprintf("%s -n %s logs -l app.kubernetes.io/name=liqonet --prefix", s.kubectl(), v1alpha1.Namespace)
	kinds := append(rolloutKinds(), all(&v1alpha1.PeeringList{}), all(&v1alpha1.NodeNetworkList{}), all(&corev1.NodeList{}), inNamespace(&coordinationv1.LeaseList{}))
	beats := heartbeats{}
	return nil, s.await(ctx, fmt.Sprintf("wait until packets pass to %q", peer.Name), hint, kinds, func(_ context.Context, o objects) (string, error) {
		beats.note(of[*coordinationv1.Lease](o), s.now())
		return p.look(s, peer, o, beats)
	})
}

// look takes the side's view of the peering into the result, and says what is
// still missing.
func (p *run) look(s, peer *side, o objects, beats heartbeats) (string, error) {
	var live *v1alpha1.Peering
	for _, candidate := range of[*v1alpha1.Peering](o) {
		if candidate.Spec.Remote.ClusterID == peer.ID {
			live = candidate
		}
	}
	if live == nil {
		return "", errUnpeered
	}
	gateways := p.planOf(s).Gateways
	nodes, notReady := nodesByReadiness(of[*corev1.Node](o))
	crash, err := s.podProblem(o, nodes, live.Name)
	if err != nil {
		return "", err
	}
	reports := values[v1alpha1.NodeNetwork](o)
	v, err := view(s.Name, live, reports, nodes, beats)
	if err != nil {
		return "", err
	}
	v.mention(notReady)
	p.result.Views[p.index(s)] = v
	if len(live.Spec.Planes) == 0 {
		return "", errors.New("the Peering has no planes")
	}
	plane := live.PlaneStatus(live.Spec.Planes[0].Index)
	silent := plane != nil && plane.ObservedGeneration == live.Generation && !plane.Connected
	if p.roles.note(p.index(s), silent) && p.mayExchange() {
		return "", errUnanswered
	}
	if reason := cmp.Or(crash, settled(live, v)); reason != "" {
		return reason, nil
	}
	// Agents before those that were applied may have reported all of this.
	for _, g := range gateways {
		if missing := rolledOut(o, g.Gateway, reports, nodes, beats); missing != "" {
			return missing, nil
		}
	}
	return "", nil
}

// mayExchange says that nobody has decided who is called: neither the user nor a
// command that was successful.
func (p *run) mayExchange() bool {
	return !p.serverGiven && !slices.ContainsFunc(p.sides[:], func(s *side) bool { return s.wasEstablished || s.hasGivenEndpoints() })
}
