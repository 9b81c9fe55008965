package fakeapi

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/test/kit"
)

// Objects are those of a cluster of one node.
func Objects(id, node, nodeAddress, pods string) []client.Object {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID("uid-of-" + node), Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress}}
	return []client.Object{
		n, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: types.UID(id)}},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}},
		},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubeadm-config"},
			Data:       map[string]string{"ClusterConfiguration": "networking:\n  podSubnet: " + pods + "\n  serviceSubnet: 10.96.0.0/16\n"},
		},
	}
}

// ignored are the errors of one who comes too late or too early.
func ignored(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Player does what agents and controllers would have done by now. Fields that are not set are no faults.
type Player struct {
	// Mu protects all fields.
	Mu  sync.Mutex
	api *API
	// Kernel is what all nodes support, Routes are the routes that they have.
	Kernel v1alpha1.KernelFacts
	Routes []netip.Prefix
	// Unreachable makes this cluster's gateways unreachable from outside.
	Unreachable bool
	// ReportOnce lets agents report on each generation of a Peering once, so that what a test then writes stays, and gateways
	// remove the conditions that commands have written.
	ReportOnce bool
	// Other is the player of the peer's cluster, nil if there is none.
	Other func() *Player
	// Late is a node or a Deployment whose pod is not replaced. Holder is the pod that holds all Leases, empty for the
	// running one.
	Late, Holder string
	// Slow is a node whose agent reports, with SlowKernel, only after HasStarted a gateway.
	Slow       string
	SlowKernel v1alpha1.KernelFacts
	HasStarted func() bool
	// Unplaced is the plane whose gateways cannot be scheduled, 0 for none. Silent is a node whose agent reports and renews
	// nothing.
	Unplaced int32
	Silent   string
	// Outside is a pod's address that all nodes report, none if invalid.
	Outside netip.Addr
	// Lossy is an image whose agents pass no packets.
	Lossy string

	nodePorts map[string]int32
	// played is the state that agents and controllers last saw, playedAt when that was, playTook how long it took.
	played   string
	playedAt time.Time
	playTook time.Duration
	// rolledOut is the state that controllers saw at their last rollout.
	rolledOut string
	// isBlind is set if the API does not count changes.
	isBlind bool
}

// NewPlayer returns the player of a cluster, whose faults are set later.
func NewPlayer(api *API) *Player {
	return &Player{
		api: api, Kernel: v1alpha1.KernelFacts{Release: "6.1", VXLAN: true},
		Other: func() *Player { return nil }, HasStarted: func() bool { return false },
	}
}

// NewPlayerOn returns the player of an API server, which does not count changes: it looks at everything each time.
func NewPlayerOn(c client.WithWatch) *Player {
	w := NewPlayer(&API{WithWatch: c, store: &store{}})
	w.isBlind = true
	return w
}

// playInterval is how often Leases are checked without a change.
const playInterval = renewInterval / 4

// Play is called before what agents and controllers change is read.
func (w *Player) Play(ctx context.Context) error {
	c := w.api
	w.Mu.Lock()
	defer w.Mu.Unlock()
	if w.isBlind {
		w.played, w.rolledOut = "", ""
	}
	// Many watches would do nothing but this.
	if ctx.Value(ForWatch{}) != nil && time.Since(w.playedAt) < 2*w.playTook {
		return nil
	}
	// Unless something changes, they only renew their Leases.
	sees := w.sees()
	if sees == w.played && time.Since(w.playedAt) < playInterval {
		return nil
	}
	w.played, w.playedAt = sees, time.Now()
	ctx = context.WithValue(ctx, ForWatch{}, nil) // they see everything, whatever the watch has seen
	defer func() { w.playTook = time.Since(w.playedAt) }()
	if err := w.playServices(ctx); err != nil {
		return err
	}
	if rolledOut := fmt.Sprint(c.LastChange(RollsOut...), w.Late); rolledOut != w.rolledOut {
		if err := RollOut(ctx, c, metav1.Time{}, w.Late); err != nil {
			return err
		}
		w.rolledOut = rolledOut
	}
	if err := w.playUnplaced(ctx); err != nil {
		return err
	}
	cn := &v1alpha1.ClusterNetwork{}
	if c.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName}, &appsv1.DaemonSet{}) != nil ||
		c.Get(ctx, types.NamespacedName{Name: v1alpha1.ClusterNetworkName}, cn) != nil {
		return nil
	}
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return err
	}
	var list corev1.NodeList
	if err := c.List(ctx, &list); err != nil {
		return err
	}
	for i := range list.Items {
		if err := w.playNode(ctx, cn, &list.Items[i], peerings.Items); err != nil {
			return err
		}
	}
	for i := range peerings.Items {
		if err := w.playGateways(ctx, &peerings.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

func (w *Player) playNode(ctx context.Context, cn *v1alpha1.ClusterNetwork, n *corev1.Node, peerings []v1alpha1.Peering) error {
	if !nodes.RunsAgents(n) {
		return nil
	}
	kernel := w.Kernel
	if n.Name == w.Slow {
		if kernel = w.SlowKernel; !w.HasStarted() {
			return nil
		}
	}
	addr, err := ipam.NodeAddr(cn.Spec.InternalCIDR.Prefix, ipam.NodeCandidate(n.Name, 0))
	if err != nil {
		return err
	}
	lease := v1alpha1.NodeLeaseName(addr)
	if n.Name == w.Silent {
		return w.playSilence(ctx, lease)
	}
	nn := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	if err := w.api.Get(ctx, client.ObjectKeyFromObject(nn), nn); apierrors.IsNotFound(err) {
		nn.Labels = map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}
		if err := w.api.Create(ctx, nn); err != nil {
			return ignored(err)
		}
	} else if err != nil {
		return err
	}
	if err := RenewLease(ctx, w.api, lease, v1alpha1.NodeAgentName+"-"+n.Name, w.Holder); err != nil {
		return err
	}
	passes := !w.isLossy(ctx, lease)
	status := v1alpha1.NodeNetworkStatus{Address: v1alpha1.IP{Addr: addr}, Kernel: &kernel, UnderlayMTU: 1500, Routes: v1alpha1.NewCIDRs(w.Routes...)}
	if w.Outside.IsValid() {
		status.PodIPs = []v1alpha1.IP{{Addr: w.Outside}}
	}
	for i := range peerings {
		p := &peerings[i]
		for _, plane := range p.Spec.Planes {
			status.Gateways = append(status.Gateways, v1alpha1.NodeGateway{
				PeeringName: p.Name, Plane: plane.Index, ObservedGeneration: p.Generation, RTTMicroseconds: 300,
				Ready: w.isConnected(p) && passes && !w.lacksNode(plane.Index),
			})
		}
	}
	if cmp.Equal(nn.Status, status, kit.Compare) || w.ReportOnce && nn.Status.Kernel != nil && cmp.Equal(nn.Status.Gateways, status.Gateways, observed) {
		return nil
	}
	nn.Status = status
	return ignored(w.api.Status().Update(ctx, nn))
}

// playGateways lets those of all planes report that run.
func (w *Player) playGateways(ctx context.Context, p *v1alpha1.Peering) error {
	if len(p.Status.Conditions) == 0 && !w.ReportOnce {
		return nil // the command has not written them yet: gateways see the Peering later
	}
	// Status().Update replaces the whole status; agents apply their parts.
	var planes []v1alpha1.PlaneStatus
	for _, plane := range p.Spec.Planes {
		gateway := v1alpha1.GatewayName(p.Name, plane.Index)
		if w.api.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: gateway}, &appsv1.Deployment{}) != nil {
			continue
		}
		if w.Unplaced > 0 && plane.Index == w.Unplaced {
			if err := w.playSilence(ctx, gateway); err != nil {
				return err
			}
			continue
		}
		if err := RenewLease(ctx, w.api, gateway, gateway+"-pod", w.Holder); err != nil {
			return err
		}
		planes = append(planes, v1alpha1.PlaneStatus{
			Index: plane.Index, ObservedGeneration: p.Generation, MTU: 1440, PodIP: v1alpha1.IP{Addr: netip.MustParseAddr(GatewayIP)},
			Connected: w.isConnected(p) && !w.lacksNode(plane.Index) && !w.isLossy(ctx, gateway),
		})
	}
	for _, reported := range p.Status.Planes { // the report of a removed plane stays
		if !slices.ContainsFunc(planes, func(s v1alpha1.PlaneStatus) bool { return s.Index == reported.Index }) {
			planes = append(planes, reported)
		}
	}
	if cmp.Equal(p.Status.Planes, planes, kit.Compare) || w.ReportOnce && cmp.Equal(p.Status.Planes, planes, observed) {
		return nil
	}
	if p.Status.Planes = planes; w.ReportOnce {
		p.Status.Conditions = nil
	}
	return ignored(w.api.Status().Update(ctx, p))
}

