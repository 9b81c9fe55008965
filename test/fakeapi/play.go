package fakeapi

import (
	"context"
	"net/netip"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
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

// isRested says that the last play is longer ago than two of its kind take. Many watches
// would do nothing else.
func (s *Server) isRested() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.playedAt) > 2*s.playTook
}

// play does what agents and controllers would have done by now.
func (s *Server) play(ctx context.Context) error {
	if s.Unplayed {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	writes := s.writes.Load()
	if writes == s.played && time.Since(s.playedAt) < renewInterval/2 {
		return nil
	}
	// What is written here may be a reason to do more the next time.
	s.played, s.playedAt = writes, time.Now()
	defer func() { s.playTook = time.Since(s.playedAt) }()
	if err := s.playServices(ctx); err != nil {
		return err
	}
	if err := RollOut(ctx, s.Client, metav1.Time{}, ""); err != nil {
		return err
	}
	cn := &v1alpha1.ClusterNetwork{}
	if s.Client.Get(ctx, types.NamespacedName{Name: v1alpha1.ClusterNetworkName}, cn) != nil ||
		s.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName}, &appsv1.DaemonSet{}) != nil {
		return nil
	}
	var peerings v1alpha1.PeeringList
	var nodes corev1.NodeList
	if err := s.Client.List(ctx, &peerings); err != nil {
		return err
	}
	if err := s.Client.List(ctx, &nodes); err != nil {
		return err
	}
	for i := range nodes.Items {
		if err := s.playNode(ctx, cn, &nodes.Items[i], peerings.Items); err != nil {
			return err
		}
	}
	for i := range peerings.Items {
		if err := s.playGateways(ctx, &peerings.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// playGateways has those of all planes report that run.
func (s *Server) playGateways(ctx context.Context, p *v1alpha1.Peering) error {
	var planes []v1alpha1.PlaneStatus
	for _, plane := range p.Spec.Planes {
		gateway := v1alpha1.GatewayName(p.Name, plane.Index)
		if err := RenewLease(ctx, s.Client, gateway, gateway+"-pod", ""); err != nil {
			return err
		}
		if s.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: gateway}, &appsv1.Deployment{}) == nil {
			planes = append(planes, v1alpha1.PlaneStatus{
				Index: plane.Index, ObservedGeneration: p.Generation, Connected: true, MTU: 1440, PodIP: v1alpha1.IP{Addr: netip.MustParseAddr(GatewayIP)},
			})
		}
	}
	if slices.EqualFunc(planes, p.Status.Planes, func(a, b v1alpha1.PlaneStatus) bool {
		return a.Index == b.Index && a.ObservedGeneration == b.ObservedGeneration
	}) {
		return nil
	}
	p.Status.Planes, p.Status.Conditions = planes, nil // what a command has written is of no gateway
	return ignored(s.Client.Status().Update(ctx, p))
}

func (s *Server) playNode(ctx context.Context, cn *v1alpha1.ClusterNetwork, n *corev1.Node, peerings []v1alpha1.Peering) error {
	addr, err := ipam.NodeAddr(cn.Spec.InternalCIDR.Prefix, ipam.NodeCandidate(n.Name, 0))
	if err != nil {
		return err
	}
	nn := &v1alpha1.NodeNetwork{}
	if err := s.Client.Get(ctx, types.NamespacedName{Name: n.Name}, nn); apierrors.IsNotFound(err) {
		nn.Name = n.Name
		nn.Labels = map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}
		err = s.Client.Create(ctx, nn)
		if err != nil {
			return ignored(err)
		}
	} else if err != nil {
		return err
	}
	if err := RenewLease(ctx, s.Client, v1alpha1.NodeLeaseName(addr), v1alpha1.NodeAgentName+"-"+n.Name, ""); err != nil {
		return err
	}
	var gateways []v1alpha1.NodeGateway
	for i := range peerings {
		for _, plane := range peerings[i].Spec.Planes {
			gateways = append(gateways, v1alpha1.NodeGateway{PeeringName: peerings[i].Name, Plane: plane.Index, ObservedGeneration: peerings[i].Generation, Ready: true})
		}
	}
	same := nn.Status.Kernel != nil && len(gateways) == len(nn.Status.Gateways)
	for i := range gateways {
		same = same && gateways[i].PeeringName == nn.Status.Gateways[i].PeeringName && gateways[i].Plane == nn.Status.Gateways[i].Plane && gateways[i].ObservedGeneration == nn.Status.Gateways[i].ObservedGeneration
	}
	if same {
		return nil
	}
	nn.Status = v1alpha1.NodeNetworkStatus{
		Address: v1alpha1.IP{Addr: addr}, Kernel: &v1alpha1.KernelFacts{Release: "6.1", VXLAN: true}, UnderlayMTU: 1500, Gateways: gateways,
	}
	return ignored(s.Client.Status().Update(ctx, nn))
}

// playServices gives a node port to what wants one.
func (s *Server) playServices(ctx context.Context) error {
	var services corev1.ServiceList
	if err := s.Client.List(ctx, &services, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return err
	}
	taken := map[int32]bool{}
	for _, svc := range services.Items {
		for _, p := range svc.Spec.Ports {
			taken[p.NodePort] = true
		}
	}
	for i := range services.Items {
		svc := &services.Items[i]
		if svc.Spec.Type != corev1.ServiceTypeNodePort || len(svc.Spec.Ports) == 0 || svc.Spec.Ports[len(svc.Spec.Ports)-1].NodePort != 0 {
			continue
		}
		for k := range svc.Spec.Ports {
			port := int32(30001)
			for taken[port] {
				port++
			}
			if p := &svc.Spec.Ports[k]; p.NodePort == 0 {
				taken[port], p.NodePort = true, port
			}
		}
		if err := ignored(s.Client.Update(ctx, svc)); err != nil {
			return err
		}
	}
	return nil
}
