package plan

import (
	"fmt"
	"slices"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
)

// chooseServer decides which gateway is the server: the one that can be reached, as far as that is known. It keeps a role
// that was decided before. The decision is final if it comes from the user or from a peering that has worked.
func chooseServer(clusters [2]*Offer) (server int, reason string, isFinal bool, err error) {
	for i, f := range clusters {
		switch peer := clusters[1-i]; {
		case f.Role.Asked && peer.EndpointsNow && !f.EndpointsNow:
			return 0, "", true, &failure.Error{
				Kind: failure.Usage, Cluster: peer.Name, Doing: "choose roles",
				Err:  fmt.Errorf("--endpoint says where the gateway of %q can be reached, but --server makes it the client", peer.Name),
				Hint: "give --endpoint for the cluster of --server",
			}
		case f.Role.Asked:
			return i, "given by --server", true, nil
		}
	}
	for i, f := range clusters {
		if f.EndpointsNow && !clusters[1-i].EndpointsNow {
			return i, fmt.Sprintf("--endpoint says where %s can be reached", f.Name), true, nil
		}
	}
	isFinal = slices.ContainsFunc(clusters[:], func(o *Offer) bool { return o.Role.Established || len(o.Endpoints) > 0 })
	for i, f := range clusters {
		// Two equal roles contradict each other, and are ignored.
		own, peer := f.Role.Before, clusters[1-i].Role.Before
		if own != peer && (own == v1alpha1.Server || peer == v1alpha1.Client) {
			return i, "as before", isFinal, nil
		}
	}
	first, second := clusters[0], clusters[1]
	firstReach, firstReason := first.reach(second)
	secondReach, secondReason := second.reach(first)
	switch {
	case firstReach > secondReach:
		return 0, first.Name + ": " + firstReason, isFinal, nil
	case secondReach > firstReach:
		return 1, second.Name + ": " + secondReason, isFinal, nil
	}
	reason = fmt.Sprintf("neither is known to be easier to reach, and %s has the lower ID; "+
		"if it cannot be reached, the roles are exchanged", first.Name)
	return 0, reason, isFinal, nil
}

// reach returns how likely the cluster is reachable from outside, and why.
func (o *Offer) reach(peer *Offer) (int, string) {
	switch {
	case len(o.Endpoints) > 0:
		return 3, "it has an endpoint given by --endpoint"
	case o.Role.AsksLoadBalancer && !peer.Role.AsksLoadBalancer:
		return 2, "--service-type requests a load balancer"
	}
	return o.Role.Reach, o.Role.ReachReason
}

// reach returns how likely the cluster is reachable from outside according to its facts, and why.
func (f *Network) reach() (int, string) {
	if f.LoadBalancers.Value == Yes {
		return 2, "it has load balancers, " + f.LoadBalancers.Source
	}
	reachable := func(n Node) bool { return n.Ready && n.Schedulable && n.public().IsValid() }
	if n, isThere := lo.Find(f.Nodes, reachable); isThere {
		return 1, fmt.Sprintf("node %s has %s", n.Name, n.public())
	}
	return 0, ""
}
