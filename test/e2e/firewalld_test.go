package e2e

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/workload"
)

// Firewalld itself, on all nodes of a cluster, with zones that let pods call
// others and be called by nobody from outside, and that let pods call nothing of
// the nodes. What peers need passes all the same, of gateways and nodes alike: with
// firewalld there before `peer`, after it has reloaded its rules, and after a
// start while the clusters are peered; with its rules in nftables, and in
// iptables. Of ours nothing stays in its chains.
func TestFirewalld(t *testing.T) {
	for _, test := range []struct {
		backend string
		// chains print what ours are in.
		input, forward []string
		reloads        []string
		restart        bool
	}{
		{
			"nftables",
			[]string{"nft", "list", "chain", "inet", "firewalld", "filter_INPUT"},
			[]string{"nft", "list", "chain", "inet", "firewalld", "filter_FORWARD"},
			[]string{"--reload", "--complete-reload"},
			true,
		},
		{
			"iptables",
			[]string{"iptables-nft-save", "-c", "-t", "filter"},
			[]string{"iptables-nft-save", "-c", "-t", "filter"},
			[]string{"--reload"},
			false,
		},
	} {
		t.Run(test.backend, func(t *testing.T) {
			ctx := begin(t)
			// The nodes of beta have kube-proxy with nftables, which is why nothing of it is
			// lost when firewalld flushes iptables.
			a, b := fx.alpha, fx.beta
			p := &peculiar{t: t, ctx: ctx}
			var walls []*firewalld
			for _, n := range labNodes(b) {
				f := newFirewalld(p, n, test.backend, b.spec.PodCIDR)
				f.start()
				walls = append(walls, f)
			}
			p.keepSnapshots()

			mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--server", b.Name)
			callers := []pair{{a, a.pods[0]}, {b, b.pods[0]}, {b, b.pods[1]}}
			p.checkPods(a, b, callers)
			for _, f := range walls {
				p.checkCounted([]*lab.Node{f.node}, []string{"overlay from"}, test.input...)
			}
			p.checkCounted(labNodes(b), []string{"from peers", "overlay to"}, test.forward...)

			for _, reload := range test.reloads {
				for _, f := range walls {
					f.cmd(reload)
					f.checkBack(a, b, reload)
				}
			}
			if test.restart {
				for _, f := range walls {
					f.stop()
				}
				p.checkPods(a, b, callers[:1])
				for _, f := range walls {
					f.start()
					f.checkBack(a, b, "start")
				}
			}
			p.checkPods(a, b, callers[:2])
			unpeered(t, ctx, a, b)
		})
	}
}

// keepSnapshots has what there is now count as what was there before, until the
// test ends.
func (p *peculiar) keepSnapshots() {
	original := fx.before
	p.t.Cleanup(func() { fx.before = original })
	now := must(workload.SettledSnapshots(p.ctx, fx.nodes))(p.t)
	fx.before = maps.Clone(now)
}

// firewalld runs on a node, with a configuration and a message bus of its own.
type firewalld struct {
	*peculiar
	node *lab.Node
	dir  string
	// saved are the node's rules of iptables and ip6tables. Firewalld flushes them when it starts,
	// stops or reloads its rules. Who has written them does so again: the kubelet
	// and network plugins within a minute, so the test does it at once.
	saved map[string][]byte
	// chains are those of nftables, by family, table and name; tables have none.
	chains  map[[3]string]bool
	process *exec.Cmd
}

const (
	firewalldConf = `DefaultZone=public
FirewallBackend=%s
CleanupOnExit=yes
FlushAllOnReload=yes
IPv6_rpfilter=yes
LogDenied=off
`
	// zonePublic is for what comes by the node's link. API servers call kubelets.
	zonePublic = `<zone><interface name="eth0"/><service name="ssh"/><port port="10250" protocol="tcp"/></zone>`
	// zonePods is for what pods send. Its default for nodes is to reject.
	zonePods   = `<zone><source address="%s"/></zone>`
	policyPods = `<policy target="ACCEPT"><ingress-zone name="pods"/><egress-zone name="ANY"/></policy>`

	busConf = `<busconfig>
<type>system</type><listen>unix:path=%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/><allow user="*"/></policy>
</busconfig>`
)

