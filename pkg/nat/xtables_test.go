package nat_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/test/netns"
)

// foreignRules are chains, jumps, gotos, rules that only count, and extensions
// of several kinds.
const foreignRules = `*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:A - [0:0]
:B - [0:0]
:EMPTY - [0:0]
[1:100] -A INPUT -i lo -j ACCEPT
[2:200] -A INPUT -p tcp -m multiport --dports 22,80 -m comment --comment "in" -j B
[3:300] -A INPUT -m limit --limit 5/min -j A
[4:400] -A FORWARD -s 10.0.0.0/8 ! -d 10.0.0.0/8 -p udp -m udp --dport 53
[5:500] -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
[6:600] -A FORWARD -j A
[7:700] -A FORWARD -i eth+ -j EMPTY
[8:800] -A FORWARD -p tcp -g B
[9:900] -A FORWARD -s 10.9.0.0/16
[10:1000] -A OUTPUT -m owner --uid-owner 0 -j A
[11:1100] -A OUTPUT -m addrtype --dst-type LOCAL
[12:1200] -A A -m mark --mark 0x4000/0x4000 -j MARK --set-xmark 0x1/0x1
[13:1300] -A A -p icmp -m icmp --icmp-type 8 -j B
[14:1400] -A A -j EMPTY
[15:1500] -A B -i br0 -j REJECT --reject-with icmp-host-prohibited
[16:1600] -A B -m statistic --mode random --probability 0.5 -j RETURN
COMMIT
`

// legacy is the table of iptables-legacy with counters.
func legacy(t *testing.T, ns *netns.NS) string {
	t.Helper()
	out := ns.Output(t, "iptables-legacy-save", "-c", "-t", "filter")
	return regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(out, "")
}

func tableNames(t *testing.T, ns *netns.NS) string {
	t.Helper()
	return ns.Output(t, "cat", "/proc/thread-self/net/ip_tables_names")
}

func legacyDo(t *testing.T, ns *netns.NS, commands string) {
	t.Helper()
	for command := range strings.SplitSeq(commands, ";") {
		ns.Output(t, "iptables-legacy", append([]string{"-w"}, strings.Fields(command)...)...)
	}
}

func restore(t *testing.T, ns *netns.NS, rules string) {
	t.Helper()
	file := t.TempDir() + "/rules"
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	ns.Output(t, "iptables-legacy-restore", "-w", "-c", file)
}

