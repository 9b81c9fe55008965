package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/services/feed"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/flow"
	"github.com/liqonet/liqonet/test/workload"
)

// A service that one cluster exports is reached from pods and nodes of the other one, with equal ranges, and changes of
// its endpoints arrive. Users of their own cluster's services notice nothing. When it is over, nothing is left.
func TestServices(t *testing.T) {
	ctx := begin(t)
	a, b := newSite(t, fx.alpha, shop), newSite(t, fx.beta, shop)
	remove := makeNamespaces(t, ctx, a, b)
	for _, s := range []*site{a, b} {
		// Both have a service of that name. One is exported.
		s.create(t, ctx, newDeployment("web", 1), newService("web"))
	}
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	ofA, ofB := a.awaitPods(t, ctx, "web", 1), b.awaitPods(t, ctx, "web", 1)
	before := contents(t, ctx, a.cluster, b.cluster)
	local := b.localAddress(t, ctx, "web")
	own := slices.Concat(a.ownTraffic(), b.ownTraffic())
	for _, v := range everywhere(b.cluster) {
		own = append(own, stream{v.name + " to its own cluster's service", v, fresh(func() error {
			answer, err := askService("tcp", local, callTimeout)
			if err == nil && !slices.Contains(ofB, answer.hostname) {
				err = fmt.Errorf("%s answers", answer.hostname)
			}
			return err
		})})
	}
	probing := probe(ctx, own)

	mustLiqonet(t, ctx, "services", "enable", a.Name, b.Name)
	mustLiqonet(t, ctx, "export", a.Name, shop+"/web").says(t, b.Name)
	at := addressIn(t, b.awaitImport(t, ctx, "web", a.cluster), webPort)
	checkAnswers(t, ctx, everywhere(b.cluster), at, ofA...)
	inA := addressIn(t, a.awaitImport(t, ctx, "web", a.cluster), webPort)
	checkAnswers(t, ctx, everywhere(a.cluster), inA, ofA...)
	expect(t, mustLiqonet(t, ctx, "map", a.Name, b.Name, shop+"/web").stdout == at.String()+"\n", "map does not say that the service is %s", at)
	mustLiqonet(t, ctx, "services", b.Name).says(t, shop+"/web")
	for c, want := range map[*cluster]string{a.cluster: "{Exported:1 Received:0 Imported:0 Withdrawn:0}", b.cluster: "{Exported:0 Received:1 Imported:1 Withdrawn:0}"} {
		got := exchangeOf(t, ctx, c, lo.Ternary(c == a.cluster, b.cluster, a.cluster))
		expect(t, got == want, "status of %s: %s, want %s", c.Name, got, want)
	}

	a.scale(t, ctx, "web", 2)
	ofA = a.awaitPods(t, ctx, "web", 2)
	checkAnswers(t, ctx, everywhere(b.cluster), at, ofA...)
	a.scale(t, ctx, "web", 1)
	ofA = a.awaitPods(t, ctx, "web", 1)
	checkAnswers(t, ctx, everywhere(b.cluster), at, ofA...)
	checkAnswers(t, ctx, everywhere(a.cluster), a.localAddress(t, ctx, "web"), ofA...)

	mustLiqonet(t, ctx, "unexport", a.Name, shop+"/web")
	for _, s := range []*site{a, b} {
		s.awaitGone(t, ctx, arrivalTimeout, "web")
	}
	checkAnswers(t, ctx, everywhere(a.cluster), a.localAddress(t, ctx, "web"), ofA...)
	mustLiqonet(t, ctx, "services", "disable", a.Name, b.Name)
	none(t, cmp.Diff(before, contents(t, ctx, a.cluster, b.cluster)), "objects before (-) and after (+) services were exchanged")
	probing.stop(t)
	remove()
	unpeered(t, ctx, a.cluster, b.cluster)
}

