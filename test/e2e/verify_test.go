package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/verify"
	"github.com/liqonet/liqonet/test/workload"
)

const (
	exitChecks = 10
	// killedTimeout is within what nothing is left of probes whose command was killed.
	killedTimeout = time.Minute
	// probesOf selects all that verify makes.
	probesOf = "app.kubernetes.io/component=probe"
)

// verified runs verify, and returns its report.
func verified(t *testing.T, ctx context.Context, code int, a, b *cluster, flags ...string) verify.Report {
	t.Helper()
	r := liqonet(t, ctx, "", append([]string{"verify", a.Name, b.Name, "-o", "json"}, flags...)...)
	var report verify.Report
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("verify: %v\n%s%s", err, r.stdout, r.stderr)
	}
	if r.code != code {
		t.Errorf("verify: exit code %d, want %d\n%s", r.code, code, failures(report))
	}
	return report
}

// failures are what a report says of checks that did not pass.
func failures(r verify.Report) string {
	var out strings.Builder
	for _, c := range r.Checks {
		if c.Result == check.Passed {
			continue
		}
		fmt.Fprintf(&out, "%s → %s: %s: %s %s\n", c.Name, c.To, c.Result, c.Message, c.Hint)
		for _, k := range c.Findings {
			if k.Result != check.Passed {
				fmt.Fprintf(&out, "    %s %s: %s, %s: %s\n", k.Result, k.From, k.To, k.Sent, k.Evidence)
			}
		}
	}
	return out.String() + strings.Join(r.Notes, "\n")
}

// checkVerified: verify finds nothing amiss, and leaves nothing.
func checkVerified(t *testing.T, ctx context.Context, a, b *cluster) verify.Report {
	t.Helper()
	r := verified(t, ctx, 0, a, b)
	t.Logf("verify of %s and %s took %.1f s", a.Name, b.Name, r.Seconds)
	for _, c := range r.Checks {
		alone := c.Name == verify.IsolatedOtherPeers && strings.Contains(c.Message, "the other cluster has no other peers")
		expect(t, c.Result == check.Passed || alone, "%s → %s: %s", c.Name, c.To, c.Result)
	}
	if t.Failed() {
		t.Log(failures(r))
	}
	checkNoProbes(t, ctx, a, b)
	return r
}

// probesLeft are what verify has made in a cluster, tables on its nodes included.
func probesLeft(ctx context.Context, c *cluster) string {
	out, err := c.Run(ctx, "", "-n", "liqonet-system", "get", "jobs,pods,services,networkpolicies,endpointslices", "-l", probesOf, "-o", "name")
	if err != nil {
		return err.Error()
	}
	for _, n := range c.nodes {
		tables, err := n.shell(ctx, "nft list tables")
		if err != nil {
			return err.Error()
		}
		if strings.Contains(tables, "liqonet-watch") {
			out += n.Node.Name + ": " + tables
		}
	}
	return out
}

func checkNoProbes(t *testing.T, ctx context.Context, clusters ...*cluster) {
	for _, c := range clusters {
		none(t, probesLeft(ctx, c), "%s: left of probes is", c.Name)
	}
}

// checkSpeeds has verify measure speeds.
func checkSpeeds(t *testing.T, ctx context.Context, a, b *cluster) {
	bench := verified(t, ctx, 0, a, b, "--bench").Bench
	expect(t, len(bench) == 8, "%d speeds were measured, want 8: %+v", len(bench), bench)
	for _, s := range bench {
		if s.Tunnel == nil || s.Direct == nil || s.Ratio == nil || *s.Tunnel <= 0 || *s.Direct <= 0 {
			t.Errorf("not measured: %+v", s)
			continue
		}
		t.Logf("%s from %s to %s: %.0f %s, %.0f without the tunnel", s.What, s.From, s.To, *s.Tunnel, s.Unit, *s.Direct)
	}
}

// wrong is a fault, and what verify says of it.
type wrong struct {
	name string
	// make makes it, and returns what repairs it.
	make func(t *testing.T, ctx context.Context, a, b *cluster) (repair func())
	// fails are the checks that fail, and passes some that do not, each with the cluster that is called: a or b.
	fails, passes []string
	// only is part of what each failed case of the first of these says of who has sent.
	only func(a *cluster) string
}

