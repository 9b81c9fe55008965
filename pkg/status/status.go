// Package status reports the state of one cluster's peerings, from its agents' reports: planes, nodes, conditions, ranges, history.
//
// Out of scope: querying nodes and pods (pkg/diagnose), and printing.
package status

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

// Unanswered reports whether all gateways have applied the current Peering and get no reply from the peer.
func Unanswered(p *v1alpha1.Peering) bool {
	return !slices.ContainsFunc(p.Spec.Planes, func(plane v1alpha1.Plane) bool {
		s := p.PlaneStatus(plane.Index)
		return s == nil || s.ObservedGeneration != p.Generation || s.Connected
	})
}

// State is the state of a peering, as seen from one side.
type State string

const (
	// Connected means that packets pass through the tunnel from every ready node.
	Connected State = "Connected"
	// Degraded means that packets pass, but not from every node, or not for every pod.
	Degraded State = "Degraded"
	// Disconnected means that no packets pass.
	Disconnected State = "Disconnected"
	// Unknown means that the gateways have not reported recently.
	Unknown State = "Unknown"
	// Orphaned means that the peer was queried and no longer has the peering.
	Orphaned State = "Orphaned"
)

// View is one side's view of a peering: its configuration and measurements.
type View struct {
	// Name is the name of the Peering.
	Name      string `json:"name"`
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterID"`
	Peer      string `json:"peer"`
	PeerID    string `json:"peerID"`
	State     State  `json:"state"`
	// CopiedFrom is the ID of the cluster for which the Peering was made, if that is another one.
	CopiedFrom string `json:"copiedFrom,omitempty"`
	Message    string `json:"message,omitempty"`
	// Conditions are the conditions of the Peering, sorted by type.
	Conditions []ConditionView `json:"conditions"`
	// LocalPods are the cluster's pod ranges, and how they are mapped for the peer.
	LocalPods ipam.Mappings `json:"localPods"`
	// LocalNodes is the same for the nodes' overlay addresses.
	LocalNodes ipam.Mapping `json:"localNodes"`
	// Hosts are the addresses outside of the cluster that the peer may reach.
	Hosts []Host `json:"hosts,omitempty"`
	// RemotePods are the peer's pod ranges, and how they are mapped for this cluster.
	RemotePods ipam.Mappings `json:"remotePods"`
	Overlay    string        `json:"overlay"`
	// Limits bound the traffic that this cluster accepts from the peer.
	Limits v1alpha1.Limits `json:"limits,omitzero"`
	// Services is the exchange of services. Nil if there is none.
	Services *ServicesView `json:"services,omitempty"`
	// Images are the images that the node agents and the peering's gateways run, with the digests that kubelets report.
	// Empty if the user may not read pods.
	Images []string `json:"images,omitempty"`
	// PresharedKeyExchange is the weakest key exchange that protected a pre-shared key sent to this cluster's API
	// server. Empty if there are no pre-shared keys.
	PresharedKeyExchange kube.KeyExchange `json:"presharedKeyExchange,omitempty"`
	// PlanesMode says whether a node sends through one plane or several: Single or Spread.
	PlanesMode string `json:"planesMode"`
	// Planes has an entry for each gateway of this cluster.
	Planes []PlaneView `json:"planes"`
	// NodesReady of NodesTotal nodes reach the peer. Only nodes that are ready count.
	NodesReady int        `json:"nodesReady"`
	NodesTotal int        `json:"nodesTotal"`
	Nodes      []NodeView `json:"nodes"`
	// NodesNotReady are the nodes that Kubernetes reports as not ready. They do not affect the state.
	NodesNotReady []string `json:"nodesNotReady,omitempty"`
}

// ConditionView is a condition of the Peering as its gateways reported it. Its status is Unknown if no gateway currently reports.
type ConditionView struct {
	Type    string                 `json:"type"`
	Status  metav1.ConditionStatus `json:"status"`
	Reason  string                 `json:"reason"`
	Message string                 `json:"message,omitempty"`
	// Hint is a command that shows more or fixes the problem. Empty if there is none.
	Hint string `json:"hint,omitempty"`
}

