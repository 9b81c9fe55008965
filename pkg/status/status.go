// Package status tells what works of the peerings of one cluster, by what its own agents report: planes, nodes, conditions, ranges, history.
//
// Out of scope: asking nodes and pods (pkg/diagnose), and printing.
package status

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
)

// Unanswered says that all gateways have applied the Peering as it is now, and get no
// answer.
func Unanswered(p *v1alpha1.Peering) bool {
	return !slices.ContainsFunc(p.Spec.Planes, func(plane v1alpha1.Plane) bool {
		s := p.PlaneStatus(plane.Index)
		return s == nil || s.ObservedGeneration != p.Generation || s.Connected
	})
}

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
	// Orphaned is a peering that the peer, which was asked, does not have any more.
	Orphaned State = "Orphaned"
)

// View is one side's view of a peering: what was decided and what is measured.
type View struct {
	// Name is that of the Peering.
	Name      string `json:"name"`
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterID"`
	Peer      string `json:"peer"`
	PeerID    string `json:"peerID"`
	State     State  `json:"state"`
	Message   string `json:"message,omitempty"`
	// Conditions are those of the Peering, by type.
	Conditions []ConditionView `json:"conditions"`
	// LocalPods are the cluster's own ranges and what the peer knows them by.
	LocalPods ipam.Mappings `json:"localPods"`
	// LocalNodes is the same for its nodes' overlay addresses.
	LocalNodes ipam.Mapping `json:"localNodes"`
	// RemotePods are the peer's ranges and what this cluster knows them by.
	RemotePods ipam.Mappings `json:"remotePods"`
	Overlay    string        `json:"overlay"`
	// Limits are what this cluster takes from the peer at most.
	Limits v1alpha1.Limits `json:"limits,omitzero"`
	// Images are those that the node agents and the peering's gateways run, as the kubelets
	// name them: by digest. Empty where the reader may not read pods.
	Images []string `json:"images,omitempty"`
	// PresharedKeyExchange is how the pre-shared keys reached this cluster, as far as the address of its API server: of several the one that
	// protects least. Empty where there are none.
	PresharedKeyExchange kube.KeyExchange `json:"presharedKeyExchange,omitempty"`
	// PlanesMode says by how many planes a node sends: Single or Spread.
	PlanesMode string `json:"planesMode"`
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

// ConditionView is a condition of the Peering as its gateways have reported it. Where none of them reports any more, its status is Unknown.
type ConditionView struct {
	Type    string                 `json:"type"`
	Status  metav1.ConditionStatus `json:"status"`
	Reason  string                 `json:"reason"`
	Message string                 `json:"message,omitempty"`
	// Hint is the command that says more, or mends it. Empty where all is well.
	Hint string `json:"hint,omitempty"`
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
	// KeyAge is how old the gateway's key is, in seconds. Nil if that is not known.
	KeyAge *int64 `json:"keyAgeSeconds,omitempty"`
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
	// Jitter is the mean difference between the round trip times of two probes, one after the other.
	Jitter *float64 `json:"jitterMilliseconds,omitempty"`
	// SentBytes and ReceivedBytes are those of the tunnel, encrypted, since the gateway's pod has started.
	SentBytes     *int64 `json:"sentBytes,omitempty"`
	ReceivedBytes *int64 `json:"receivedBytes,omitempty"`
	// Version is that of the gateway's agent.
	Version string `json:"version,omitempty"`
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
	// Version is that of the node's agent.
	Version string `json:"version,omitempty"`
	// Ready says that it reaches the peer, by any plane. Planes are those by which it does, PlanesInUse those by which it
	// sends.
	Ready       bool    `json:"ready"`
	Planes      []int32 `json:"planes"`
	PlanesInUse []int32 `json:"planesInUse"`
	// RTT is from the node to the peer's gateway.
	RTT         *float64 `json:"rttMilliseconds,omitempty"`
	LossPercent int      `json:"lossPercent"`
	// Message says why it is not ready, where that is known.
	Message string `json:"message,omitempty"`
}

// Views returns the cluster's view of each of its peerings, by name.
func Views(ctx context.Context, c *kube.Cluster) ([]View, error) {
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return nil, err
	}
	ledger, err := c.Ledger(ctx)
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	var views []View
	for _, entry := range ledger.DeletedByHand(peerings.Items) {
		views = append(views, blank(c, entry.Name, entry.Name, entry.ClusterID, Disconnected, fmt.Sprintf(
			"Peering %s was deleted by hand: kubectl liqonet peer %s %s makes it again, kubectl liqonet unpeer %s --peer %s removes what is left", entry.Name, c.Name, entry.Name, c.Name, entry.Name)))
	}
	if len(peerings.Items) == 0 {
		return views, nil
	}
	var reports v1alpha1.NodeNetworkList
	var nodes corev1.NodeList
	var leases coordinationv1.LeaseList
	var images map[string][]string
	var secrets []metav1.PartialObjectMetadata
	g, gctx := failure.NewGroup(ctx)
	g.Go(func() error { return c.Lists(gctx, &reports, &nodes, &leases) })
	g.Go(func() (err error) {
		images, err = imagesByPeering(gctx, c)
		return err
	})
	g.Go(func() error {
		secrets = Secrets(gctx, c, client.HasLabels{v1alpha1.LabelPeering, v1alpha1.LabelPlane})
		return nil
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	ready, notReady := kube.NodesByReadiness(kube.Pointers(nodes.Items))
	var there []string
	for _, n := range nodes.Items {
		there = append(there, string(n.UID))
	}
	gone := len(plan.Departed(ledger, there))
	beats := Heartbeats{}
	beats.Note(kube.Pointers(leases.Items), c.Now())
	for _, p := range kube.Pointers(peerings.Items) {
		v, err := ViewFrom(c, p, reports.Items, ready, notReady, beats)
		if err != nil { // one that nothing can be made of hides no other
			v = blank(c, p.Name, cmp.Or(p.Spec.Remote.Name, p.Name), p.Spec.Remote.ClusterID, Unknown, fmt.Sprintf("Peering %s cannot be read: %v", p.Name, err))
		}
		v.PresharedKeyExchange = ExchangeOfPeering(p, Exchanges(secrets))
		v.Images = slices.Compact(slices.Sorted(slices.Values(slices.Concat(images[""], images[p.Name]))))
		warn := func(warning string) { v.Message = strings.TrimPrefix(v.Message+"; "+warning, "; ") }
		if gone > 0 {
			warn(fmt.Sprintf("nodes that have left know the overlay's key (%d): kubectl liqonet peer %s %s makes another one", gone, c.Name, v.Peer))
		}
		if lost := ownerless(p, secrets, leases.Items); len(lost) > 0 {
			warn(fmt.Sprintf("without their owner, and so left over if the Peering is deleted: %s; kubectl liqonet peer %s %s sets it again", kube.FirstOf(2, lost), c.Name, v.Peer))
		}
		views = append(views, v)
	}
	slices.SortFunc(views, func(a, b View) int { return cmp.Compare(a.Peer, b.Peer) })
	return views, nil
}

// blank is a view of which nothing is known but what the message says.
func blank(c *kube.Cluster, name, peer, peerID string, s State, message string) View {
	return View{Name: name, Cluster: c.Name, ClusterID: c.ID, Peer: peer, PeerID: peerID, State: s, Conditions: []ConditionView{}, Nodes: []NodeView{}, Message: message}
}

// ownerless are objects of gateways that do not go with the Peering, of the kinds that are read anyway. A backup that was restored
// may have left them so.
func ownerless(p *v1alpha1.Peering, secrets []metav1.PartialObjectMetadata, leases []coordinationv1.Lease) (out []string) {
	look := func(obj client.Object) {
		if obj.GetLabels()[v1alpha1.LabelPeering] == p.Name && !Owns(p.UID, obj) {
			out = append(out, kube.KindName(obj)+" "+obj.GetName())
		}
	}
	for i := range secrets {
		look(&secrets[i])
	}
	for i := range leases {
		look(&leases[i])
	}
	return out
}

// imagesByPeering are the images that gateways run, and those of node agents by an empty
// name.
func imagesByPeering(ctx context.Context, c *kube.Cluster) (map[string][]string, error) {
	var pods corev1.PodList
	err := c.List(ctx, &pods, client.InNamespace(v1alpha1.Namespace), client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.FieldManager})
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	images := map[string][]string{}
	for _, p := range pods.Items {
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Running != nil && s.ImageID != "" && p.Labels[v1alpha1.LabelProbe] == "" {
				images[p.Labels[v1alpha1.LabelPeering]] = append(images[p.Labels[v1alpha1.LabelPeering]], s.ImageID)
			}
		}
	}
	return images, nil
}