// observed compares on which generations of which Peerings there are reports.
var observed = cmp.Options{
	cmpopts.EquateEmpty(),
	cmp.Comparer(func(a, b v1alpha1.PlaneStatus) bool {
		return a.Index == b.Index && a.ObservedGeneration == b.ObservedGeneration
	}),
	cmp.Comparer(func(a, b v1alpha1.NodeGateway) bool {
		return a.PeeringName == b.PeeringName && a.Plane == b.Plane && a.ObservedGeneration == b.ObservedGeneration
	}),
}

// sees is everything that the next play depends on.
func (w *Player) sees() string {
	isOtherUnreachable := w.Other() != nil && w.Other().Unreachable
	return fmt.Sprint(
		w.api.Changes(), w.Kernel, w.Routes, w.Unreachable, isOtherUnreachable, w.Late, w.Holder, w.Slow, w.SlowKernel, w.HasStarted(), w.Lossy, w.Silent,
		w.lacksNode(1), w.Unplaced, w.Outside,
	)
}

// isLossy reports whether the agent that renews a Lease passes no packets.
func (w *Player) isLossy(ctx context.Context, lease string) bool {
	l, pod := &coordinationv1.Lease{}, &corev1.Pod{}
	if w.Lossy == "" || w.api.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: lease}, l) != nil {
		return false
	}
	err := w.api.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: l.Annotations[v1alpha1.AnnotationPod]}, pod)
	return err == nil && pod.Spec.Containers[0].Image == w.Lossy
}

