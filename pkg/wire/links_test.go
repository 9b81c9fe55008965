package wire_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/kit"
)

// skipped are the prefixes of interfaces that Cilium 1.20 does not mistake for network cards of the node:
// ExcludedDevicePrefixes in its pkg/defaults/node.go.
var skipped = []string{"cilium_", "lo", "lxc", "cni", "docker"}

// Links with the lowest and the highest numbers have names that the kernel accepts and that Cilium skips.
func TestLinkNames(t *testing.T) {
	const longest = 15 // IFNAMSIZ of linux/if.h, less the zero at its end
	for want, name := range map[string]string{
		"loq0-0":   wire.NodeLink(0, 0),
		"loq510-3": wire.NodeLink(ipam.MaxPeering, ipam.Planes-1),
		"loqn1":    wire.GatewayLink(1),
		"loqn6143": wire.GatewayLink(ipam.MaxNode),
	} {
		kit.ErrorIf(t, name != want || len(name) > longest || !strings.HasPrefix(name, wire.LinkPrefix),
			"a link has the name %q, want %q", name, want)
		kit.ErrorIf(t, !slices.ContainsFunc(skipped, func(prefix string) bool { return strings.HasPrefix(name, prefix) }),
			"Cilium mistakes %s for a network card of the node: no prefix of %q", name, skipped)
	}
}