// MarkOrphans finds, among the views of all clusters that were asked, those of a peering that
// the other cluster does not have. asked are the clusters' IDs.
func MarkOrphans(views []View, asked []string) {
	for i := range views {
		v := &views[i]
		has := func(o View) bool { return o.ClusterID == v.PeerID && o.PeerID == v.ClusterID }
		if v.State == Connected || !slices.Contains(asked, v.PeerID) || slices.ContainsFunc(views, has) {
			continue
		}
		v.State = Orphaned
		v.Message = fmt.Sprintf("%s has no peering with %s; unpeer %s --peer %s removes this side, peer --replace makes the other one anew", v.Peer, v.Cluster, v.Cluster, v.Name)
	}
}

// ViewKinds are what viewOf looks at.
func ViewKinds() []client.ObjectList {
	return []client.ObjectList{&v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{}, &corev1.NodeList{}, &coordinationv1.LeaseList{}}
}

// ViewOf is the view of a Peering that is waited for, and what is still missing until it
// works.
func ViewOf(c *kube.Cluster, p *v1alpha1.Peering, o kube.Objects, beats Heartbeats) (v View, missing string, err error) {
	beats.Note(kube.Of[*coordinationv1.Lease](o), c.Now())
	ready, notReady := kube.NodesByReadiness(kube.Of[*corev1.Node](o))
	v, err = ViewFrom(c, p, o.Reports(), ready, notReady, beats)
	return v, settled(p, v), err
}

