package agents

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
)

const (
	// podsOfNode is the number of pods of each node, with addresses outside its range, so that gateways need a route to
	// each pod. 5,000 nodes have 100,000 pods.
	podsOfNode = 20
	// quiet and busy are how long an agent is measured. quiet contains a time at which it compares everything.
	quiet, busy = 32 * time.Second, 10 * time.Second
	// unansweredFor is how long a node agent probes often without any reply.
	unansweredFor = 65 * time.Second
)

// counter counts the requests to an API server, and the bytes in both directions.
type counter struct {
	http.Handler
	requests, bytes atomic.Int64
}

func (c *counter) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	c.requests.Add(1)
	req.Body = &countedBody{req.Body, c}
	c.Handler.ServeHTTP(&countedWriter{w, c}, req)
}

type countedBody struct {
	io.ReadCloser
	c *counter
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.c.bytes.Add(int64(n))
	return n, err
}

type countedWriter struct {
	http.ResponseWriter
	c *counter
}

func (w *countedWriter) Write(p []byte) (int, error) {
	w.c.bytes.Add(int64(len(p)))
	return w.ResponseWriter.Write(p)
}

// Unwrap implements the interface that http.ResponseController needs.
func (w *countedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// scaled is a real agent in a namespace with a fake API server.
type scaled struct {
	*node
	counter *counter
	crowd   *crowd
	started time.Time
	// measured has the results by unit.
	measured map[string]float64
}

// begin starts the agent, and measures until it has applied everything.
func (s *scaled) begin(b *testing.B, limit int64, env []string, files map[string][]byte, args []string, applied func() string) {
	b.Helper()
	s.measured = map[string]float64{}
	s.counter = &counter{Handler: s.crowd}
	s.started = time.Now()
	s.run(b, s.counter, env, files, args...)
	pid := s.agent.cmd.Process.Pid
	confine(b, pid, limit)
	kit.Within(b, fullTimeout, "everything is applied", applied)
	s.measured["s-to-apply"] = time.Since(s.started).Seconds()
	s.measured["cpu-s-to-apply"] = kit.Must(kit.CPUTime(pid))(b).Seconds()
	s.measured["kB-to-apply"] = float64(s.counter.bytes.Load()) / 1000
}

// use measures the processor time, and the traffic of the API server, while do is called at a rate.
func (s *scaled) use(b *testing.B, what string, d time.Duration, perSecond float64, do func(i int)) {
	b.Helper()
	pid := s.agent.cmd.Process.Pid
	used, requests, count, start, done := kit.Must(kit.CPUTime(pid))(b), s.counter.requests.Load(), s.counter.bytes.Load(), time.Now(), 0
	for tick := time.NewTicker(10 * time.Millisecond); time.Since(start) < d; <-tick.C {
		for ; done < int(time.Since(start).Seconds()*perSecond); done++ {
			do(done)
		}
	}
	passed := time.Since(start)
	s.measured["%core-"+what] = 100 * float64(kit.Must(kit.CPUTime(pid))(b)-used) / float64(passed)
	s.measured["requests/min-"+what] = float64(s.counter.requests.Load()-requests) / passed.Minutes()
	s.measured["kB/min-"+what] = float64(s.counter.bytes.Load()-count) / 1000 / passed.Minutes()
}

// served measures how long the kernel lacks a route after an object changed, as the mean of several changes.
func (s *scaled) served(b *testing.B, what string, times int, change func(i int) (event []byte, route netip.Prefix)) {
	b.Helper()
	// Not before everything is applied, because the kernel ends a subscription if its notifications find no room.
	routes, done := make(chan netlink.RouteUpdate, 1<<10), make(chan struct{})
	defer close(done)
	s.Do(b, func() error { return netlink.RouteSubscribe(routes, done) })
	var sum time.Duration
	for i := range times {
		event, route := change(i)
		start := time.Now()
		s.crowd.events <- event
		for deadline := time.After(startTimeout); ; {
			var u netlink.RouteUpdate
			open := true
			select {
			case u, open = <-routes:
			case <-deadline:
				b.Fatalf("not within %s: a route to %s", startTimeout, route)
			}
			kit.FatalIf(b, !open, "the kernel's notifications of routes have ended")
			if u.Dst != nil && u.Dst.String() == route.String() {
				break
			}
		}
		sum += time.Since(start)
		time.Sleep(time.Second) // so that the changes are no burst
	}
	s.measured["ms-to-"+what] = float64(sum.Milliseconds()) / float64(times)
}

// end reports the results.
func (s *scaled) end(b *testing.B) map[string]float64 {
	b.Helper()
	const MiB = 1 << 20
	most := kit.Must(kit.PeakMemory(s.agent.cmd.Process.Pid))(b)
	s.measured["MiB"], s.measured["MiB-kernel"] = float64(most)/MiB, float64(kernelOf(b, s.agent.cmd.Process.Pid))/MiB
	for unit, value := range s.measured {
		b.ReportMetric(value, unit)
	}
	return s.measured
}

// kernelOf returns how much kernel memory a confined process uses, in bytes: for links, routes and sets, and for its
// sockets and page tables.
func kernelOf(b *testing.B, pid int) int64 {
	b.Helper()
	group := fmt.Sprintf("liqonet-test-%d", pid)
	raw, err := os.ReadFile("/sys/fs/cgroup/memory/" + group + "/memory.kmem.usage_in_bytes") // version 1
	if err != nil {
		raw = kit.Must(os.ReadFile("/sys/fs/cgroup/" + group + "/memory.stat"))(b)
		_, after, _ := strings.Cut("\n"+string(raw), "\nkernel ")
		raw = []byte(strings.SplitN(after, "\n", 2)[0])
	}
	return kit.Must(strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64))(b)
}

