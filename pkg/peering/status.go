package peering

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/plan"
)

// State of a peering, as one side sees it.
type State string

const (
	// Connected is a tunnel by which packets pass, from every node that is ready.
	Connected State = "Connected"
	// Degraded is a tunnel by which packets pass, but not from every node, or not for
	// every pod.
	Degraded State = "Degraded"
	// Disconnected is a tunnel by which no packet passes.
	Disconnected State = "Disconnected"
	// Unknown is a gateway that has not reported for a while.
	Unknown State = "Unknown"
)

// View is one side's view of a peering: what was decided and what is measured.
type View struct {
	// Name is that of the Peering.
	Name    string `json:"name"`
	Cluster string `json:"cluster"`
	Peer    string `json:"peer"`
	PeerID  string `json:"peerID"`
	State   State  `json:"state"`
	Message string `json:"message,omitempty"`
	// LocalPods are the cluster's own ranges and what the peer knows them by.
	LocalPods ipam.Mappings `json:"localPods"`
	// LocalNodes is the same for its nodes' overlay addresses.
	LocalNodes ipam.Mapping `json:"localNodes"`
	// RemotePods are the peer's ranges and what this cluster knows them by.
	RemotePods ipam.Mappings `json:"remotePods"`
	Overlay    string        `json:"overlay"`
	// Planes has an entry for each gateway of this cluster.
	Planes []PlaneView `json:"planes"`
	// NodesReady of NodesTotal nodes reach the peer: those that are ready.
	NodesReady int        `json:"nodesReady"`
	NodesTotal int        `json:"nodesTotal"`
	Nodes      []NodeView `json:"nodes"`
	// NodesNotReady are those that Kubernetes takes for not ready. They are left
	// out of the above, and change no state.
	NodesNotReady []string `json:"nodesNotReady,omitempty"`
}

// PlaneView is one gateway of this cluster, and its tunnel.
type PlaneView struct {
	Index int32 `json:"index"`
	// Role is Server or Client. The client calls.
	Role string `json:"role"`
	// Backend does the work of WireGuard: kernel or userspace.
	Backend string `json:"backend"`
	// PublicKey is that of the gateway, of the key generation that it uses.
	PublicKey     string `json:"publicKey,omitempty"`
	KeyGeneration int32  `json:"keyGeneration,omitempty"`
	// Service exposes the gateway; empty on a client.
	Service string `json:"service,omitempty"`
	// Endpoints are where the peer's gateway is called; empty on a server.
	Endpoints []string `json:"endpoints,omitempty"`
	// Endpoint is the one in use, as WireGuard sees it.
	Endpoint string `json:"endpoint,omitempty"`
	// Node is the one that the gateway runs on.
	Node string `json:"node,omitempty"`
	// MTU is how many bytes a packet to the peer may have.
	MTU int `json:"mtu,omitempty"`
	// RTT is gateway to gateway, the median of the last probes.
	RTT         *float64 `json:"rttMilliseconds,omitempty"`
	LossPercent int      `json:"lossPercent"`
	// HandshakeAge is the time since WireGuard's last handshake, nil where there was
	// none. No clock of the reader's machine is in it.
	HandshakeAge *int64 `json:"handshakeAgeSeconds,omitempty"`
	// Connected says that probes through the tunnel are answered.
	Connected bool `json:"connected"`
	// Message says what is wrong where Connected is false.
	Message string `json:"message,omitempty"`
}

// NodeView is one node's part.
type NodeView struct {
	Name string `json:"name"`
	// Address is the node's overlay address, SeenAs how the peer knows it.
	// Both are missing where no agent has reported.
	Address netip.Addr `json:"address,omitzero"`
	SeenAs  netip.Addr `json:"seenAs,omitzero"`
	Ready   bool       `json:"ready"`
	// RTT is from the node to the peer's gateway.
	RTT         *float64 `json:"rttMilliseconds,omitempty"`
	LossPercent int      `json:"lossPercent"`
	// Message says why it is not ready, where that is known.
	Message string `json:"message,omitempty"`
}

