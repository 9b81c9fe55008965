package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/failure"
)

// choice is a decision and its reason, which is a part of a sentence.
type choice[T any] struct {
	value  T
	reason string
	// assumed says that it may come out differently when all agents have reported.
	assumed bool
}

// decisions are what is chosen for one cluster, for all planes alike.
type decisions struct {
	role        choice[v1alpha1.Role]
	overlay     choice[v1alpha1.OverlayKind]
	wireguard   choice[v1alpha1.WireGuardBackend]
	serviceType choice[corev1.ServiceType]
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
		if f.PodsUnknown == nil && len(ipv4(discovery.Values(f.PodCIDRs))) == 0 {
			return out, &failure.Error{
				Kind: failure.Usage, Cluster: f.Name, Doing: "find out the ranges",
				Err:  errors.New("its pods have IPv6 addresses only, and liqonet carries IPv4 only"),
				Hint: fmt.Sprintf("a dual-stack cluster can be peered by its IPv4 addresses; if there is an IPv4 range, name it: --pod-cidr %s=RANGE", f.Name),
			}
		}
		if out[i].overlay, err = chooseOverlay(f); err != nil {
			return out, err
		}
		if out[i].wireguard, err = chooseWireGuard(f); err != nil {
			return out, err
		}
		out[i].serviceType = chooseServiceType(f)
	}
	server, reason, err := chooseServer(clusters)
	if err != nil {
		return out, err
	}
	out[server].role = choice[v1alpha1.Role]{value: v1alpha1.Server, reason: reason}
	out[1-server].role = choice[v1alpha1.Role]{value: v1alpha1.Client, reason: reason}
	return out, nil
}

// chooseServer decides which gateway is called by the other: the one that can be
// reached, as far as that is known. A role that was decided before is kept.
func chooseServer(clusters [2]*FactSheet) (server int, reason string, err error) {
	given := [2]bool{len(clusters[0].Overrides.Endpoints) > 0, len(clusters[1].Overrides.Endpoints) > 0}
	for i, f := range clusters {
		if peer := clusters[1-i]; f.Overrides.Server && given[1-i] && !given[i] {
			return 0, "", &failure.Error{
				Kind: failure.Usage, Cluster: peer.Name, Doing: "choose roles",
				Err:  fmt.Errorf("--endpoint says where the gateway of %q can be called, but --server makes it the one that calls", peer.Name),
				Hint: "give --endpoint for the cluster of --server",
			}
		}
	}
	for i, f := range clusters {
		if f.Overrides.Server {
			return i, "given by --server", nil
		}
	}
	for i, f := range clusters {
		if given[i] && !given[1-i] {
			return i, fmt.Sprintf("--endpoint says where %s can be called", f.Name), nil
		}
	}
	// Two equal roles contradict each other: as if there were none.
	if clusters[0].role() != clusters[1].role() {
		for i, f := range clusters {
			switch f.role() {
			case v1alpha1.Server:
				return i, "as before", nil
			case v1alpha1.Client:
				return 1 - i, "as before", nil
			}
		}
	}
	reach0, reason0 := reach(clusters[0], clusters[1])
	reach1, reason1 := reach(clusters[1], clusters[0])
	switch {
	case reach0 > reach1:
		return 0, clusters[0].Name + ": " + reason0, nil
	case reach1 > reach0:
		return 1, clusters[1].Name + ": " + reason1, nil
	}
	if clusters[1].ClusterID < clusters[0].ClusterID {
		server = 1
	}
	return server, fmt.Sprintf("nothing says that one can be reached better than the other, and %s has the lower ID; if it cannot be called the roles are exchanged", clusters[server].Name), nil
}

// reach says how likely a cluster can be called from outside, and why.
func reach(f, peer *FactSheet) (int, string) {
	const loadBalancer = string(corev1.ServiceTypeLoadBalancer)
	lb, public, external := f.Exposure.LoadBalancer, f.Exposure.NodePublicIPs, f.Exposure.NodeExternalIPs
	switch {
	case len(f.givenEndpoints()) > 0:
		return 3, "it has an endpoint that was given by --endpoint"
	case f.Overrides.ServiceType == loadBalancer && peer.Overrides.ServiceType != loadBalancer:
		return 2, "--service-type says that it has load balancers"
	case lb.Value == discovery.Yes:
		return 2, "it has load balancers, " + lb.Source
	case external.Value == discovery.Yes:
		return 1, external.Source
	case public.Value == discovery.Yes:
		return 1, public.Source
	default:
		return 0, ""
	}
}

// ifKernels completes a choice that depends on what all kernels can do.
func ifKernels[T any](f *FactSheet, value T, known, assumed string) choice[T] {
	if n := len(f.unreported()); n > 0 {
		return choice[T]{value, fmt.Sprintf("%s, as %d of %d node agents have not reported yet", assumed, n, len(f.agentNodes())), true}
	}
	return choice[T]{value: value, reason: known}
}