// ordinaryPeering returns one of many Peerings, with one plane.
func ordinaryPeering(i int, gateway netip.Addr, rtt int64) *v1alpha1.Peering {
	return &v1alpha1.Peering{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Peering"},
		ObjectMeta: metav1.ObjectMeta{Name: peeringName(i), UID: types.UID(peeringName(i)), Generation: 1, ResourceVersion: strconv.FormatInt(rtt+1, 10)},
		Spec: v1alpha1.PeeringSpec{
			Index: int32(i), Overlay: "VXLAN",
			Local: v1alpha1.LocalNetwork{Pods: mappings(ranges("10.128.0.0", 9, 0, 1), ranges("10.0.0.0", 9, 0, 1)), InternalCIDR: kit.CIDR(internal), ExternalCIDR: kit.CIDR("172.30.0.0/18")},
			Remote: v1alpha1.RemoteNetwork{
				ClusterID: "id-" + strconv.Itoa(i), Name: "cluster-" + strconv.Itoa(i), Pods: mappings(ranges("10.244.0.0", 16, 0, 1), ranges("11.0.0.0", 16, i, 1)),
				ExternalCIDR: ranges("100.64.0.0", 18, i, 1)[0], NodeIPs: ips("198.18.0.0", 16*i, 16),
			},
			Planes: []v1alpha1.Plane{{
				Role: v1alpha1.Server, WireGuard: "UserSpace", KeyGeneration: 1, ServiceName: "gateway-" + strconv.Itoa(i),
				RemotePublicKey: base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{9}, 32)), RemoteAddress: v1alpha1.IP{Addr: at("100.64.0.0", i<<14+8190)},
			}},
		},
		Status: v1alpha1.PeeringStatus{Planes: []v1alpha1.PlaneStatus{{
			PodIP: v1alpha1.IP{Addr: gateway}, MTU: 1390, NodeName: "node-2", ObservedGeneration: 1, Connected: true, RTTMicroseconds: rtt,
		}}},
	}
}

// ordinaryReport returns the report of one of many nodes, with the addresses of its pods.
func ordinaryReport(i, pods int, rtt int64) v1alpha1.NodeNetwork {
	address, _ := ipam.NodeAddr(netip.MustParsePrefix(internal), i+1)
	source := v1alpha1.IP{Addr: at("172.18.0.0", i+1)}
	return v1alpha1.NodeNetwork{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeNetwork"},
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), UID: types.UID(address.String()), ResourceVersion: strconv.FormatInt(rtt+1, 10)},
		Status: v1alpha1.NodeNetworkStatus{
			Address: v1alpha1.IP{Addr: address}, Kernel: &v1alpha1.KernelFacts{Release: "6.1", VXLAN: true}, UnderlayMTU: 1500, NodeIPs: []v1alpha1.IP{source},
			PodIPs: ips("10.128.0.0", (podsOfNode+100)*i, pods), Routes: ranges("192.0.2.0", 32, 0, 8),
			Gateways: []v1alpha1.NodeGateway{{
				PeeringName: peeringName(0), ObservedGeneration: 1, GatewayIP: v1alpha1.IP{Addr: at("10.255.0.0", 1)}, Source: source, MTU: 1390, Ready: true, RTTMicroseconds: rtt,
			}},
		},
	}
}

// changed returns the event of an object's current state.
func changed(kind string, obj any) []byte {
	raw, _ := json.Marshal(obj) // all of it can be encoded
	return fmt.Appendf(nil, `{"type":%q,"object":%s}`+"\n", kind, raw)
}

// BenchmarkScaleGateway measures a real gateway agent in clusters with more and more nodes, each with podsOfNode pods.
// Instead of node agents, there are only their reports.
func BenchmarkScaleGateway(b *testing.B) {
	g := kit.Growth{Steps: []int{100, 1000, 5000}, Floor: map[string]float64{
		"MiB": 4, "MiB-kernel": 4, "cpu-s-to-apply": 0.3, "kB-to-apply": 10, "%core-quiet": 0.5, "%core-reports": 2, "ms-to-pod": 100, "ms-to-node": 100, "kB/min-reports": 10,
	}}
	for _, nodes := range g.Steps {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) { g.Measured = append(g.Measured, scaleGateway(b, nodes)) })
	}
	g.Check(b)
}