func TestPassesLegacy(t *testing.T) {
	for name, test := range map[string]struct {
		setup string
		// at is where in the chain ours are expected, which is FORWARD unless named.
		at    int
		chain string
	}{
		"policy":          {"-P FORWARD DROP", 6, ""},
		"drop":            {"-A FORWARD -j DROP", 6, ""},
		"reject":          {"-A FORWARD -j REJECT", 6, ""},
		"commented drop":  {"-A FORWARD -m comment --comment x -j DROP", 6, ""},
		"both":            {"-P FORWARD DROP; -A FORWARD -j DROP", 6, ""},
		"first":           {"-I FORWARD -j DROP", 0, ""},
		"middle":          {"-I FORWARD 3 -j DROP", 2, ""},
		"alone":           {"-F FORWARD; -P FORWARD DROP", 0, ""},
		"chain that ends": {"-A EMPTY -j DROP", 2, ""},
		"goto":            {"-P FORWARD DROP; -A FORWARD -g EMPTY; -A FORWARD -j ACCEPT", 6, ""},
		"any interface":   {"-A FORWARD -i + -o + -j DROP", 6, ""},
		"not any":         {"-A FORWARD ! -i + -j DROP", -1, ""},
		"nothing":         {"-A FORWARD -i eth0 -j DROP", -1, ""},
		"accept":          {"-P FORWARD DROP; -A FORWARD -j ACCEPT", -1, ""},
		"input":           {"-P INPUT DROP", 3, "INPUT"},
		"input reject":    {"-A INPUT -j REJECT", 3, "INPUT"},
		"input alone":     {"-F INPUT; -P INPUT DROP", 0, "INPUT"},
		"output":          {"-P OUTPUT DROP", -1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, name)
			chain := test.chain
			if chain == "" {
				chain = "FORWARD"
			}
			restore(t, ns, foreignRules)
			legacyDo(t, ns, test.setup)
			before := legacy(t, ns)
			foreign := listedRules(ns.Output(t, "iptables-legacy", "-w", "-S", chain))
			check := func(what string) {
				t.Helper()
				want := foreign
				if test.at >= 0 {
					want = slices.Concat(foreign[:test.at], passed(chain), foreign[test.at:])
				}
				if diff := cmp.Diff(want, listedRules(ns.Output(t, "iptables-legacy", "-w", "-S", chain))); diff != "" {
					t.Errorf("%s (-want +got):\n%s", what, diff)
				}
				// All else is as it was, with what it has counted.
				if diff := cmp.Diff(before, withoutOurs(legacy(t, ns))); diff != "" {
					t.Errorf("%s (-before +after):\n%s", what, diff)
				}
			}
			expect(t, ns, test.at >= 0, "ensure", ensure)
			check("ensured")
			expect(t, ns, false, "ensure again", ensure)
			if test.at >= 0 {
				damages := []string{
					fmt.Sprintf("-D %s %d", chain, test.at+1),
					fmt.Sprintf("-D %s %d", chain, test.at+len(passed(chain))),
					fmt.Sprintf("-R %s %d -i lq+ -m comment --comment liqonet:!from!peers -j DROP", chain, test.at+2),
				}
				if test.at > 0 {
					// Moved to the beginning.
					damages = append(damages, fmt.Sprintf("-D %[1]s %[2]d; -I %[1]s -i lq+ -m comment --comment liqonet:!x -j ACCEPT", chain, test.at+1))
				}
				for _, damage := range damages {
					for command := range strings.SplitSeq(damage, ";") {
						args := strings.Fields(command)
						for i := range args {
							args[i] = strings.ReplaceAll(args[i], "!", " ")
						}
						ns.Output(t, "iptables-legacy", append([]string{"-w"}, args...)...)
					}
					expect(t, ns, true, damage, ensure)
					check(damage)
				}
			}
			expect(t, ns, test.at >= 0, "remove", remove)
			expect(t, ns, false, "remove again", remove)
			if diff := cmp.Diff(before, legacy(t, ns)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}

// withoutOurs takes our rules out of what iptables-save prints.
func withoutOurs(saved string) string {
	lines := slices.DeleteFunc(strings.SplitAfter(saved, "\n"), isOurs)
	return strings.Join(lines, "")
}

// A chain that does not drop any more loses our rules.
func TestPassesLegacyNotNeeded(t *testing.T) {
	ns := netns.New(t, "node")
	legacyDo(t, ns, "-P FORWARD DROP")
	expect(t, ns, true, "ensure", ensure)
	legacyDo(t, ns, "-P FORWARD ACCEPT")
	before := withoutOurs(legacy(t, ns))
	expect(t, ns, true, "ensure where nothing drops", ensure)
	if diff := cmp.Diff(before, legacy(t, ns)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if used := tableNames(t, ns); used != "filter\n" {
		t.Errorf("tables %q", used)
	}
}

// Looking must not make the table: from then on the kernel would call it for every
// packet.
func TestPassesLegacyUnused(t *testing.T) {
	for name, setup := range map[string]string{"no table": "", "other table": "-t mangle -A FORWARD -j ACCEPT"} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, "node")
			if setup != "" {
				legacyDo(t, ns, setup)
			}
			before := tableNames(t, ns)
			signals := monitorLegacy(t, ns)
			expect(t, ns, false, "ensure", ensure)
			expect(t, ns, false, "remove", remove)
			time.Sleep(2 * legacyInterval)
			silence(t, signals)
			if after := tableNames(t, ns); after != before || strings.Contains(after, "filter") {
				t.Errorf("tables before %q, after %q", before, after)
			}
		})
	}
}

// legacyInterval is that of MonitorLegacy.
const legacyInterval = 500 * time.Millisecond

func monitorLegacy(t *testing.T, ns *netns.NS) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	var signals <-chan struct{}
	ns.Do(t, func() (err error) {
		signals, err = nat.MonitorLegacy(ctx)
		return err
	})
	return signals
}

