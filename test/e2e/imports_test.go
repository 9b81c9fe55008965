package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/pkg/verify"
	"github.com/liqonet/liqonet/test/workload"
)

// kinds are three clusters for tests of what services can be. The first one exchanges services with both others.
type kinds struct{ a, b, c *site }

// Services of all kinds keep what they are in the other cluster, and users decide who imports what, and how.
func TestKindsOfServices(t *testing.T) {
	begin(t)
	ctx := t.Context() // many services
	x := &kinds{newSite(t, fx.alpha, shop), newSite(t, fx.beta, shop), newSite(t, fx.gamma, shop)}
	remove := makeNamespaces(t, ctx, x.a, x.b, x.c)
	together(t, ctx, []string{"peer", x.a.Name, x.b.Name, "--services"}, []string{"peer", x.a.Name, x.c.Name, "--services"})
	for _, test := range []struct {
		name string
		run  func(*kinds, *testing.T, context.Context)
	}{
		{"what commands say", (*kinds).commands},
		{"headless, with host names", (*kinds).headless},
		{"named ports", (*kinds).namedPorts},
		{"application protocol", (*kinds).appProtocol},
		{"session affinity", (*kinds).sessionAffinity},
		{"only endpoints of the same node", (*kinds).localPolicy},
		{"pods that are not ready", (*kinds).notReady},
		{"no selector", (*kinds).noSelector},
		{"exposed host", (*kinds).exposedHost},
		{"host network", (*kinds).hostNetwork},
		{"standby", (*kinds).standby},
		{"the own export decides", (*kinds).ownPrecedence},
		{"namespaces that admit services", (*kinds).labeled},
		{"only for some peers", (*kinds).onlyFor},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.run(x, t, ctx)
			logFailure(t, ctx, x.a.cluster, x.b.cluster)
		})
	}
	remove()
	together(t, ctx, []string{"unpeer", x.a.Name, x.b.Name}, []string{"unpeer", x.a.Name, x.c.Name})
	checkNothingLeft(t, ctx)
}

// toTester exports a service of the first cluster that leads to one of its test pods, whose name it returns.
func (x *kinds) toTester(t *testing.T, ctx context.Context, name string) (answers string) {
	t.Helper()
	svc, slice := withoutSelector(name, workload.TCPPort, x.a.pods[0].IP)
	x.a.create(t, ctx, svc, slice, newExport(name))
	return x.a.pods[0].Pod.Name
}

// importAddress is where the second cluster calls a service of the first one.
func (x *kinds) importAddress(t *testing.T, ctx context.Context, name string) netip.AddrPort {
	t.Helper()
	return addressIn(t, x.b.awaitImport(t, ctx, name, x.a.cluster), webPort)
}

// verify calls imported services, doctor has nothing to find, and the list has them.
func (x *kinds) commands(t *testing.T, ctx context.Context) {
	x.toTester(t, ctx, "seen")
	at := x.importAddress(t, ctx, "seen")
	found := lo.Filter(verified(t, ctx, 0, x.a.cluster, x.b.cluster).Checks, func(c check.Check, _ int) bool { return c.Name == verify.ServiceImported })
	expect(t, lo.ContainsBy(found, func(c check.Check) bool { return c.Result == check.Passed }), "verify says of imported services: %+v", found)
	mustLiqonet(t, ctx, "doctor", x.a.Name, x.b.Name)
	mustLiqonet(t, ctx, "services", x.b.Name).says(t, at.Addr().String())
	mustLiqonet(t, ctx, "export", x.a.Name, shop+"/seen").says(t, "nothing was changed")
	liqonet(t, ctx, "", "export", x.a.Name, "kube-system/any").refused(t, exitUsage)
	mustLiqonet(t, ctx, "unexport", x.a.Name, shop+"/nope").says(t, "nothing was changed")
}

