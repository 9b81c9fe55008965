package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// randomPair returns two clusters with random ranges, other peerings, user's choices, and traces of earlier commands.
func randomPair(r *rand.Rand) (a, b *input) {
	a, b = randomFacts(r, "a"), randomFacts(r, "b")
	if r.IntN(2) == 0 {
		a.facts.Network.ClusterID, b.facts.Network.ClusterID = b.facts.Network.ClusterID, a.facts.Network.ClusterID
	}
	planes := []int32{0}
	if r.IntN(2) == 0 {
		planes = append(planes, 1)
	}
	mode := []v1alpha1.PlanesMode{"", v1alpha1.PlanesSingle, v1alpha1.PlanesSpread}[r.IntN(3)]
	server, existing, contradicting := r.IntN(2), r.IntN(3) > 0, r.IntN(8) == 0
	for i, x := range [][2]*input{{a, b}, {b, a}} {
		own, peer := x[0], x[1]
		own.Version, own.DefaultImage = "v0.1.0", "image"
		own.randomNodes(r, i)
		if r.IntN(8) == 0 {
			own.facts.Ledger = nil
			continue
		}
		if !existing && r.IntN(2) == 0 {
			continue
		}
		own.withEntry(peer, int32(8+r.IntN(16))).Phase = []v1alpha1.PeerPhase{v1alpha1.PeerReserved, v1alpha1.PeerActive}[r.IntN(2)]
		if r.IntN(4) > 0 {
			if _, err := allocate(own, peer); err != nil {
				panic(err)
			}
		}
		if !existing || r.IntN(6) == 0 {
			continue
		}
		role := v1alpha1.Client
		if server == i || contradicting {
			role = v1alpha1.Server
		}
		own.facts.Existing = manifests.Peering(peer.facts.Network.Name, v1alpha1.PeeringSpec{Overlay: "VXLAN", PlanesMode: mode, Remote: v1alpha1.RemoteNetwork{ClusterID: peer.facts.Network.ClusterID, Name: peer.facts.Network.Name}})
		for _, plane := range planes {
			key := v1alpha1.PresharedKey{Generation: int32(r.IntN(3))}
			if key.Generation > 0 {
				key.Fingerprint = []string{"one", "other"}[r.IntN(2)]
			}
			own.facts.Existing.Spec.Planes = append(own.facts.Existing.Spec.Planes, v1alpha1.Plane{
				Index: plane, Role: role, WireGuard: "Kernel", KeyGeneration: int32(1 + r.IntN(2)), OverlayKeyGeneration: 1, PresharedKey: key, RemotePublicKey: "public key of " + peer.facts.Network.Name,
			})
			f := PlaneFacts{PublicKey: "public key of " + own.facts.Network.Name, PresharedKey: key, KeyUnreadable: r.IntN(8) == 0}
			if f.KeyUnreadable || r.IntN(6) == 0 {
				f.PublicKey = ""
			}
			own.facts.Planes[plane] = f
		}
		own.facts.OverlayKeys, own.facts.Installed = []int32{1}, manifests.Agents{Image: "image", Version: "v0.1.0"}
		if role == v1alpha1.Server {
			own.facts.Service = manifests.GatewayService(own.facts.Existing.Name, corev1.ServiceTypeNodePort, planes)
			for p := range own.facts.Service.Spec.Ports {
				if r.IntN(4) > 0 {
					own.facts.Service.Spec.Ports[p].NodePort = int32(30000 + p)
				}
			}
		}
	}
	mode = []v1alpha1.PlanesMode{"", "", v1alpha1.PlanesSingle, v1alpha1.PlanesSpread}[r.IntN(4)]
	wanted, asked := []int{0, 0, 0, 1, 2}[r.IntN(5)], r.IntN(6)
	for i, s := range []*input{a, b} {
		s.Overrides.Planes, s.Overrides.PlanesMode, s.Overrides.Server = wanted, mode, asked == i
		s.randomOverrides(r)
	}
	return a, b
}

// randomNodes gives the cluster some nodes.
func (f *input) randomNodes(r *rand.Rand, cluster int) {
	for i := range r.IntN(4) {
		n := Node{Name: fmt.Sprint(f.facts.Network.Name, "-", i+2), UID: fmt.Sprint(f.facts.Network.Name, i), Ready: r.IntN(5) > 0, RunsAgents: true, Schedulable: true}
		n.InternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{172, 18, byte(cluster), byte(i + 2)})}
		if r.IntN(4) == 0 {
			n.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(16*cluster + i)})}
		}
		f.facts.Network.Nodes = append(f.facts.Network.Nodes, n)
	}
	for _, a := range f.facts.Ledger.Spec.Peers {
		var p v1alpha1.Peering
		p.Name, p.Spec.Overlay = a.Name, "VXLAN"
		p.Spec.Remote = v1alpha1.RemoteNetwork{ClusterID: a.ClusterID, Name: a.Name, NodeIPs: []v1alpha1.IP{{Addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(a.Index)})}}}
		p.Spec.Planes = []v1alpha1.Plane{{Role: v1alpha1.Client, WireGuard: "Kernel", OverlayKeyGeneration: 1, RemotePublicKey: "public key of " + a.Name, Endpoints: []string{"198.51.100.99:51840"}}}
		f.facts.OtherPeerings = append(f.facts.OtherPeerings, p)
	}
}

// randomOverrides sets random choices of the user.
func (f *input) randomOverrides(r *rand.Rand) {
	o := &f.Overrides
	switch r.IntN(10) {
	case 0:
		o.Endpoints = []string{"192.0.2.7:51840"}
	case 1:
		o.ServiceType, o.NodePort = "NodePort", 30077
	case 2:
		o.ServiceType = "LoadBalancer"
	case 3:
		o.Overlay, o.WireGuard = "VXLAN", "UserSpace"
	case 4:
		o.MapNodes = prefix("10.222.64.0/18")
	case 5:
		o.Map = ipam.Mappings{{Real: f.facts.Network.PodCIDRs[0].Value, Mapped: netip.PrefixFrom(prefix("10.208.0.0/16").Addr(), max(f.facts.Network.PodCIDRs[0].Value.Bits(), 16))}}
	case 6:
		o.LimitNew = new(int64(7))
	case 7:
		f.KeepOverlayKey = len(f.facts.OverlayKeys) > 0
	}
}