func scaleGateway(b *testing.B, nodes int) map[string]float64 {
	p := ordinaryPeering(0, netip.Addr{}, 0)
	p.Status = v1alpha1.PeeringStatus{}
	s := &scaled{node: newMachine(b, "gateway", "10.255.0.1/15", "10.255.0.2", p, &corev1.Namespace{ObjectMeta: objectMeta("", metav1.NamespaceSystem)})}
	key := kit.Must(wgtypes.GeneratePrivateKey())(b)
	_, deployment := manifests.Gateway{Peering: p.Name, WireGuard: "UserSpace"}.Objects()
	env, limit := resources(deployment.Spec.Template.Spec.Containers[0])
	s.crowd = &crowd{Handler: s.api, kind: "NodeNetwork", resource: "nodenetworks", streams: true, count: nodes, events: make(chan []byte), object: func(i int) []byte {
		raw, _ := json.Marshal(ordinaryReport(i, podsOfNode, 500))
		return raw
	}}
	s.begin(b, limit, append(env, "POD_IPS=10.255.0.1", "POD_NAME=gateway", "NODE_NAME=node-0"), map[string][]byte{v1alpha1.PrivateKeyFile: key[:]},
		[]string{"gateway", "--peering=" + p.Name, "--plane=0", "--key-dir=DIR"}, func() string {
			if err := s.api.Client.Get(context.Background(), types.NamespacedName{Name: p.Name}, p); err != nil {
				return err.Error()
			}
			if s := p.PlaneStatus(0); s == nil || s.ObservedGeneration != 1 {
				return fmt.Sprintf("its status is %+v", s)
			}
			return ""
		})
	rtt := int64(1000)
	s.use(b, "reports", busy, float64(nodes)/v1alpha1.NodeReportInterval.Seconds(), func(i int) {
		rtt++
		s.crowd.events <- changed("MODIFIED", ordinaryReport(i%nodes, podsOfNode, rtt))
	})
	s.served(b, "pod", 3, func(i int) ([]byte, netip.Prefix) {
		n := ordinaryReport(i, podsOfNode+1, rtt+1)
		return changed("MODIFIED", n), netip.PrefixFrom(n.Status.PodIPs[podsOfNode].Addr, 32)
	})
	s.served(b, "node", 3, func(i int) ([]byte, netip.Prefix) {
		n := ordinaryReport(nodes+i, podsOfNode, rtt)
		return changed("ADDED", n), netip.PrefixFrom(n.Status.PodIPs[0].Addr, 32)
	})
	s.use(b, "quiet", quiet, 0, nil) // by now it probes the peer less often
	return s.end(b)
}

// BenchmarkScaleNode measures a real node agent with more and more peerings. Their gateways do not exist, so no probe
// is answered. The agent is measured when it probes no more often than with replies.
func BenchmarkScaleNode(b *testing.B) {
	g := kit.Growth{Steps: []int{1, 16, 250}, Floor: map[string]float64{
		"MiB": 2, "MiB-kernel": 2, "cpu-s-to-apply": 0.2, "kB-to-apply": 10, "%core-quiet": 0.5, "%core-reports": 1, "ms-to-peering": 100, "kB/min-reports": 10,
	}}
	for _, peerings := range g.Steps {
		b.Run(fmt.Sprintf("peerings=%d", peerings), func(b *testing.B) { g.Measured = append(g.Measured, scaleNode(b, peerings)) })
	}
	g.Check(b)
}

func scaleNode(b *testing.B, peerings int) map[string]float64 {
	s := &scaled{node: alone(b)}
	gateway := func(i int) netip.Addr { return at("10.255.0.0", i+1) }
	s.crowd = &crowd{Handler: s.api, kind: "Peering", resource: "peerings", streams: true, count: peerings, events: make(chan []byte), object: func(i int) []byte {
		raw, _ := json.Marshal(ordinaryPeering(i, gateway(i), 500))
		return raw
	}}
	_, daemonSet := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{1})
	env, limit := resources(daemonSet.Spec.Template.Spec.Containers[0])
	s.begin(b, limit, append(env, "NODE_NAME=n1", "POD_NAME=agent-1"), nil, []string{"node"}, func() string {
		var list v1alpha1.NodeNetworkList
		if err := s.api.Client.List(context.Background(), &list); err != nil || len(list.Items) == 0 || len(list.Items[0].Status.Gateways) < peerings {
			return fmt.Sprint(len(list.Items), " reports: ", err)
		}
		return ""
	})
	time.Sleep(time.Until(s.started.Add(unansweredFor)))
	s.use(b, "quiet", quiet, 0, nil)
	rtt := int64(1000)
	s.use(b, "reports", busy, float64(peerings)/v1alpha1.ReportInterval.Seconds(), func(i int) {
		rtt++
		s.crowd.events <- changed("MODIFIED", ordinaryPeering(i%peerings, gateway(i%peerings), rtt))
	})
	s.served(b, "peering", 3, func(i int) ([]byte, netip.Prefix) {
		p := ordinaryPeering(peerings+i, gateway(peerings+i), rtt)
		return changed("ADDED", p), p.Spec.Remote.Pods[0].Mapped.Prefix
	})
	return s.end(b)
}