// The pods of a StatefulSet keep their names, and are called one by one.
func (x *kinds) headless(t *testing.T, ctx context.Context) {
	const name = "db"
	svc := newService(name)
	svc.Spec.ClusterIP = corev1.ClusterIPNone
	x.a.create(t, ctx, svc, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			ServiceName: name, Replicas: new(int32(2)), PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: selects(name), Template: testerPod(name),
		},
	}, newExport(name))
	want := x.a.awaitPods(t, ctx, name, 2)
	i := x.b.awaitImport(t, ctx, name, x.a.cluster)
	made := must(x.b.derived(ctx, name))(t)
	expect(t, i.Spec.Type == mcs.Headless && len(i.Spec.IPs) == 0 && made == nil, "the import is %+v, with the Service %v", i.Spec, made)
	var endpoints []discoveryv1.Endpoint
	eventually(t, ctx, arrivalTimeout, "the pods' names arrive", func() string {
		all, err := x.b.slicesOf(ctx, name, x.a.Name)
		endpoints = lo.FlatMap(all, func(s discoveryv1.EndpointSlice, _ int) []discoveryv1.Endpoint { return s.Endpoints })
		names := lo.Map(endpoints, func(e discoveryv1.Endpoint, _ int) string { return lo.FromPtr(e.Hostname) })
		slices.Sort(names)
		for _, s := range all {
			_, isHeadless := s.Labels[corev1.IsHeadlessService]
			_, hasService := s.Labels[discoveryv1.LabelServiceName]
			expect(t, isHeadless && !hasService, "slice %s has the labels %v", s.Name, s.Labels)
		}
		return unless(err == nil && slices.Equal(names, want), "%v, want %v: %v", names, want, err)
	})
	for _, e := range endpoints {
		at := netip.AddrPortFrom(must(netip.ParseAddr(e.Addresses[0]))(t), workload.TCPPort)
		checkAnswers(t, ctx, everywhere(x.b.cluster), at, lo.FromPtr(e.Hostname))
	}
}

// Ports lead to what the pods call them, by all protocols.
func (x *kinds) namedPorts(t *testing.T, ctx context.Context) {
	const name = "named"
	x.a.create(t, ctx, newDeployment(name, 1), newService(
		name,
		corev1.ServicePort{Name: "first", Port: webPort, TargetPort: intstr.FromString("talk")},
		corev1.ServicePort{Name: "second", Port: webPort, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromString("echo")},
		corev1.ServicePort{Name: "third", Port: webPort + 1, TargetPort: intstr.FromString("web")},
	), newExport(name))
	pods := x.a.awaitPods(t, ctx, name, 1)
	i := x.b.awaitImport(t, ctx, name, x.a.cluster)
	ports := lo.Map(i.Spec.Ports, func(p mcs.ServicePort, _ int) string { return fmt.Sprintf("%s %s %d", p.Name, p.Protocol, p.Port) })
	expect(t, slices.Equal(ports, []string{"first TCP 80", "second UDP 80", "third TCP 81"}), "the import has the ports %v", ports)
	checkAnswersBy(t, ctx, "tcp", everywhere(x.b.cluster), addressIn(t, i, webPort), pods...)
	checkAnswersBy(t, ctx, "udp", everywhere(x.b.cluster), addressIn(t, i, webPort), pods...)
	checkAnswersBy(t, ctx, "http", everywhere(x.b.cluster), addressIn(t, i, webPort+1), pods...)
}

// What a port speaks is told by the import, the Service and its slices.
func (x *kinds) appProtocol(t *testing.T, ctx context.Context) {
	const name, protocol = "speaks", "kubernetes.io/h2c"
	svc, slice := withoutSelector(name, workload.TCPPort, x.a.pods[0].IP)
	svc.Spec.Ports[0].AppProtocol = new(protocol)
	x.a.create(t, ctx, svc, slice, newExport(name))
	i := x.b.awaitImport(t, ctx, name, x.a.cluster)
	made := must(x.b.derived(ctx, name))(t)
	all := must(x.b.slicesOf(ctx, name, x.a.Name))(t)
	require(t, made != nil && len(all) == 1, "there are the Service %v and the slices %v", made, all)
	for what, got := range map[string]*string{"import": i.Spec.Ports[0].AppProtocol, "Service": made.Spec.Ports[0].AppProtocol, "slice": all[0].Ports[0].AppProtocol} {
		expect(t, lo.FromPtr(got) == protocol, "the %s says that the port speaks %q", what, lo.FromPtr(got))
	}
}

