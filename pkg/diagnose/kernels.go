package diagnose

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/samber/lo"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/status"
)

func (x *examined) readNodes(ctx context.Context) error {
	var list corev1.NodeList
	if err := x.List(ctx, &list); err != nil {
		return err
	}
	x.to.Nodes = list.Items
	var leases coordinationv1.LeaseList
	if err := x.List(ctx, &leases, client.InNamespace(corev1.NamespaceNodeLease)); err != nil {
		return ctx.Err() // whether nodes are ready says as much, later
	}
	beats := status.Heartbeats{}
	beats.Observe(kube.Pointers(leases.Items), x.Now())
	x.to.NodeSilence = lo.FilterSliceToMap(leases.Items, func(l coordinationv1.Lease) (string, time.Duration, bool) {
		age, known := beats.Age(l.Name)
		return l.Name, age, known
	})
	return nil
}

const (
	// kernelWatch is for how long a pod sees what changes in a kernel.
	kernelWatch = 3 * time.Second
	// kernelTimeout is how long a pod may take to start and to read.
	kernelTimeout = 25 * time.Second
	// smallPing is how many bytes a ping has that any path carries.
	smallPing = 100
)

// readKernels has a pod on each node read its kernel. Nodes that are not heard of are left out.
func (x *examined) readKernels(ctx context.Context) error {
	if x.objectsOnly {
		return errors.New("--objects-only runs no pods")
	}
	if err := x.CheckPermissions(ctx, toProbe()); err != nil {
		return err
	}
	x.to.Kernels, x.to.Unread = map[string]*probe.Kernel{}, map[string]string{}
	var probes []*Probe
	for i, n := range kube.Pointers(x.to.Nodes) {
		switch {
		case !nodes.RunsAgents(n):
		case !nodes.Ready(n), x.to.NodeSilence[n.Name] > kernelTimeout:
			x.to.Unread[n.Name] = "the node is not ready"
		default:
			probes = append(probes, &Probe{Name: strconv.Itoa(i), Node: n.Name, Host: true, Task: probe.Task{Kernel: x.kernelTask(n.Name)}})
		}
	}
	if len(probes) == 0 {
		return nil
	}
	run, err := NewProbes(ctx, x.Cluster, "doctor")
	if err != nil {
		return err
	}
	reading, cancel := context.WithTimeout(ctx, kernelTimeout)
	defer cancel()
	if err = run.Start(reading, probes...); err != nil {
		probes = nil // none of them ends
	}
	for _, p := range probes {
		switch late := run.await(reading, ended, p); {
		case late != nil:
			x.to.Unread[p.Node] = "no pod has read it within " + kernelTimeout.String()
		case p.Result.Kernel != nil:
			x.to.Kernels[p.Node] = p.Result.Kernel
		case p.Err != nil:
			x.to.Unread[p.Node] = p.Err.Error()
		}
	}
	if reading.Err() != nil {
		// Nobody says of a pod that it has ended where the kubelet is not heard of. By now that is known.
		_ = run.deletePods(ctx, client.GracePeriodSeconds(0)) // what is left goes with its node
		if err := x.readNodes(ctx); err != nil {
			return err
		}
	}
	if removed := run.Remove(ctx); removed != nil {
		_ = run.deletePods(ctx, client.GracePeriodSeconds(0)) // what was read is no less true
	}
	return err
}

// kernelTask is what a node's pod reads.
func (x *examined) kernelTask(node string) *probe.KernelTask {
	t := &probe.KernelTask{For: kernelWatch}
	ping := func(to netip.Addr, sizes ...int) { t.Ping = append(t.Ping, probe.Ping{To: to, Sizes: sizes}) }
	for _, n := range kube.Pointers(x.to.Nodes) {
		if n.Name != node {
			t.Nodes = append(t.Nodes, nodes.Addresses(n, corev1.NodeInternalIP)...)
		}
	}
	for _, n := range t.Nodes {
		ping(n, smallPing)
	}
	for _, p := range kube.Pointers(x.to.Peerings) {
		for _, s := range p.Status.Planes {
			plane := p.Plane(s.Index)
			if plane == nil || !plane.RemoteAddress.IsValid() || s.MTU == 0 {
				continue
			}
			ping(plane.RemoteAddress.Addr, smallPing, int(s.MTU))
			if s.PodIP.IsValid() {
				ping(s.PodIP.Addr, smallPing)
			}
		}
	}
	isAgent := func(p corev1.Pod) bool { // one that runs
		return p.Spec.NodeName == node && p.Labels["app.kubernetes.io/component"] == "node" &&
			slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running != nil })
	}
	if x.to.DaemonSet != nil && slices.ContainsFunc(x.to.Pods, isAgent) {
		t.Health = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), v1alpha1.HealthPort)
	}
	return t
}