// onNodes has nodes' kernels do what the rules of a chain say, onFirst that of one node of a.
func onNodes(hook string, rules ...string) func(*testing.T, context.Context, *cluster, *cluster) func() {
	return func(t *testing.T, ctx context.Context, a, b *cluster) func() {
		return rulesOn(t, ctx, a.nodes, hook, filled(t, ctx, a, b, rules)...)
	}
}

func onFirst(hook string, rules ...string) func(*testing.T, context.Context, *cluster, *cluster) func() {
	return func(t *testing.T, ctx context.Context, a, b *cluster) func() {
		return rulesOn(t, ctx, a.nodes[:1], hook, filled(t, ctx, a, b, rules)...)
	}
}

// filled puts addresses into rules.
func filled(t *testing.T, ctx context.Context, a, b *cluster, rules []string) (out []string) {
	t.Helper()
	views := status(t, ctx, 0, a, b)
	v, w := viewOf(t, views, a, b), viewOf(t, views, b, a)
	for _, r := range rules {
		out = append(out, strings.NewReplacer(
			"PEER-PODS", v.RemotePods[0].Mapped.String(), "PEER-NODES", external(w).String(), "PEER-POD", w.seenAs(t, b.pods[0].IP).String(),
		).Replace(r))
	}
	return out
}

// external is the range by which the peer knows a cluster's nodes.
func external(v view) netip.Prefix { return netip.PrefixFrom(v.Nodes[0].SeenAs, 18).Masked() }

func rulesOn(t *testing.T, ctx context.Context, nodes []node, hook string, rules ...string) func() {
	t.Helper()
	script := fmt.Sprintf("nft 'add table ip e2e-fault; add chain ip e2e-fault c { %s; }", hook)
	for _, r := range rules {
		script += "; add rule ip e2e-fault c " + r
	}
	return onAll(nodes, func(n node) func() { return n.during(t, ctx, script+"'", "nft delete table ip e2e-fault") })
}

const (
	leaving  = "type filter hook postrouting priority 0"
	coming   = "type filter hook prerouting priority 0"
	sending  = "type filter hook output priority 0"
	changing = "type nat hook postrouting priority 90"
	leading  = "type nat hook prerouting priority -110"
)

func wrongs() []wrong {
	first := func(a *cluster) string { return a.nodes[0].Node.Name }
	return []wrong{
		{
			"large packets are lost", onNodes(leaving, "oifgroup 27761 ip length > 1300 drop"),
			[]string{"pods-mtu b", "pods-tcp b", "pods-fragments b"},
			[]string{"pods-udp b", "pods-icmp b", "pods-too-large b"},
			nil,
		},
		{
			"one direction is closed", onNodes(coming, "iifgroup 27761 ct state new drop"),
			[]string{"pods-tcp a", "pods-udp a", "pods-icmp a", "nodes-to-pods a", "service-cluster-ip a"},
			[]string{"pods-tcp b", "pods-udp b", "nodes-to-pods b"},
			nil,
		},
		{
			"one node sends nothing", onFirst(leaving, "oifgroup 27761 ct state new drop"),
			[]string{"pods-tcp b", "pods-udp b", "nodes-to-pods b"},
			[]string{"pods-tcp a", "isolated-nodes b"},
			first,
		},
		{
			"a plane's gateway is stopped", stopPlane,
			[]string{"planes b", "planes a"},
			[]string{"pods-tcp b", "pods-tcp a"},
			func(*cluster) string { return "through plane 1" },
		},
		{
			"a leak", func(t *testing.T, ctx context.Context, a, b *cluster) func() {
				rule := "rule add pref 80 to " + filled(t, ctx, a, b, []string{"PEER-PODS"})[0] + " lookup main"
				return a.nodes[0].during(t, ctx, "ip "+rule, "ip "+strings.Replace(rule, "add", "delete", 1))
			},
			[]string{"encrypted b", "pods-tcp b"},
			nil, first,
		},
		{
			"pods are masqueraded", onNodes(changing, "oifgroup 27761 masquerade"),
			[]string{"pods-source b"},
			[]string{"pods-tcp b", "nodes-source b", "pods-source a"},
			nil,
		},
		{
			"no ICMP errors", onNodes(sending, "icmp type destination-unreachable drop"),
			[]string{"pods-too-large b"},
			[]string{"pods-mtu b", "pods-too-large a"},
			nil,
		},
		{
			"services are not made", func(t *testing.T, _ context.Context, a, _ *cluster) func() {
				return paused(t, processOf(t, a.nodes[0].Node.Name, "kube-proxy"))
			},
			[]string{"service-cluster-ip b"},
			[]string{"pods-tcp b", "service-cluster-ip a"},
			first,
		},
		{
			"nodes of the peer answer", onNodes(leading, "ip daddr PEER-NODES icmp type echo-request dnat to PEER-POD",
				fmt.Sprintf("ip daddr PEER-NODES tcp dport 6443 dnat to PEER-POD:%d", workload.TCPPort)),
			[]string{"isolated-nodes b", "isolated-api-server b"},
			[]string{"pods-tcp b", "isolated-nodes a", "isolated-node-ports b"},
			nil,
		},
		{
			"a limit", func(t *testing.T, ctx context.Context, a, b *cluster) func() {
				mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--limit-new", b.Name+"=1")
				return func() {
					mustLiqonet(t, context.WithoutCancel(ctx), "peer", a.Name, b.Name, "--limit-new", b.Name+"=none")
				}
			},
			[]string{"drops a", "pods-tcp b"},
			[]string{"pods-tcp a"},
			nil,
		},
	}
}