// A client stays with a pod if the service says so.
func (x *kinds) sessionAffinity(t *testing.T, ctx context.Context) {
	const sticky, other = "sticky", "not-sticky"
	svc := newService(sticky)
	svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(300))}}
	plain := newService(other)
	plain.Spec.Selector = svc.Spec.Selector
	x.a.create(t, ctx, newDeployment(sticky, 2), svc, plain, newExport(sticky), newExport(other))
	pods := x.a.awaitPods(t, ctx, sticky, 2)
	i := x.b.awaitImport(t, ctx, sticky, x.a.cluster)
	expect(t, i.Spec.SessionAffinity == corev1.ServiceAffinityClientIP && *i.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds == 300, "the import says %+v", i.Spec)
	checkAnswers(t, ctx, everywhere(x.b.cluster), x.importAddress(t, ctx, other), pods...)
	for _, v := range everywhere(x.b.cluster) {
		names, err := v.namesAt("tcp", addressIn(t, i, webPort), triesPerPod*len(pods))
		expect(t, err == nil && len(names) == 1, "%s is answered by %v: %v", v, names, err)
	}
}

// With internalTrafficPolicy Local, a client uses pods on its own node only, and so none of another cluster.
func (x *kinds) localPolicy(t *testing.T, ctx context.Context) {
	const name = "e2e-near"
	a, b := x.a.in("default"), x.b.in("default") // where every node has a test pod
	for _, s := range []*site{a, b} {
		t.Cleanup(func() { s.delete(t, ctx, newExport(name), newService(name)) })
		svc := newService(name)
		svc.Spec.Selector, svc.Spec.InternalTrafficPolicy = map[string]string{"app": "tester"}, new(corev1.ServiceInternalTrafficPolicyLocal)
		s.create(t, ctx, svc)
	}
	a.create(t, ctx, newExport(name))
	i := b.awaitImport(t, ctx, name, a.cluster)
	checkUnanswered(t, ctx, everywhere(b.cluster), addressIn(t, i, webPort))
	b.create(t, ctx, newExport(name))
	i = b.awaitImport(t, ctx, name, a.cluster, b.cluster)
	for k := range b.pods {
		checkAnswers(t, ctx, []*vantage{b.pods[k].vantage, b.nodes[k].vantage}, addressIn(t, i, webPort), b.pods[k].Pod.Name)
	}
}

// Pods that are not ready are called only if the service says so.
func (x *kinds) notReady(t *testing.T, ctx context.Context) {
	const hidden, shown = "not-ready", "not-ready-shown"
	d := newDeployment(hidden, 1)
	d.Spec.Template.Spec.Containers[0].ReadinessProbe = listens(1) // where nobody listens
	published := newService(shown)
	published.Spec.Selector, published.Spec.PublishNotReadyAddresses = map[string]string{"app": hidden}, true
	x.a.create(t, ctx, d, newService(hidden), published, newExport(hidden), newExport(shown))
	var pods corev1.PodList
	eventually(t, ctx, podTimeout, "the pod runs", func() string {
		if err := x.a.api.List(ctx, &pods, client.InNamespace(shop), client.MatchingLabels{"app": hidden}); err != nil {
			return err.Error()
		}
		return unless(len(pods.Items) == 1 && pods.Items[0].Status.PodIP != "", "%d pods", len(pods.Items))
	})
	checkAnswers(t, ctx, everywhere(x.b.cluster), x.importAddress(t, ctx, shown), pods.Items[0].Name)
	eventually(t, ctx, arrivalTimeout, "the endpoint that is not ready arrives", func() string {
		all, err := x.b.slicesOf(ctx, hidden, x.a.Name)
		n := lo.SumBy(all, func(s discoveryv1.EndpointSlice) int { return len(s.Endpoints) - len(readyEndpoints(&s)) })
		return unless(err == nil && n == 1, "%d endpoints are not ready: %v", n, err)
	})
	checkUnanswered(t, ctx, everywhere(x.b.cluster), x.importAddress(t, ctx, hidden))
}

// Endpoints that a user has written are exported, and follow.
func (x *kinds) noSelector(t *testing.T, ctx context.Context) {
	const name = "by-hand"
	x.toTester(t, ctx, name)
	at := x.importAddress(t, ctx, name)
	checkAnswers(t, ctx, everywhere(x.b.cluster), at, x.a.pods[0].Pod.Name)
	edit(t, ctx, x.a, name, &discoveryv1.EndpointSlice{}, func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Addresses = []string{x.a.pods[1].IP.String()}
	})
	checkAnswers(t, ctx, everywhere(x.b.cluster), at, x.a.pods[1].Pod.Name)
}