// outage is the end of all gateways of a cluster.
type outage struct {
	name, planes string
	// isOwn says that they are those of the cluster that imports.
	isOwn bool
	// median and p99 are within what endpoints have to be withdrawn.
	median, p99 time.Duration
}

// A dead peer's endpoints are withdrawn soon, and are back as soon as it is. Connections that there are stay. The same
// holds if the cluster's own gateways have died, which takes longer to find out.
func TestServicesAreWithdrawn(t *testing.T) {
	for _, o := range []outage{
		{"two-planes", "2", false, 5 * time.Second, 7 * time.Second},
		{"one-plane", "1", false, 8 * time.Second, 10 * time.Second},
		{"own-gateways", "2", true, 20 * time.Second, 22 * time.Second},
	} {
		t.Run(o.name, o.run)
	}
}

func (o outage) run(t *testing.T) {
	const (
		number = 100
		// backLimit is for all services, from when the peer is connected again.
		backLimit = 2 * time.Second
	)
	begin(t)
	ctx := t.Context() // many services
	a, b := newSite(t, fx.alpha, shop), newSite(t, fx.beta, shop)
	remove := makeNamespaces(t, ctx, a, b)
	// Of a new peering, it is the first withdrawal in ten minutes. Later ones take longer.
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", o.planes, "--services")
	log := b.logSlices(t, ctx, a.cluster)
	started := time.Now()
	for i := range number {
		name := fmt.Sprintf("web-%d", i)
		svc, slice := withoutSelector(name, workload.TCPPort, a.pods[i%len(a.pods)].IP)
		a.create(t, ctx, svc, slice, newExport(name))
	}
	eventually(t, ctx, podTimeout, "all services are imported", func() string {
		n := len(log.first(started, isFilled))
		return unless(n == number, "%d are", n)
	})
	to := addressIn(t, b.awaitImport(t, ctx, "web-0", a.cluster), webPort)
	checkAnswers(t, ctx, everywhere(b.cluster), to, a.pods[0].Pod.Name)
	connections := lo.Map(everywhere(b.cluster), func(v *vantage, _ int) *connection { return openService(t, v, to) })
	checkRepaired(t, ctx, a.cluster, b.cluster)

	victim := lo.Ternary(o.isOwn, b.cluster, a.cluster)
	died, revive := killGateways(t, victim)
	eventually(t, ctx, 2*o.p99, "all services are withdrawn", func() string {
		n := len(log.first(died, isEmpty))
		return unless(n == number, "%d are", n)
	})
	withdrawn := lo.Values(log.first(died, isEmpty))
	require(t, len(withdrawn) == number, "%d of %d services were withdrawn", len(withdrawn), number)
	median, p99 := quantile(withdrawn, 0.5), quantile(withdrawn, 0.99)
	expect(t, median <= o.median && p99 <= o.p99, "endpoints were withdrawn after %s (median) and %s (p99), want %s and %s", median, p99, o.median, o.p99)
	// Callers learn at once that nobody is there.
	for _, v := range everywhere(b.cluster) {
		eventually(t, ctx, arrivalTimeout, fmt.Sprintf("%s is refused at %s", v, to), func() string {
			err := v.do(func() error { return errOf(askService("tcp", to, shortTimeout)) })
			return unless(errors.Is(err, syscall.ECONNREFUSED), "%v", err)
		})
	}
	got := exchangeOf(t, ctx, b.cluster, a.cluster)
	expect(t, strings.Contains(got, fmt.Sprintf("Withdrawn:%d", number)), "status says %s", got)

	revive()
	revived := time.Now()
	var connected time.Time
	eventually(t, ctx, podTimeout, b.Name+" is connected again", func() string {
		p := &v1alpha1.Peering{}
		if err := b.api.Get(ctx, client.ObjectKey{Name: a.Name}, p); err != nil {
			return err.Error()
		}
		connected = time.Now()
		return unless(meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionConnected), "it is not")
	})
	eventually(t, ctx, podTimeout, "all services are back", func() string {
		n := len(log.first(revived, isFilled))
		return unless(n == number, "%d are", n)
	})
	back := quantile(lo.Values(log.first(revived, isFilled)), 1) - connected.Sub(revived)
	expect(t, back <= backLimit, "the last service was back %s after the peer, want %s", back, backLimit)
	checkAnswers(t, ctx, everywhere(b.cluster), to, a.pods[0].Pod.Name)
	for i, c := range connections {
		report(t, c.SetDeadline(time.Now().Add(podTimeout))) // TCP waits before it sends again, longer and longer
		err := c.echo(payload)
		expect(t, err == nil, "the connection of %s was touched: %v", everywhere(b.cluster)[i], err)
	}
	log.check(t)
	// As benchmarks are printed, which are kept with the result.
	fmt.Printf("BenchmarkServicesWithdrawn/%s 1 %d services %.3f median-s %.3f p99-s %.3f back-s\n", o.name, number, median.Seconds(), p99.Seconds(), max(back, 0).Seconds())
	logFailure(t, ctx, a.cluster, b.cluster)
	checkRepaired(t, ctx, a.cluster, b.cluster)
	remove()
	unpeered(t, ctx, a.cluster, b.cluster)
}