func newFirewalld(p *peculiar, n *lab.Node, backend string, pods netip.Prefix) *firewalld {
	// A socket's path has to be short.
	dir := must(os.MkdirTemp("", "firewalld-"))(p.t)
	p.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f := &firewalld{peculiar: p, node: n, dir: dir, saved: map[string][]byte{}}
	for _, d := range []string{"zones", "policies"} {
		try(p.t, os.MkdirAll(filepath.Join(dir, d), 0o700))
	}
	for name, content := range map[string]string{
		"firewalld.conf":               fmt.Sprintf(firewalldConf, backend),
		"zones/public.xml":             zonePublic,
		"zones/pods.xml":               fmt.Sprintf(zonePods, pods),
		"policies/pods-to-anybody.xml": policyPods,
		"bus.conf":                     fmt.Sprintf(busConf, f.bus()),
	} {
		writeFile(p.t, filepath.Join(dir, name), content)
	}
	for _, iptables := range []string{"iptables", "ip6tables"} {
		f.saved[iptables] = must(n.NetCommand(p.ctx, iptables+"-save").Output())(p.t)
	}
	f.chains = f.listChains()
	p.t.Cleanup(f.deleteChains)
	bus := f.command("dbus-daemon", "--config-file="+filepath.Join(dir, "bus.conf"), "--nofork", "--nopidfile")
	f.run(bus)
	eventually(p.t, p.ctx, 10*time.Second, "the message bus is there", func() string {
		return why(errOf(os.Stat(f.bus())))
	})
	p.t.Cleanup(func() {
		_ = bus.Process.Kill()
		_ = bus.Wait()
	})
	return f
}

func (f *firewalld) bus() string { return filepath.Join(f.dir, "bus") }

// command prepares one that is not ended with the test's context: that would kill
// it.
func (f *firewalld) command(name string, args ...string) *exec.Cmd {
	cmd := f.node.NetCommand(context.WithoutCancel(f.ctx), name, args...)
	cmd.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS=unix:path="+f.bus())
	return cmd
}

func (f *firewalld) run(cmd *exec.Cmd) {
	f.t.Helper()
	err := cmd.Start()
	require(f.t, err == nil, "%v: %v (scripts/install-packages.sh installs it)", cmd.Args, err)
}

// start returns when it has written its rules.
func (f *firewalld) start() {
	f.t.Helper()
	var out bytes.Buffer
	f.process = f.command("firewalld", "--nofork", "--nopid", "--system-config", f.dir, "--log-target", "console")
	f.process.Stdout, f.process.Stderr = &out, &out
	f.run(f.process)
	f.t.Cleanup(f.stop)
	eventually(f.t, f.ctx, time.Minute, "firewalld runs on "+f.node.Name, func() string {
		said, err := f.command("firewall-cmd", "--state").CombinedOutput()
		return unless(err == nil, "%v: %s", err, said)
	})
	f.restore()
	// With a configuration that it does not like it runs, too, with another one.
	said, err := f.command("firewall-cmd", "--get-zone-of-interface=eth0").CombinedOutput()
	zones, err2 := f.command("firewall-cmd", "--info-policy=pods-to-anybody").CombinedOutput()
	if err != nil || err2 != nil {
		f.stop()
		f.t.Fatalf("firewalld on %s: %v: %s, %v: %s\n%s", f.node.Name, err, said, err2, zones, &out)
	}
}

// stop lets it remove its rules.
func (f *firewalld) stop() {
	f.t.Helper()
	if f.process == nil {
		return
	}
	err := f.process.Process.Signal(unix.SIGTERM)
	expect(f.t, err == nil, "firewalld on %s: %v", f.node.Name, err)
	if err := f.process.Wait(); err != nil {
		f.t.Errorf("firewalld on %s: %v", f.node.Name, err)
	}
	f.process = nil
	f.restore()
}

// cmd is firewall-cmd.
func (f *firewalld) cmd(arg string) {
	f.t.Helper()
	try(f.t, runs(f.command("firewall-cmd", arg)))
	f.restore()
}