// ViewFrom is pure. Of the nodes that have agents it is told which are ready, and which are not.
func ViewFrom(c *kube.Cluster, p *v1alpha1.Peering, reports []v1alpha1.NodeNetwork, ready, notReady []string, beats Heartbeats) (View, error) {
	t, err := TranslationOf(p)
	if err != nil {
		return View{}, err
	}
	v := View{
		Name: p.Name, Cluster: c.Name, ClusterID: c.ID, Peer: p.Spec.Remote.Name, PeerID: p.Spec.Remote.ClusterID, State: Unknown,
		LocalPods: t.Pods, LocalNodes: t.Nodes, RemotePods: plan.Mappings(p.Spec.Remote.Pods),
		Overlay: string(p.Spec.Overlay), Limits: p.Spec.Limits, PlanesMode: string(cmp.Or(p.Spec.PlanesMode, v1alpha1.PlanesSingle)), Nodes: []NodeView{}, NodesTotal: len(ready), NodesNotReady: notReady,
	}
	var messages, problems, partly, conflicts []string
	for i := range p.Spec.Planes {
		plane, state := planeView(p, &p.Spec.Planes[i], beats, c.Now())
		v.Planes = append(v.Planes, plane)
		if state == Connected || state == Disconnected && v.State == Unknown {
			v.State = state
		}
		if state != Connected {
			messages = append(messages, ofPlane(p, plane.Index)+plane.Message)
		}
	}
	isSilent := v.State == Unknown
	byNode := plan.ReportsByNode(reports)
	for _, name := range ready {
		n := NodeView{Name: name, Planes: []int32{}, PlanesInUse: []int32{}}
		if report := byNode[name]; report != nil {
			n = nodeView(report, p, t.Nodes, beats)
			conflicts = append(conflicts, Conflicting(report, &p.Spec)...)
		}
		v.Nodes = append(v.Nodes, n)
		for _, plane := range v.Planes {
			if n.Ready && plane.Connected && !slices.Contains(n.Planes, plane.Index) {
				partly = append(partly, fmt.Sprintf("%s by plane %d", name, plane.Index))
			}
		}
		if n.Ready {
			v.NodesReady++
		} else if n.Message != "" {
			problems = append(problems, name+": "+n.Message)
		}
	}
	outside := p.PodOutside(reports)
	if p.Incomplete() {
		messages = append(messages, fmt.Sprintf("it is not complete: kubectl liqonet peer %s %s completes it, if no other command does at the moment", c.Name, v.Peer))
	}
	switch {
	case v.State != Connected:
	case len(ready) == 0:
		v.State = Unknown
		messages = append(messages, "no node of the cluster is ready")
	case v.NodesReady < len(ready):
		v.State = Degraded
		messages = append(messages, fmt.Sprintf("%d of %d nodes reach the peer", v.NodesReady, len(ready)), kube.FirstOf(1, problems))
	case len(messages)+len(partly) > 0, outside != "":
		v.State = Degraded
	}
	if len(partly) > 0 {
		messages = append(messages, "the peer is not reached from "+kube.FirstOf(3, partly))
	}
	slices.Sort(conflicts)
	messages = append(messages, strings.ReplaceAll(outside, "THIS-CLUSTER", c.Name), kube.FirstOf(1, conflicts))
	if len(notReady) > 0 {
		messages = append(messages, "not ready, and left out: "+kube.FirstOf(5, notReady))
	}
	v.Message = strings.Join(slices.DeleteFunc(messages, func(m string) bool { return m == "" }), "; ")
	v.Conditions = conditionsOf(c, p, isSilent, v.State == Connected && len(notReady) == 0)
	return v, nil
}