// A host outside of the cluster is reached by the service once it is exposed. Until then, the export says what to do.
func (x *kinds) exposedHost(t *testing.T, ctx context.Context) {
	const name = "outside"
	host := fx.delta.machine(t).addr
	svc, slice := withoutSelector(name, apiPort, host)
	x.a.create(t, ctx, svc, slice, newExport(name))
	message := x.a.awaitCondition(t, ctx, name, v1alpha1.ConditionReachable, no, "NotExposed")
	expect(t, strings.Contains(message, "expose-host"), "the export does not say what to do: %s", message)
	x.a.awaitCondition(t, ctx, name, ready, no, "NoReachableEndpoints")
	for _, peer := range []*site{x.b, x.c} {
		mustLiqonet(t, ctx, "expose-host", x.a.Name, peer.Name, host.String())
		t.Cleanup(func() { mustLiqonet(t, ctx, "expose-host", x.a.Name, peer.Name, host.String(), "--remove") })
	}
	x.a.awaitCondition(t, ctx, name, v1alpha1.ConditionReachable, yes, "AllEndpoints")
	x.a.awaitCondition(t, ctx, name, ready, yes, string(mcs.ServiceExportReasonExported))
	at := x.importAddress(t, ctx, name)
	for _, v := range everywhere(x.b.cluster) {
		eventually(t, ctx, arrivalTimeout, fmt.Sprintf("%s reaches the host by %s", v, at), func() string {
			return why(v.do(func() error {
				conn, err := net.DialTimeout("tcp", at.String(), connectTimeout)
				if err != nil {
					return err
				}
				return conn.Close()
			}))
		})
	}
}

// Pods on the host network are not reached by peers, and the export says so.
func (x *kinds) hostNetwork(t *testing.T, ctx context.Context) {
	const name, port = "on-the-node", 17000
	d := newDeployment(name, 1)
	pod := &d.Spec.Template.Spec
	pod.HostNetwork = true
	pod.Containers[0].Args = []string{"serve", "-tcp", fmt.Sprintf(":%d", port), "-udp", fmt.Sprintf(":%d", port), "-http", fmt.Sprintf(":%d", port+1)}
	pod.Containers[0].Ports, pod.Containers[0].ReadinessProbe = nil, listens(port)
	x.a.create(t, ctx, d, newService(name, corev1.ServicePort{Port: webPort, TargetPort: intstr.FromInt32(port)}), newExport(name))
	x.a.awaitPods(t, ctx, name, 1)
	message := x.a.awaitCondition(t, ctx, name, v1alpha1.ConditionReachable, no, "HostNetwork")
	expect(t, strings.Contains(message, x.b.Name) && strings.Contains(message, x.c.Name), "the export does not name both peers: %s", message)
	x.a.awaitCondition(t, ctx, name, ready, no, "NoReachableEndpoints")
	checkUnanswered(t, ctx, everywhere(x.b.cluster), x.importAddress(t, ctx, name))
	// In its own cluster, it is reached.
	at := addressIn(t, x.a.awaitImport(t, ctx, name, x.a.cluster), webPort)
	eventually(t, ctx, arrivalTimeout, "the service in its own cluster", func() string {
		names, err := x.a.nodes[0].namesAt("tcp", at, 1)
		return unless(err == nil, "%v: %v", names, err)
	})
}

