package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
)

// decisions are the choices for one cluster, the same for all planes.
type decisions struct {
	overlay, wireguard, serviceType, planesBy Statement
	// roles are the gateway's possible roles, in the order to try them: one if it is final.
	roles []Statement
	// permanent are the indexes of the planes, the same in both clusters. planes are these, and the temporary one if the
	// intent asks for it.
	permanent, planes []int32
	placement         *v1alpha1.GatewayPlacement
	placed            []Statement
	mode              v1alpha1.PlanesMode
}

// decideLocal makes the choices that do not depend on the peer.
func (f *input) decideLocal() (d decisions, err error) {
	if f.PodsUnknown == nil && len(ipv4(f.PodCIDRs)) == 0 {
		return d, f.refuse("find out the ranges",
			"a dual-stack cluster can be peered with its IPv4 addresses; if there is an IPv4 range, name it: --pod-cidr "+f.Name+"=RANGE",
			errors.New("its pods have IPv6 addresses only, and liqonet carries IPv4 only"))
	}
	if err := f.checkEndpoints(); err != nil {
		return d, err
	}
	if d.overlay, err = chooseOverlay(f); err != nil {
		return d, err
	}
	if d.wireguard, err = chooseWireGuard(f); err != nil {
		return d, err
	}
	d.serviceType = chooseServiceType(f)
	d.placement, d.placed, err = choosePlacement(f)
	return d, err
}

// decide makes the choices that both clusters must make alike: each from both offers, in the order of their IDs.
func (f *input) decide(mine, peer *Offer, d *decisions) (err error) {
	both := [2]*Offer{mine, peer}
	if peer.ClusterID < mine.ClusterID {
		both = [2]*Offer{peer, mine}
	}
	if err := f.choosePlanes(both, d); err != nil {
		return err
	}
	d.mode = planesMode(both)
	server, reason, isFinal, err := chooseServer(both)
	if err != nil {
		return err
	}
	role := func(server *Offer, reason string) Statement {
		own := lo.Ternary(server == mine, v1alpha1.Server, v1alpha1.Client)
		return known("role of the gateway", string(own), reason)
	}
	d.roles = []Statement{role(both[server], reason)}
	if !isFinal {
		d.roles = append(d.roles, role(both[1-server], both[server].Name+" cannot be reached"))
	}
	return nil
}

// chooseServer decides which gateway is the server: the one that can be reached, as far as that is known. It keeps a role
// that was decided before. The decision is final if it comes from the user or from a peering that has worked.
func chooseServer(clusters [2]*Offer) (server int, reason string, isFinal bool, err error) {
	for i, f := range clusters {
		switch peer := clusters[1-i]; {
		case f.Server && peer.EndpointsNow && !f.EndpointsNow:
			return 0, "", true, &failure.Error{
				Kind: failure.Usage, Cluster: peer.Name, Doing: "choose roles",
				Err:  fmt.Errorf("--endpoint says where the gateway of %q can be reached, but --server makes it the client", peer.Name),
				Hint: "give --endpoint for the cluster of --server",
			}
		case f.Server:
			return i, "given by --server", true, nil
		}
	}
	for i, f := range clusters {
		if f.EndpointsNow && !clusters[1-i].EndpointsNow {
			return i, fmt.Sprintf("--endpoint says where %s can be reached", f.Name), true, nil
		}
	}
	isFinal = slices.ContainsFunc(clusters[:], func(o *Offer) bool { return o.Established || len(o.Endpoints) > 0 })
	for i, f := range clusters {
		// Two equal roles contradict each other, and are ignored.
		own, peer := f.Role, clusters[1-i].Role
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
	case o.AsksLoadBalancer && !peer.AsksLoadBalancer:
		return 2, "--service-type requests a load balancer"
	}
	return o.Reach, o.ReachReason
}

// reach returns how likely the cluster is reachable from outside according to its facts, and why.
func (f *Facts) reach() (int, string) {
	if f.LoadBalancers.Value == Yes {
		return 2, "it has load balancers, " + f.LoadBalancers.Source
	}
	reachable := func(n Node) bool { return n.Ready && n.Schedulable && n.public().IsValid() }
	if n, isThere := lo.Find(f.Nodes, reachable); isThere {
		return 1, fmt.Sprintf("node %s has %s", n.Name, n.public())
	}
	return 0, ""
}

// candidate is a possible backend. The reason is empty if it is what the kernels can do.
type candidate struct{ backend, reason string }