// stopPlane stops one gateway of a, and waits until nobody uses it any more.
func stopPlane(t *testing.T, ctx context.Context, a, b *cluster) func() {
	deployment := "deployment/gateway-" + b.Name + "-1"
	damage(t, ctx, a, [][]string{
		{"-n", "liqonet-system", "scale", deployment, "--replicas=0"},
		{"-n", "liqonet-system", "wait", "--for=delete", "pod", "-l", "liqonet.io/plane=1", "--timeout=30s"},
	})
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), testTimeout)
		defer cancel()
		a.kubectl(t, ctx, "-n", "liqonet-system", "scale", deployment, "--replicas=1")
		checkRepaired(t, ctx, a, b)
	}
}

// paused stops a process until what is returned is called.
func paused(t *testing.T, pid int) func() {
	t.Helper()
	try(t, syscall.Kill(pid, syscall.SIGSTOP))
	return func() {
		report(t, syscall.Kill(pid, syscall.SIGCONT))
	}
}

// Each fault fails the checks that it should, and no others that say the same of what works. Without it all pass.
func TestVerifyFaults(t *testing.T) {
	begin(t)
	ctx, cancel := context.WithCancel(t.Context()) // there are many
	defer cancel()
	a, b := fx.alpha, fx.beta
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2")
	all := wrongs()
	for _, i := range sample(random(t), len(all), 1) {
		t.Run(all[i].name, func(t *testing.T) { all[i].check(t, ctx, a, b) })
	}
	if whole() {
		t.Run("without a fault", func(t *testing.T) {
			checkVerified(t, ctx, a, b)
			checkSpeeds(t, ctx, a, b)
		})
	}
	unpeered(t, ctx, a, b)
}

func (w wrong) check(t *testing.T, ctx context.Context, a, b *cluster) {
	checkRepaired(t, ctx, a, b) // the fault before may have stopped probes, too
	repair := w.make(t, ctx, a, b)
	defer func() { repair() }()
	report := verified(t, ctx, exitChecks, a, b)
	find := func(what string) check.Check {
		name, to, _ := strings.Cut(what, " ")
		to = map[string]string{"a": a.Name, "b": b.Name}[to]
		i := slices.IndexFunc(report.Checks, func(c check.Check) bool { return c.Name == name && c.To == to })
		require(t, i >= 0, "there is no check %s", what)
		return report.Checks[i]
	}
	for i, what := range w.fails {
		c := find(what)
		expect(t, c.Result == check.Failed && c.Hint != "", "%s → %s: %s, %q", c.Name, c.To, c.Result, c.Hint)
		for _, k := range c.Findings {
			if i == 0 && w.only != nil && k.Result == check.Failed && !strings.Contains(k.From, w.only(a)) && !strings.Contains(k.To, w.only(a)) {
				t.Errorf("%s → %s has failed from %s, too", c.Name, c.To, k.From)
			}
		}
	}
	for _, what := range w.passes {
		c := find(what)
		expect(t, c.Result == check.Passed, "%s → %s: %s", c.Name, c.To, c.Result)
	}
	if t.Failed() {
		t.Log(failures(report))
	}
}