// Endpoints on standby are used only while no own one is ready.
func (x *kinds) standby(t *testing.T, ctx context.Context) {
	const name = "both"
	var pods [2][]string
	for k, s := range []*site{x.a, x.b} {
		s.create(t, ctx, newDeployment(name, 1), newService(name), newExport(name))
		pods[k] = s.awaitPods(t, ctx, name, 1)
	}
	at := addressIn(t, x.b.awaitImport(t, ctx, name, x.a.cluster, x.b.cluster), webPort)
	inA := addressIn(t, x.a.awaitImport(t, ctx, name, x.a.cluster, x.b.cluster), webPort)
	all := slices.Concat(pods[0], pods[1])
	checkAnswers(t, ctx, everywhere(x.b.cluster), at, all...)
	mustLiqonet(t, ctx, "services", "enable", x.a.Name, x.b.Name, "--standby="+x.b.Name+"=true")
	checkAnswers(t, ctx, everywhere(x.b.cluster), at, pods[1]...)
	checkAnswers(t, ctx, everywhere(x.a.cluster), inA, all...)
	x.b.scale(t, ctx, name, 0)
	checkAnswers(t, ctx, everywhere(x.b.cluster), at, pods[0]...)
	x.b.scale(t, ctx, name, 1)
	pods[1] = x.b.awaitPods(t, ctx, name, 1)
	checkAnswers(t, ctx, everywhere(x.b.cluster), at, pods[1]...)
	mustLiqonet(t, ctx, "services", "enable", x.a.Name, x.b.Name, "--standby="+x.b.Name+"=false")
	checkAnswers(t, ctx, everywhere(x.b.cluster), at, slices.Concat(pods[0], pods[1])...)
}

// In a conflict, a cluster's own export decides there if its user wants that.
func (x *kinds) ownPrecedence(t *testing.T, ctx context.Context) {
	const name = "differs"
	affinity := func(s *site, want corev1.ServiceAffinity) {
		t.Helper()
		eventually(t, ctx, arrivalTimeout, fmt.Sprintf("%s uses %s", s.Name, want), func() string {
			i, err := s.imported(ctx, name)
			return unless(err == nil && i != nil && i.Spec.SessionAffinity == want, "%+v, %v", i, err)
		})
	}
	x.toTester(t, ctx, name)
	x.b.awaitImport(t, ctx, name, x.a.cluster)
	nextSecond()
	svc, slice := withoutSelector(name, workload.TCPPort, x.b.pods[0].IP)
	svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	x.b.create(t, ctx, svc, slice, newExport(name))
	for _, s := range []*site{x.a, x.b} {
		s.awaitImport(t, ctx, name, x.a.cluster, x.b.cluster)
		affinity(s, corev1.ServiceAffinityNone)
		s.awaitCondition(t, ctx, name, conflict, yes, string(mcs.ServiceExportReasonSessionAffinityConflict))
	}
	mustLiqonet(t, ctx, "services", "enable", x.a.Name, x.b.Name, "--precedence", x.b.Name+"=own")
	affinity(x.b, corev1.ServiceAffinityClientIP)
	affinity(x.a, corev1.ServiceAffinityNone)
	mustLiqonet(t, ctx, "services", "enable", x.a.Name, x.b.Name, "--precedence", x.b.Name+"=age")
	affinity(x.b, corev1.ServiceAffinityNone)
}

// A cluster's user decides into which namespaces services are imported, and a namespace's labels who is kept out.
func (x *kinds) labeled(t *testing.T, ctx context.Context) {
	const name = "admitted"
	admit := func(value string) { // - removes the label
		t.Helper()
		x.b.kubectl(t, ctx, "label", "--overwrite", "namespace", shop, v1alpha1.LabelImport+value)
	}
	use := func(policy string) {
		t.Helper()
		mustLiqonet(t, ctx, "services", "enable", x.a.Name, x.b.Name, "--import", x.b.Name+"="+policy)
	}
	is := func(imported bool) {
		t.Helper()
		if imported {
			x.b.awaitImport(t, ctx, name, x.a.cluster)
		} else {
			x.b.awaitGone(t, ctx, arrivalTimeout, name)
		}
	}
	x.toTester(t, ctx, name)
	is(true)
	admit("=false")
	is(false)
	admit("-")
	is(true)
	use("labeled")
	is(false)
	admit("=true")
	is(true)
	admit("-")
	is(false)
	use("none")
	admit("=true")
	is(false)
	use("all")
	is(true)
	admit("-")
	is(true)
}