// killGateways kills all gateways of a cluster, and says when. Nobody starts them again until revive is called, or the
// test ends.
func killGateways(t *testing.T, c *cluster) (died time.Time, revive func()) {
	t.Helper()
	var resumes []func()
	for _, n := range c.nodes {
		resumes = append(resumes, paused(t, processOf(t, n.Node.Name, "kubelet")))
	}
	revive = sync.OnceFunc(func() {
		for _, resume := range resumes {
			resume()
		}
	})
	t.Cleanup(revive)
	died = time.Now()
	for _, p := range c.agents(t, "gateway") {
		try(t, syscall.Kill(p.pid, syscall.SIGKILL))
	}
	return died, revive
}

// Gateways that are replaced one by one, and controllers that are replaced or killed, withdraw nothing and interrupt
// nobody.
func TestRestartsWithdrawNothing(t *testing.T) {
	begin(t)
	ctx := t.Context() // many restarts
	a, b := newSite(t, fx.gamma, shop), newSite(t, fx.delta, shop)
	remove := makeNamespaces(t, ctx, a, b)
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2", "--services")
	both := []*site{a, b}
	logs, imports := map[*site]*sliceLog{}, map[*site]*mcs.ServiceImport{}
	var streams []stream
	for i, s := range both {
		s.create(t, ctx, newDeployment("web-"+s.Name, 2), newService("web-"+s.Name), newExport("web-"+s.Name))
		s.awaitPods(t, ctx, "web-"+s.Name, 2)
		peer := both[1-i]
		imports[peer] = peer.awaitImport(t, ctx, "web-"+s.Name, s.cluster)
		logs[peer] = peer.logSlices(t, ctx, s.cluster)
		to := addressIn(t, imports[peer], webPort)
		checkAnswers(t, ctx, everywhere(peer.cluster), to, s.awaitPods(t, ctx, "web-"+s.Name, 2)...)
		streams = append(streams, serviceTraffic(peer.cluster, to, 1)...)
	}
	begun, load := time.Now(), probe(ctx, streams)
	restart := func(s *site, deployment string) {
		t.Helper()
		s.kubectl(t, ctx, "-n", v1alpha1.Namespace, "rollout", "restart", "deployment", deployment)
		s.kubectl(t, ctx, "-n", v1alpha1.Namespace, "rollout", "status", "deployment", deployment, "--timeout="+podTimeout.String())
	}
	for i, s := range both {
		peer := both[1-i]
		for plane := range int32(2) {
			inUse(t, ctx, s.cluster, peer.cluster, peer.nodes[0]) // both planes have worked for a while
			restart(s, v1alpha1.GatewayName(peer.Name, plane))
			checkBothPlanes(t, ctx, a.cluster, b.cluster)
		}
		restart(s, v1alpha1.ServicesName)
	}
	for _, s := range both {
		var controllers []agentProcess
		eventually(t, ctx, podTimeout, s.Name+" has two controllers", func() string {
			controllers = s.agents(t, "services")
			return unless(len(controllers) == 2, "%v", controllers)
		})
		for _, p := range controllers {
			try(t, syscall.Kill(p.pid, syscall.SIGKILL))
		}
	}
	// After that, changes still arrive.
	for i, s := range both {
		s.scale(t, ctx, "web-"+s.Name, 3)
		names := s.awaitPods(t, ctx, "web-"+s.Name, 3)
		checkAnswers(t, ctx, everywhere(both[1-i].cluster), addressIn(t, imports[both[1-i]], webPort), names...)
	}
	load.stop(t)
	for s, log := range logs {
		log.check(t)
		for service, after := range log.first(begun, isEmpty) {
			t.Errorf("%s withdrew %s %s after the restarts began", s.Name, service, after)
		}
		now := must(s.imported(ctx, imports[s].Name))(t)
		expect(t, now != nil && now.UID == imports[s].UID && slices.Equal(now.Spec.IPs, imports[s].Spec.IPs), "%s has made the import again: %+v", s.Name, now)
	}
	logFailure(t, ctx, a.cluster, b.cluster)
	remove()
	unpeered(t, ctx, a.cluster, b.cluster)
}