// Views returns the cluster's view of each of its peerings, by name.
func (c *Cluster) Views(ctx context.Context) ([]View, error) {
	var peerings v1alpha1.PeeringList
	if err := c.Client.List(ctx, &peerings); absent(err) {
		return nil, nil
	} else if err != nil {
		return nil, c.fail("list Peerings", err)
	}
	if len(peerings.Items) == 0 {
		return nil, nil
	}
	var nodes v1alpha1.NodeNetworkList
	if err := c.Client.List(ctx, &nodes); err != nil {
		return nil, c.fail("list NodeNetworks", err)
	}
	ready, notReady, err := c.agentNodes(ctx)
	if err != nil {
		return nil, c.fail("list nodes", err)
	}
	beats, err := c.listen(ctx, renewals(peerings.Items, nodes.Items, ready))
	if err != nil {
		return nil, err
	}
	views := make([]View, 0, len(peerings.Items))
	for i := range peerings.Items {
		v, err := view(c.Name, &peerings.Items[i], nodes.Items, ready, beats)
		if err != nil {
			return nil, c.fail("read Peering "+peerings.Items[i].Name, err)
		}
		v.mention(notReady)
		views = append(views, v)
	}
	slices.SortFunc(views, func(a, b View) int { return cmp.Compare(a.Peer, b.Peer) })
	return views, nil
}

// renewals are the Leases that views depend on, with how often they are renewed.
func renewals(peerings []v1alpha1.Peering, reports []v1alpha1.NodeNetwork, readyNodes []string) map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, p := range peerings {
		for _, plane := range p.Spec.Planes {
			out[gatewayLease(p.Name, plane.Index)] = v1alpha1.ReportInterval
		}
	}
	for _, n := range reports {
		if slices.Contains(readyNodes, n.Spec.NodeName) {
			out[nodeLease(n.Name)] = v1alpha1.NodeReportInterval
		}
	}
	return out
}

// mention says which nodes are left out.
func (v *View) mention(notReady []string) {
	if v.NodesNotReady = notReady; len(notReady) == 0 {
		return
	}
	const most = 5
	names := strings.Join(notReady[:min(len(notReady), most)], ", ")
	if more := len(notReady) - most; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	v.say("not ready, and left out: " + names)
}

// say adds something to the message.
func (v *View) say(text string) {
	if v.Message != "" {
		v.Message += "; "
	}
	v.Message += text
}

// view is pure.
func view(cluster string, p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork, readyNodes []string, beats heartbeats) (View, error) {
	nodesMapping, err := ipam.ExternalMapping(p.Spec.Local.InternalCIDR.Prefix, p.Spec.Local.ExternalCIDR.Prefix)
	if err != nil {
		return View{}, err
	}
	v := View{
		Name: p.Name, Cluster: cluster, Peer: p.Spec.Remote.Name, PeerID: p.Spec.Remote.ClusterID, State: Unknown,
		LocalPods: plan.Mappings(p.Spec.Local.Pods), RemotePods: plan.Mappings(p.Spec.Remote.Pods),
		LocalNodes: nodesMapping,
		Overlay:    string(p.Spec.Overlay),
		Nodes:      []NodeView{},
	}
	for i := range p.Spec.Planes {
		v.Planes = append(v.Planes, planeView(p, &p.Spec.Planes[i], beats))
	}
	plane := &p.Spec.Planes[0]
	v.NodesTotal = len(readyNodes)
	var problems, conflicts []string
	for _, name := range readyNodes {
		nv := NodeView{Name: name}
		// A node may have an outdated one as well.
		for i := range nodes {
			n := &nodes[i]
			if n.Spec.NodeName != name || nv.Ready {
				continue
			}
			if nv.Address, err = netip.ParseAddr(n.Name); err != nil {
				return v, err
			}
			nv.SeenAs, _ = v.LocalNodes.Translate(nv.Address)
			nv.Message = whyNotReady(n, p.Spec.Overlay)
			conflicts = append(conflicts, conflicting(n, &p.Spec)...)
			if g := n.Gateway(p.Name, plane.Index); g != nil {
				nv.Ready = beats.alive(nodeLease(n.Name), nodeSilence) && g.Ready && g.ObservedGeneration == p.Generation
				nv.RTT, nv.LossPercent = milliseconds(g.RTTMicroseconds), int(g.LossPercent)
			}
		}
		if nv.Ready {
			v.NodesReady, nv.Message = v.NodesReady+1, ""
		} else if nv.Message != "" {
			problems = append(problems, name+": "+nv.Message)
		}
		v.Nodes = append(v.Nodes, nv)
	}
	slices.SortFunc(v.Nodes, func(a, b NodeView) int { return cmp.Compare(a.Name, b.Name) })

	s := p.PlaneStatus(plane.Index)
	if s == nil {
		v.Message = "the gateway has not reported yet"
		return v, nil
	}
	switch age, known := beats.age(gatewayLease(p.Name, plane.Index)); {
	case !known:
		v.Message = "the gateway does not renew its Lease"
	case age > silence:
		v.Message = fmt.Sprintf("the gateway has not renewed its Lease for %s", age.Round(time.Second))
	case !s.Connected:
		v.State, v.Message = Disconnected, cmp.Or(s.Message, "the gateway does not say why")
	case len(readyNodes) == 0:
		v.Message = "no node of the cluster is ready"
	case v.NodesReady < len(readyNodes):
		v.State = Degraded
		v.Message = fmt.Sprintf("%d of %d nodes reach the peer", v.NodesReady, len(readyNodes))
		if len(problems) > 0 {
			v.Message += "; " + problems[0]
		}
	default:
		v.State = Connected
	}
	if outside := p.PodOutside(nodes); outside != "" {
		if v.State == Connected {
			v.State = Degraded
		}
		v.say(strings.ReplaceAll(outside, "THIS-CLUSTER", cluster))
	}
	if len(conflicts) > 0 {
		slices.Sort(conflicts)
		v.say(conflicts[0])
		if more := len(conflicts) - 1; more > 0 {
			v.Message += fmt.Sprintf(" (and %d more)", more)
		}
	}
	return v, nil
}