// ofPlane precedes what is said of one plane, where there are several.
func ofPlane(p *v1alpha1.Peering, index int32) string {
	if len(p.Spec.Planes) < 2 {
		return ""
	}
	return fmt.Sprintf("plane %d: ", index)
}

// conditionsOf are the conditions, and what can be done about each that is not well. Where silent, no gateway reports. Where isWell,
// nothing is degraded by now: nodes report sooner than a gateway writes its conditions.
func conditionsOf(c *kube.Cluster, p *v1alpha1.Peering, silent, isWell bool) []ConditionView {
	out := []ConditionView{}
	pods := fmt.Sprintf("%s -n %s get pods -o wide", c.Kubectl, v1alpha1.Namespace)
	for _, now := range p.Status.Conditions {
		if silent {
			now.Status, now.Reason, now.Message = metav1.ConditionUnknown, v1alpha1.ReasonGatewaysSilent, "no gateway of the peering reports"
		}
		v := ConditionView{Type: now.Type, Status: now.Status, Reason: now.Reason, Message: now.Message}
		silent := silent || now.Reason == v1alpha1.ReasonPending
		switch {
		case v1alpha1.Well(now), now.Type == v1alpha1.ConditionReady: // what it sums up has the hint
		case now.Type == v1alpha1.ConditionDegraded && isWell:
		case now.Type == v1alpha1.ConditionKeysFresh && !silent:
			v.Hint = fmt.Sprintf("kubectl liqonet rotate-keys %s %s", c.Name, p.Spec.Remote.Name)
		case now.Type == v1alpha1.ConditionDegraded && !silent: // by nodes, too
			v.Hint = pods
		default:
			v.Hint = fmt.Sprintf("%s -l %s=%s", pods, v1alpha1.LabelPeering, p.Name)
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b ConditionView) int { return cmp.Compare(a.Type, b.Type) })
	return out
}

// planeView is what is configured for one gateway, what it measures, and what state its
// tunnel is in by that.
func planeView(p *v1alpha1.Peering, plane *v1alpha1.Plane, beats Heartbeats, now time.Time) (v PlaneView, state State) {
	v = PlaneView{
		Index: plane.Index, Role: string(plane.Role), Backend: string(plane.WireGuard), KeyGeneration: plane.KeyGeneration,
		Service: plane.ServiceName, Endpoints: plane.Endpoints,
	}
	if plane.KeyTime != nil {
		v.KeyAge = new(int64(now.Sub(plane.KeyTime.Time).Seconds()))
	}
	reported := p.PlaneStatus(plane.Index)
	if reported == nil {
		v.Message = "the gateway has not reported yet"
		return v, Unknown
	}
	lease := v1alpha1.GatewayName(p.Name, plane.Index)
	s := beats.Measured(lease).Newest(*reported)
	v.Endpoint, v.Node, v.MTU, v.Message = s.Endpoint, s.NodeName, int(s.MTU), s.Message
	v.LossPercent, v.PublicKey = int(s.LossPercent), s.PublicKey
	v.Version = beats.Version(lease)
	if s.LastHandshake != nil {
		if age := beats.sinceOf(lease, s.LastHandshake.Time); age != nil {
			v.HandshakeAge = new(int64(age.Seconds()))
		}
	}
	switch age, known := beats.Age(lease); {
	case !known:
		v.Message = "the gateway does not renew its Lease"
		return v, Unknown
	case age > silence:
		v.Message = fmt.Sprintf("the gateway has not renewed its Lease for %s", age.Round(time.Second))
		return v, Unknown
	}
	v.RTT, v.Connected = milliseconds(s.RTTMicroseconds), s.Connected
	if m := beats.Measured(lease); m != nil {
		v.Jitter, v.SentBytes, v.ReceivedBytes = milliseconds(m.JitterMicroseconds), &m.SentBytes, &m.ReceivedBytes
	}
	if !s.Connected {
		v.Message = cmp.Or(s.Message, "the gateway does not say why")
		return v, Disconnected
	}
	return v, Connected
}

