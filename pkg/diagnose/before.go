package diagnose

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/wire"
)

// wayTimeout is how long a pod may send until there is an answer: kube-proxy has to learn of the Service.
const wayTimeout = 12 * time.Second

// readPairs finds out whether clusters that are not peered could be.
func readPairs(ctx context.Context, f *doctor.Facts, all []*examined, o DoctorOptions) error {
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.ID == "" || b.ID == "" || peered(a.to, b.ID) || peered(b.to, a.ID) {
				continue
			}
			if err := readPair(ctx, f, a, b, o); err != nil {
				return err
			}
		}
	}
	return nil
}

func readPair(ctx context.Context, f *doctor.Facts, a, b *examined, o DoctorOptions) error {
	plans, err := peering.PlanAll(ctx, []peering.Pair{{a.Cluster, b.Cluster}}, engine.Options{}, kube.Quiet{})
	if e := (*kube.Error)(nil); errors.As(err, &e) && e.Kind != kube.Forbidden {
		a.to.Plan = err.Error()
		return ctx.Err()
	}
	server, caller, balanced := a, b, false
	if err == nil {
		side := &plans[0].Clusters[0]
		if side.Role != v1alpha1.Server {
			side, server, caller = &plans[0].Clusters[1], b, a
		}
		balanced = side.Service != nil && side.Service.Spec.Type == corev1.ServiceTypeLoadBalancer
	}
	way := doctor.Way{From: caller.Name, To: server.Name}
	switch {
	case o.ObjectsOnly:
		way.Unseen = "--objects-only runs no pods"
	case balanced:
		way.Unseen = server.Name + " has load balancers, and none is made for a test"
	case len(server.to.Kernels) == 0 || len(caller.to.Kernels) == 0:
		way.Unseen = "no pod could look at a node"
	default:
		err := tryWay(ctx, &way, server, caller)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			way.Unseen = err.Error()
		}
	}
	f.Ways = append(f.Ways, way)
	return nil
}

// tryWay has a pod of the client's cluster call one of the server's by UDP, at a NodePort of its own, as a gateway would.
func tryWay(ctx context.Context, way *doctor.Way, server, caller *examined) error {
	for _, c := range []*examined{server, caller} {
		if err := c.CheckPermissions(ctx, slices.Concat(toProbe(), kube.Permissions(v1alpha1.Namespace, "create delete", "services"))); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, kernelTimeout)
	defer cancel()
	at, from := server.anyNode(), caller.anyNode()
	if at == nil || from == nil {
		return errors.New("no node is ready")
	}
	token := utilrand.String(16)
	answering, err := NewProbes(ctx, server.Cluster, "doctor-udp")
	if err != nil {
		return err
	}
	defer func() { _ = answering.Remove(ctx) }() // Kubernetes removes what is left
	echo := &Probe{Name: "server", Node: at.Name, Task: probe.Task{Token: token, Serve: &probe.Serve{Name: server.Name, Port: wire.TunnelPort}}}
	if err := answering.Start(ctx, echo); err != nil {
		return err
	}
	svc := &corev1.Service{ObjectMeta: manifests.ProbeMeta(answering.run, "udp")}
	svc.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Selector: manifests.ProbeLabels(answering.run), PublishNotReadyAddresses: true,
		Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolUDP, Port: wire.TunnelPort}},
	}
	if err := answering.Own(ctx, svc); err != nil {
		return err
	}
	if err := awaitProbe(ctx, server.Cluster, echo.Ready, "start "+echo.String()); err != nil {
		return err
	}
	if echo.Err != nil {
		return echo.Err
	}
	call := &Probe{Name: "client", Node: from.Name, Host: true, Task: probe.Task{Token: token}}
	for i, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range nodes.Addresses(at, kind) {
			to := netip.AddrPortFrom(a, uint16(svc.Spec.Ports[0].NodePort))
			call.Task.Calls = append(call.Task.Calls, probe.Call{ID: fmt.Sprint(i, a), Protocol: probe.UDP, To: to, Timeout: int(wayTimeout.Milliseconds())})
			way.Address = to.String()
		}
	}
	if err := RunProbes(ctx, caller.Cluster, "doctor-udp", call); err != nil {
		return err
	}
	if call.Err != nil {
		return call.Err
	}
	for i, answer := range call.Result.Answers {
		if answer.Answered {
			way.Answered, way.Address = true, call.Task.Calls[i].To.String()
		}
	}
	return nil
}

// anyNode is one that runs agents, and is ready.
func (x *examined) anyNode() *corev1.Node {
	for i := range x.to.Nodes {
		if n := &x.to.Nodes[i]; nodes.RunsAgents(n) && nodes.Ready(n) {
			return n
		}
	}
	return nil
}

// readSettings reads how network plugins are set.
func (x *examined) readSettings(ctx context.Context) error {
	p := &x.to.Plugins
	config, err := kube.Get[corev1.ConfigMap](ctx, x.Cluster, "kube-system", "cilium-config")
	if err != nil {
		return err
	}
	if config != nil {
		p.Cilium = config.Data
	}
	if config, err = kube.Get[corev1.ConfigMap](ctx, x.Cluster, "kube-system", "kube-proxy"); err != nil {
		return err
	}
	if config != nil {
		var proxy struct{ Mode string }
		if err := yaml.Unmarshal([]byte(config.Data["config.conf"]), &proxy); err == nil { // what cannot be read says nothing
			p.ProxyMode = proxy.Mode
		}
	}
	anetd, err := kube.Get[appsv1.DaemonSet](ctx, x.Cluster, "kube-system", "anetd")
	if err != nil {
		return err
	}
	p.DataplaneV2 = anetd != nil
	felix := &unstructured.Unstructured{}
	felix.SetGroupVersionKind(schema.GroupVersionKind{Group: "crd.projectcalico.org", Version: "v1", Kind: "FelixConfiguration"})
	felix.SetName("default")
	if err := x.Client.Get(ctx, client.ObjectKeyFromObject(felix), felix); err == nil {
		p.CalicoBPF, _, _ = unstructured.NestedBool(felix.Object, "spec", "bpfEnabled")
	} else if !kube.Absent(err) {
		return x.Fail("read FelixConfiguration default", err)
	}
	return nil
}