// A Deployment that is called from the other cluster is replaced. If its pods wait for some seconds before they end, no
// request is lost. Otherwise, the test tells how many are.
func TestRollingUpdate(t *testing.T) {
	const callers = 5 // at each pod and node
	begin(t)
	ctx := t.Context() // two updates, with slow pods
	a, b := newSite(t, fx.alpha, shop), newSite(t, fx.beta, shop)
	remove := makeNamespaces(t, ctx, a, b)
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--services")
	for name, preStop := range map[string]int64{"with-prestop-of-5s": 5, "without-prestop": 0} {
		t.Run(name, func(t *testing.T) {
			d := newDeployment(name, 2)
			pods := &d.Spec.Template.Spec
			pods.TerminationGracePeriodSeconds = new(int64(30))
			if preStop > 0 {
				pods.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: preStop}}}
			}
			a.create(t, ctx, d, newService(name), newExport(name))
			before := a.awaitPods(t, ctx, name, 2)
			to := addressIn(t, b.awaitImport(t, ctx, name, a.cluster), webPort)
			checkAnswers(t, ctx, everywhere(b.cluster), to, before...)
			load := probe(ctx, serviceTraffic(b.cluster, to, callers))
			a.kubectl(t, ctx, "-n", shop, "rollout", "restart", "deployment", name)
			a.kubectl(t, ctx, "-n", shop, "rollout", "status", "deployment", name, "--timeout=120s")
			after := a.awaitPods(t, ctx, name, 2)
			expect(t, len(lo.Intersect(before, after)) == 0, "the pods were %v, and are %v", before, after)
			checkAnswers(t, ctx, everywhere(b.cluster), to, after...)
			asked, failures := load.end()
			expect(t, asked > 0, "nobody called")
			t.Logf("%d of %d requests were lost: %s", len(failures), asked, strings.Join(failures[:min(len(failures), 5)], "; "))
			expect(t, preStop == 0 || len(failures) == 0, "%d of %d requests were lost", len(failures), asked)
			// As benchmarks are printed, which are kept with the result.
			fmt.Printf("BenchmarkRollingUpdate/%s 1 %d requests %d lost\n", name, asked, len(failures))
		})
	}
	remove()
	unpeered(t, ctx, a.cluster, b.cluster)
}

