package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
)

// decisions are what is chosen for one cluster, for all planes alike.
type decisions struct {
	role, overlay, wireguard, serviceType, planesBy Statement
	// planes are the indexes of the planes, the same in both clusters.
	planes    []int32
	placement *v1alpha1.GatewayPlacement
	placed    []Statement
}

// Check returns an error if the clusters cannot be peered with what the user asks
// for, as far as that is known.
func Check(a, b *FactSheet) error {
	_, err := decide([2]*FactSheet{a, b})
	return err
}

// decide chooses roles and backends. It does not depend on which cluster was named
// first.
func decide(clusters [2]*FactSheet) (out [2]decisions, err error) {
	for i, f := range clusters {
		if f.PodsUnknown == nil && len(ipv4(f.PodCIDRs)) == 0 {
			return out, &failure.Error{
				Kind: failure.Usage, Cluster: f.Name, Doing: "find out the ranges",
				Err:  errors.New("its pods have IPv6 addresses only, and liqonet carries IPv4 only"),
				Hint: fmt.Sprintf("a dual-stack cluster can be peered by its IPv4 addresses; if there is an IPv4 range, name it: --pod-cidr %s=RANGE", f.Name),
			}
		}
		if err := f.checkEndpoints(); err != nil {
			return out, err
		}
		if out[i].overlay, err = chooseOverlay(f); err != nil {
			return out, err
		}
		if out[i].wireguard, err = chooseWireGuard(f); err != nil {
			return out, err
		}
		out[i].serviceType = chooseServiceType(f)
		if out[i].placement, out[i].placed, err = choosePlacement(f); err != nil {
			return out, err
		}
	}
	planes, planesBy, err := choosePlanes(clusters, [2]*v1alpha1.GatewayPlacement{out[0].placement, out[1].placement})
	if err != nil {
		return out, err
	}
	server, reason, err := chooseServer(clusters)
	for i := range out {
		out[i].planes, out[i].planesBy = planes, planesBy
		out[i].role = Statement{What: "role of the gateway", Value: string(v1alpha1.Client), Reason: reason}
	}
	out[server].role.Value = string(v1alpha1.Server)
	return out, err
}

// chooseServer decides which gateway is called by the other: the one that can be
// reached, as far as that is known. A role that was decided before is kept.
func chooseServer(clusters [2]*FactSheet) (server int, reason string, err error) {
	given := [2]bool{len(clusters[0].Overrides.Endpoints) > 0, len(clusters[1].Overrides.Endpoints) > 0}
	for i, f := range clusters {
		switch peer := clusters[1-i]; {
		case f.Overrides.Server && given[1-i] && !given[i]:
			return 0, "", &failure.Error{
				Kind: failure.Usage, Cluster: peer.Name, Doing: "choose roles",
				Err:  fmt.Errorf("--endpoint says where the gateway of %q can be called, but --server makes it the one that calls", peer.Name),
				Hint: "give --endpoint for the cluster of --server",
			}
		case f.Overrides.Server:
			return i, "given by --server", nil
		}
	}
	for i, f := range clusters {
		if given[i] && !given[1-i] {
			return i, fmt.Sprintf("--endpoint says where %s can be called", f.Name), nil
		}
	}
	for i, f := range clusters {
		// Two equal roles contradict each other: as if there were none.
		own, peer := f.role(), clusters[1-i].role()
		if own != peer && (own == v1alpha1.Server || peer == v1alpha1.Client) {
			return i, "as before", nil
		}
	}
	if clusters[1].ClusterID < clusters[0].ClusterID {
		server = 1
	}
	first, second := clusters[server], clusters[1-server]
	firstReach, firstReason := reach(first, second)
	secondReach, secondReason := reach(second, first)
	switch {
	case firstReach > secondReach:
		return server, first.Name + ": " + firstReason, nil
	case secondReach > firstReach:
		return 1 - server, second.Name + ": " + secondReason, nil
	}
	return server, fmt.Sprintf("nothing says that one can be reached better than the other, and %s has the lower ID; if it cannot be called the roles are exchanged", first.Name), nil
}

// reach says how likely a cluster can be called from outside, and why.
func reach(f, peer *FactSheet) (int, string) {
	const loadBalancer = string(corev1.ServiceTypeLoadBalancer)
	switch {
	case len(f.GivenEndpoints()) > 0:
		return 3, "it has an endpoint that was given by --endpoint"
	case f.Overrides.ServiceType == loadBalancer && peer.Overrides.ServiceType != loadBalancer:
		return 2, "--service-type says that it has load balancers"
	case f.LoadBalancers.Value == Yes:
		return 2, "it has load balancers, " + f.LoadBalancers.Source
	}
	for _, n := range f.Nodes {
		if a := n.public(); n.Ready && n.Schedulable && a.IsValid() {
			return 1, fmt.Sprintf("node %s has %s", n.Name, a)
		}
	}
	return 0, ""
}

// candidate is a backend that may be chosen, and why if that is not what the kernels
// can do.
type candidate struct{ backend, reason string }