// PlaneView is one gateway of this cluster, and its tunnel.
type PlaneView struct {
	Index int32 `json:"index"`
	// Role is Server or Client. The client initiates the tunnel.
	Role string `json:"role"`
	// Backend is the WireGuard implementation: kernel or userspace.
	Backend string `json:"backend"`
	// PublicKey is the gateway's public key of the key generation in use.
	PublicKey     string `json:"publicKey,omitempty"`
	KeyGeneration int32  `json:"keyGeneration,omitempty"`
	// KeyAge is the age of the gateway's key in seconds. Nil if unknown.
	KeyAge *int64 `json:"keyAgeSeconds,omitempty"`
	// Service exposes the gateway. Empty on a client.
	Service string `json:"service,omitempty"`
	// Endpoints are the addresses of the peer's gateway. Empty on a server.
	Endpoints []string `json:"endpoints,omitempty"`
	// Endpoint is the endpoint in use, as WireGuard reports it.
	Endpoint string `json:"endpoint,omitempty"`
	// Node is the node on which the gateway runs.
	Node string `json:"node,omitempty"`
	// MTU is the largest packet to the peer, in bytes.
	MTU int `json:"mtu,omitempty"`
	// RTT is the round-trip time between the gateways, the median of the last probes.
	RTT         *float64 `json:"rttMilliseconds,omitempty"`
	LossPercent int      `json:"lossPercent"`
	// Jitter is the mean difference between the round-trip times of consecutive probes.
	Jitter *float64 `json:"jitterMilliseconds,omitempty"`
	// SentBytes and ReceivedBytes count encrypted tunnel traffic since the gateway's pod started.
	SentBytes     *int64 `json:"sentBytes,omitempty"`
	ReceivedBytes *int64 `json:"receivedBytes,omitempty"`
	// Version is the version of the gateway's agent.
	Version string `json:"version,omitempty"`
	// HandshakeAge is the time since WireGuard's last handshake, nil if there was none. It does not depend on this
	// machine's clock.
	HandshakeAge *int64 `json:"handshakeAgeSeconds,omitempty"`
	// Connected is true if probes through the tunnel are answered.
	Connected bool `json:"connected"`
	// Message says what is wrong if Connected is false.
	Message string `json:"message,omitempty"`
}

// NodeView is the view of one node.
type NodeView struct {
	Name string `json:"name"`
	// Address is the node's overlay address, SeenAs the peer's address for it. Both are missing if no agent has
	// reported.
	Address netip.Addr `json:"address,omitzero"`
	SeenAs  netip.Addr `json:"seenAs,omitzero"`
	// Version is the version of the node's agent.
	Version string `json:"version,omitempty"`
	// Ready is true if the node reaches the peer through any plane. Planes are the planes that reach it, PlanesInUse
	// those that the node sends through.
	Ready       bool    `json:"ready"`
	Planes      []int32 `json:"planes"`
	PlanesInUse []int32 `json:"planesInUse"`
	// RTT is the round-trip time from the node to the peer's gateway.
	RTT         *float64 `json:"rttMilliseconds,omitempty"`
	LossPercent int      `json:"lossPercent"`
	// Message says why the node is not ready, if known.
	Message string `json:"message,omitempty"`
}

