package dataplane_test

import (
	"slices"
	"testing"

	"github.com/google/nftables"

	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// A plugin marks the overlay's packets that arrive at a node, as Cilium does with a gateway's identity. The kernel
// leaves the mark on the inner packet, and the node clears it before chains or routes of others act on it. It makes no
// difference whether the gateway is on this node, and whether a pod or the node receives the packet.
func TestMarkFromOverlay(t *testing.T) {
	each(t, func(t *testing.T, o dataplane.Options) {
		const identity = 0x48060f00 // of a gateway, with Cilium's MARK_MAGIC_IDENTITY
		n := dataplane.New(t, o)
		for i := range n.A.Nodes {
			node := n.A.Nodes[i]
			marked := slices.Concat(dataplane.FromOverlay(), dataplane.NotMarked(0))
			unmarked := slices.Concat(dataplane.FromOverlay(), dataplane.Marked(0))
			packets := dataplane.Plugin(
				t, node.NS,
				dataplane.PluginRule{Hook: nftables.ChainHookPrerouting, Priority: -400, Match: dataplane.ToUDP(overlay.Port), Do: dataplane.Mark(identity)},
				dataplane.PluginRule{Hook: nftables.ChainHookPrerouting, Priority: -399, Match: marked},
				dataplane.PluginRule{Hook: nftables.ChainHookPrerouting, Priority: -300, Match: marked},
				dataplane.PluginRule{Hook: nftables.ChainHookForward, Priority: 0, Match: marked},
				dataplane.PluginRule{Hook: nftables.ChainHookForward, Priority: 1, Match: unmarked},
				dataplane.PluginRule{Hook: nftables.ChainHookInput, Priority: 0, Match: marked},
				dataplane.PluginRule{Hook: nftables.ChainHookInput, Priority: 1, Match: unmarked},
			)
			for what, err := range map[string]error{
				"a pod of the peer does not reach the node's pod": dataplane.Ping(n.B.Nodes[1].Pod.NS, node.Pod.Mapped, 56, patience),
				"the gateway does not reach the node":             dataplane.Ping(n.A.Gateway.NS, node.Overlay.Addr, 56, patience),
			} {
				kit.CheckNoError(t, err, "%s: %s", node.Name, what)
			}
			got := packets()
			if got[0] == 0 || got[1] == 0 {
				t.Errorf("%s: of %d marked packets of the overlay, %d have the mark on the inner packet, so the test proves nothing", node.Name, got[0], got[1])
			}
			if got[2]+got[3]+got[5] > 0 {
				t.Errorf("%s: packets from the overlay have the mark of the outer packet: %d after guard, %d at forward, %d at input", node.Name, got[2], got[3], got[5])
			}
			if got[4] == 0 || got[6] == 0 {
				t.Errorf("%s: packets without a mark: %d at forward, %d at input, want some", node.Name, got[4], got[6])
			}
		}
	})
}

// Packets of pods and of a node to peers have a mark, such as kube-proxy's for masquerading. The kernel copies it to
// the outer packet, and the node clears it before chains of others act on it.
func TestMarkToOverlay(t *testing.T) {
	each(t, func(t *testing.T, o dataplane.Options) {
		const mark = 0x4000
		n := dataplane.New(t, o)
		for i := range n.A.Nodes {
			node := n.A.Nodes[i]
			marked := slices.Concat(dataplane.ToUDP(overlay.Port), dataplane.Marked(mark))
			unmarked := slices.Concat(dataplane.ToUDP(overlay.Port), dataplane.Marked(0))
			packets := dataplane.Plugin(
				t, node.NS,
				dataplane.PluginRule{Hook: nftables.ChainHookPostrouting, Priority: 100, Match: dataplane.ToOverlay(), Do: dataplane.Mark(mark)},
				dataplane.PluginRule{Hook: nftables.ChainHookOutput, Priority: -400, Match: marked},
				dataplane.PluginRule{Hook: nftables.ChainHookOutput, Priority: -300, Match: marked},
				dataplane.PluginRule{Hook: nftables.ChainHookOutput, Priority: -299, Match: unmarked},
			)
			for what, from := range map[string]*netns.NS{"pod": node.Pod.NS, "node": node.NS} {
				before := packets()
				if err := dataplane.Ping(from, n.B.Nodes[1].Pod.Mapped, 56, patience); err != nil {
					t.Errorf("%s: a marked packet of the %s does not reach the peer: %v", node.Name, what, err)
				}
				got := packets()
				if got[0] == before[0] || got[1] == before[1] {
					t.Errorf("%s, %s: of %d marked packets, %d have the mark on the outer packet, so the test proves nothing", node.Name, what, got[0]-before[0], got[1]-before[1])
				}
				if got[2] > before[2] || got[3] == before[3] {
					t.Errorf("%s, %s: %d packets of the overlay have the mark of the inner packet, %d do not", node.Name, what, got[2]-before[2], got[3]-before[3])
				}
			}
		}
	})
}