// chooseOverlay prefers what is there already, then Geneve. All peerings of a cluster
// have one kind: both would need the same UDP port of the nodes.
func chooseOverlay(f *FactSheet) (Statement, error) {
	given := f.Overrides.Overlay
	candidates, hint := []candidate{{string(v1alpha1.Geneve), ""}, {string(v1alpha1.VXLAN), ""}}, "load the kernel module geneve or vxlan on these nodes"
	switch {
	case len(f.OtherPeerings) > 0:
		other, kind := f.OtherPeerings[0].Name, string(f.OtherPeerings[0].Spec.Overlay)
		if !automatic(given) && given != kind {
			return Statement{}, &failure.Error{
				Kind: failure.Usage, Cluster: f.Name, Doing: "choose the overlay",
				Err:  fmt.Errorf("its nodes have links of kind %s for the peering with %q, and cannot have links of kind %s as well", linkKind(kind), other, linkKind(given)),
				Hint: fmt.Sprintf("use --overlay auto or %s=%s, or first unpeer %s from all others", f.Name, linkKind(kind), f.Name),
			}
		}
		candidates = []candidate{{kind, fmt.Sprintf("as for the peering with %q", other)}}
		hint = fmt.Sprintf("load the kernel module %s on these nodes, as the peering with %q needs it too, or first unpeer %s from all others", linkKind(kind), other, f.Name)
	case !automatic(given):
		candidates, hint = []candidate{{given, "given by --overlay"}}, "use --overlay auto"
	case f.Existing != nil && len(f.nodesWithout(string(f.Existing.Spec.Overlay))) == 0:
		candidates = []candidate{{string(f.Existing.Spec.Overlay), "as before"}}
	}
	return f.firstPossible("overlay", candidates, hint)
}

// chooseWireGuard keeps what is there, and prefers the kernel otherwise.
func chooseWireGuard(f *FactSheet) (Statement, error) {
	candidates, existing := []candidate{{string(v1alpha1.KernelWireGuard), ""}, {string(v1alpha1.UserSpaceWireGuard), ""}}, ""
	if f.Existing != nil && len(f.Existing.Spec.Planes) > 0 {
		existing = string(f.Existing.Spec.Planes[0].WireGuard)
	}
	switch given := f.Overrides.WireGuard; {
	case !automatic(given):
		candidates = []candidate{{given, "given by --wireguard"}}
	case existing != "" && len(f.nodesWithout(existing)) == 0:
		candidates = []candidate{{existing, "as before"}}
	}
	return f.firstPossible("WireGuard by", candidates, "use --wireguard auto or userspace")
}

// firstPossible takes the first candidate that no kernel is known to lack.
func (f *FactSheet) firstPossible(what string, candidates []candidate, hint string) (Statement, error) {
	var lacking []string
	for _, c := range candidates {
		if nodes := f.nodesWithout(c.backend); len(nodes) > 0 {
			lacking = append(lacking, fmt.Sprintf("no links of kind %s on nodes %s", linkKind(c.backend), strings.Join(nodes, ", ")))
			continue
		}
		s := Statement{What: what, Value: c.backend, Reason: cmp.Or(c.reason, strings.Join(lacking, "; "), "the kernels of all nodes have it")}
		if n := len(f.Unreported()); n > 0 && linkKind(c.backend) != "" {
			s.Assumed = true
			s.Reason += fmt.Sprintf("; %d of %d node agents have not reported yet", n, len(f.agentNodes()))
		}
		return s, nil
	}
	return Statement{}, &failure.Error{
		Kind: failure.Usage, Cluster: f.Name, Doing: "choose what the kernels can do", Err: errors.New(strings.Join(lacking, "; ")), Hint: hint,
	}
}

// linkKind is the kind of the kernel's links that a backend needs, empty if it needs
// none.
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
func (f *FactSheet) nodesWithout(backend string) (out []string) {
	for _, n := range f.Reports {
		k := n.Status.Kernel
		if k != nil && !map[string]bool{"": true, "geneve": k.Geneve, "vxlan": k.VXLAN, "wireguard": k.WireGuard}[linkKind(backend)] {
			out = append(out, n.Name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// chooseServiceType keeps the type of a Service that is there.
func chooseServiceType(f *FactSheet) Statement {
	s := Statement{What: "exposed by a Service of type", Value: string(corev1.ServiceTypeNodePort), Reason: "it is not known to have load balancers: " + f.LoadBalancers.Source}
	if f.LoadBalancers.Value == Yes && len(f.GivenEndpoints()) == 0 {
		s.Value, s.Reason, s.Assumed = string(corev1.ServiceTypeLoadBalancer), f.LoadBalancers.Source, f.LoadBalancers.Assumed
	}
	if f.Service != nil {
		s.Value, s.Reason, s.Assumed = string(f.Service.Spec.Type), "as before", false
	}
	if given := f.Overrides.ServiceType; !automatic(given) {
		s.Value, s.Reason, s.Assumed = given, "given by --service-type", false
	}
	return s
}
