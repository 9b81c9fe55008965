package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/workload"
)

// Clusters whose nodes have all that network plugins, kube-proxy and firewalls are
// known to have, at once: the lab's own masquerade of whatever leaves the pod range,
// and on top of it
//   - a masquerade of whatever comes from or goes to outside of the pod range;
//   - a FORWARD chain that drops whatever is not between pods (alpha);
//   - strict reverse path filters;
//   - policy rules for each pod such as on EKS, one of which leads pods' packets
//     elsewhere;
//   - a pod outside of its node's range (alpha);
//   - remote pods with the address of the local gateway, and of a local pod.
//
// Who is seen as what is the same as without all this, and so is what is left.
func TestPeculiarNodes(t *testing.T) {
	ctx := begin(t)
	a, b, c := fx.alpha, fx.beta, fx.gamma
	p := &peculiar{t: t, ctx: ctx}
	t.Cleanup(p.deletePods) // also after a failure
	p.strict(slices.Concat(labNodes(a), labNodes(b), labNodes(c)))
	p.dropByIPTables(a)
	for _, x := range []*cluster{a, b} {
		p.masquerade(x)
		p.rulesOfEKS(x)
	}
	startOutside := p.networkOutside(a, 1)
	// The gateways get addresses that no pod of the other cluster has yet, nor had
	// a moment ago, if the test is run again: nodes remember who had an address.
	r := random(t)
	p.nextPodIP(a, 100+byte(r.IntN(60)))
	p.nextPodIP(b, 170+byte(r.IntN(60)))
	p.keepSnapshots()

	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	startOutside()
	for here, there := range bothWays(a, b) {
		p.podWith(there, p.gatewayIP(here, there))
		p.podWith(there, here.pods[0].IP)
	}
	p.checkPods(a, b, append(p.made, pair{a, a.pods[0]}, pair{a, a.pods[1]}, pair{b, b.pods[0]}, pair{b, b.pods[1]}))
	// What connection tracking knows passes the others by their own rules.
	p.checkCounted(labNodes(a), []string{"from peers", "overlay to"}, "iptables-nft-save", "-c", "-t", "filter")

	mustLiqonet(t, ctx, "peer", a.Name, c.Name)
	p.checkPods(a, c, []pair{{c, c.pods[0]}})
	mustLiqonet(t, ctx, "unpeer", a.Name, c.Name)
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
	p.deletePods()
	checkNothingLeft(t, ctx)
}

// peculiar sets nodes up, and takes it away at the end of the test.
type peculiar struct {
	t   testing.TB
	ctx context.Context
	// made are the test's own pods.
	made []pair
}

// pair is a pod of a cluster.
type pair struct {
	*cluster
	pod
}

// on runs a script in a node's network, and another one when the test ends.
func (p *peculiar) on(n *lab.Node, do, undo string) {
	p.t.Helper()
	p.run(p.ctx, n, do)
	p.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		p.run(ctx, n, undo)
	})
}

func (p *peculiar) run(ctx context.Context, n *lab.Node, script string) {
	p.t.Helper()
	report(p.t, runs(n.NetCommand(ctx, "sh", "-ec", script)))
}

// strict makes the kernel drop what comes by another interface than the way back
// leads to.
func (p *peculiar) strict(nodes []*lab.Node) {
	for _, n := range nodes {
		// What is not all is the default for interfaces that are made later.
		out, err := n.NetCommand(p.ctx, "sysctl", "-n", "net.ipv4.conf.all.rp_filter", "net.ipv4.conf.default.rp_filter").Output()
		before := strings.Fields(string(out))
		require(p.t, err == nil && len(before) == 2, "node %s: reverse path filter: %q, %v", n.Name, out, err)
		set := func(all, def string) string {
			return "sysctl -q net.ipv4.conf.all.rp_filter=" + all + " net.ipv4.conf.default.rp_filter=" + def
		}
		p.on(n, set("1", "1"), set(before[0], before[1]))
	}
}

// masquerade hides pods from others, and others from pods, as flannel and firewalld
// do.
func (p *peculiar) masquerade(c *cluster) {
	pods := c.spec.PodCIDR.String()
	p.iptables(c,
		"-t nat -I POSTROUTING -s "+pods+" ! -d "+pods+" -j MASQUERADE --random-fully",
		"-t nat -I POSTROUTING ! -s "+pods+" -d "+pods+" -j MASQUERADE --random-fully")
}

// dropByIPTables admits what is between pods, and between pods and the API
// server, and nothing else.
func (p *peculiar) dropByIPTables(c *cluster) {
	pods, server := c.spec.PodCIDR.String(), must(fx.lab.Node(c.Name+"-cp"))(p.t).Address.String()
	p.iptables(c,
		"-A FORWARD -s "+pods+" -d "+pods+" -j ACCEPT",
		"-A FORWARD -s "+pods+" -d "+server+" -p tcp --dport 6443 -j ACCEPT",
		"-A FORWARD -d "+pods+" -s "+server+" -p tcp --sport 6443 -j ACCEPT")
	for _, n := range labNodes(c) {
		p.on(n, "iptables-nft -w -P FORWARD DROP", "iptables-nft -w -P FORWARD ACCEPT")
	}
}