// TestServicesLatency measures how long it takes from a change of an endpoint to the EndpointSlice in the other
// cluster, and to the first packet that the new endpoint answers there.
func TestServicesLatency(t *testing.T) {
	const (
		changes             = 30
		goalMedian, goalP99 = time.Second, 2 * time.Second
		// kube-proxy pauses for a second between two updates of its rules. Changes come at any moment after that.
		pause = time.Second
	)
	begin(t)
	ctx := t.Context() // many changes
	a, b := newSite(t, fx.alpha, shop), newSite(t, fx.beta, shop)
	remove := makeNamespaces(t, ctx, a, b)
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2", "--services")
	svc, slice := withoutSelector("web", workload.TCPPort, a.pods[0].IP)
	a.create(t, ctx, svc, slice, newExport("web"))
	to := addressIn(t, b.awaitImport(t, ctx, "web", a.cluster), webPort)
	checkAnswers(t, ctx, everywhere(b.cluster), to, a.pods[0].Pod.Name)
	log := b.logSlices(t, ctx, a.cluster)
	known := viewOf(t, anyStatus(t, ctx, a.cluster, b.cluster), a.cluster, b.cluster)
	r := random(t)
	var toSlice, toPacket []time.Duration
	for i := range changes {
		next := a.pods[(i+1)%len(a.pods)]
		time.Sleep(pause + time.Duration(r.Int64N(int64(pause))))
		slice.Endpoints[0].Addresses = []string{next.IP.String()}
		begun := time.Now()
		try(t, a.api.Update(ctx, slice))
		report(t, b.pods[i%len(b.pods)].do(func() error {
			for time.Since(begun) < arrivalTimeout {
				if answer, err := askService("tcp", to, connectTimeout); err == nil && answer.hostname == next.Pod.Name {
					toPacket = append(toPacket, time.Since(begun))
					return nil
				}
				time.Sleep(flow.Interval)
			}
			return fmt.Errorf("change %d: %s does not answer", i, next.Pod.Name)
		}))
		want := []string{known.seenAs(t, next.IP).String()}
		eventually(t, ctx, arrivalTimeout, "the slice", func() string {
			at, found := log.first(begun, func(ready []string) bool { return slices.Equal(ready, want) })["web"]
			if found {
				toSlice = append(toSlice, at)
			}
			return unless(found, "it has no endpoint %v", want)
		})
		require(t, len(toSlice) == i+1 && len(toPacket) == i+1, "change %d has not arrived", i)
	}
	log.check(t)
	for name, all := range map[string][]time.Duration{"slice": toSlice, "packet": toPacket} {
		median, p99 := quantile(all, 0.5), quantile(all, 0.99)
		t.Logf("to the %s: median %s, p99 %s of %v", name, median, p99, all)
		if median > goalMedian || p99 > goalP99 {
			t.Logf("the goal of %s and %s is missed", goalMedian, goalP99)
		}
		expect(t, median <= goalP99, "half of the changes took longer than %s to the %s", goalP99, name)
		// As benchmarks are printed, which are kept with the result.
		fmt.Printf("BenchmarkServicesLatency/%s 1 %d changes %.3f median-s %.3f p99-s\n", name, changes, median.Seconds(), p99.Seconds())
	}
	remove()
	unpeered(t, ctx, a.cluster, b.cluster)
}

// Clusters that exchange no services have nothing of what that takes: neither programs nor kinds, rights or rules.
func TestPeeringWithoutServices(t *testing.T) {
	ctx := begin(t)
	a, b := fx.gamma, fx.delta
	check := func(exchange bool) {
		t.Helper()
		for _, c := range []*cluster{a, b} {
			peer := lo.Ternary(c == a, b, a)
			eventually(t, ctx, recoveryTimeout, fmt.Sprintf("%s has what it needs for services: %t", c.Name, exchange), func() string {
				for what, found := range servicesTraces(t, ctx, c, peer) {
					if found != exchange {
						return fmt.Sprintf("%s: %t", what, found)
					}
				}
				return ""
			})
		}
	}
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	before := contents(t, ctx, a, b)
	check(false)
	mustLiqonet(t, ctx, "services", "enable", a.Name, b.Name)
	check(true)
	mustLiqonet(t, ctx, "services", "disable", a.Name, b.Name)
	check(false)
	none(t, cmp.Diff(before, contents(t, ctx, a, b)), "objects before (-) and after (+) services were exchanged")
	mustLiqonet(t, ctx, "peer", a.Name, b.Name).says(t, "nothing was changed")
	unpeered(t, ctx, a, b)
}

