package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// netAdmin is all that an agent may: CAP_NET_ADMIN of capabilities(7).
const netAdmin = uint64(1 << 12)

// Backends that the kernels cannot serve are refused while clusters are peered,
// and nothing of a peering that works changes, nor does its traffic notice. Those
// that they can are taken. A node that cannot do the overlay that was chosen
// before it came is named by status, and another peer command repairs that. Agents
// may no more than their backend asks for.
func backends(t *testing.T, ctx context.Context, a, b *cluster) {
	views := status(t, ctx, 0, a, b)
	for c, peer := range bothWays(a, b) {
		checkPrivileges(t, c, viewOf(t, views, c, peer).Backend)
	}
	geneve, wireguard := kernelHas(t, ctx, "geneve", "id", "1", "remote", "192.0.2.1"), kernelHas(t, ctx, "wireguard")
	now := []string{"--overlay=vxlan", "--wireguard=userspace"}
	// On a kernel that has more, auto has chosen that.
	mustLiqonet(t, ctx, append([]string{"peer", a.Name, b.Name}, now...)...)

	before, traffic := peered(t, ctx, a, b), probe(ctx, peerTraffic(t, ctx, a, b))
	mustLiqonet(t, ctx, append([]string{"peer", a.Name, b.Name}, now...)...).says(t, "nothing was changed")
	wishes := []struct {
		flag, name string
		served     bool
	}{
		{"--overlay=geneve", "geneve", geneve}, {"--wireguard=kernel", "wireguard", wireguard},
	}
	for _, wish := range wishes {
		if wish.served {
			continue // below
		}
		r := liqonet(t, ctx, "", "peer", a.Name, b.Name, wish.flag)
		r.refused(t, exitUsage)
		checkMessage(t, r, "cluster", wish.name, "w1", "w2", "auto")
	}
	traffic.stop(t)
	none(t, cmp.Diff(before, peered(t, ctx, a, b)), "objects changed")
	checkBackends(t, ctx, a, b, "VXLAN", "UserSpace")
	// What the kernel has is used, and left again.
	if geneve {
		mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--overlay=geneve", "--wireguard=userspace")
		checkBackends(t, ctx, a, b, "Geneve", "UserSpace")
	} else {
		t.Run("nodes without the overlay", func(t *testing.T) { lackOverlay(t, ctx, a, b) })
	}
	if wireguard {
		mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--overlay=vxlan", "--wireguard=kernel")
		checkBackends(t, ctx, a, b, "VXLAN", "Kernel")
	}
	mustLiqonet(t, ctx, append([]string{"peer", a.Name, b.Name}, now...)...)
	checkBackends(t, ctx, a, b, "VXLAN", "UserSpace")
}

// checkBackends wants both clusters to use backends, and packets to pass by them.
func checkBackends(t *testing.T, ctx context.Context, a, b *cluster, overlay, wireguard string) {
	t.Helper()
	for _, v := range status(t, ctx, 0, a, b) {
		expect(t, v.Overlay == overlay && v.Backend == wireguard,
			"%s has %s and %s, want %s and %s", v.Cluster, v.Overlay, v.Backend, overlay, wireguard)
	}
	checkOnePacket(t, ctx, a, b)
}

// lackOverlay has a cluster use an overlay that its nodes' kernels do not have,
// as if they were added to one whose nodes had it.
func lackOverlay(t *testing.T, ctx context.Context, a, b *cluster) {
	a.kubectl(t, ctx, "patch", "peering", b.Name, "--type=merge", "-p", `{"spec":{"overlay":"Geneve"}}`)
	eventually(t, ctx, mendTimeout, "status names the nodes and what they lack", func() string {
		r := liqonet(t, ctx, "", "status", "-o", "json", a.Name)
		v := viewOf(t, parseStatus(t, r.stdout), a, b)
		if r.code != 7 || v.State != "Degraded" || !strings.Contains(v.Message, a.nodes[0].Node.Name) || !strings.Contains(v.Message, "has no geneve") {
			return fmt.Sprintf("exit code %d, %s: %q", r.code, v.State, v.Message)
		}
		return ""
	})
	said := mustLiqonet(t, ctx, "peer", a.Name, b.Name).stdout
	expect(t, !strings.Contains(said, "nothing was changed"), "a second peer command said:\n%s", said)
	checkOnePacket(t, ctx, a, b)
}

// checkPrivileges looks at what the gateway's process may, and whether it has the
// device of user space tunnels.
func checkPrivileges(t *testing.T, c *cluster, wireguard string) {
	proc := fmt.Sprintf("/proc/%d", c.gatewayAgent(t).pid)
	said := must(os.ReadFile(filepath.Join(proc, "status")))(t)
	for _, set := range []string{"CapEff", "CapPrm", "CapBnd"} {
		_, rest, _ := strings.Cut(string(said), set+":")
		var got uint64
		_, err := fmt.Sscanf(rest, "%x", &got)
		expect(t, err == nil && got == netAdmin, "the gateway in %s has %s %#x, want %#x: %v", c.Name, set, got, netAdmin, err)
	}
	_, err := os.Stat(filepath.Join(proc, "root", "dev", "net", "tun"))
	has, want := err == nil, wireguard == "UserSpace"
	expect(t, has == want, "the gateway in %s with %s WireGuard has /dev/net/tun: %v", c.Name, wireguard, has)
}

// kernelHas asks a node's kernel for a link of a kind, and takes it away.
func kernelHas(t *testing.T, ctx context.Context, kind string, args ...string) bool {
	t.Helper()
	n := fx.nodes[0]
	if n.NetCommand(ctx, "ip", append([]string{"link", "add", "e2elink", "type", kind}, args...)...).Run() != nil {
		return false
	}
	try(t, n.NetCommand(ctx, "ip", "link", "delete", "e2elink").Run())
	return true
}