// Views returns the cluster's view of each of its peerings, sorted by peer.
func Views(ctx context.Context, c *kube.Cluster) ([]View, error) {
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return nil, err
	}
	ledger, err := c.ReadLedger(ctx)
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	var views []View
	for _, entry := range ledger.DeletedByHand(peerings.Items) {
		views = append(views, emptyView(c, entry.Name, entry.Name, entry.ClusterID, Disconnected, fmt.Sprintf(
			"Peering %s was deleted by hand: kubectl liqonet peer %s %s recreates it, kubectl liqonet unpeer %s --peer %s removes the rest", entry.Name, failure.Quote(c.Name), failure.Quote(entry.Name), failure.Quote(c.Name), failure.Quote(entry.Name))))
	}
	if len(peerings.Items) == 0 {
		return views, nil
	}
	var reports v1alpha1.NodeNetworkList
	var nodes corev1.NodeList
	var leases coordinationv1.LeaseList
	var pods corev1.PodList
	var secrets []metav1.PartialObjectMetadata
	var weak, changed []string
	g, gctx := failure.NewGroup(ctx)
	g.Go(func() error { return c.ListAll(gctx, &reports, &nodes, &leases) })
	g.Go(func() error {
		secrets = Secrets(gctx, c, client.HasLabels{v1alpha1.LabelPeering, v1alpha1.LabelPlane})
		return nil
	})
	g.Go(func() (err error) {
		weak, changed, err = WeakPolicies(gctx, c, lo.FromPtr(ledger).Spec.Services != nil)
		return err
	})
	g.Go(func() error {
		err := c.List(gctx, &pods, client.InNamespace(v1alpha1.Namespace), client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.FieldManager})
		return lo.Ternary(apierrors.IsForbidden(err), nil, err)
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	ready, notReady := kube.NodesByReadiness(kube.Pointers(nodes.Items))
	present := lo.Map(nodes.Items, func(n corev1.Node, _ int) string { return string(n.UID) })
	departed := len(plan.DepartedNodes(ledger, present))
	beats := Heartbeats{}
	beats.Observe(kube.Pointers(leases.Items), c.Now())
	owned := append(kube.Items(&metav1.PartialObjectMetadataList{Items: secrets}), kube.Items(&leases)...)
	for _, p := range kube.Pointers(peerings.Items) {
		v, err := ViewFrom(c, p, reports.Items, ready, notReady, beats)
		if err != nil { // an invalid Peering does not hide the others
			v = emptyView(c, p.Name, cmp.Or(p.Spec.Remote.Name, p.Name), p.Spec.Remote.ClusterID, Unknown, fmt.Sprintf("Peering %s cannot be read: %v", p.Name, err))
		}
		v.PresharedKeyExchange, v.Images = WeakestKeyExchange(p, secrets), imagesOf(p.Name, pods.Items)
		messages := append([]string{v.Message}, warnings(v, c.Kubectl, departed, ownerlessObjects(p, owned), slices.Concat(weak, beats.ofVersion(c.Version, changed)))...)
		v.Message = strings.Join(lo.Compact(messages), "; ")
		views = append(views, v)
	}
	slices.SortFunc(views, func(a, b View) int { return cmp.Compare(a.Peer, b.Peer) })
	return views, addServices(ctx, c, views, lo.FromPtr(lo.FromPtr(ledger).Spec.Services).ID, beats)
}

// emptyView returns a view that contains only a message.
func emptyView(c *kube.Cluster, name, peer, peerID string, s State, message string) View {
	return View{Name: name, Cluster: c.Name, ClusterID: c.ID, Peer: peer, PeerID: peerID, State: s, Conditions: []ConditionView{}, Nodes: []NodeView{}, Message: message}
}

// warnings returns what needs attention and does not affect the state: nodes that have left, objects without their owner,
// and admission policies without effect.
func warnings(v View, kubectl string, departed int, ownerless, weak []string) (out []string) {
	if v.CopiedFrom != "" {
		return nil // peer is no remedy
	}
	if len(weak) > 0 {
		out = append(out, fmt.Sprintf("admission policies are missing or do not deny all that they should, so that agents' tokens can write more than agents do: %s; "+
			"%s delete validatingadmissionpolicies,validatingadmissionpolicybindings --ignore-not-found %s && kubectl liqonet peer %s %s creates them again", // it keeps fields that others have added
			strings.Join(weak, ", "), kubectl, strings.Join(weak, " "), failure.Quote(v.Cluster), failure.Quote(v.Peer)))
	}
	if departed > 0 {
		out = append(out, fmt.Sprintf("nodes that have left know the overlay's key (%d): kubectl liqonet peer %s %s creates another one", departed, failure.Quote(v.Cluster), failure.Quote(v.Peer)))
	}
	if len(ownerless) > 0 {
		out = append(out, fmt.Sprintf("without their owner, and so left over if the Peering is deleted: %s; "+
			"kubectl liqonet peer %s %s sets it again", kube.JoinFirst(2, ownerless), failure.Quote(v.Cluster), failure.Quote(v.Peer)))
	}
	return out
}

// ownerlessObjects returns those of the Secrets and Leases that are of the Peering's gateways, and not owned by it. A restored
// backup may have left them so.
func ownerlessObjects(p *v1alpha1.Peering, owned []client.Object) []string {
	return lo.FilterMap(owned, func(obj client.Object, _ int) (string, bool) {
		return kube.KindName(obj) + " " + obj.GetName(), obj.GetLabels()[v1alpha1.LabelPeering] == p.Name && !Owns(p.UID, obj)
	})
}