// iptables adds rules on all nodes, until the test ends.
func (p *peculiar) iptables(c *cluster, rules ...string) {
	for _, rule := range rules {
		for _, n := range labNodes(c) {
			p.on(n, "iptables-nft -w "+rule, "iptables-nft -w "+strings.NewReplacer(" -A ", " -D ", " -I ", " -D ").Replace(" "+rule))
		}
	}
}

// rulesOfEKS are those of Amazon's plugin for pods whose addresses belong to a
// second interface. That one leads nowhere here.
func (p *peculiar) rulesOfEKS(c *cluster) {
	const table = "2"
	for i, n := range labNodes(c) {
		pod := c.pods[i].IP.String()
		p.on(n, strings.Join([]string{
			"ip link add eni1 type bridge", "ip link set eni1 up", "ip addr add 192.0.2.1/24 dev eni1",
			"ip route add default via 192.0.2.254 dev eni1 table " + table,
			"ip rule add pref 512 to " + pod + " lookup main",
			"ip rule add pref 1536 from " + pod + " lookup " + table,
		}, "\n"), strings.Join([]string{
			"ip rule del pref 1536", "ip rule del pref 512", "ip link del eni1",
		}, "\n"))
	}
}

const lonelyPod = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: default, labels: {app: peculiar}}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 0
  containers:
  - name: tester
    image: %[3]s
    imagePullPolicy: IfNotPresent
    args: [serve, -tcp, ":%[4]d", -udp, ":%[5]d", -http, ":%[6]d"]