// restore writes what was flushed of the node's rules of iptables, and no rule
// twice: the kubelet looks after its own, too.
func (f *firewalld) restore() {
	f.t.Helper()
	for iptables, saved := range f.saved {
		now := must(f.command(iptables + "-save").Output())(f.t)
		have := map[string]bool{}
		for line, key := range savedRules(now) {
			have[key] = line != key
		}
		var missing strings.Builder
		for line, key := range savedRules(saved) {
			if strings.HasSuffix(line, " -j KUBE-FIREWALL") {
				line = strings.Replace(line, "-A", "-I", 1) // where the kubelet inserts it, which may be faster
			}
			if !have[key] {
				fmt.Fprintln(&missing, line)
			}
		}
		cmd := f.command(iptables+"-restore", "--noflush")
		cmd.Stdin = strings.NewReader(missing.String())
		try(f.t, runs(cmd))
	}
}

// savedRules yields the lines of iptables-save. The key of a rule and of a user's
// chain also has the table; other lines are their own key. To those belong the
// chains that are built in, which are listed even where they do not exist.
func savedRules(saved []byte) iter.Seq2[string, string] {
	return func(yield func(line, key string) bool) {
		table := ""
		for line := range strings.Lines(string(saved)) {
			line = strings.TrimSpace(line)
			name, _, _ := strings.Cut(line, " ")
			key := line
			switch {
			case strings.HasPrefix(line, "#"):
				continue
			case strings.HasPrefix(line, "*"):
				table = line
			case strings.HasPrefix(line, ":") && strings.Contains(line, " - "):
				key = table + name
			case strings.HasPrefix(line, "-A"):
				key = table + line
			}
			if !yield(line, key) {
				return
			}
		}
	}
}

var chainHead = regexp.MustCompile(`^\s*(table|chain) (?:(\S+) )?(\S+) {`)

func (f *firewalld) listChains() map[[3]string]bool {
	f.t.Helper()
	out := must(f.command("nft", "list", "chains").Output())(f.t)
	chains := map[[3]string]bool{}
	var at [3]string
	for line := range strings.Lines(string(out)) {
		switch m := chainHead.FindStringSubmatch(line); {
		case m == nil:
		case m[1] == "table":
			at = [3]string{m[2], m[3]}
			chains[at] = true
		default:
			chains[[3]string{at[0], at[1], m[3]}] = true
		}
	}
	return chains
}

// deleteChains removes the chains and tables of iptables that firewalld has made
// and left empty.
func (f *firewalld) deleteChains() {
	now := f.listChains()
	for _, tables := range []bool{false, true} {
		for c := range now {
			if f.chains[c] || tables != (c[2] == "") {
				continue
			}
			kind := "chain"
			if tables {
				kind = "table"
			}
			report(f.t, runs(f.command("nft", "delete", kind, strings.TrimSpace(strings.Join(c[:], " ")))))
		}
	}
}

// checkBack wants pods of both clusters to reach each other soon after what has
// taken our rules away.
func (f *firewalld) checkBack(a, b *cluster, after string) {
	f.t.Helper()
	begun := time.Now()
	views := status(f.t, f.ctx, 0, a, b)
	at := 0
	for i, n := range labNodes(b) {
		if n == f.node {
			at = i
		}
	}
	here, there := b.pods[at], a.pods[0]
	eventually(f.t, f.ctx, repairTime, fmt.Sprintf("pods of %s reach peers after %s", f.node.Name, after), func() string {
		if _, err := here.call("tcp", viewOf(f.t, views, a, b).seenAs(f.t, there.IP), shortTimeout); err != nil {
			return err.Error()
		}
		if _, err := there.call("tcp", viewOf(f.t, views, b, a).seenAs(f.t, here.IP), shortTimeout); err != nil {
			return err.Error()
		}
		out, err := f.command("nft", "list", "ruleset").Output()
		return unless(err == nil && strings.Count(string(out), `"liqonet: `) != 0, "no rules of ours: %v", err)
	})
	f.t.Logf("%s: back %s after %s", f.node.Name, time.Since(begun).Round(10*time.Millisecond), after)
}