// An export for some peers is not even told to others.
func (x *kinds) onlyFor(t *testing.T, ctx context.Context) {
	const name, after = "only", "only-after"
	svc, slice := withoutSelector(name, workload.TCPPort, x.a.pods[0].IP)
	x.a.create(t, ctx, svc, slice)
	mustLiqonet(t, ctx, "export", x.a.Name, shop+"/"+name, "--to", x.b.Name)
	checkAnswers(t, ctx, everywhere(x.b.cluster), x.importAddress(t, ctx, name), x.a.pods[0].Pod.Name)
	// What is exported later has arrived.
	x.toTester(t, ctx, after)
	x.c.awaitImport(t, ctx, after, x.a.cluster)
	told := services.Key{Namespace: shop, Name: name}.ReceivedName(x.a.Name)
	err := x.c.api.Get(ctx, client.ObjectKey{Name: told}, &v1alpha1.ReceivedService{})
	expect(t, kube.IsNotFound(err), "%s was told a service that is not for it: %v", x.c.Name, err)
	none(t, x.c.leftOf(ctx, name), "%s imports a service that is not for it", x.c.Name)
	mustLiqonet(t, ctx, "export", x.a.Name, shop+"/"+name, "--to", "all")
	x.c.awaitImport(t, ctx, name, x.a.cluster)
	mustLiqonet(t, ctx, "export", x.a.Name, shop+"/"+name, "--to", x.c.Name)
	x.b.awaitGone(t, ctx, arrivalTimeout, name)
	liqonet(t, ctx, "", "export", x.a.Name, shop+"/"+name, "--to", "nobody").refused(t, exitUsage)
}

// Imports go with the peering, however it ends.
func TestImportsGo(t *testing.T) {
	a, b := fx.gamma, fx.delta
	const stay = "serviceexports,serviceimports" // where there is still an export
	for _, test := range []struct {
		name string
		// kinds are the definitions that the exporting cluster has in the end.
		kinds string
		// end ends the peering of the cluster that imports.
		end func(t *testing.T, ctx context.Context, a, b *site)
	}{
		{"unpeer, the peer is not contacted", "", func(t *testing.T, ctx context.Context, a, b *site) {
			mustLiqonet(t, ctx, "unpeer", b.Name, a.Name, "--force")
		}},
		{"unpeer, the peer does not respond", "", func(t *testing.T, ctx context.Context, a, b *site) {
			all := []int{processOf(t, a.Name+"-cp", "kube-apiserver")}
			for _, kind := range []string{"gateway", "node", "services"} {
				for _, p := range a.agents(t, kind) {
					all = append(all, p.pid)
				}
			}
			signal := func(s syscall.Signal) {
				for _, pid := range all {
					report(t, syscall.Kill(pid, s))
				}
			}
			signal(syscall.SIGSTOP)
			revive := sync.OnceFunc(func() { signal(syscall.SIGCONT) })
			t.Cleanup(revive)
			liqonet(t, ctx, "", "unpeer", b.Name, a.Name).ends(t, 8)
			revive()
		}},
		{"unpeer by the peer, which does not contact this cluster", stay, func(t *testing.T, ctx context.Context, a, b *site) {
			mustLiqonet(t, ctx, "unpeer", a.Name, b.Name, "--force")
			b.awaitGone(t, ctx, arrivalTimeout, "web") // the peer has said goodbye
		}},
		{"Peering deleted by hand", "", func(t *testing.T, ctx context.Context, a, b *site) {
			b.kubectl(t, ctx, "delete", "peering", a.Name, "--wait=false")
			b.awaitGone(t, ctx, collectedWithin, "web")
			eventually(t, ctx, collectedWithin, "what the peer has told goes", func() string {
				return b.kubectl(t, ctx, "get", "receivedservices", "-o", "name")
			})
		}},
		{"the controllers are dead", stay, func(t *testing.T, ctx context.Context, a, b *site) {
			for _, s := range []*site{a, b} {
				s.kubectl(t, ctx, "-n", v1alpha1.Namespace, "scale", "deployment", v1alpha1.ServicesName, "--replicas=0")
			}
			eventually(t, ctx, podTimeout, "the controllers have ended", func() string {
				left := append(a.agents(t, "services"), b.agents(t, "services")...)
				return unless(len(left) == 0, "%v", left)
			})
			mustLiqonet(t, ctx, "unpeer", b.Name, a.Name)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx := begin(t)
			a, b := newSite(t, a, shop), newSite(t, b, shop)
			remove := makeNamespaces(t, ctx, a, b)
			mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--services")
			svc, slice := withoutSelector("web", workload.TCPPort, a.pods[0].IP)
			a.create(t, ctx, svc, slice, newExport("web"))
			to := addressIn(t, b.awaitImport(t, ctx, "web", a.cluster), webPort)
			checkAnswers(t, ctx, everywhere(b.cluster), to, a.pods[0].Pod.Name)
			test.end(t, ctx, a, b)
			none(t, b.leftOf(ctx, "web"), "%s still has", b.Name)
			checkUnanswered(t, ctx, everywhere(b.cluster), to)
			remove()
			unpeerBoth(t, ctx, a.cluster, b.cluster)
			checkExportKinds(t, ctx, a, test.kinds)
			checkExportKinds(t, ctx, b, "")
			dropExportKinds(t, ctx, a.cluster)
			checkNothingLeft(t, ctx)
		})
	}
	t.Run("exports stay", func(t *testing.T) { exportsStay(t, newSite(t, a, shop), newSite(t, b, shop), stay) })
}