`

// start runs a test pod on a node.
func (p *peculiar) start(c *cluster, node, name string) pod {
	p.t.Helper()
	manifest := fmt.Sprintf(lonelyPod, name, node, lab.TesterImage, workload.TCPPort, workload.UDPPort, workload.HTTPPort)
	apply(p.t, p.ctx, c, manifest)
	c.kubectl(p.t, p.ctx, "wait", "--for=condition=Ready", "--timeout=120s", "pod/"+name)
	raw := c.kubectl(p.t, p.ctx, "get", "pod", name, "-o", "jsonpath={.status.podIP}")
	ip := must(netip.ParseAddr(raw))(p.t)
	w := workload.Pod{Cluster: c.Cluster, Name: name, Node: node, IP: ip}
	v := must(podVantages([]workload.Pod{w}))(p.t)
	made := pod{w, v[name]}
	p.made = append(p.made, pair{c, made})
	return made
}

func (p *peculiar) delete(ctx context.Context, c *cluster, name string) {
	p.t.Helper()
	report(p.t, errOf(c.Run(ctx, "", "delete", "pod", name, "--ignore-not-found", "--timeout=60s")))
}

// deletePods deletes the test's own pods.
func (p *peculiar) deletePods() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	for _, c := range fx.clusters {
		report(p.t, errOf(c.Run(ctx, "", "delete", "pods", "-l", "app=peculiar", "--timeout=60s")))
	}
}

// otherNetwork gives pods addresses that are not of their node's range.
const otherNetwork = `{"cniVersion":"0.4.0","name":"outside","plugins":[{"type":"ptp","mtu":1500,
"ipam":{"type":"host-local","dataDir":"/run/cni-ipam","ranges":[[{"subnet":"%s"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`

// networkOutside lets pods of a cluster's node have addresses of the cluster's pod
// range that no node's range has, as some plugins give out. The other nodes have
// a route to them. What it returns starts such a pod.
func (p *peculiar) networkOutside(c *cluster, at int) (start func()) {
	p.t.Helper()
	n := c.nodes[at]
	last := c.spec.PodCIDR.Addr().As4()
	last[2] |= 250
	block := netip.PrefixFrom(netip.AddrFrom4(last), 24)
	const file = "/etc/cni/net.d/05-outside.conflist"
	shell := func(ctx context.Context, script string) {
		p.t.Helper()
		report(p.t, runs(n.Command(ctx, "sh", "-ec", script)))
	}
	p.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		p.delete(ctx, c, "outside") // also after a failure
		shell(ctx, "rm -rf "+file+" /run/cni-ipam/outside")
	})
	for i, other := range labNodes(c) {
		if i != at {
			p.on(other, "ip route add "+block.String()+" via "+n.Address.String(), "ip route del "+block.String())
		}
	}
	return func() {
		shell(p.ctx, "cat > "+file+" <<'END'\n"+fmt.Sprintf(otherNetwork, block)+"\nEND")
		defer shell(p.ctx, "rm "+file)
		// containerd reads it in its own time.
		for {
			made := p.start(c, n.Node.Name, "outside")
			if block.Contains(made.IP) {
				return
			}
			require(p.t, p.ctx.Err() == nil, "the pod got %s, which is not in %s", made.IP, block)
			p.delete(p.ctx, c, "outside")
			p.made = p.made[:len(p.made)-1]
		}
	}
}

// nextPodIP sets the place in its node's range of the address that the next pod
// on each node gets.
func (p *peculiar) nextPodIP(c *cluster, place byte) {
	for i := range c.nodes {
		p.nextPodIPOn(c, i, place)
	}
}

func (p *peculiar) nextPodIPOn(c *cluster, i int, place byte) {
	p.t.Helper()
	ip := c.pods[i].IP.As4()
	ip[3] = place - 1
	script := "echo -n " + netip.AddrFrom4(ip).String() + " > /run/cni-ipam/lab/last_reserved_ip.0"
	try(p.t, runs(c.nodes[i].Command(p.ctx, "sh", "-ec", script)))
}

// podWith makes a test pod with an address, unless the cluster has it already.
func (p *peculiar) podWith(c *cluster, ip netip.Addr) {
	p.t.Helper()
	if slices.ContainsFunc(c.pods, func(have pod) bool { return have.IP == ip }) {
		return
	}
	for i, have := range c.pods {
		if !netip.PrefixFrom(have.IP, 24).Masked().Contains(ip) {
			continue
		}
		p.nextPodIPOn(c, i, ip.As4()[3])
		made := p.start(c, c.nodes[i].Node.Name, "same-as-"+strings.ReplaceAll(ip.String(), ".", "-"))
		require(p.t, made.IP == ip, "%s got %s, want %s", made.Pod, made.IP, ip)
		return
	}
	p.t.Fatalf("no node of %s has pods such as %s", c.Name, ip)
}

// gatewayIP is the pod address of a cluster's gateway to a peer.
func (p *peculiar) gatewayIP(c, peer *cluster) netip.Addr {
	raw := c.kubectl(p.t, p.ctx, "get", "peerings", "-o", `jsonpath={.items[?(@.spec.remote.name=="`+peer.Name+`")].status.planes[0].podIP}`)
	ip, err := netip.ParseAddr(raw)
	require(p.t, err == nil, "the gateway of %s to %s: %v", c.Name, peer.Name, err)
	return ip
}

// checkPods has pods of either cluster call all pods of the other one, from and
// to the given ones.
func (p *peculiar) checkPods(a, b *cluster, given []pair) {
	p.t.Helper()
	views := status(p.t, p.ctx, 0, a, b)
	for _, g := range given {
		other := b
		if g.cluster == b {
			other = a
		}
		mine, theirs := viewOf(p.t, views, g.cluster, other), viewOf(p.t, views, other, g.cluster)
		targets := slices.Clone(other.pods)
		for _, x := range given {
			if x.cluster == other {
				targets = append(targets, x.pod)
			}
		}
		address := map[string]netip.Addr{}
		for _, target := range targets {
			address[target.Pod.Name] = theirs.seenAs(p.t, target.IP)
		}
		checkCalls(p.t, g.pod.vantage, targets, address, mine.seenAs(p.t, g.pod.IP))
		own := map[string]netip.Addr{g.pod.Pod.Name: mine.seenAs(p.t, g.pod.IP)}
		for i, from := range other.pods {
			checkCalls(p.t, from.vantage, []pod{g.pod}, own, theirs.seenAs(p.t, from.IP))
			checkCalls(p.t, other.nodes[i].vantage, []pod{g.pod}, own, theirs.Nodes[i].SeenAs)
		}
	}
}

var countedRule = regexp.MustCompile(`(?:\[(\d+):\d+\]|packets (\d+) bytes).*"liqonet: (from peers|to peers|overlay from|overlay to|tunnel from|tunnel to)`)

// checkCounted wants rules of ours to have let packets pass on some node: without
// them these would have been dropped.
func (p *peculiar) checkCounted(nodes []*lab.Node, want []string, command ...string) {
	p.t.Helper()
	eventually(p.t, p.ctx, 10*time.Second, fmt.Sprintf("%s: %v: all rules are in use", nodes[0].Name, command), func() string {
		counted := map[string]int{}
		for _, n := range nodes {
			out, err := n.NetCommand(p.ctx, command[0], command[1:]...).Output()
			if err != nil {
				return err.Error()
			}
			for _, m := range countedRule.FindAllStringSubmatch(string(out), -1) {
				packets, err := strconv.Atoi(m[1] + m[2])
				if err != nil {
					return err.Error()
				}
				counted[m[3]] += packets
			}
		}
		for _, w := range want {
			if counted[w] == 0 {
				return fmt.Sprintf("%q has let nothing pass: %v", w, counted)
			}
		}
		return ""
	})
}

// repairTime is how soon what is deleted has to be back: 2 s, and as much again as
// a busy machine may need to look.
const repairTime = 4 * time.Second
