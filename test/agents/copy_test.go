package agents

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/flow"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// copyRuns is how long packets are counted while a copy of a cluster runs: it would redial every two seconds.
const copyRuns = 20 * time.Second

// A cluster that was restored from the backup of another one has its keys. Its agents do nothing, and the original loses no
// packet.
func TestRestoredCopy(t *testing.T) {
	t.Parallel()
	o := dataplane.Options{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace}
	clusters := newClusters(t, o)
	settled(t, clusters)
	a, b := clusters[0], clusters[1]
	flows := []*flow.Flow{send(t, a, b, 8), send(t, b, a, 8)}
	restored := b.copy(t, o, a, "id-of-c", program)
	kit.Within(t, settleTimeout, "the copy reports that it is one", func() string {
		var p v1alpha1.Peering
		if err := restored.api.Client.Get(t.Context(), types.NamespacedName{Name: restored.peer()}, &p); err != nil {
			return err.Error()
		}
		for _, kind := range []string{v1alpha1.ConditionConnected, v1alpha1.ConditionReady} {
			c := meta.FindStatusCondition(p.Status.Conditions, kind)
			if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonOtherCluster || !strings.Contains(c.Message, "id-of-b") {
				return fmt.Sprint(p.Status.Conditions)
			}
		}
		for _, n := range restored.nodes {
			var report v1alpha1.NodeNetwork
			if err := restored.api.Client.Get(t.Context(), types.NamespacedName{Name: n.name}, &report); err != nil {
				return err.Error()
			}
			if c := meta.FindStatusCondition(report.Status.Conditions, v1alpha1.ConditionReady); c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "id-of-b") {
				return fmt.Sprint(report.Status.Conditions)
			}
		}
		return ""
	})
	time.Sleep(copyRuns) // the time in which nothing may happen
	for _, r := range flow.End(flows...) {
		kit.ErrorIf(t, r.Lost > 0, "while a copy runs: %s", r)
	}
	for _, n := range restored.nodes {
		for _, ns := range []*netns.NS{n.NS, n.gateway} {
			for _, l := range netns.In(t, ns, netlink.LinkList) {
				name := l.Attrs().Name
				kit.ErrorIf(t, name == tunnel.InterfaceName || strings.HasPrefix(name, wire.LinkPrefix), "the copy has the interface %s", name)
			}
		}
	}
	a.awaitConditions(t, "both planes work", metav1.ConditionTrue, metav1.ConditionTrue)
}

// snapshotNamed is how long the peer may take to name a copy with the same ID. tunnelTurn is longer than one of two callers
// keeps the tunnel.
const snapshotNamed, tunnelTurn = time.Minute, 15 * time.Second

// programAhead builds the agents with a WireGuard whose clock is an hour ahead.
func programAhead(t *testing.T) (path string) {
	t.Helper()
	dir := t.TempDir()
	module := strings.TrimSpace(string(kit.Must(exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.zx2c4.com/wireguard").Output())(t)))
	kit.NoError(t, os.CopyFS(filepath.Join(dir, "wireguard"), os.DirFS(module)))
	clock := filepath.Join(dir, "wireguard", "tai64n", "tai64n.go")
	text := string(kit.Must(os.ReadFile(clock))(t))
	ahead := strings.Replace(text, "stamp(time.Now())", "stamp(time.Now().Add(time.Hour))", 1)
	kit.FatalIf(t, ahead == text, "WireGuard asks for the time in another place")
	kit.NoError(t, os.WriteFile(clock, []byte(ahead), 0o600))
	for name, more := range map[string]string{"go.mod": "\nreplace golang.zx2c4.com/wireguard => " + filepath.Join(dir, "wireguard") + "\n", "go.sum": ""} {
		text := kit.Must(os.ReadFile(filepath.Join("..", "..", name)))(t)
		kit.NoError(t, os.WriteFile(filepath.Join(dir, name), append(text, more...), 0o600))
	}
	path = filepath.Join(dir, "liqonet-agent")
	out, err := exec.Command("go", "build", "-modfile="+filepath.Join(dir, "go.mod"), "-o", path, "../../agent").CombinedOutput()
	kit.FatalIf(t, err != nil, "build the agents: %v: %s", err, out)
	return path
}

// A cluster that was started from a snapshot of another one's machines has the same ID and keys. The peer names both callers.
// When the copy is gone, packets pass again. Even if the copy's clock is ahead, it does not keep the original out.
func TestSnapshotIsNamed(t *testing.T) {
	t.Parallel()
	ahead := programAhead(t)
	for name, program := range map[string]string{"same clock": program, "clock ahead": ahead} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trySnapshot(t, program)
		})
	}
}