// unpeerBoth removes what either cluster may still have of a peering.
func unpeerBoth(t *testing.T, ctx context.Context, a, b *cluster) {
	t.Helper()
	for x, y := range bothWays(a, b) {
		mustLiqonet(t, ctx, "unpeer", x.Name, y.Name)
	}
}

// Exports are the users' objects. They stay when nobody uses them any more, and so do their definitions, which are
// nobody's then.
func exportsStay(t *testing.T, a, b *site, stay string) {
	ctx := begin(t)
	remove := makeNamespaces(t, ctx, a, b)
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--services")
	svc, slice := withoutSelector("web", workload.TCPPort, a.pods[0].IP)
	a.create(t, ctx, svc, slice, newExport("web"))
	b.awaitImport(t, ctx, "web", a.cluster)
	mustLiqonet(t, ctx, "services", "disable", a.Name, b.Name)
	e := &mcs.ServiceExport{}
	try(t, a.api.Get(ctx, a.key("web"), e))
	expect(t, len(e.Status.Conditions) == 0, "nobody uses the export, and it says %+v", e.Status.Conditions)
	for _, s := range []*site{a, b} {
		none(t, s.leftOf(ctx, "web"), "%s still has", s.Name)
	}
	checkExportKinds(t, ctx, a, stay)
	checkExportKinds(t, ctx, b, "")

	// It is used again as soon as services are.
	mustLiqonet(t, ctx, "services", "enable", a.Name, b.Name)
	b.awaitImport(t, ctx, "web", a.cluster)
	try(t, a.api.Get(ctx, a.key("web"), e))
	expect(t, meta.IsStatusConditionTrue(e.Status.Conditions, ready), "the export is used, and says %+v", e.Status.Conditions)
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
	try(t, a.api.Get(ctx, a.key("web"), e))
	none(t, fx.ours(ctx), "objects of ours are left")
	remove()
	dropExportKinds(t, ctx, a.cluster)
	checkNothingLeft(t, ctx)
}

// checkExportKinds fails the test unless a cluster has these definitions of the Multi-Cluster Services API, and
// nobody says that they are his.
func checkExportKinds(t *testing.T, ctx context.Context, s *site, want string) {
	t.Helper()
	var found []string
	for name := range strings.FieldsSeq(s.kubectl(t, ctx, "get", "customresourcedefinitions", "-o", "name")) {
		_, name, _ = strings.Cut(name, "/")
		if kind, group, _ := strings.Cut(name, "."); group == mcs.GroupName {
			found = append(found, kind)
			owner := jsonPath(t, ctx, s.cluster, `{.metadata.labels.app\.kubernetes\.io/managed-by}`, "get", "customresourcedefinition", name)
			expect(t, owner == "", "%s has %s, which is still called %s's", s.Name, name, owner)
		}
	}
	got := strings.Join(found, ",")
	expect(t, got == want, "%s has the definitions %q, want %q", s.Name, got, want)
}

// dropExportKinds removes the definitions of the Multi-Cluster Services API, which stay where there were exports.
func dropExportKinds(t testing.TB, ctx context.Context, clusters ...*cluster) {
	t.Helper()
	for _, c := range clusters {
		c.kubectl(t, ctx, "delete", "customresourcedefinitions", mcs.ServiceExportFullName, mcs.ServiceImportFullName, "--ignore-not-found")
	}
}
