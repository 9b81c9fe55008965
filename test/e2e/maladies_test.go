package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/liqonet/liqonet/test/dataplane"
)

// namedTimeout is how long a fault may last until it is named: Kubernetes takes most of a minute to give a node up, and an agent
// tells every half minute how it fares.
const namedTimeout = 150 * time.Second

// malady is a fault that is made, and what names it.
type malady struct {
	// name is the issue's, check is the one that finds it.
	name, check string
	// says is in the first line that names it, and in that of no other one.
	says string
	// planes the peering has, 1 if it is 0.
	planes int
	// cheap ones guard every change, one of them at a time.
	cheap bool
	begin maker
}

// maker makes a fault, and returns what takes it away.
type maker func(t *testing.T, ctx context.Context, x *patients) (cure func())

// patients are two clusters that are peered: those of a call those of b.
type patients struct {
	a, b *cluster
	// bystander is a node of a without a gateway, carrier the one with it.
	bystander, carrier node
	peered             int
}

// maladies are the faults that are made. Of those of the issue, a short NAT timeout is not: gateways ask each other every
// 0.2 to 1.5 s, and every answer goes through the mapping that the question has just made, so there is nothing to name.
// Neither is what Kubernetes or an agent only tells, and doctor only repeats: a full disk, a wrong clock, a name of an endpoint that
// does not resolve.
func maladies() []malady {
	const gateways = "-n liqonet-system delete pods -l app.kubernetes.io/component=gateway --wait=false"
	const strategy = `-n liqonet-system patch daemonset liqonet-node --type=json -p [{"op":"replace","path":"/spec/updateStrategy","value":{"type":"OnDelete"}}]`
	const limits = "-n liqonet-system set resources deployment/gateway-PEER-0 --requests=memory=10Mi --limits=memory=14Mi"
	sysctl := func(name, to, back string) maker {
		return during("sysctl -qw net.ipv4.conf.eth0."+name+"="+to, "sysctl -qw net.ipv4.conf.eth0."+name+"="+back)
	}
	route := func(route string) maker { return during("ip route add "+route, "ip route del "+route) }
	return []malady{
		{name: "stopped agent", cheap: true, check: "liqonet-agent-02", says: `the agent of node \S+ does not respond`, begin: stops("node")},
		{name: "crashed gateway", check: "liqonet-pod-02", says: `the gateway to \S+ crashes repeatedly`, begin: crashGateway},
		{name: "cut node", check: "liqonet-node-01", says: `node \S+ is (not ready|silent)`, begin: drops("in drop", "out drop")},
		{
			name: "one-way link", check: "liqonet-udp-02", says: `UDP passes in one direction only`,
			begin: dropsBetween("in ip saddr %s meta l4proto udp drop"),
		},
		{name: "wrong key", cheap: true, check: "liqonet-key-01", says: `it has a wrong key for \S+ gateway`, begin: wrongKey},
		{
			name: "blocked UDP", check: "liqonet-udp-01", says: `UDP does not reach \S+ gateway at`,
			begin: dropsBetween("in ip saddr %s meta l4proto udp drop", "out ip daddr %s meta l4proto udp drop"),
		},
		{
			name: "blocked overlay port", check: "liqonet-overlay-01", says: `UDP 6094 does not pass between node`,
			begin: drops("in udp dport 6094 drop", "out udp dport 6094 drop"),
		},
		{
			name: "black hole above 1,300 bytes", check: "liqonet-mtu-02", says: `large packets to \S+ get lost`,
			begin: dropsBetween("in ip saddr %s udp length > 1300 drop", "out ip daddr %s udp length > 1300 drop"),
		},
		{
			name: "loss of a tenth", check: "liqonet-loss-01", says: `\d+ % of packets (to|between)`,
			begin: dropsBetween("in ip saddr %s meta l4proto udp numgen random mod 100 < 10 drop"),
		},
		{
			name: "FORWARD drop by a table with an owner", check: "liqonet-firewall-01",
			says: `a firewall on node \S+ drops packets of gateways and peers`, begin: ownedTable,
		},
		{
			name: "a route deleted again and again", cheap: true, check: "liqonet-route-01",
			says: `another program keeps deleting our routes on node`, begin: func(t *testing.T, _ context.Context, x *patients) func() {
				return background(t, x.bystander.Node, "sh", "-c", "while :; do ip route flush table 27761 2>/dev/null; sleep 0.3; done")
			},
		},
		{
			name: "connection table full by load", check: "liqonet-conntrack-01",
			says: `the connection tracking table of node \S+ is full`, begin: fillConnections,
		},
		{name: "version skew", check: "liqonet-version-01", says: `agents have version v0.0.1`, begin: skewVersions},
		{
			name: "missing permission", cheap: true, check: "liqonet-permission-02",
			says:  `the agents lack permissions: ClusterRoleBinding liqonet-node is gone`,
			begin: broken(fix, "delete clusterrolebinding liqonet-node"),
		},
		{
			name: "deny-all NetworkPolicy", cheap: true, check: "liqonet-policy-01", says: `NetworkPolicy deny blocks UDP`,
			begin: applied(denyAll, undone("-n liqonet-system delete networkpolicy deny")),
		},
		{
			name: "cluster-wide default deny", cheap: true, check: "liqonet-policy-02",
			says: `cluster-wide policies may block packets of gateways: GlobalNetworkPolicy default-deny`, begin: deniesEverywhere,
		},
		{
			name: "API server gone", check: "liqonet-api-01", says: `the API server does not answer`,
			begin: func(t *testing.T, _ context.Context, x *patients) func() {
				return paused(t, processOf(t, x.b.Name+"-cp", "kube-apiserver"))
			},
		},
		{
			name: "wrong MTU", cheap: true, check: "liqonet-mtu-01", says: `the uplink of node \S+ has an MTU of 1300`,
			begin: func(t *testing.T, ctx context.Context, x *patients) func() {
				return x.setMTU(t, ctx, x.bystander, 1300)
			},
		},
		{
			name: "range in use since", check: "liqonet-range-01", says: `has a route to \S+, but \S+ is`,
			begin: func(t *testing.T, ctx context.Context, x *patients) func() {
				v := viewOf(t, anyStatus(t, ctx, x.a, x.b), x.b, x.a)
				return route("blackhole "+netip.PrefixFrom(v.LocalPods[0].Mapped.Addr(), 28).String())(t, ctx, x)
			},
		},
		{
			name: "foreign link of our name", check: "liqonet-link-01", says: `node \S+ has an interface \S+ that is not ours`,
			// In one go, or the agent is quicker.
			begin: during(`printf 'link del loq0-0\nlink add loq0-0 type bridge\n' | ip -batch -`, "ip link del loq0-0"),
		},
		{name: "tokens no longer accepted", check: "liqonet-token-01", says: `tokens of agents are not accepted`, begin: renewAccount},
		{name: "image gone", check: "liqonet-pod-01", says: `node \S+ cannot pull the agents' image`, begin: loseImage},
		{name: "agent starved", check: "liqonet-starved-01", says: `the agent of node \S+ gets too little CPU time`, begin: starve},
		{
			name: "forwarding off", check: "liqonet-forward-01", says: `node \S+ does not forward packets from eth0`,
			begin: sysctl("forwarding", "0", "1"),
		},
		{
			name: "proxy ARP", cheap: true, check: "liqonet-arp-01", says: `node \S+ answers ARP for other addresses`,
			begin: sysctl("proxy_arp", "1", "0"),
		},
		{
			name: "duplicate node address", check: "liqonet-duplicate-01", says: `another machine has the address \S+ of node`,
			begin: duplicateAddress,
		},
		{
			name: "deleted definition", check: "liqonet-definition-01", says: `the definition nodenetworks.liqonet.io is gone`,
			begin: broken(repeatPeer, "delete crd nodenetworks.liqonet.io"),
		},
		{
			name: "deleted Secret", check: "liqonet-secret-01", says: `the Secret \S+ is gone`,
			begin: broken(repeatPeer, "-n liqonet-system delete secret gateway-PEER-0-1", gateways),
		},
		{name: "all planes dead", check: "liqonet-agent-04", says: `all 2 gateways to \S+ are dead`, planes: 2, begin: stops("gateway")},

		// Not among those of the issue.
		{name: "one gateway stopped", check: "liqonet-agent-03", says: `the gateway to \S+ does not respond`, begin: stops("gateway")},
		{
			name: "no node for the gateway", check: "liqonet-pod-03", says: `no node accepts the gateway to`,
			begin: func(t *testing.T, ctx context.Context, x *patients) func() {
				x.a.cordon(t, ctx, func(string) bool { return false })
				return broken(func(*testing.T, context.Context, *patients) func() {
					return func() { x.a.cordon(t, context.WithoutCancel(ctx), nil) }
				}, gateways)(t, ctx, x)
			},
		},
		{name: "too little memory", check: "liqonet-pod-04", says: `has too little memory on node`, begin: broken(repeatPeer, limits)},
		{
			name: "DaemonSet deleted", check: "liqonet-agent-01", says: `the DaemonSet of the node agents is gone`,
			// Pods stay, so that nothing is cleaned.
			begin: broken(fix, "-n liqonet-system delete daemonset liqonet-node --cascade=orphan"),
		},
		{
			name: "port taken", check: "liqonet-port-01", says: `UDP port 6094 on node \S+ is taken`,
			begin: during("ip link add e2e-vx type vxlan id 77 dstport 6094 dev eth0 remote 192.0.2.1", "ip link del e2e-vx"),
		},
		{
			name: "table used by others", cheap: true, check: "liqonet-rule-01", says: `others use our routing table or rule priority`,
			begin: route("blackhole 198.51.100.0/24 table 27761"),
		},
		{
			// No packet takes it: the interface does not exist.
			name: "rule before ours", cheap: true, check: "liqonet-rule-02", says: `rules on node \S+ come before ours`,
			begin: during("ip rule add pref 10 iif e2e-eni lookup 101; ip route add blackhole default table 101",
				"ip rule del pref 10; ip route flush table 101"),
		},
		{
			name: "packets that a mark leads elsewhere", check: "liqonet-route-02",
			says: `node \S+ drops packets to peers, because they would leave it unencrypted`, begin: leadsElsewhere,
		},
		{
			name: "drop of some packets", cheap: true, check: "liqonet-firewall-02", says: `rules on node \S+ drop some packets of peers`,
			begin: func(t *testing.T, ctx context.Context, x *patients) func() {
				return during("nft add table ip e2e; nft 'add chain ip e2e f { type filter hook forward priority 0; }'; nft add rule ip e2e f ip daddr "+x.unused(t, ctx).String()+" drop",
					"nft delete table ip e2e")(t, ctx, x)
			},
		},
		{
			name: "deleted identity", check: "liqonet-identity-01", says: `the identity key of the cluster is gone`,
			begin: broken(func(t *testing.T, ctx context.Context, x *patients) func() {
				return func() { mustLiqonet(t, context.WithoutCancel(ctx), "peer", x.a.Name, x.b.Name, "--replace") }
			}, "-n liqonet-system delete secret liqonet-identity"),
		},
		{
			name: "wrong checksums", check: "liqonet-checksum-01", says: `packets arrive on node \S+ with wrong checksums`, begin: breaksChecksums,
		},
		{
			name: "redirect in a gateway, as of a mesh", cheap: true, check: "liqonet-agent-05",
			says: `the gateway to \S+ reports a problem: others have rules in this gateway's network namespace`, begin: redirects,
		},
		{name: "object deleted", check: "liqonet-drift-01", says: `DaemonSet liqonet-node was changed`, begin: broken(fix, strategy)},
		{
			name: "leftover", cheap: true, check: "liqonet-leftover-01",
			says: `objects of liqonet are left over: Service liqonet-system/gateway-gone`, begin: applied(leftService, fix),
		},
		{
			name: "Submariner", check: "liqonet-leftover-02", says: `Submariner is installed`,
			begin: applied(submariner, undone("delete crd gateways.submariner.io")),
		},
		{
			name: "setting of Cilium", check: "liqonet-setting-01", says: `Cilium routes pods' packets by eBPF`,
			begin: broken(undone("-n kube-system delete configmap cilium-config"),
				"-n kube-system create configmap cilium-config --from-literal=enable-bpf-masquerade=true"),
		},
	}
}

