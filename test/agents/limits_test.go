package agents

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
)

const (
	// turnTimeout is the time after which the kubelet restarts an agent whose loop makes no progress.
	turnTimeout = 2 * time.Minute
	// fullTimeout is long enough for a busy machine.
	fullTimeout = 15 * time.Minute
)

// size is the number of objects: peerings, nodes, and pod addresses of each node.
type size struct{ peerings, nodes, addresses int }

// sizes returns the maximum in make test-long, otherwise less.
func sizes() size {
	if kit.Full() {
		return size{250, 6143, 1024}
	}
	return size{5, 100, 102}
}

// crowd is an API server with very many objects of one kind, which are generated when they are sent. It streams the
// first list, or lists it as an older API server does.
type crowd struct {
	http.Handler
	kind, resource string
	streams        bool
	count          int
	object         func(i int) []byte
	// events are sent to the watchers of that kind. It may be nil.
	events chan []byte
}

func (c *crowd) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	query := req.URL.Query()
	if req.Method != http.MethodGet || !strings.HasSuffix(req.URL.Path, "/"+c.resource) || !c.streams && query.Get("sendInitialEvents") != "" {
		c.Handler.ServeHTTP(w, req)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if query.Get("watch") == "" {
		c.list(w, query.Get("resourceVersion"), query.Get("limit"), query.Get("continue"))
		return
	}
	if query.Get("sendInitialEvents") != "" {
		for i := range c.count {
			fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", c.object(i))
		}
		fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"1","annotations":{%q:"true"}}}}`+"\n",
			v1alpha1.GroupVersion, c.kind, metav1.InitialEventsAnnotationKey)
	}
	for {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-req.Context().Done():
			return
		case e := <-c.events:
			_, _ = w.Write(e)
		}
	}
}

// list returns a page. From their caches, API servers return everything at once.
func (c *crowd) list(w http.ResponseWriter, version, limit, from string) {
	first, _ := strconv.Atoi(from)
	last := c.count
	if n, err := strconv.Atoi(limit); err == nil && n > 0 && version != "0" {
		last = min(last, first+n)
	}
	next := ""
	if last < c.count {
		next = strconv.Itoa(last)
	}
	fmt.Fprintf(w, `{"apiVersion":%q,"kind":"%sList","metadata":{"resourceVersion":"1","continue":%q},"items":[`, v1alpha1.GroupVersion, c.kind, next)
	for i := first; i < last; i++ {
		if i > first {
			_, _ = w.Write([]byte(","))
		}
		_, _ = w.Write(c.object(i))
	}
	_, _ = w.Write([]byte("]}"))
}

// at returns the address with this distance to another one.
func at(base string, n int) netip.Addr {
	b := netip.MustParseAddr(base).As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

func ips(base string, from, count int) (out []v1alpha1.IP) {
	for i := range count {
		out = append(out, v1alpha1.IP{Addr: at(base, from+i)})
	}
	return out
}

func ranges(base string, bits, from, count int) (out []v1alpha1.CIDR) {
	for i := range count {
		out = append(out, v1alpha1.CIDR{Prefix: netip.PrefixFrom(at(base, (from+i)<<(32-bits)), bits)})
	}
	return out
}

func mappings(real, mapped []v1alpha1.CIDR) (out []v1alpha1.CIDRMapping) {
	for i := range real {
		out = append(out, v1alpha1.CIDRMapping{Real: real[i], Mapped: mapped[i]})
	}
	return out
}

// internal is the overlay's range. wide is a text of the maximum length of a field, with characters of four bytes.
const internal = "192.168.0.0/19"

var wide = strings.Repeat("𝄞", v1alpha1.MaxMessageLength)

func peeringName(i int) string { return fmt.Sprintf("peering-%032d", i) }

// largest returns a Peering whose fields are all as large as the definition allows. Its ranges do not overlap with
// those of other Peerings. The addresses of its nodes are in its ranges, so that nodes have to process each of them.
func largest(i int) *v1alpha1.Peering {
	const perPeering = 64 << 8 // addresses in 64 ranges of pods
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{9}, 32))
	local := mappings(ranges("10.128.0.0", 15, 0, 64), ranges("10.0.0.0", 15, 0, 64))
	remote := mappings(ranges("10.0.0.0", 24, 0, 64), ranges("100.64.0.0", 24, 64*i, 64))
	p := &v1alpha1.Peering{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Peering"},
		ObjectMeta: metav1.ObjectMeta{Name: peeringName(i), UID: types.UID(peeringName(i)), Generation: 1, ResourceVersion: "1"},
		Spec: v1alpha1.PeeringSpec{
			Index: int32(i), Overlay: "VXLAN",
			Local: v1alpha1.LocalNetwork{Pods: local, InternalCIDR: kit.CIDR(internal), ExternalCIDR: kit.CIDR("10.64.0.0/18")},
			Remote: v1alpha1.RemoteNetwork{
				ClusterID: strings.Repeat("i", 63), Name: strings.Repeat("n", 253), Pods: remote, ExternalCIDR: ranges("10.0.0.0", 18, i, 1)[0],
				NodeIPs: ips("100.64.0.0", perPeering*i, 4096),
			},
			Limits: v1alpha1.Limits{NewConnections: 1e6, BitsPerSecond: 1e11},
		},
	}
	for n := range 256 {
		p.Spec.Local.Hosts = append(p.Spec.Local.Hosts, v1alpha1.AddressMapping{
			Real: v1alpha1.IP{Addr: at("198.18.0.0", 256*i+n)}, Mapped: v1alpha1.IP{Addr: at("10.64.32.0", n)},
		})
	}
	for n := range 8 {
		p.Status.Conditions = append(p.Status.Conditions, metav1.Condition{
			Type: fmt.Sprint("Condition", n), Status: metav1.ConditionTrue, Reason: strings.Repeat("R", 1024), Message: wide, LastTransitionTime: metav1.Unix(1e9, 0),
		})
	}
	name := strings.Repeat(strings.Repeat("h", 50)+".", 4) + strings.Repeat("h", 49) + ":51840"
	for n := range 4 {
		plane := v1alpha1.Plane{
			Index: int32(n), Role: v1alpha1.Server, WireGuard: "UserSpace", KeyGeneration: 1, ServiceName: strings.Repeat("s", 63), RemotePublicKey: key,
			RemoteAddress: v1alpha1.IP{Addr: at("10.0.0.0", i<<14+n+1)},
		}
		remote := &v1alpha1.RemoteAnnouncement{NodeIPs: ips("100.64.0.0", perPeering*i+4096*(n%3+1), 4096)}
		for e := range 16 {
			plane.Endpoints = append(plane.Endpoints, name)
			remote.Endpoints = append(remote.Endpoints, fmt.Sprintf("[fd00:1111:2222:3333:4444:5555:6666:%x]:51840", 4096+e))
		}
		p.Spec.Planes = append(p.Spec.Planes, plane)
		p.Status.Planes = append(p.Status.Planes, v1alpha1.PlaneStatus{
			Index: int32(n), ObservedGeneration: 1, PodIP: v1alpha1.IP{Addr: at("10.255.0.0", 4*i+n+1)}, NodeName: strings.Repeat("n", 253),
			PublicKey: key, MTU: 1390, Connected: true, Message: wide, Endpoint: "172.18.0.9:51840", LastHandshake: new(metav1.Unix(1e9, 0)), Remote: remote,
		})
	}
	return p
}

// report returns a function for the reports of nodes, with pod addresses, and with the gateways of all peerings.
func report(s size) func(i int) []byte {
	var others []v1alpha1.NodeGateway
	for i := range s.peerings {
		others = append(others, v1alpha1.NodeGateway{
			PeeringName: peeringName(i), ObservedGeneration: 1, GatewayIP: v1alpha1.IP{Addr: at("10.255.0.0", 4*i+1)}, MTU: 1390, Ready: true, RTTMicroseconds: 12345, LossPercent: 1,
		})
	}
	return func(i int) []byte {
		address, _ := ipam.NodeAddr(netip.MustParsePrefix(internal), i+1)
		n := v1alpha1.NodeNetwork{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeNetwork"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), UID: types.UID(address.String()), ResourceVersion: strconv.Itoa(i + 1)},
			Status: v1alpha1.NodeNetworkStatus{
				Address: v1alpha1.IP{Addr: address}, Kernel: &v1alpha1.KernelFacts{Release: "6.1"}, UnderlayMTU: 1500, NodeIPs: ips("172.18.0.0", 16*i, 16), PodIPs: ips("10.128.0.0", s.addresses*i, s.addresses),
				Routes: ranges("203.0.113.0", 32, 0, 256), Gateways: others,
				Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "CannotApply", Message: strings.Repeat("m", v1alpha1.MaxMessageLength)}},
			},
		}
		source := v1alpha1.IP{Addr: at("172.18.0.0", 16*i)}
		for g := range others {
			others[g].Source = source
		}
		out, _ := json.Marshal(n) // all of it can be encoded
		return out
	}
}

// resources returns an agent's environment and memory limit in bytes from its manifest.
func resources(c corev1.Container) (env []string, limit int64) {
	for _, e := range c.Env {
		if e.Value != "" {
			env = append(env, e.Name+"="+e.Value)
		}
	}
	return env, c.Resources.Limits.Memory().Value()
}

// confine limits a process to its pod's memory limit in bytes. Kernel memory for its routes, links and sets counts. If
// it needs more, it is killed. The returned function returns the peak.
func confine(t testing.TB, pid int, limit int64) (peak func() int64) {
	t.Helper()
	root, files := "/sys/fs/cgroup", [2]string{"memory.max", "memory.peak"}
	if _, err := os.Stat(root + "/memory"); err == nil { // version 1
		root, files = root+"/memory", [2]string{"memory.limit_in_bytes", "memory.max_usage_in_bytes"}
	}
	dir := filepath.Join(root, fmt.Sprintf("liqonet-test-%d", pid))
	kit.NoError(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() {
		_ = syscall.Kill(pid, syscall.SIGKILL) // before newProcess's cleanup waits for it: no other process has its PID
		for start := time.Now(); os.Remove(dir) != nil; time.Sleep(20 * time.Millisecond) {
			if time.Since(start) > turnTimeout {
				t.Errorf("%s is still in use", dir)
				return
			}
		}
	})
	for file, value := range map[string]int64{files[0]: limit, "cgroup.procs": int64(pid)} {
		kit.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(value, 10)), 0o644))
	}
	return func() int64 {
		t.Helper()
		raw := kit.Must(os.ReadFile(filepath.Join(dir, files[1])))(t)
		bytes, _ := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		return bytes
	}
}

// await waits until the agent has applied everything. In make test-long, it also deletes a route and waits until the
// agent has compared everything and restored it. It logs the resources used. An agent that needs more than its memory
// limit is killed.
func (n *node) await(t *testing.T, what string, limit int64, applied func() string, route string) {
	t.Helper()
	pid := n.agent.cmd.Process.Pid
	peak := confine(t, pid, limit)
	start, before := time.Now(), time.Duration(0)
	for _, phase := range []struct {
		name string
		done func() string
	}{
		{"everything is applied", applied},
		{"a route is back", func() string {
			if n.try("ip route show "+route) == "" {
				return "it is missing"
			}
			return ""
		}},
	} {
		kit.Within(t, fullTimeout, phase.name, phase.done)
		used, most := kit.Must(kit.CPUTime(pid))(t), kit.Must(kit.PeakMemory(pid))(t)
		t.Logf("%s, %s: %.1f s, %.1f s of a processor, %d MiB at most, %d MiB with the kernel's, limit %d MiB", what, phase.name,
			time.Since(start).Seconds(), (used - before).Seconds(), most>>20, peak()>>20, limit>>20)
		if !kit.Full() {
			return // the next phase waits for a resync
		}
		kit.ErrorIf(t, used-before > turnTimeout, "the agent has used a processor for %s: it would be restarted", used-before)
		start, before = time.Now(), used
		n.shell(t, "ip route del "+route)
	}
}

// each runs a test with an API server that does not stream the first list, as before Kubernetes 1.34. In make
// test-long, it also runs it with one that does.
func each(t *testing.T, test func(t *testing.T, streams bool)) {
	t.Run("listed", func(t *testing.T) { test(t, false) })
	if kit.Full() {
		t.Run("streamed", func(t *testing.T) { test(t, true) })
	}
}

// A gateway in a cluster with the maximum number of nodes, each with the maximum number of pod addresses that it may
// report, stays below its memory limit. It reports if it leaves out some of them.
func TestGatewayOfManyNodes(t *testing.T) {
	each(t, func(t *testing.T, streams bool) {
		s, name := sizes(), peeringName(0)
		p := largest(0)
		p.Status.Planes[0].ObservedGeneration, p.Status.Planes[0].Message, p.Status.Conditions = 0, "", nil
		n := newMachine(t, "gateway", "10.255.0.1/15", "10.255.0.2", p, &corev1.Namespace{ObjectMeta: objectMeta("", metav1.NamespaceSystem)})
		_, deployment := manifests.Gateway{Peering: name, WireGuard: "UserSpace"}.Objects()
		env, limit := resources(deployment.Spec.Template.Spec.Containers[0])
		api := &crowd{Handler: n.api, kind: "NodeNetwork", resource: "nodenetworks", streams: streams, count: s.nodes, object: report(s)}
		n.run(t, api, append(env, "POD_IPS=10.255.0.1", "POD_NAME=gateway", "NODE_NAME=node-0"),
			map[string][]byte{v1alpha1.PrivateKeyFile: bytes.Repeat([]byte{8}, 32)}, "gateway", "--peering="+name, "--plane=0", "--key-dir=DIR")
		n.await(t, fmt.Sprintf("gateway, %d nodes with %d addresses each", s.nodes, s.addresses), limit, func() string {
			if err := n.api.Client.Get(context.Background(), types.NamespacedName{Name: name}, p); err != nil {
				return err.Error()
			}
			if s := p.PlaneStatus(0); s.ObservedGeneration != 1 {
				return "its message is " + strconv.Quote(s.Message)
			}
			return ""
		}, "10.128.0.1 table 27762")
		if message := p.PlaneStatus(0).Message; s.nodes*s.addresses > 150000 && !strings.Contains(message, "left out") {
			t.Errorf("it does not report that something is left out: %q", message)
		}
	})
}

// A node agent with the maximum number of large Peerings stays below its memory limit.
func TestNodeOfLargePeerings(t *testing.T) {
	each(t, func(t *testing.T, streams bool) {
		s := sizes()
		n := alone(t)
		_, daemonSet := manifests.NodeAgent(manifests.Agents{Image: "image"}, []int32{1})
		env, limit := resources(daemonSet.Spec.Template.Spec.Containers[0])
		api := &crowd{Handler: n.api, kind: "Peering", resource: "peerings", streams: streams, count: s.peerings, object: func(i int) []byte {
			out, _ := json.Marshal(largest(i))
			return out
		}}
		n.run(t, api, append(env, "NODE_NAME=n1", "POD_NAME=agent-1"), nil, "node")
		var list v1alpha1.NodeNetworkList
		n.await(t, fmt.Sprintf("node agent, %d Peerings", s.peerings), limit, func() string {
			if err := n.api.Client.List(context.Background(), &list); err != nil || len(list.Items) == 0 || len(list.Items[0].Status.Gateways) < 4*s.peerings {
				return fmt.Sprint(len(list.Items), " reports: ", err)
			}
			return ""
		}, "100.64.0.0/24 table 27761 metric 100")
		if message := list.Items[0].Problem(); s.peerings*4096*4 > 1<<16 && !strings.Contains(message, "left out") {
			t.Errorf("it does not report that something is left out: %q", message)
		}
	})
}

// alone returns a node, and the API server of its cluster with the objects that a node agent needs. No other agents
// run.
func alone(t testing.TB) *node {
	t.Helper()
	return newNode(t, "10.128.0.0/9", internal, nil)
}