// planeView is what is configured for one gateway, and what it measures.
func planeView(p *v1alpha1.Peering, plane *v1alpha1.Plane, beats heartbeats) PlaneView {
	v := PlaneView{
		Index: plane.Index, Role: string(plane.Role), Backend: string(plane.WireGuard), KeyGeneration: plane.KeyGeneration,
		Service: plane.Service, Endpoints: plane.Endpoints,
	}
	s := p.PlaneStatus(plane.Index)
	if s == nil {
		return v
	}
	v.Endpoint, v.Node, v.MTU, v.Message = s.Endpoint, s.NodeName, int(s.MTU), s.Message
	v.LossPercent, v.PublicKey = int(s.LossPercent), s.PublicKey
	lease := gatewayLease(p.Name, plane.Index)
	if beats.alive(lease, silence) {
		v.RTT, v.Connected = milliseconds(s.RTTMicroseconds), s.Connected
	}
	if s.LastHandshake != nil {
		if age := beats.sinceOf(lease, s.LastHandshake.Time); age != nil {
			v.HandshakeAge = new(int64(age.Seconds()))
		}
	}
	return v
}

// conflicting says which routes of a node lead to addresses that belong to the peering. The
// node got them after the ranges were chosen, and does not reach what is there.
func conflicting(n *v1alpha1.NodeNetwork, s *v1alpha1.PeeringSpec) (out []string) {
	type use struct {
		prefix netip.Prefix
		what   string
		advice string
	}
	const again = "peer again for another range"
	uses := []use{
		{s.Local.InternalCIDR.Prefix, "the overlay's own range", "unpeer this cluster from all, and peer again, for another one"},
		{s.Remote.ExternalCIDR.Prefix, "the range of the peer's nodes", again},
	}
	for _, m := range s.Remote.Pods {
		uses = append(uses, use{m.Mapped.Prefix, "a range of the peer's pods", again})
	}
	for _, r := range n.Status.Routes {
		for _, u := range uses {
			if u.prefix.IsValid() && r.Overlaps(u.prefix) {
				out = append(out, fmt.Sprintf("node %s has a route to %s, but %s is %s: %s", n.Spec.NodeName, r, u.prefix, u.what, u.advice))
				break
			}
		}
	}
	return out
}

// whyNotReady says why a node does not reach the peer. Its kernel may lack the overlay that
// was chosen before the node came; otherwise it is what the agent says. Empty if that is
// not known.
func whyNotReady(n *v1alpha1.NodeNetwork, kind v1alpha1.OverlayKind) string {
	k := n.Status.Kernel
	if k != nil && (kind == "geneve" && !k.Geneve || kind == "vxlan" && !k.VXLAN) {
		return fmt.Sprintf("its kernel (%s) has no %s; load the module, or peer again with --overlay auto", k.Release, kind)
	}
	return n.Status.Message
}

// settled says what is still missing until the Peering, as it is now, works.
// Empty when nothing is.
func settled(p *v1alpha1.Peering, v View) string {
	s := p.PlaneStatus(p.Spec.Planes[0].Index)
	switch {
	case s == nil || s.ObservedGeneration != p.Generation:
		return "the gateway has not applied the configuration"
	case v.State == Degraded && v.NodesReady == v.NodesTotal:
		return "" // pods outside of the ranges: the user decides on that
	case v.State != Connected:
		return v.Message
	default:
		return ""
	}
}

func milliseconds(us int64) *float64 {
	if us == 0 {
		return nil
	}
	return new(float64(us) / 1000)
}