// lacksNode reports whether a gateway of the plane cannot be scheduled, in either cluster.
func (w *Player) lacksNode(plane int32) bool {
	return plane > 0 && (w.Unplaced == plane || w.Other() != nil && w.Other().Unplaced == plane)
}

// isConnected reports whether the server can be reached.
func (w *Player) isConnected(p *v1alpha1.Peering) bool {
	if len(p.Spec.Planes) > 0 && p.Spec.Planes[0].Role == v1alpha1.Server {
		return !w.Unreachable
	}
	return w.Other() == nil || !w.Other().Unreachable
}

// playSilence stops the renewal of a Lease.
func (w *Player) playSilence(ctx context.Context, lease string) error {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: lease}}
	return client.IgnoreNotFound(w.api.Delete(ctx, l))
}

// playUnplaced removes the node from pods that cannot be scheduled.
func (w *Player) playUnplaced(ctx context.Context) error {
	if w.Unplaced == 0 {
		return nil
	}
	plane := client.MatchingLabels{v1alpha1.LabelPlane: fmt.Sprint(w.Unplaced)}
	var pods corev1.PodList
	var deployments appsv1.DeploymentList
	if err := w.api.List(ctx, &pods, client.InNamespace(v1alpha1.Namespace), plane); err != nil {
		return err
	}
	if err := w.api.List(ctx, &deployments, client.InNamespace(v1alpha1.Namespace), plane); err != nil {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Status.Phase == corev1.PodPending {
			continue
		}
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available",
		}}}
		if err := w.api.Status().Update(ctx, pod); err != nil {
			return err
		}
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if d.Status.AvailableReplicas == 0 {
			continue
		}
		d.Status.AvailableReplicas = 0
		if err := w.api.Status().Update(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// playServices allocates node ports.
func (w *Player) playServices(ctx context.Context) error {
	var services corev1.ServiceList
	if err := w.api.List(ctx, &services, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return err
	}
	taken, kept := map[int32]bool{}, map[string]int32{}
	for _, s := range services.Items {
		port := s.Spec.Ports[0].NodePort
		if port == 0 {
			port = w.nodePorts[s.Name] // an API server keeps the port
		}
		taken[port], kept[s.Name] = true, port
	}
	w.nodePorts = kept
	for i := range services.Items {
		s := &services.Items[i]
		if s.Spec.Type != corev1.ServiceTypeNodePort || s.Spec.Ports[len(s.Spec.Ports)-1].NodePort != 0 {
			continue
		}
		s.Spec.Ports[0].NodePort = kept[s.Name]
		for port := int32(30001); s.Spec.Ports[0].NodePort == 0; port++ {
			if !taken[port] {
				s.Spec.Ports[0].NodePort, kept[s.Name], taken[port] = port, port, true
			}
		}
		for i := range s.Spec.Ports[1:] {
			s.Spec.Ports[i+1].NodePort = s.Spec.Ports[0].NodePort + int32(1000*(i+1))
		}
		if err := ignored(w.api.Update(ctx, s)); err != nil {
			return err
		}
	}
	return nil
}