// servicesTraces says what a cluster has of what the exchange of services takes.
func servicesTraces(t testing.TB, ctx context.Context, c, peer *cluster) map[string]bool {
	t.Helper()
	names := func(args ...string) []string {
		return strings.Fields(c.kubectl(t, ctx, append([]string{"get", "-o", "name"}, args...)...))
	}
	has := func(all []string, part string) bool {
		return slices.ContainsFunc(all, func(name string) bool { return strings.Contains(name, part) })
	}
	kinds := names("customresourcedefinitions")
	rights := names("clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings")
	ofGateway := jsonPath(t, ctx, c, "{.rules[*].resources}", "get", "clusterrole", manifests.Gateway{Peering: peer.Name}.ClusterScopedName())
	gateway := c.gateway(t)
	rules := must(oursIn(ctx, gateway))(t)
	return map[string]bool{
		"the controller's Deployment":   has(names("-n", v1alpha1.Namespace, "deployments"), v1alpha1.ServicesName),
		"the controller's processes":    len(c.agents(t, "services")) > 0,
		"the controller's Lease":        has(names("-n", v1alpha1.Namespace, "leases"), v1alpha1.ServicesName),
		"the controller's permissions":  has(rights, "clusterrole.rbac.authorization.k8s.io/"+v1alpha1.ServicesName),
		"the controller's policies":     has(rights, "validatingadmissionpolicy.admissionregistration.k8s.io/"+v1alpha1.ServicesName),
		"users' permissions":            has(rights, v1alpha1.ServicesName+"-admin"),
		"the gateways' policy":          has(rights, "validatingadmissionpolicy.admissionregistration.k8s.io/liqonet-gateway-services"),
		"the gateway's permissions":     strings.Contains(ofGateway, "receivedservices"),
		"the gateway's rules":           strings.Contains(rules, fmt.Sprintf("connects: %d", wire.ServicesPort)),
		"the gateway's sockets":         hasSocket(must(gateway.shell(ctx, "cat /proc/net/tcp"))(t), wire.ServicesPort),
		"definition of ExportedService": has(kinds, "exportedservices.liqonet.io"),
		"definition of ReceivedService": has(kinds, "receivedservices.liqonet.io"),
		"definition of ServiceExport":   has(kinds, mcs.ServiceExportFullName),
		"definition of ServiceImport":   has(kinds, mcs.ServiceImportFullName),
		"ID in the ledger":              jsonPath(t, ctx, c, "{.spec.services.id}", "get", "clusternetwork", v1alpha1.ClusterNetworkName) != "",
		"settings of the Peering":       jsonPath(t, ctx, c, "{.spec.services.remoteID}", "get", "peering", peer.Name) != "",
	}
}

// hasSocket says that a socket in the list of proc(5) listens at a TCP port, or is connected from or to it.
func hasSocket(list string, port int) bool {
	const established, listening = "01", "0A"
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[3] != established && fields[3] != listening {
			continue
		}
		hex := fmt.Sprintf(":%04X", port)
		if strings.HasSuffix(fields[1], hex) || strings.HasSuffix(fields[2], hex) {
			return true
		}
	}
	return false
}