// trySnapshot starts a copy whose agents run a program.
func trySnapshot(t *testing.T, ofCopy string) {
	t.Helper()
	o := dataplane.Options{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace}
	clusters := newClusters(t, o)
	settled(t, clusters)
	a, b := clusters[0], clusters[1]
	there, back := send(t, a, b, 8), send(t, b, a, 8)
	copied := b.copy(t, o, a, b.id, ofCopy)
	kit.Within(t, snapshotNamed, "the peer names the copy", func() string {
		var p v1alpha1.Peering
		if err := a.api.Client.Get(t.Context(), types.NamespacedName{Name: a.peer()}, &p); err != nil {
			return err.Error()
		}
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
		if c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "two gateways call with the same key") {
			return fmt.Sprint(p.Status.Conditions)
		}
		return ""
	})
	text := kit.Must(scrape(a.nodes[0].pod, a.nodes[0].gatewayIP))(t)
	other := kit.Must(scrape(a.nodes[0].pod, a.nodes[1].gatewayIP))(t)
	kit.ErrorIf(t, value(text, "liqonet_gateway_other_caller")+value(other, "liqonet_gateway_other_caller") < 1, "no gateway counts another caller")
	// By then, nothing is left of the sessions from before.
	later := time.Now().Add(tunnelTurn)
	kit.Within(t, snapshotNamed, "the original sends and receives again", func() string { return back.NoneSince(later) })
	for _, agent := range copied.agents {
		agent.kill()
	}
	t.Logf("while a copy with the same keys runs: %v", flow.End(there, back))
	settled(t, clusters)
}

// A client that calls one endpoint after the other, and returns to the first each time that works again, is not taken for two.
func TestClientIsNoCopy(t *testing.T) {
	t.Parallel()
	clusters := newClusters(t, dataplane.Options{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace})
	settled(t, clusters)
	server := clusters[0]
	first := &server.nodes[0]
	last := ""
	calls := func(what string) {
		t.Helper()
		kit.Within(t, settleTimeout, "the client calls "+what, func() string {
			var p v1alpha1.Peering
			if err := server.api.Client.Get(t.Context(), types.NamespacedName{Name: server.peer()}, &p); err != nil {
				return err.Error()
			}
			s := p.PlaneStatus(0)
			kit.FatalIf(t, s.OtherCaller != "", "the client is taken for two, from %s and %s", s.Endpoint, s.OtherCaller)
			if !s.Connected || s.Endpoint == last {
				return fmt.Sprintf("%+v", s)
			}
			last = s.Endpoint
			return ""
		})
	}
	calls("a node") // each node translates its packets to another port
	began, rounds := time.Now(), 5
	for i := 0; i < rounds || kit.Full() && time.Since(began) < 5*time.Minute; i++ {
		first.Output(t, "nft", fmt.Sprintf(`add table ip closed; add chain ip closed in { type filter hook prerouting priority -500; }
			add rule ip closed in udp dport %d drop`, nodePorts))
		calls("the other node")
		first.Output(t, "nft", "delete table ip closed")
		calls("the gateway's node")
	}
	text := server.gateways[0].log.String()
	kit.ErrorIf(t, strings.Contains(text, "TwoCallers") || strings.Contains(text, "two gateways call"), "the client was taken for two:\n%s", text)
}