// chooseOverlay prefers the overlay in use, then Geneve. All peerings of a cluster have the same kind: both kinds would
// need the same UDP port of the nodes.
func chooseOverlay(f *input) (Statement, error) {
	given, hint := f.Overrides.Overlay, "load the kernel module geneve or vxlan on these nodes"
	candidates := []candidate{{string(v1alpha1.Geneve), ""}, {string(v1alpha1.VXLAN), ""}}
	switch {
	case len(f.OtherPeerings) > 0:
		other, kind := f.OtherPeerings[0].Name, string(f.OtherPeerings[0].Spec.Overlay)
		if !automatic(given) && given != kind {
			hint = fmt.Sprintf("use --overlay auto or %s=%s, or first unpeer %s from all others", f.Name, linkKind(kind), f.Name)
			return Statement{}, f.refuse("choose the overlay", hint, fmt.Errorf(
				"its nodes have links of kind %s for the peering with %q, and cannot have links of kind %s as well",
				linkKind(kind), other, linkKind(given)))
		}
		candidates = []candidate{{kind, fmt.Sprintf("as for the peering with %q", other)}}
		hint = fmt.Sprintf("load the kernel module %s on these nodes, as the peering with %q needs it too, "+
			"or first unpeer %s from all others", linkKind(kind), other, f.Name)
	case !automatic(given):
		candidates, hint = []candidate{{given, "given by --overlay"}}, "use --overlay auto"
	case f.Existing != nil && len(f.nodesWithout(string(f.Existing.Spec.Overlay))) == 0:
		candidates = []candidate{{string(f.Existing.Spec.Overlay), "as before"}}
	}
	return f.firstPossible("overlay", candidates, hint)
}

// chooseWireGuard keeps the backend in use, and otherwise prefers the kernel's.
func chooseWireGuard(f *input) (Statement, error) {
	candidates := []candidate{{string(v1alpha1.KernelWireGuard), ""}, {string(v1alpha1.UserSpaceWireGuard), ""}}
	existing := string(lo.FirstOrEmpty(f.existingPlanes()).WireGuard)
	switch given := f.Overrides.WireGuard; {
	case !automatic(given):
		candidates = []candidate{{given, "given by --wireguard"}}
	case existing != "" && len(f.nodesWithout(existing)) == 0:
		candidates = []candidate{{existing, "as before"}}
	}
	return f.firstPossible("WireGuard by", candidates, "use --wireguard auto or userspace")
}

// firstPossible returns the first candidate that no kernel is known to lack.
func (f *Facts) firstPossible(what string, candidates []candidate, hint string) (Statement, error) {
	var lacking []string
	for _, c := range candidates {
		if nodes := f.nodesWithout(c.backend); len(nodes) > 0 {
			lacking = append(lacking, fmt.Sprintf("no links of kind %s on nodes %s", linkKind(c.backend), strings.Join(nodes, ", ")))
			continue
		}
		s := known(what, c.backend, cmp.Or(c.reason, strings.Join(lacking, "; "), "the kernels of all nodes have it"))
		if n := len(f.Unreported()); n > 0 && linkKind(c.backend) != "" {
			s.Assumed = true
			s.Reason += fmt.Sprintf("; %d of %d node agents have not reported yet", n, len(f.agentNodes(true)))
		}
		return s, nil
	}
	return Statement{}, f.refuse("choose what the kernels can do", hint, errors.New(strings.Join(lacking, "; ")))
}

// linkKind returns the kind of kernel link that a backend needs, empty if it needs none.
func linkKind(backend string) string {
	switch v1alpha1.WireGuardBackend(backend) {
	case v1alpha1.KernelWireGuard:
		return "wireguard"
	case v1alpha1.UserSpaceWireGuard:
		return ""
	}
	return v1alpha1.OverlayKind(backend).LinkKind()
}

// nodesWithout returns the nodes whose kernels are known to lack what a backend needs.
func (f *Facts) nodesWithout(backend string) []string {
	names := lo.FilterMap(f.Reports, func(n v1alpha1.NodeNetwork, _ int) (string, bool) {
		k := lo.FromPtr(n.Status.Kernel)
		has := map[string]bool{"": true, "geneve": k.Geneve, "vxlan": k.VXLAN, "wireguard": k.WireGuard}
		return n.Name, n.Status.Kernel != nil && !has[linkKind(backend)]
	})
	slices.Sort(names)
	return slices.Compact(names)
}

// chooseServiceType keeps the type of an existing Service.
func chooseServiceType(f *input) Statement {
	const what = "exposed by a Service of type"
	switch given := f.Overrides.ServiceType; {
	case !automatic(given):
		return known(what, given, "given by --service-type")
	case f.Service != nil:
		return known(what, string(f.Service.Spec.Type), "as before")
	case f.LoadBalancers.Value == Yes && len(f.givenEndpoints()) == 0:
		return factStatement(what, Fact[string]{string(corev1.ServiceTypeLoadBalancer), f.LoadBalancers.Source, f.LoadBalancers.Assumed})
	}
	return known(what, string(corev1.ServiceTypeNodePort), "it is not known to have load balancers: "+f.LoadBalancers.Source)
}