// imagesOf returns the images that the gateways of a peering and node agents run.
func imagesOf(peering string, pods []corev1.Pod) (images []string) {
	for _, p := range pods {
		if of := p.Labels[v1alpha1.LabelPeering]; of != "" && of != peering || p.Labels[v1alpha1.LabelProbe] != "" {
			continue
		}
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Running != nil && s.ImageID != "" {
				images = append(images, s.ImageID)
			}
		}
	}
	slices.Sort(images)
	return slices.Compact(images)
}

// MarkOrphans marks the peerings that the peer does not have, among the views of all clusters that were queried.
func MarkOrphans(views []View, queried []string) {
	for i := range views {
		v := &views[i]
		has := func(o View) bool { return o.ClusterID == v.PeerID && o.PeerID == v.ClusterID }
		if v.State == Connected || v.CopiedFrom != "" || !slices.Contains(queried, v.PeerID) || slices.ContainsFunc(views, has) {
			continue
		}
		v.State = Orphaned
		v.Message = fmt.Sprintf("%s has no peering with %s; unpeer %s --peer %s removes this side, peer --replace recreates the other one", v.Peer, v.Cluster, v.Cluster, v.Name)
	}
}

// ViewKinds returns the kinds that ViewOf reads.
func ViewKinds() []client.ObjectList {
	return []client.ObjectList{&v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{}, &corev1.NodeList{}, &coordinationv1.LeaseList{}}
}

// ViewOf returns the view of a Peering during a wait.
func ViewOf(c *kube.Cluster, p *v1alpha1.Peering, o kube.Objects, beats Heartbeats) (View, error) {
	beats.Observe(kube.OfKind[*coordinationv1.Lease](o), c.Now())
	ready, notReady := kube.NodesByReadiness(kube.OfKind[*corev1.Node](o))
	return ViewFrom(c, p, o.Reports(), ready, notReady, beats)
}

// ViewFrom is pure. The arguments ready and notReady are the names of nodes that have agents.
func ViewFrom(c *kube.Cluster, p *v1alpha1.Peering, reports []v1alpha1.NodeNetwork, ready, notReady []string, beats Heartbeats) (View, error) {
	t, err := TranslationOf(p)
	if err != nil {
		return View{}, err
	}
	v := View{
		Name: p.Name, Cluster: c.Name, ClusterID: c.ID, Peer: p.Spec.Remote.Name, PeerID: p.Spec.Remote.ClusterID, State: Unknown,
		LocalPods: t.Pods, LocalNodes: t.Nodes, Hosts: Hosts(p), RemotePods: plan.Mappings(p.Spec.Remote.Pods),
		Services: servicesViewOf(p),
		Overlay:  string(p.Spec.Overlay), Limits: p.Spec.Limits, PlanesMode: string(cmp.Or(p.Spec.PlanesMode, v1alpha1.PlanesSingle)), Nodes: []NodeView{}, NodesTotal: len(ready), NodesNotReady: notReady,
	}
	messages := v.addPlanes(p, beats, c.Now())
	isSilent := v.State == Unknown
	problems, partly, conflicts := v.addNodes(p, plan.ReportsByNode(reports), ready, beats)
	outside := p.OutsidePodMessage(reports)
	if p.Incomplete() {
		messages = append(messages, fmt.Sprintf("it is incomplete: kubectl liqonet peer %s %s completes it, unless another command is doing so", failure.Quote(c.Name), failure.Quote(v.Peer)))
	}
	switch {
	case v.State != Connected:
	case len(ready) == 0:
		v.State = Unknown
		messages = append(messages, "no node of the cluster is ready")
	case v.NodesReady < len(ready):
		v.State = Degraded
		messages = append(messages, fmt.Sprintf("%d of %d nodes reach the peer", v.NodesReady, len(ready)), kube.JoinFirst(1, problems))
	case len(messages)+len(partly) > 0, outside != "":
		v.State = Degraded
	}
	if len(partly) > 0 {
		messages = append(messages, "the peer is not reached from "+kube.JoinFirst(3, partly))
	}
	slices.Sort(conflicts)
	messages = append(messages, strings.ReplaceAll(outside, "THIS-CLUSTER", failure.Quote(c.Name)), kube.JoinFirst(1, conflicts))
	if len(notReady) > 0 {
		messages = append(messages, "not ready, and left out: "+kube.JoinFirst(5, notReady))
	}
	v.Message = strings.Join(lo.Compact(messages), "; ")
	if v.CopiedFrom = v1alpha1.CopiedFrom(p.Spec.Local.ClusterID, c.ID); v.CopiedFrom != "" {
		v.State = Disconnected
		v.Message = fmt.Sprintf("%s; kubectl liqonet unpeer %s --peer %s removes the copy", v1alpha1.CopyMessage(v.CopiedFrom), failure.Quote(c.Name), failure.Quote(p.Name))
	}
	v.Conditions = conditionsOf(c, p, isSilent, v.State == Connected && len(notReady) == 0)
	return v, nil
}

