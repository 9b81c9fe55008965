package agents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
	"github.com/liqonet/liqonet/test/sabotage"
	"github.com/liqonet/liqonet/test/workload"
)

const (
	startTimeout = 30 * time.Second
	// repairTimeout is how long agents may take to restore something that was deleted. repairChecks is the same for a
	// slow machine: the number of consecutive checks of all our objects in that time.
	repairTimeout = 2 * time.Second
	repairChecks  = 20
)

// Agents soon restore all our objects on a node that someone deletes or changes.
func TestNodeRepairs(t *testing.T) {
	n := startNode(t)
	link := []string{"LINK", "loq1-0", "PEER", n.gateway.String(), "SET", "pods"}
	n.shell(t, "ip link add foreign0 type bridge")
	want := n.ours(t)
	for _, what := range slices.Concat(sabotage.Links, sabotage.Tables) {
		what = strings.NewReplacer(link...).Replace(what)
		t.Run(what, func(t *testing.T) { n.repairs(t, what, want) })
	}
}

// Packets to peers do not leave a node unencrypted that gets no address in the overlay, such as with a quota for Leases.
func TestNodeWithoutAddress(t *testing.T) {
	t.Parallel()
	p := onePeering()
	n := newNode(t, "10.244.0.0/16", "10.80.0.0/19", []string{"10.244.1.0/24"}, p)
	var refuse atomic.Bool
	refuse.Store(true)
	n.run(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuse.Load() && r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/leases/"+v1alpha1.NodeLeasePrefix) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			kit.NoError(t, json.NewEncoder(w).Encode(apierrors.NewForbidden(coordinationv1.Resource("leases"), "", errors.New("exceeded quota")).ErrStatus))
			return
		}
		n.api.ServeHTTP(w, r)
	}), []string{"NODE_NAME=n1", "POD_NAME=agent-1"}, nil, "node")
	n.routes(t, "10.30.0.1 via 172.18.1.1") // by the default route, as the agent has not started
	n.routes(t, blocked, "192.0.2.1 via 172.18.1.1")
	kit.NoError(t, n.api.Client.Delete(t.Context(), p))
	n.routes(t, "10.30.0.1 via 172.18.1.1", "10.70.0.1 via 172.18.1.1")
	kit.NoError(t, n.api.Client.Create(t.Context(), onePeering()))
	n.routes(t, blocked)
	refuse.Store(false)
	n.routes(t, "10.30.0.1 via 10.80.31.250", "10.70.0.1 via 10.80.31.250")
}

// The same holds if the node's table cannot be written, here because it belongs to another program.
func TestNodeWithoutTable(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.0.0/16", "10.80.0.0/19", []string{"10.244.1.0/24"}, onePeering())
	ctx, cancel := context.WithCancel(t.Context())
	nft := exec.CommandContext(ctx, "nft", "-i")
	in := kit.Must(nft.StdinPipe())(t)
	kit.NoError(t, n.Run(nft.Start))
	_, err := in.Write([]byte("add table ip liqonet { flags owner; }\n"))
	kit.NoError(t, err)
	kit.Within(t, startTimeout, "a table", func() string { return lo.Ternary(strings.Contains(n.try("nft list tables"), "liqonet"), "", "none") })
	n.run(t, n.api, []string{"NODE_NAME=n1", "POD_NAME=agent-1"}, nil, "node")
	n.routes(t, blocked, "192.0.2.1 via 172.18.1.1")
	cancel()
	kit.ErrorIf(t, nft.Wait() == nil, "nft ended by itself")
	n.routes(t, "10.30.0.1 via 10.80.31.250", "10.70.0.1 via 10.80.31.250")
}

// blocked is the output of routes while there is no route to the peer.
const blocked = "RTNETLINK answers: No route to host\nRTNETLINK answers: No route to host"

// routes waits until the routes to the peer's pods and nodes, and to the Internet, contain want.
func (n *node) routes(t *testing.T, want ...string) {
	t.Helper()
	kit.Within(t, startTimeout, strings.Join(want, " and "), func() string {
		got := n.try("ip route get 10.30.0.1; ip route get 10.70.0.1; ip route get 192.0.2.1")
		return lo.Ternary(lo.EveryBy(want, func(w string) bool { return strings.Contains(got, w) }), "", got)
	})
}

// node is a node with its agent.
type node struct {
	*netns.NS
	api   *fakeapi.Server
	agent *process
	// gateway is the overlay address of the gateway of its only peering.
	gateway netip.Addr
}

// newMachine returns a namespace with an uplink, and an API server with the objects.
func newMachine(t testing.TB, name, address, router string, objects ...client.Object) *node {
	t.Helper()
	n := &node{NS: netns.New(t, name), api: kit.Must(fakeapi.New(objects...))(t)}
	n.shell(t, "set -e; ip link add eth0 type veth peer name outside; ip link set outside up; ip link set eth0 up; ip addr add "+
		address+" dev eth0; ip route add default via "+router)
	n.api.Unplayed = true
	t.Cleanup(n.api.Close)
	return n
}

// newNode returns a node with an API server that has what a node agent needs, and more objects.
func newNode(t testing.TB, pods, internal string, ownPods []string, more ...client.Object) *node {
	t.Helper()
	objects := fakeapi.Objects("id-of-a", "n1", "172.18.1.11", pods)
	objects[0].SetUID("uid-of-n1")
	objects[0].(*corev1.Node).Spec.PodCIDRs = ownPods
	return newMachine(t, "node", "172.18.1.11/24", "172.18.1.1", append(append(objects, sharedObjects(internal)...), more...)...)
}

func objectMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name), Generation: 1}
}

// sharedObjects are what all agents of a cluster need.
func sharedObjects(internal string) []client.Object {
	return []client.Object{
		&corev1.Namespace{ObjectMeta: objectMeta("", v1alpha1.Namespace)},
		&appsv1.DaemonSet{ObjectMeta: objectMeta(v1alpha1.Namespace, v1alpha1.NodeAgentName)},
		&v1alpha1.ClusterNetwork{ObjectMeta: objectMeta("", v1alpha1.ClusterNetworkName), Spec: v1alpha1.ClusterNetworkSpec{InternalCIDR: kit.CIDR(internal)}},
	}
}

// The agent tells doctor how often it had to restore its table, which another program keeps deleting.
func TestRepairsOfTheTableAreCounted(t *testing.T) {
	n := startNode(t)
	want := n.ours(t)
	const times = 3
	for range times {
		n.repairs(t, "nft delete table ip liqonet", want)
	}
	kit.Within(t, startTimeout, "the repairs are in the answer to health checks", func() string {
		got, err := get(n.NS, fmt.Sprintf("127.0.0.1:%d/healthz", v1alpha1.HealthPort))
		kit.NoError(t, err)
		var recent probe.Recent
		_ = json.Unmarshal([]byte(got), &recent) // at first there is nothing to report
		return lo.Ternary(recent.Repairs >= times && strings.Contains(recent.Repaired, "nftables table"), "", got)
	})
}

// onePeering is a working peering.
func onePeering() *v1alpha1.Peering {
	return &v1alpha1.Peering{
		ObjectMeta: objectMeta("", "b"),
		Spec: v1alpha1.PeeringSpec{
			Index: 1, Overlay: "VXLAN",
			Local: v1alpha1.LocalNetwork{
				Pods: []v1alpha1.CIDRMapping{kit.Mapping("10.244.0.0/16", "10.20.0.0/16")}, InternalCIDR: kit.CIDR("10.80.0.0/19"), ExternalCIDR: kit.CIDR("10.60.0.0/18"),
			},
			Remote: v1alpha1.RemoteNetwork{Name: "b", Pods: []v1alpha1.CIDRMapping{kit.Mapping("10.244.0.0/16", "10.30.0.0/16")}, ExternalCIDR: kit.CIDR("10.70.0.0/18")},
			Planes: []v1alpha1.Plane{{RemoteAddress: v1alpha1.IP{Addr: netip.MustParseAddr("10.70.0.1")}}},
		},
		Status: v1alpha1.PeeringStatus{Planes: []v1alpha1.PlaneStatus{{
			PodIP: v1alpha1.IP{Addr: netip.MustParseAddr("10.244.9.2")}, MTU: 1390, NodeName: "n2", Connected: true, ObservedGeneration: 1,
		}}},
	}
}

// startNode runs the agent of a node in a cluster with one peering, until it has applied everything to the kernel.
func startNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t, "10.244.0.0/16", "10.80.0.0/19", []string{"10.244.1.0/24"}, onePeering())
	n.shell(t, `set -e
		ip link add cni0 type bridge; ip addr add 10.244.1.1/24 dev cni0; ip link set cni0 up`)
	n.run(t, n.api, []string{"NODE_NAME=n1", "POD_NAME=agent-1"}, nil, "node")
	n.gateway = netip.MustParseAddr("10.80.31.250")
	kit.Within(t, startTimeout, "a route to the peer", func() string {
		if routes := n.try("ip route show table 27761"); !strings.Contains(routes, "10.30.0.0/16 via "+n.gateway.String()) {
			return routes
		}
		return ""
	})
	return n
}

// run runs the node's agent.
func (n *node) run(t testing.TB, api http.Handler, env []string, files map[string][]byte, args ...string) {
	t.Helper()
	n.agent = newProcess(t, n.NS, api, env, files, append([]string{program}, args...)...)
	n.agent.start(t)
}

// try runs a script on the node, and returns its output.
func (n *node) try(script string) string {
	var out []byte
	err := n.Run(func() (err error) {
		out, err = exec.Command("sh", "-c", script).CombinedOutput()
		return err
	})
	if err != nil {
		return string(out) + err.Error()
	}
	return string(out)
}

func (n *node) shell(t testing.TB, script string) {
	t.Helper()
	n.Output(t, "sh", "-c", script)
}

func (n *node) ours(t *testing.T) string {
	t.Helper()
	return sabotage.Normal(n.Output(t, "sh", "-c", sabotage.Ours))
}

// repairs damages something while the agent is stopped, so that the damage is visible, and waits until everything is as
// wanted.
func (n *node) repairs(t *testing.T, what, want string) {
	t.Helper()
	n.agent.signal(t, syscall.SIGSTOP)
	n.shell(t, "set -e\n"+what)
	damaged := sabotage.Normal(n.try(sabotage.Ours))
	n.agent.signal(t, syscall.SIGCONT)
	kit.ErrorIf(t, damaged == want, "no damage")
	start := time.Now()
	for checks := 1; ; checks++ {
		now := sabotage.Normal(n.try(sabotage.Ours))
		if now == want {
			return
		}
		if time.Since(start) > repairTimeout && checks > repairChecks {
			t.Fatalf("not repaired after %s:\n%s", time.Since(start), workload.Snapshot{"ours": want}.Diff(workload.Snapshot{"ours": now}))
		}
	}
}
