package scale

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

const (
	// podsPerNode is the distance of two nodes in the range of the pods.
	podsPerNode = 32
	// atOnce is how many requests of the test's own the API server has to do with at the same time.
	atOnce = 16
	// crowdLabel is that of Nodes that are objects only, and the key of their taint, which keeps gateways away. crowdAddress is
	// the address that a pod gets from kwok.
	crowdLabel, crowdAddress = "crowd", "crowd/address"
)

var (
	// podRange is that of the large cluster. Its real nodes have the first parts of it, and crowdPods is where the others begin.
	podRange   = netip.MustParsePrefix("10.128.0.0/10")
	crowdPods  = netip.MustParseAddr("10.160.0.0")
	crowdNodes = netip.MustParseAddr("172.24.0.0")
)

// after is an address that is so far behind another one.
func after(base netip.Addr, n int) netip.Addr {
	b := base.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

func nodeName(i int) string { return fmt.Sprintf("crowd-%05d", i) }

func podIPs(i int) (out []v1alpha1.IP) {
	for k := range *podsOfNode {
		out = append(out, v1alpha1.IP{Addr: after(crowdPods, podsPerNode*i+k)})
	}
	return out
}

// newNode is one as its kubelet would register it, ready from the beginning.
func newNode(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: nodeName(i), Labels: map[string]string{crowdLabel: "true", corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", corev1.LabelHostname: nodeName(i)},
		Annotations: map[string]string{"kube-router.io/pod-cidr": podRange.String()}, // for those without spec.podCIDR
	}}
	n.Spec.Taints = []corev1.Taint{{Key: crowdLabel, Effect: corev1.TaintEffectNoSchedule}}
	now := metav1.Now()
	for kind, status := range map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse, corev1.NodeDiskPressure: corev1.ConditionFalse, corev1.NodePIDPressure: corev1.ConditionFalse,
	} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status, LastHeartbeatTime: now, LastTransitionTime: now, Reason: "Crowd"})
	}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: after(crowdNodes, i+1).String()}, {Type: corev1.NodeHostName, Address: nodeName(i)},
	}
	n.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("250"),
	}
	n.Status.Allocatable, n.Status.Phase = n.Status.Capacity, corev1.NodeRunning
	n.Status.NodeInfo = corev1.NodeSystemInfo{KernelVersion: "6.1", KubeletVersion: "v1.36.0", OperatingSystem: "linux", Architecture: "amd64"}
	return n
}

func newPod(i, k int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s-%d", nodeName(i), k), Labels: map[string]string{crowdLabel: "true"},
			Annotations: map[string]string{crowdAddress: after(crowdPods, podsPerNode*i+k).String()},
		},
		Spec: corev1.PodSpec{
			NodeName: nodeName(i), Containers: []corev1.Container{{Name: "app", Image: "app"}}, TerminationGracePeriodSeconds: new(int64(0)),
			AutomountServiceAccountToken: new(false),
		},
	}
}

// create makes nodes from one number to another, and their pods.
func create(ctx context.Context, c client.Client, from, to int) ([]*corev1.Node, error) {
	nodes := make([]*corev1.Node, to-from)
	g, nodesCtx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range nodes {
		g.Go(func() error {
			nodes[i] = newNode(from + i)
			return c.Create(nodesCtx, nodes[i])
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("create nodes: %w", err)
	}
	if err := awaitKwok(ctx, c, nodes); err != nil {
		return nil, err
	}
	g, ctx = errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range nodes {
		g.Go(func() error {
			for k := range *podsOfNode {
				if err := c.Create(ctx, newPod(from+i, k)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("create pods: %w", err)
	}
	return nodes, nil
}

// awaitKwok waits until kwok has begun with all nodes, whose Leases it holds then.
func awaitKwok(ctx context.Context, c client.Client, nodes []*corev1.Node) error {
	err := wait.PollUntilContextTimeout(ctx, time.Second, 10*time.Minute, true, func(ctx context.Context) (bool, error) {
		var leases coordinationv1.LeaseList
		if err := c.List(ctx, &leases, client.InNamespace(corev1.NamespaceNodeLease)); err != nil {
			return false, err
		}
		held := map[string]bool{}
		for _, l := range leases.Items {
			held[l.Name] = true
		}
		return !slices.ContainsFunc(nodes, func(n *corev1.Node) bool { return !held[n.Name] }), nil
	})
	if err != nil {
		return fmt.Errorf("wait until kwok renews the nodes' Leases: %w", err)
	}
	return nil
}

// nudge has kwok look at a pod again: it may miss one that is made while it begins with its node.
func nudge(ctx context.Context, c client.Client, pod *corev1.Pod) error {
	now := pod.DeepCopy()
	metav1.SetMetaDataAnnotation(&now.ObjectMeta, "crowd/nudged", time.Now().Format(time.RFC3339Nano))
	return client.IgnoreNotFound(c.Patch(ctx, now, client.MergeFrom(pod)))
}