// addPlanes adds the planes, and returns why some are not connected. The state of the view is that of the best plane.
func (v *View) addPlanes(p *v1alpha1.Peering, beats Heartbeats, now time.Time) (messages []string) {
	for i := range p.Spec.Planes {
		plane, state := planeView(p, &p.Spec.Planes[i], beats, now)
		v.Planes = append(v.Planes, plane)
		if state == Connected || state == Disconnected && v.State == Unknown {
			v.State = state
		}
		if state != Connected {
			which := lo.Ternary(len(p.Spec.Planes) == 1, "", fmt.Sprintf("plane %d: ", plane.Index))
			messages = append(messages, which+plane.Message)
		} else if other := p.PlaneStatus(plane.Index).OtherCaller; other != "" {
			messages = append(messages, fmt.Sprintf("plane %d: two gateways call with the same key, from %s and %s: is a copy of %s running?", plane.Index, plane.Endpoint, other, v.Peer))
		}
	}
	return messages
}

// addNodes adds the nodes that are ready. It returns the problems of those that do not reach the peer, the planes through which others do
// not, and the routes that conflict with the peering.
func (v *View) addNodes(
	p *v1alpha1.Peering, reports map[string]*v1alpha1.NodeNetwork, ready []string, beats Heartbeats,
) (problems, partly, conflicts []string) {
	for _, name := range ready {
		n := NodeView{Name: name, Planes: []int32{}, PlanesInUse: []int32{}}
		if report := reports[name]; report != nil {
			n.addReport(report, p, v.LocalNodes, beats)
			conflicts = append(conflicts, plan.RouteConflicts(report, &p.Spec)...)
		}
		v.Nodes = append(v.Nodes, n)
		for _, plane := range v.Planes {
			if n.Ready && plane.Connected && !slices.Contains(n.Planes, plane.Index) {
				partly = append(partly, fmt.Sprintf("%s through plane %d", name, plane.Index))
			}
		}
		if n.Ready {
			v.NodesReady++
		} else if n.Message != "" {
			problems = append(problems, name+": "+n.Message)
		}
	}
	return problems, partly, conflicts
}

// conditionsOf returns the conditions, with hints for bad ones. If silent, no gateway reports. If isHealthy, Degraded is
// outdated: nodes report sooner than gateways write conditions.
func conditionsOf(c *kube.Cluster, p *v1alpha1.Peering, silent, isHealthy bool) []ConditionView {
	out := []ConditionView{}
	pods := fmt.Sprintf("%s -n %s get pods -o wide", c.Kubectl, v1alpha1.Namespace)
	for _, now := range p.Status.Conditions {
		if silent && now.Reason != v1alpha1.ReasonGatewaysSilent { // no node has written that yet
			now.Status, now.Reason, now.Message = metav1.ConditionUnknown, v1alpha1.ReasonGatewaysSilent, "no gateway of the peering reports"
		}
		v := ConditionView{Type: now.Type, Status: now.Status, Reason: now.Reason, Message: now.Message}
		silent := silent || now.Reason == v1alpha1.ReasonPending
		switch {
		case v1alpha1.IsHealthy(now), now.Type == v1alpha1.ConditionReady: // the condition that it summarizes has the hint
		case now.Type == v1alpha1.ConditionDegraded && isHealthy:
		case now.Type == v1alpha1.ConditionKeysFresh && !silent:
			v.Hint = fmt.Sprintf("kubectl liqonet rotate-keys %s %s", failure.Quote(c.Name), failure.Quote(p.Spec.Remote.Name))
		case now.Type == v1alpha1.ConditionDegraded && !silent: // nodes may be the cause
			v.Hint = pods
		default:
			v.Hint = fmt.Sprintf("%s -l %s=%s", pods, v1alpha1.LabelPeering, failure.Quote(p.Name))
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b ConditionView) int { return cmp.Compare(a.Type, b.Type) })
	return out
}