// tellFlood tells services as fast as the peer's gateway takes them, and now and then something else, until ctx ends. If the connection ends,
// it opens another one. It returns how many services it has told.
func tellFlood(ctx context.Context, to netip.AddrPort) (told int) {
	record := &v1alpha1.ServiceRecord{
		Created: metav1.NewTime(time.Unix(1e9, 0)), Type: v1alpha1.ClusterSetIP, Ports: []v1alpha1.RecordPort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		Slices: []v1alpha1.RecordSlice{{ID: "x"}},
	}
	for ctx.Err() == nil {
		conn, err := net.DialTimeout("tcp", to.String(), connectTimeout)
		if err != nil {
			time.Sleep(flow.Interval)
			continue
		}
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		for err == nil {
			m := &feed.Message{Type: feed.TypePut, Key: fmt.Sprintf("%s.flood-%d", shop, told), Hash: "abc", Record: record}
			if told++; told%1000 == 0 {
				m = &feed.Message{Type: feed.TypeGone, Keys: []string{m.Key}}
			}
			_, err = conn.Write(m.Encode())
		}
		stop()
		_ = conn.Close()
	}
	return told
}

// A peer that tells services without end delays changes of another peering by less than a second, and no agent ends.
func TestFloodOfServices(t *testing.T) {
	const (
		changes = 20
		limit   = time.Second
	)
	begin(t)
	ctx := t.Context() // many changes
	hostile, quiet, b := newSite(t, fx.alpha, shop), newSite(t, fx.gamma, shop), newSite(t, fx.beta, shop)
	remove := makeNamespaces(t, ctx, hostile, quiet, b)
	mustLiqonet(t, ctx, "peer", hostile.Name, b.Name, "--server", b.Name, "--services")
	mustLiqonet(t, ctx, "peer", quiet.Name, b.Name, "--services")
	svc, slice := withoutSelector("web", workload.TCPPort, quiet.pods[0].IP)
	quiet.create(t, ctx, svc, slice, newExport("web"))
	b.awaitImport(t, ctx, "web", quiet.cluster)
	log := b.logSlices(t, ctx, quiet.cluster)
	known := viewOf(t, anyStatus(t, ctx, quiet.cluster, b.cluster), quiet.cluster, b.cluster)
	p := &v1alpha1.Peering{}
	try(t, hostile.api.Get(ctx, client.ObjectKey{Name: b.Name}, p))
	to := netip.AddrPortFrom(p.Spec.Planes[0].RemoteAddress.Addr, wire.ServicesPort)
	before := append(b.agents(t, "gateway"), b.agents(t, "services")...)
	flooding, end := context.WithCancel(ctx)
	told := make(chan int, 1)
	go func() {
		n := 0
		report(t, hostile.gateway(t).do(func() error {
			n = tellFlood(flooding, to)
			return nil
		}))
		told <- n
	}()
	eventually(t, ctx, podTimeout, "the flood has reached its limit", func() string {
		var list v1alpha1.ReceivedServiceList
		err := b.api.List(ctx, &list)
		return unless(err == nil && len(list.Items) >= v1alpha1.MaxPeerServices/2, "%d services are recorded: %v", len(list.Items), err)
	})
	var took []time.Duration
	for i := range changes {
		next := quiet.pods[(i+1)%len(quiet.pods)]
		slice.Endpoints[0].Addresses = []string{next.IP.String()}
		begun := time.Now()
		try(t, quiet.api.Update(ctx, slice))
		want := []string{known.seenAs(t, next.IP).String()}
		eventually(t, ctx, arrivalTimeout, "the slice", func() string {
			at, found := log.first(begun, func(ready []string) bool { return slices.Equal(ready, want) })["web"]
			if found {
				took = append(took, at)
			}
			return unless(found, "it has no endpoint %v", want)
		})
	}
	end()
	t.Logf("%d services were told; changes took %v", <-told, took)
	expect(t, quantile(took, 1) < limit, "a change of another peering took %s", quantile(took, 1))
	after := append(b.agents(t, "gateway"), b.agents(t, "services")...)
	expect(t, slices.Equal(before, after), "the agents were %v, and are %v", before, after)
	remove()
	unpeered(t, ctx, quiet.cluster, b.cluster)
	unpeered(t, ctx, hostile.cluster, b.cluster)
}