func TestMonitorLegacy(t *testing.T) {
	legacyDo(t, netns.New(t, "loads"), "-S") // the kernel's module, where it is one
	ns := netns.New(t, "node")
	signals := monitorLegacy(t, ns)
	for _, step := range []struct {
		what    string
		changes bool
		do      func()
	}{
		{"the table appears", true, func() { restore(t, ns, foreignRules) }},
		{"the policy is drop", true, func() { legacyDo(t, ns, "-P FORWARD DROP") }},
		{"ours are there", true, func() { expect(t, ns, true, "ensure", ensure) }},
		{"nothing to do", false, func() { expect(t, ns, false, "ensure again", ensure) }},
		{"a rule elsewhere", false, func() { legacyDo(t, ns, "-A INPUT -p tcp -j ACCEPT") }},
		{"a rule before ours", false, func() { legacyDo(t, ns, "-I FORWARD -p tcp -j ACCEPT") }},
		{"a rule after ours", true, func() { legacyDo(t, ns, "-A FORWARD -p tcp -j ACCEPT") }},
		{"ours are moved", true, func() { expect(t, ns, true, "ensure", ensure) }},
		{"one of ours is deleted", true, func() { legacyDo(t, ns, "-D FORWARD 9") }},
		{"it is back", true, func() { expect(t, ns, true, "ensure", ensure) }},
		{"a chain drops all", true, func() { legacyDo(t, ns, "-A EMPTY -j DROP") }},
	} {
		step.do()
		if step.changes {
			signal(t, signals, step.what)
			continue
		}
		time.Sleep(2 * legacyInterval)
		silence(t, signals)
		if t.Failed() {
			t.Fatal(step.what)
		}
	}
}

// What others write meanwhile must not get lost, nor ours stay lost.
func TestPassesLegacyConcurrent(t *testing.T) {
	ns := netns.New(t, "node")
	legacyDo(t, ns, "-P FORWARD DROP")
	const rules = 40
	var others sync.WaitGroup
	for i := range 2 {
		others.Go(func() {
			for j := range rules {
				ns.Output(t, "iptables-legacy", "-w", "-A", "FORWARD", "-s", fmt.Sprintf("10.0.%d.%d", i, j), "-j", "ACCEPT")
			}
		})
	}
	done := make(chan struct{})
	go func() { others.Wait(); close(done) }()
	for writing := true; writing; {
		select {
		case <-done:
			writing = false
		default:
		}
		ns.Do(t, func() error { _, err := ensure(); return err })
		ns.Do(t, func() error { _, err := remove(); return err })
	}
	expect(t, ns, true, "ensure", ensure)
	listed := listedRules(ns.Output(t, "iptables-legacy", "-w", "-S", "FORWARD"))
	if diff := cmp.Diff(passed("FORWARD"), listed[len(listed)-len(passed("FORWARD")):]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := len(listed) - len(passed("FORWARD")); got != 2*rules {
		t.Errorf("%d rules of others, want %d", got, 2*rules)
	}
}

// The agents have no capability but CAP_NET_ADMIN.
func TestPassesLegacyCapability(t *testing.T) {
	ns := netns.New(t, "node")
	legacyDo(t, ns, "-P FORWARD DROP")
	ns.Do(t, func() error {
		// Of this thread, which ends with the function.
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		data := [2]unix.CapUserData{}
		data[0].Effective = 1 << unix.CAP_NET_ADMIN
		data[0].Permitted = data[0].Effective
		if err := unix.Capset(&header, &data[0]); err != nil {
			return err
		}
		changed, err := ensure()
		if !changed {
			t.Error("nothing was changed")
		}
		return err
	})
	if diff := cmp.Diff(passed("FORWARD"), listedRules(ns.Output(t, "iptables-legacy", "-w", "-S", "FORWARD"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A table as large as some have.
func TestPassesLegacyLarge(t *testing.T) {
	ns := netns.New(t, "node")
	var b strings.Builder
	b.WriteString("*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [7:8]\n:OUTPUT ACCEPT [0:0]\n")
	for i := range 1000 {
		fmt.Fprintf(&b, ":C%d - [0:0]\n", i)
	}
	for i := range 1000 {
		fmt.Fprintf(&b, "[%d:%d] -A FORWARD -s 10.%d.%d.0/24 -j C%d\n", i, 10*i, i/256, i%256, i)
		for j := range 5 {
			fmt.Fprintf(&b, "[%d:%d] -A C%d -p tcp -m tcp --dport %d -m comment --comment \"service %d\" -j ACCEPT\n", i, j, i, j+1, i)
		}
	}
	b.WriteString("COMMIT\n")
	restore(t, ns, b.String())
	before := legacy(t, ns)
	start := time.Now()
	expect(t, ns, true, "ensure", ensure)
	t.Logf("put into 7000 rules within %s", time.Since(start))
	expect(t, ns, false, "ensure again", ensure)
	if diff := cmp.Diff(before, withoutOurs(legacy(t, ns))); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	expect(t, ns, true, "remove", remove)
	if diff := cmp.Diff(before, legacy(t, ns)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}