// planeView returns a gateway's configuration and measurements, and the state of its tunnel.
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
	s := beats.Measurements(lease).Merge(*reported)
	v.Endpoint, v.Node, v.MTU, v.Message = s.Endpoint, s.NodeName, int(s.MTU), s.Message
	v.LossPercent, v.PublicKey = int(s.LossPercent), s.PublicKey
	v.Version = beats.Version(lease)
	if s.LastHandshake != nil {
		if age := beats.since(lease, s.LastHandshake.Time); age != nil {
			v.HandshakeAge = new(int64(age.Seconds()))
		}
	}
	switch age := beats.Age(lease); {
	case age == nil:
		v.Message = "the gateway does not renew its Lease"
		return v, Unknown
	case *age > v1alpha1.LeaseTimeout(lease):
		v.Message = fmt.Sprintf("the gateway has not renewed its Lease for %s", age.Round(time.Second))
		return v, Unknown
	}
	v.RTT, v.Connected = milliseconds(s.RTTMicroseconds), s.Connected
	if m := beats.Measurements(lease); m != nil {
		v.Jitter, v.SentBytes, v.ReceivedBytes = milliseconds(m.JitterMicroseconds), &m.SentBytes, &m.ReceivedBytes
	}
	if !s.Connected {
		v.Message = cmp.Or(s.Message, "the gateway gives no reason")
		return v, Disconnected
	}
	return v, Connected
}

// addReport adds what the agent of the node reports.
func (v *NodeView) addReport(n *v1alpha1.NodeNetwork, p *v1alpha1.Peering, seenAs ipam.Mapping, beats Heartbeats) {
	v.Address = n.Status.Address.Addr
	v.SeenAs, _ = seenAs.Translate(v.Address)
	v.Version = beats.Version(n.LeaseName())
	alive := beats.Alive(n.LeaseName())
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
		v.Message = notReadyReason(n, p.Spec.Overlay)
	}
}

// notReadyReason returns why a node does not reach the peer, empty if unknown. The node's kernel may not support the
// overlay that was chosen before the node joined.
func notReadyReason(n *v1alpha1.NodeNetwork, kind v1alpha1.OverlayKind) string {
	k := n.Status.Kernel
	if k != nil && (kind == v1alpha1.Geneve && !k.Geneve || kind == v1alpha1.VXLAN && !k.VXLAN) {
		return fmt.Sprintf("its kernel (%s) has no %s; load the module, or peer again with --overlay auto", k.Release, kind.LinkKind())
	}
	return n.Problem()
}

// MissingExcept returns what is missing until the current Peering works, empty if nothing is. It leaves out the given planes and nodes,
// unless that would exclude all planes or all nodes.
func MissingExcept(p *v1alpha1.Peering, v View, except func(PlaneView) bool, names []string) string {
	planes := slices.DeleteFunc(slices.Clone(v.Planes), except)
	nodes := slices.DeleteFunc(slices.Clone(v.Nodes), func(n NodeView) bool { return kube.ContainsSorted(names, n.Name) })
	if len(planes) == 0 || len(nodes) == 0 {
		planes, nodes = v.Planes, v.Nodes
	}
	for _, plane := range planes {
		if s := p.PlaneStatus(plane.Index); s == nil || s.ObservedGeneration != p.Generation {
			return "the gateway has not applied the configuration"
		}
		if !plane.Connected {
			return v.Message
		}
	}
	if v.NodesTotal == 0 || slices.ContainsFunc(nodes, func(n NodeView) bool { return !n.Ready || !ReachesThroughAll(n, planes) }) {
		return v.Message
	}
	return "" // pods outside of the ranges are for the user to decide on
}

// ReachesThroughAll reports whether the node reaches the peer through all of these planes.
func ReachesThroughAll(n NodeView, planes []PlaneView) bool {
	return !slices.ContainsFunc(planes, func(plane PlaneView) bool { return !slices.Contains(n.Planes, plane.Index) })
}

func milliseconds(us int64) *float64 {
	return lo.EmptyableToPtr(float64(us) / 1000)
}

// Owns reports whether the object is owned by the Peering with the given UID.
func Owns(owner types.UID, obj client.Object) bool {
	return slices.ContainsFunc(obj.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == owner })
}