// nodeView is what the agent of a node reports.
func nodeView(n *v1alpha1.NodeNetwork, p *v1alpha1.Peering, seenAs ipam.Mapping, beats Heartbeats) (v NodeView) {
	v.Name, v.Planes, v.PlanesInUse = n.Name, []int32{}, []int32{}
	v.Address = n.Status.Address.Addr
	v.SeenAs, _ = seenAs.Translate(v.Address)
	v.Version = beats.Version(n.Lease())
	alive := beats.Alive(n.Lease(), NodeSilence)
	for _, plane := range p.Spec.Planes {
		g := n.Gateway(p.Name, plane.Index)
		if g == nil {
			continue
		}
		reaches := g.Ready && g.ObservedGeneration == p.Generation && alive
		if !v.Ready {
			v.Ready, v.RTT, v.LossPercent = reaches, milliseconds(g.RTTMicroseconds), int(g.LossPercent)
		}
		if reaches {
			v.Planes = append(v.Planes, plane.Index)
		}
		if g.Active {
			v.PlanesInUse = append(v.PlanesInUse, plane.Index)
		}
	}
	if !v.Ready {
		v.Message = whyNotReady(n, p.Spec.Overlay)
	}
	return v
}

// Conflicting says which routes of a node lead to addresses that belong to the peering. The
// node got them after the ranges were chosen, and does not reach what is there.
func Conflicting(n *v1alpha1.NodeNetwork, s *v1alpha1.PeeringSpec) (out []string) {
	const again = "peer again for another range"
	check := func(used v1alpha1.CIDR, what, advice string) {
		for _, r := range n.Status.Routes {
			if r.Overlaps(used.Prefix) {
				out = append(out, fmt.Sprintf("node %s has a route to %s, but %s is %s: %s", n.Name, r, used, what, advice))
			}
		}
	}
	check(s.Local.InternalCIDR, "the overlay's own range", "unpeer this cluster from all, and peer again, for another one")
	check(s.Remote.ExternalCIDR, "the range of the peer's nodes", again)
	for _, m := range s.Remote.Pods {
		check(m.Mapped, "a range of the peer's pods", again)
	}
	return out
}

// whyNotReady says why a node does not reach the peer. Its kernel may lack the overlay that
// was chosen before the node came; otherwise it is what the agent says. Empty if that is
// not known.
func whyNotReady(n *v1alpha1.NodeNetwork, kind v1alpha1.OverlayKind) string {
	k := n.Status.Kernel
	if k != nil && (kind == v1alpha1.Geneve && !k.Geneve || kind == v1alpha1.VXLAN && !k.VXLAN) {
		return fmt.Sprintf("its kernel (%s) has no %s; load the module, or peer again with --overlay auto", k.Release, kind.LinkKind())
	}
	return n.Problem()
}

// settled says what is still missing until the Peering, as it is now, works.
// Empty when nothing is.
func settled(p *v1alpha1.Peering, v View) string {
	for _, plane := range v.Planes {
		if s := p.PlaneStatus(plane.Index); s == nil || s.ObservedGeneration != p.Generation {
			return "the gateway has not applied the configuration"
		}
		if !plane.Connected {
			return v.Message
		}
	}
	if v.NodesTotal == 0 || slices.ContainsFunc(v.Nodes, func(n NodeView) bool { return !n.Ready || !ReachesByAll(n, v.Planes) }) {
		return v.Message
	}
	return "" // that pods are outside of the ranges is for the user to decide on
}

// SettledBut is settled without planes and nodes that nobody waits for. If it were all, it is without none.
func SettledBut(p *v1alpha1.Peering, v View, planes func(PlaneView) bool, nodes []string) string {
	rest := v
	rest.Planes = slices.DeleteFunc(slices.Clone(v.Planes), planes)
	rest.Nodes = slices.DeleteFunc(slices.Clone(v.Nodes), func(n NodeView) bool { return kube.IsAmong(nodes, n.Name) })
	if len(rest.Planes) == 0 || len(rest.Nodes) == 0 {
		rest = v
	}
	return settled(p, rest)
}

// ReachesByAll says that the node reaches the peer by all of these planes.
func ReachesByAll(n NodeView, planes []PlaneView) bool {
	return !slices.ContainsFunc(planes, func(plane PlaneView) bool { return !slices.Contains(n.Planes, plane.Index) })
}

func milliseconds(us int64) *float64 {
	if us == 0 {
		return nil
	}
	return new(float64(us) / 1000)
}