const denyAll = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: liqonet-system}
spec:
  podSelector: {}
  policyTypes: [Ingress, Egress]
`

const globalPolicies = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: globalnetworkpolicies.crd.projectcalico.org}
spec:
  group: crd.projectcalico.org
  names: {kind: GlobalNetworkPolicy, plural: globalnetworkpolicies}
  scope: Cluster
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

const globalDeny = `
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkPolicy
metadata: {name: default-deny}
spec: {namespaceSelector: 'kubernetes.io/metadata.name not in {"kube-system"}', types: [Ingress, Egress]}
`

const leftService = `
apiVersion: v1
kind: Service
metadata: {name: gateway-gone, namespace: liqonet-system, labels: {app.kubernetes.io/managed-by: liqonet, liqonet.io/peering: gone}}
spec: {ports: [{port: 51840, protocol: UDP}]}
`

const submariner = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gateways.submariner.io}
spec:
  group: submariner.io
  names: {kind: Gateway, plural: gateways}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// diagnosis is what doctor says of both clusters.
type diagnosis struct {
	// First is the first line.
	First  string
	code   int
	stdout string
	took   time.Duration
}

func diagnose(t testing.TB, ctx context.Context, clusters ...*cluster) diagnosis {
	t.Helper()
	r := liqonet(t, ctx, "", append([]string{"doctor"}, namesOf(clusters)...)...)
	first, _, _ := strings.Cut(r.stdout, "\n")
	return diagnosis{First: first, code: r.code, stdout: r.stdout + r.stderr, took: r.took}
}

// Each fault of the issue is made, and named by the first line of doctor. What names one names no other one.
func TestMaladies(t *testing.T) {
	begin(t)
	ctx := t.Context()
	x := &patients{a: fx.gamma, b: fx.delta}
	all := maladies()
	if !whole() {
		cheap := slices.DeleteFunc(all, func(m malady) bool { return !m.cheap })
		chosen := random(t).IntN(len(cheap))
		all = cheap[chosen : chosen+1]
	}
	for _, m := range all {
		t.Run(m.name, func(t *testing.T) {
			x.peer(t, ctx, max(m.planes, 1))
			eventually(t, ctx, time.Minute, "nothing is found before the fault", func() string {
				d := diagnose(t, ctx, x.a, x.b)
				return unless(d.code == 0, "%s", d.stdout)
			})
			if t.Failed() {
				t.FailNow()
			}
			begun := time.Now()
			once, end := sync.Once{}, m.begin(t, ctx, x)
			cure := func() { once.Do(end) } // also where the test has ended in it
			defer cure()
			says, before := regexp.MustCompile(m.says), ""
			for {
				d := diagnose(t, ctx, x.a, x.b)
				if d.First != before {
					t.Logf("after %.0f s: %s", time.Since(begun).Seconds(), d.First)
					before = d.First
				}
				if says.MatchString(d.First) {
					output, _, _ := strings.Cut(d.stdout, "\n\n")
					record(t, m.check, saying{m.name, int(time.Since(begun).Seconds()), output})
					break
				}
				if time.Since(begun) > namedTimeout {
					t.Errorf("%s was not named:\n%s", m.name, d.stdout)
					break
				}
			}
			for _, other := range maladies() {
				expect(t, other.name == m.name || !regexp.MustCompile(other.says).MatchString(before), "the words of %q name it, too: %s", other.name, before)
			}
			cure()
			x.recovered(t, ctx)
		})
	}
	unpeered(t, ctx, x.a, x.b)
}

// saying is what doctor has said of a fault, as scripts/reference reads it.
type saying struct {
	Fault   string `json:"fault"`
	Seconds int    `json:"seconds"`
	Output  string `json:"output"`
}

var recordSayings = flag.Bool("record", false, "have TestMaladies note what doctor says of each fault, for docs/troubleshooting.md")

// sayings is where scripts/reference finds it.
var sayings = filepath.Join("..", "..", "scripts", "reference", "said.json")

// record adds to the file what was said.
func record(t *testing.T, check string, s saying) {
	t.Helper()
	if !*recordSayings {
		return
	}
	all := map[string]saying{}
	if raw, err := os.ReadFile(sayings); err == nil {
		try(t, json.Unmarshal(raw, &all))
	}
	all[check] = s
	raw, err := json.MarshalIndent(all, "", "  ")
	if err == nil {
		err = os.WriteFile(sayings, append(raw, '\n'), 0o644)
	}
	report(t, err)
}

// peer peers both clusters with so many planes, unless they are.
func (x *patients) peer(t *testing.T, ctx context.Context, planes int) {
	t.Helper()
	if x.peered != planes {
		mustLiqonet(t, ctx, "peer", x.a.Name, x.b.Name, "--server", x.b.Name, "--planes", fmt.Sprint(planes))
		x.peered = planes
	}
	x.recovered(t, ctx)
	at := map[string]bool{}
	for _, p := range x.a.agents(t, "gateway") {
		at[p.node] = true
	}
	for _, n := range x.a.nodes {
		if at[n.Node.Name] {
			x.carrier = n
		} else {
			x.bystander = n
		}
	}
}

// recovered waits until all is well again.
func (x *patients) recovered(t *testing.T, ctx context.Context) {
	t.Helper()
	eventually(t, ctx, 2*time.Minute, "all is well", func() string {
		r := liqonet(t, ctx, "", "status", x.a.Name, x.b.Name)
		return unless(r.code == 0, "%s", r.stdout+r.stderr)
	})
	if t.Failed() {
		x.peered = 0
	}
}

// fix has doctor repair what is ours.
func fix(t *testing.T, ctx context.Context, x *patients) func() {
	return func() {
		mustLiqonet(t, context.WithoutCancel(ctx), "doctor", x.a.Name, x.b.Name, "--fix").says(t, "Fixed: "+x.a.Name+": ")
	}
}

// repeatPeer peers the clusters once more.
func repeatPeer(t *testing.T, ctx context.Context, x *patients) func() {
	return func() { mustLiqonet(t, context.WithoutCancel(ctx), "peer", x.a.Name, x.b.Name) }
}

// kubectl runs a command in a, in which PEER is the name of b.
func (x *patients) kubectl(t *testing.T, ctx context.Context, command string) {
	t.Helper()
	x.a.kubectl(t, ctx, strings.Fields(strings.ReplaceAll(command, "PEER", x.b.Name))...)
}

// undone is the end of a fault by a command.
func undone(command string) maker {
	return func(t *testing.T, ctx context.Context, x *patients) func() {
		return func() { x.kubectl(t, context.WithoutCancel(ctx), command) }
	}
}

// broken makes a fault by commands.
func broken(end maker, commands ...string) maker {
	return func(t *testing.T, ctx context.Context, x *patients) func() {
		for _, command := range commands {
			x.kubectl(t, ctx, command)
		}
		return end(t, ctx, x)
	}
}

// applied makes a fault by a manifest.
func applied(manifest string, end maker) maker {
	return func(t *testing.T, ctx context.Context, x *patients) func() {
		apply(t, ctx, x.a, manifest)
		return end(t, ctx, x)
	}
}

// stops stops the gateways of a, or the agent of a node without one.
func stops(kind string) maker {
	return func(t *testing.T, ctx context.Context, x *patients) func() {
		var stopped []agentProcess
		for _, p := range x.a.agents(t, kind) {
			if kind == "gateway" || p.node == x.bystander.Node.Name {
				p.holdUp(t, ctx)
				stopped = append(stopped, p)
			}
		}
		return func() {
			for _, p := range stopped {
				_ = syscall.Kill(p.pid, syscall.SIGCONT) // the kubelet may have ended it
			}
		}
	}
}

// drops has a node without a gateway drop packets.
func drops(rules ...string) maker {
	return func(t *testing.T, ctx context.Context, x *patients) func() {
		return x.bystander.dropPackets(t, ctx, rules...)
	}
}

// dropsBetween applies rules on all nodes of a, of which %s are the addresses of b's nodes.
func dropsBetween(rules ...string) maker {
	return func(t *testing.T, ctx context.Context, x *patients) func() {
		var addrs, all []string
		for _, n := range labNodes(x.b) {
			addrs = append(addrs, n.Address.String())
		}
		for _, rule := range rules {
			all = append(all, fmt.Sprintf(rule, "{ "+strings.Join(addrs, ", ")+" }"))
		}
		return dropOn(t, ctx, x.a.nodes, all...)
	}
}

// during runs one script on a node without a gateway now, and another one in the end.
func during(begin, end string) maker {
	return func(t *testing.T, ctx context.Context, x *patients) func() {
		return x.bystander.during(t, ctx, begin, end)
	}
}

func (x *patients) setMTU(t *testing.T, ctx context.Context, n node, mtu int) func() {
	before := must(n.shell(ctx, `ip -o link show eth0 | sed 's/.* mtu \([0-9]*\) .*/\1/'`))(t)
	return n.during(t, ctx, fmt.Sprintf("ip link set eth0 mtu %d", mtu), "ip link set eth0 mtu "+before)
}

// crashGateway ends the gateway's process whenever it runs.
func crashGateway(t *testing.T, ctx context.Context, x *patients) func() {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(300 * time.Millisecond):
				for _, p := range x.a.agents(t, "gateway") {
					_ = syscall.Kill(p.pid, syscall.SIGKILL) // it may have ended
				}
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
		// The kubelet waits longer and longer until it starts the container again. Another pod begins again.
		x.a.kubectl(t, context.WithoutCancel(ctx), "-n", "liqonet-system", "delete", "pods", "-l", "app.kubernetes.io/component=gateway", "--wait=false")
	}
}

// wrongKey has a know another key of b's gateway.
func wrongKey(t *testing.T, ctx context.Context, x *patients) func() {
	const other = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	x.a.kubectl(t, ctx, "patch", "peering", x.b.Name, "--type=json", "-p", `[{"op":"replace","path":"/spec/planes/0/remotePublicKey","value":"`+other+`"}]`)
	// With none of the peer's keys left, peer has to be told that it is the same cluster.
	return func() {
		mustLiqonet(t, context.WithoutCancel(ctx), "peer", x.a.Name, x.b.Name, "--replace")
	}
}

// ownedTable drops what is forwarded, by a table that lives as long as the program that made it.
func ownedTable(t *testing.T, _ context.Context, x *patients) func() {
	cmd := x.bystander.Node.NetCommand(context.Background(), "nft", "-i")
	in := must(cmd.StdinPipe())(t)
	try(t, cmd.Start())
	report(t, errOf(in.Write([]byte("add table inet e2e-fw { flags owner; }\nadd chain inet e2e-fw forward { type filter hook forward priority 10; policy drop; }\n"))))
	return func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
}

// unused returns a part of the range by which a knows b's pods, in which there are none.
func (x *patients) unused(t *testing.T, ctx context.Context) netip.Prefix {
	v := viewOf(t, anyStatus(t, ctx, x.a, x.b), x.b, x.a)
	return netip.PrefixFrom(v.LocalPods[0].Mapped.Addr(), 28)
}

// leadsElsewhere marks packets of a node to the peer, and has a rule send marked packets by the default route.
func leadsElsewhere(t *testing.T, ctx context.Context, x *patients) func() {
	to := x.unused(t, ctx)
	end := during("nft add table ip e2e; nft 'add chain ip e2e o { type route hook output priority -150; }'; nft add rule ip e2e o ip daddr "+to.String()+" meta mark set 0x77; ip rule add pref 10 fwmark 0x77 lookup main",
		"ip rule del pref 10; nft delete table ip e2e")(t, ctx, x)
	stop := background(t, x.bystander.Node, "bash", "-c", "while :; do echo > /dev/udp/"+to.Addr().Next().String()+"/9 2>/dev/null; sleep 0.1; done")
	return func() {
		stop()
		end()
		// The agent reports the drops of the last hour. Its successor counts from zero, so that they do not hide the next fault.
		x.kubectl(t, context.WithoutCancel(ctx), "-n liqonet-system delete pods -l app.kubernetes.io/component=node --field-selector spec.nodeName="+x.bystander.Node.Name)
	}
}

// redirects redirects TCP in the gateways of a, as a service mesh does.
func redirects(t *testing.T, ctx context.Context, x *patients) func() {
	var all []func()
	for _, p := range x.a.agents(t, "gateway") {
		inside := func(command string) {
			out, err := exec.CommandContext(context.WithoutCancel(ctx), "nsenter", "-t", fmt.Sprint(p.pid), "-n", "sh", "-c", command).CombinedOutput()
			expect(t, err == nil, "%s: %v: %s", command, err, out)
		}
		inside("iptables -w -t nat -A PREROUTING -p tcp -j REDIRECT --to-ports 15006")
		all = append(all, func() { inside("iptables -w -t nat -F PREROUTING") })
	}
	return func() {
		for _, end := range all {
			end()
		}
	}
}

// breaksChecksums sends a node UDP with a wrong checksum, from another node.
func breaksChecksums(t *testing.T, ctx context.Context, x *patients) func() {
	packet := dataplane.Packet(netip.AddrPortFrom(x.carrier.Address, 9), netip.AddrPortFrom(x.bystander.Address, 9), []byte("damaged"))
	packet[27] ^= 0xff // the last byte of the checksum
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			report(t, x.carrier.do(func() error { return dataplane.SendPacket(packet) }))
		}
	})
	return func() {
		stop()
		all.Wait()
	}
}

// fillConnections has a node remember as many connections as it may.
func fillConnections(t *testing.T, ctx context.Context, x *patients) func() {
	n := x.bystander
	end := n.during(t, ctx, "sysctl -qw net.netfilter.nf_conntrack_udp_timeout=600; ip link add e2e-flood type veth peer name e2e-sink; ip link set e2e-sink up; ip link set e2e-flood up arp off; ip route add 198.51.100.0/24 dev e2e-flood",
		"ip link del e2e-flood; sysctl -qw net.netfilter.nf_conntrack_udp_timeout=30")
	report(t, n.do(func() error { return flood(ctx, netip.MustParsePrefix("198.51.100.0/24")) }))
	return func() {
		end()
		report(t, n.do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
	}
}