// Secrets returns the metadata of Secrets in our namespace, or nothing if the user may not list them.
func Secrets(ctx context.Context, c *kube.Cluster, opts ...client.ListOption) []metav1.PartialObjectMetadata {
	list := kube.SecretMetadataList()
	if c.List(ctx, list, append(opts, client.InNamespace(v1alpha1.Namespace))...) != nil {
		return nil
	}
	return list.Items
}

// WeakestKeyExchange returns the weakest key exchange that protected pre-shared keys of a Peering when they were sent to the API server,
// empty if there are none. The Secrets are those of the namespace.
func WeakestKeyExchange(p *v1alpha1.Peering, secrets []metav1.PartialObjectMetadata) (least kube.KeyExchange) {
	exchanges := lo.SliceToMap(secrets, func(s metav1.PartialObjectMetadata) (string, kube.KeyExchange) {
		return s.Name, kube.KeyExchange(s.Annotations[v1alpha1.AnnotationKeyExchange])
	})
	for _, plane := range p.Spec.Planes {
		if plane.PresharedKey.Generation == 0 {
			continue
		}
		g := manifests.Gateway{Peering: p.Name, Plane: plane.Index, PresharedKey: plane.PresharedKey.Generation}
		switch exchange := exchanges[g.PresharedSecretName()]; {
		case exchange == kube.Classical || least == kube.Classical:
			least = kube.Classical
		case exchange != kube.Hybrid:
			least = kube.UnknownKeyExchange
		case least == "":
			least = kube.Hybrid
		}
	}
	return least
}

// Heartbeats records which agents are alive. A Lease has its agent's time, which may be arbitrarily wrong, so a
// renewal is dated by this machine's monotonic clock when it is seen. A Lease seen for the first time is dated by
// comparing the API server's timestamp with the API server's clock.
type Heartbeats map[string]heartbeat

type heartbeat struct {
	lease coordinationv1.Lease
	// changed is when the Lease last changed, zero if unknown.
	changed time.Time
}

// Observe records the current Leases.
func (h Heartbeats) Observe(leases []*coordinationv1.Lease, serverNow time.Time) {
	for _, l := range leases {
		last, known := h[l.Name]
		switch stamp := LastWrite(l); {
		case known && last.lease.ResourceVersion == l.ResourceVersion:
		case known:
			h[l.Name] = heartbeat{lease: *l, changed: time.Now()}
		// One of several API servers may be slightly ahead. A timestamp further in the future is not reliable.
		case stamp.IsZero(), stamp.Sub(serverNow) > 3*v1alpha1.ReportInterval:
			h[l.Name] = heartbeat{lease: *l}
		default:
			h[l.Name] = heartbeat{lease: *l, changed: time.Now().Add(-max(serverNow.Sub(stamp), 0))}
		}
	}
}

// LastWrite returns when an agent last wrote its Lease or history, by the API server's clock.
func LastWrite(l client.Object) (latest time.Time) {
	for _, f := range l.GetManagedFields() {
		if f.Manager != v1alpha1.FieldManager && f.Time != nil && f.Time.After(latest) {
			latest = f.Time.Time
		}
	}
	return latest
}

// Age returns how long ago the Lease was renewed, nil if that is unknown.
func (h Heartbeats) Age(name string) *time.Duration {
	if h[name].changed.IsZero() {
		return nil
	}
	return new(time.Since(h[name].changed))
}

// Alive reports whether the agent that renews the Lease does not count as dead.
func (h Heartbeats) Alive(name string) bool {
	age := h.Age(name)
	return age != nil && *age <= v1alpha1.LeaseTimeout(name)
}

// Pod returns the pod whose agent renews the Lease, empty if there is none.
func (h Heartbeats) Pod(name string) string {
	l := h[name].lease
	return cmp.Or(l.Annotations[v1alpha1.AnnotationPod], lo.FromPtr(l.Spec.HolderIdentity))
}

// Version returns the version of the agent that renews the Lease, empty if unknown.
func (h Heartbeats) Version(name string) string {
	return h[name].lease.Annotations[v1alpha1.AnnotationVersion]
}

// ofVersion returns the policies unless an agent has another version: its policies may differ from ours.
func (h Heartbeats) ofVersion(version string, policies []string) []string {
	for name := range h {
		if v := h.Version(name); v != "" && v != version {
			return nil
		}
	}
	return policies
}

