package plan

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// candidate is a possible backend. The reason is empty if it is what the kernels can do.
type candidate struct{ backend, reason string }

// chooseOverlay prefers the overlay in use, then Geneve. All peerings of a cluster have the same kind: both kinds would
// need the same UDP port of the nodes.
func chooseOverlay(f *input) (Statement, error) {
	given, hint := f.Overrides.Overlay, "load the kernel module geneve or vxlan on these nodes"
	candidates := []candidate{{string(v1alpha1.Geneve), ""}, {string(v1alpha1.VXLAN), ""}}
	switch {
	case len(f.has.OtherPeerings) > 0:
		other, kind := f.has.OtherPeerings[0].Name, string(f.has.OtherPeerings[0].Spec.Overlay)
		if !automatic(given) && given != kind {
			hint = fmt.Sprintf("use --overlay auto or %s=%s, or first unpeer %[1]s from all others", f.has.Network.Name, linkKind(kind))
			return Statement{}, f.has.refuse("choose the overlay", hint, fmt.Errorf(
				"its nodes have links of kind %s for the peering with %q, and cannot have links of kind %s as well",
				linkKind(kind), other, linkKind(given)))
		}
		candidates = []candidate{{kind, fmt.Sprintf("as for the peering with %q", other)}}
		hint = fmt.Sprintf("load the kernel module %s on these nodes, as the peering with %q needs it too, "+
			"or first unpeer %s from all others", linkKind(kind), other, f.has.Network.Name)
	case !automatic(given):
		candidates, hint = []candidate{{given, "given by --overlay"}}, "use --overlay auto"
	case f.has.Existing != nil && len(f.nodesWithout(string(f.has.Existing.Spec.Overlay))) == 0:
		candidates = []candidate{{string(f.has.Existing.Spec.Overlay), "as before"}}
	}
	return f.firstPossible("overlay", candidates, hint)
}

// chooseWireGuard keeps the backend in use, and otherwise prefers the kernel's.
func chooseWireGuard(f *input) (Statement, error) {
	candidates := []candidate{{string(v1alpha1.KernelWireGuard), ""}, {string(v1alpha1.UserSpaceWireGuard), ""}}
	existing := string(lo.FirstOrEmpty(f.has.existingPlanes()).WireGuard)
	switch given := f.Overrides.WireGuard; {
	case !automatic(given):
		candidates = []candidate{{given, "given by --wireguard"}}
	case existing != "" && len(f.nodesWithout(existing)) == 0:
		candidates = []candidate{{existing, "as before"}}
	}
	return f.firstPossible("WireGuard by", candidates, "use --wireguard auto or userspace")
}

// firstPossible returns the first candidate that no kernel is known to lack.
func (f *input) firstPossible(what string, candidates []candidate, hint string) (Statement, error) {
	var lacking []string
	for _, c := range candidates {
		if nodes := f.nodesWithout(c.backend); len(nodes) > 0 {
			lacking = append(lacking, fmt.Sprintf("no links of kind %s on nodes %s", linkKind(c.backend), strings.Join(nodes, ", ")))
			continue
		}
		s := known(what, c.backend, cmp.Or(c.reason, strings.Join(lacking, "; "), "the kernels of all nodes have it"))
		if n := len(f.has.Unreported()); n > 0 && linkKind(c.backend) != "" {
			s.Assumed = true
			s.Reason += fmt.Sprintf("; %d of %d node agents have not reported yet", n, len(f.has.Network.agentNodes(true)))
		}
		return s, nil
	}
	return Statement{}, f.has.refuse("choose what the kernels can do", hint, errors.New(strings.Join(lacking, "; ")))
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
func (f *input) nodesWithout(backend string) []string {
	names := lo.FilterMap(f.has.Reports, func(n v1alpha1.NodeNetwork, _ int) (string, bool) {
		k := lo.FromPtr(n.Status.Kernel)
		has := map[string]bool{"": true, "geneve": k.Geneve, "vxlan": k.VXLAN, "wireguard": k.WireGuard}
		return n.Name, n.Status.Kernel != nil && !has[linkKind(backend)]
	})
	return union(names)
}