// Nothing is left of a command that was killed, whenever that was.
func TestVerifyKilled(t *testing.T) {
	begin(t)
	ctx := t.Context()
	a, b := fx.alpha, fx.beta
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	for _, pods := range []string{"serve", "node", "call"} {
		t.Run(pods, func(t *testing.T) {
			cmd := command(ctx, "", "verify", a.Name, b.Name)
			try(t, cmd.Start())
			eventually(t, ctx, time.Minute, "a pod runs", func() string {
				out, err := a.Run(ctx, "", "-n", "liqonet-system", "get", "pods", "-l", probesOf, "--field-selector=status.phase=Running", "-o", "name")
				return unless(err == nil && strings.Contains(out, "-"+pods+"-"), "only these run: %q, %v", out, err)
			})
			try(t, cmd.Process.Kill())
			_ = cmd.Wait() // it was killed
			killed := time.Now()
			for _, c := range []*cluster{a, b} {
				eventually(t, ctx, killedTimeout-time.Since(killed), "nothing is left of the probes", func() string { return probesLeft(ctx, c) })
			}
			t.Logf("nothing was left %.0f s after the command was killed", time.Since(killed).Seconds())
		})
	}
	unpeered(t, ctx, a, b)
}

// Where the namespace enforces the Pod Security Standard restricted, pods are tried all the same. What needs the nodes' own network
// says why it is not.
func TestVerifyRestricted(t *testing.T) {
	ctx := begin(t)
	a, b := fx.alpha, fx.beta
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	for _, c := range []*cluster{a, b} {
		c.kubectl(t, ctx, "label", "namespace", "liqonet-system", "--overwrite", "pod-security.kubernetes.io/enforce=restricted")
	}
	for _, c := range verified(t, ctx, 0, a, b).Checks {
		switch c.Name {
		case verify.NodesToPods, verify.NodesSource, verify.Planes, verify.Encrypted:
			expect(t, c.Result == check.Skipped && strings.Contains(c.Message, "PodSecurity"),
				"%s → %s: %s: %s", c.Name, c.To, c.Result, c.Message)
		case verify.IsolatedOtherPeers:
		default:
			expect(t, c.Result == check.Passed, "%s → %s: %s: %s", c.Name, c.To, c.Result, c.Message)
		}
	}
	unpeered(t, ctx, a, b)
}

// Whatever ranges, MTUs and ways to know pods clusters have, and however many peers and nodes, a peering that works passes.
func TestVerifyTopologies(t *testing.T) {
	begin(t)
	ctx := t.Context()
	a := fx.alpha
	others := []*cluster{fx.beta, fx.gamma, fx.delta}
	for _, b := range others {
		mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	}
	for _, b := range others {
		t.Run(b.Name, func(t *testing.T) {
			r := checkVerified(t, ctx, a, b)
			for _, c := range r.Checks {
				expect(t, c.Name != verify.IsolatedOtherPeers || (c.Result == check.Passed) == (c.To == a.Name), "%s → %s: %s", c.Name, c.To, c.Result)
			}
		})
	}
	t.Run("a way to a third cluster", func(t *testing.T) {
		b := fx.beta
		v := viewOf(t, status(t, ctx, 0, a, b), a, b)
		defer rulesOn(t, ctx, b.nodes, leading, fmt.Sprintf("ip daddr %s icmp type echo-request dnat to %s", external(v), v.seenAs(t, a.pods[0].IP)))()
		r := verified(t, ctx, exitChecks, b, a)
		for _, c := range r.Checks {
			if c.Name == verify.IsolatedOtherPeers && c.To == a.Name && c.Result != check.Failed {
				t.Errorf("%s → %s: %s\n%s", c.Name, c.To, c.Result, failures(r))
			}
		}
	})
	for _, b := range others {
		mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
	}
	checkNothingLeft(t, ctx)
}