// chooseOverlay prefers what is there already, then Geneve. All peerings of a cluster
// have one kind: both would need the same UDP port of the nodes.
func chooseOverlay(f *FactSheet) (choice[v1alpha1.OverlayKind], error) {
	none, given := choice[v1alpha1.OverlayKind]{}, f.Overrides.Overlay
	lacking := map[v1alpha1.OverlayKind][]string{
		"geneve": f.nodesWithout(func(k v1alpha1.KernelFacts) bool { return k.Geneve }),
		"vxlan":  f.nodesWithout(func(k v1alpha1.KernelFacts) bool { return k.VXLAN }),
	}
	if len(f.OtherPeerings) > 0 {
		other, kind := f.OtherPeerings[0].Name, f.OtherPeerings[0].Spec.Overlay
		if !automatic(given) && given != string(kind) {
			return none, &failure.Error{
				Kind: failure.Usage, Cluster: f.Name, Doing: "choose the overlay",
				Err:  fmt.Errorf("its nodes have links of kind %s for the peering with %q, and cannot have links of kind %s as well", kind, other, given),
				Hint: fmt.Sprintf("use --overlay auto or %s=%s, or first unpeer %s from all others", f.Name, kind, f.Name),
			}
		}
		if len(lacking[kind]) > 0 {
			return none, cannot(f, string(kind), lacking[kind], fmt.Sprintf(
				"load the kernel module %s on these nodes, as the peering with %q needs it too, or first unpeer %s from all others", kind, other, f.Name))
		}
		return choice[v1alpha1.OverlayKind]{value: kind, reason: fmt.Sprintf("as for the peering with %q", other)}, nil
	}
	if !automatic(given) {
		kind := v1alpha1.OverlayKind(given)
		if len(lacking[kind]) > 0 {
			return none, cannot(f, given, lacking[kind], "use --overlay auto")
		}
		return ifKernels(f, kind, "given by --overlay", "given by --overlay; all kernels are taken to have it"), nil
	}
	if f.Existing != nil && len(lacking[f.Existing.Spec.Overlay]) == 0 {
		return choice[v1alpha1.OverlayKind]{value: f.Existing.Spec.Overlay, reason: "as before"}, nil
	}
	if len(lacking["geneve"]) == 0 {
		return ifKernels(f, v1alpha1.OverlayKind("geneve"), "the kernels of all nodes have it", "all kernels are taken to have it, otherwise it is vxlan"), nil
	}
	if len(lacking["vxlan"]) == 0 {
		return ifKernels(f, v1alpha1.OverlayKind("vxlan"), "there is no Geneve on "+strings.Join(lacking["geneve"], ", "), "all kernels are taken to have it"), nil
	}
	return none, cannot(f, "geneve or vxlan", append(lacking["geneve"], lacking["vxlan"]...), "load the kernel module geneve or vxlan on these nodes")
}

// chooseWireGuard keeps what is there, and prefers the kernel otherwise.
func chooseWireGuard(f *FactSheet) (choice[v1alpha1.WireGuardBackend], error) {
	type backend = v1alpha1.WireGuardBackend
	given, existing := f.Overrides.WireGuard, backend("")
	if f.Existing != nil && len(f.Existing.Spec.Planes) > 0 {
		existing = f.Existing.Spec.Planes[0].WireGuard
	}
	missing := f.nodesWithout(func(k v1alpha1.KernelFacts) bool { return k.WireGuard })
	switch {
	case given == "kernel" && len(missing) > 0:
		return choice[backend]{}, cannot(f, "wireguard", missing, "use --wireguard auto or userspace")
	case given == "kernel":
		return ifKernels(f, backend("kernel"), "given by --wireguard", "given by --wireguard; all kernels are taken to have it"), nil
	case !automatic(given):
		return choice[backend]{value: backend(given), reason: "given by --wireguard"}, nil
	case existing == "userspace", existing != "" && len(missing) == 0:
		return choice[backend]{value: existing, reason: "as before"}, nil
	case len(missing) == 0:
		return ifKernels(f, backend("kernel"), "the kernels of all nodes have it", "all kernels are taken to have it, otherwise it is userspace"), nil
	default:
		return choice[backend]{value: "userspace", reason: "there is no WireGuard in the kernel of " + strings.Join(missing, ", ")}, nil
	}
}

// nodesWithout returns the nodes whose kernel lacks something.
func (f *FactSheet) nodesWithout(has func(v1alpha1.KernelFacts) bool) (out []string) {
	for _, n := range f.Reports {
		if k := n.Status.Kernel; k != nil && !has(*k) {
			out = append(out, n.Spec.NodeName)
		}
	}
	return out
}

func cannot(f *FactSheet, kind string, nodes []string, hint string) error {
	slices.Sort(nodes)
	return &failure.Error{
		Kind: failure.Usage, Cluster: f.Name, Doing: "choose what the kernels can do",
		Err: fmt.Errorf("no links of kind %s on nodes %s", kind, strings.Join(slices.Compact(nodes), ", ")), Hint: hint,
	}
}

// chooseServiceType keeps the type of a Service that is there.
func chooseServiceType(f *FactSheet) choice[corev1.ServiceType] {
	lb := f.Exposure.LoadBalancer
	if !automatic(f.Overrides.ServiceType) {
		return choice[corev1.ServiceType]{value: corev1.ServiceType(f.Overrides.ServiceType), reason: "given by --service-type"}
	}
	for _, i := range f.PlaneIndexes() {
		if svc := f.Planes[i].Service; svc != nil {
			return choice[corev1.ServiceType]{value: svc.Spec.Type, reason: "as before"}
		}
	}
	if lb.Value == discovery.Yes && len(f.givenEndpoints()) == 0 {
		return choice[corev1.ServiceType]{value: corev1.ServiceTypeLoadBalancer, reason: lb.Source, assumed: lb.Assumed}
	}
	return choice[corev1.ServiceType]{value: corev1.ServiceTypeNodePort, reason: "it is not known to have load balancers: " + lb.Source}
}