// Measurements returns the measurements in the agent's Lease, nil if there are none.
func (h Heartbeats) Measurements(name string) *v1alpha1.Measurements {
	return v1alpha1.ParseMeasurements(h[name].lease.Annotations[v1alpha1.AnnotationMeasurements])
}

// Starved returns by how much the agent's scheduling is delayed, in percent of a second; 0 if it reports nothing.
func (h Heartbeats) Starved(name string) int {
	percent, _ := strconv.Atoi(h[name].lease.Annotations[v1alpha1.AnnotationStarved])
	return percent
}

// since returns the time since at, which is by the agent's clock, as is the time in its Lease. It returns nil if
// unknown.
func (h Heartbeats) since(name string, at time.Time) *time.Duration {
	l := h[name].lease
	age := h.Age(name)
	if age == nil || l.Spec.RenewTime == nil {
		return nil
	}
	return new(max(l.Spec.RenewTime.Sub(at)+*age, 0))
}

// HistoryEntry is one state change that an agent recorded.
type HistoryEntry struct {
	// Time is the time of the change by the reference clock.
	Time time.Time `json:"time"`
	// AgentTime is the time of the change by the agent's clock.
	AgentTime time.Time `json:"agentTime"`
	Cluster   string    `json:"cluster"`
	ClusterID string    `json:"clusterID"`
	// Agent is "gateway PLANE" or "node NAME".
	Agent string `json:"agent"`
	// Peering is the name of the Peering in this cluster, Plane the index of the plane, nil if the change is about all planes.
	Peering string `json:"peering"`
	Plane   *int32 `json:"plane,omitempty"`
	// Subject changed, from which state to which, and why.
	Subject string `json:"what"`
	From    string `json:"from,omitempty"`
	To      string `json:"to"`
	Reason  string `json:"reason,omitempty"`
}

// History returns the state changes that the cluster's agents recorded, oldest first, in the time of the reference's
// API server.
func History(ctx context.Context, c *kube.Cluster, reference *kube.Cluster) (out []HistoryEntry, err error) {
	records, err := HistoryRecords(ctx, c)
	if err != nil {
		return nil, err
	}
	between := history.ClockOffset(c.Now(), reference.Now())
	for _, r := range records {
		correction := between + clockCorrection(r)
		for _, e := range history.Decode(r.Data) {
			out = append(out, HistoryEntry{
				Time: e.Time.Add(correction).UTC(), AgentTime: e.Time.UTC(), Cluster: c.Name, ClusterID: c.ID, Agent: agentOf(r),
				Peering: e.Peering, Plane: e.Plane, Subject: e.Subject, From: e.From, To: e.To, Reason: e.Reason,
			})
		}
	}
	SortHistory(out)
	return out, nil
}

// SortHistory sorts entries by time.
func SortHistory(entries []HistoryEntry) {
	slices.SortStableFunc(entries, func(a, b HistoryEntry) int { return cmp.Or(a.Time.Compare(b.Time), strings.Compare(a.Agent, b.Agent)) })
}

// HistoryRecords returns the ConfigMaps in which agents record state changes.
func HistoryRecords(ctx context.Context, c *kube.Cluster) ([]*corev1.ConfigMap, error) {
	objs, err := c.ListManaged(ctx, nil, &corev1.ConfigMapList{})
	return lo.FilterMap(objs, func(obj client.Object, _ int) (*corev1.ConfigMap, bool) {
		return obj.(*corev1.ConfigMap), strings.HasPrefix(obj.GetName(), v1alpha1.HistoryPrefix)
	}), err
}

// clockCorrection returns the offset from an agent's clock to the API server's clock. The record holds the agent's time
// of writing, and its managed fields that of the API server.
func clockCorrection(record *corev1.ConfigMap) time.Duration {
	clock, err := time.Parse(time.RFC3339Nano, record.Data[history.ClockKey])
	stamp := LastWrite(record)
	if err != nil || stamp.IsZero() {
		return 0
	}
	return history.Correction(clock, stamp)
}

// agentOf returns the agent that wrote the record.
func agentOf(record *corev1.ConfigMap) string {
	if node, isNode := strings.CutPrefix(record.Name, v1alpha1.NodeHistoryName("")); isNode {
		return "node " + node
	}
	return "gateway " + record.Labels[v1alpha1.LabelPlane]
}
