package firewall_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/firewall"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// legacyRules are chains, jumps, gotos, rules that only count, and extensions of several kinds.
const legacyRules = `*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:A - [0:0]
:B - [0:0]
:EMPTY - [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -p tcp -m multiport --dports 22,80 -m comment --comment "in" -j B
-A INPUT -m limit --limit 5/min -j A
-A FORWARD -s 10.0.0.0/8 ! -d 10.0.0.0/8 -p udp -m udp --dport 53
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -j A
-A FORWARD -i eth+ -j EMPTY
-A FORWARD -p tcp -g B
-A FORWARD -s 10.9.0.0/16
-A OUTPUT -m owner --uid-owner 0 -j A
-A A -m mark --mark 0x4000/0x4000 -j MARK --set-xmark 0x1/0x1
-A A -p icmp -m icmp --icmp-type 8 -j B
-A A -j EMPTY
-A B -i br0 -j REJECT --reject-with icmp-host-prohibited
-A B -m statistic --mode random --probability 0.5 -j RETURN
COMMIT
`

func legacy(t *testing.T, ns *netns.NS, commands string) {
	t.Helper()
	for command := range strings.SplitSeq(commands, ";") {
		ns.Output(t, "iptables-legacy", append([]string{"-w"}, strings.Fields(command)...)...)
	}
}

func restoreLegacy(t *testing.T, ns *netns.NS, rules string) {
	t.Helper()
	file := t.TempDir() + "/rules"
	kit.NoError(t, os.WriteFile(file, []byte(rules), 0o600))
	ns.Output(t, "iptables-legacy-restore", "-w", "-c", file)
}

// blocked returns the advice of EnsureAcceptRules.
func blocked(t *testing.T, ns *netns.NS) (advice []string) {
	t.Helper()
	ns.Do(t, func() error {
		_, err := ensure()
		var e *firewall.BlockedError
		if errors.As(err, &e) {
			advice, err = e.Advice, nil
		}
		return err
	})
	return advice
}

// lacks returns the expected advice for a chain.
func lacks(chain string, rules ...string) []string {
	var commands []string
	for _, rule := range rules {
		commands = append(commands, "iptables-legacy -w -I "+chain+" "+rule)
	}
	return []string{"iptables-legacy drops packets of peers in its chain " + chain + " unless a rule accepts them; run on this node: " +
		strings.Join(commands, "; ")}
}

const fromPeers, toPeers, overlayIn = "-i loq+ -j ACCEPT", "-o loq+ -j ACCEPT", "-p udp --dport 6094 -j ACCEPT"

// Chains of iptables-legacy that drop are reported with the missing rules, and not changed. With those rules, nothing
// is reported.
func TestLegacy(t *testing.T) {
	forward, input := lacks("FORWARD", fromPeers, toPeers), lacks("INPUT", fromPeers, overlayIn)
	for name, test := range map[string]struct {
		setup string
		want  []string
	}{
		"policy":                 {"-P FORWARD DROP", forward},
		"drop":                   {"-A FORWARD -j DROP", forward},
		"reject":                 {"-A FORWARD -j REJECT", forward},
		"commented drop":         {"-A FORWARD -m comment --comment x -j DROP", forward},
		"first":                  {"-I FORWARD -j DROP", forward},
		"alone":                  {"-F FORWARD; -P FORWARD DROP", forward},
		"chain that ends":        {"-A EMPTY -j DROP", nil},
		"docker":                 {"-P FORWARD DROP; -N DOCKER-USER; -A DOCKER-USER -j RETURN; -A FORWARD -j DOCKER-USER; -A FORWARD -o docker0 -j EMPTY", forward},
		"firewalld":              {"-A EMPTY -j REJECT; -A FORWARD -i + -g EMPTY; -A FORWARD -m conntrack --ctstate INVALID -j DROP; -A FORWARD -j REJECT", forward},
		"return":                 {"-P FORWARD DROP; -A FORWARD -j RETURN; -A FORWARD -j ACCEPT", forward},
		"any interface":          {"-A FORWARD -i + -o + -j DROP", forward},
		"not any":                {"-A FORWARD ! -i + -j DROP", nil},
		"nothing":                {"-A FORWARD -i eth0 -j DROP", nil},
		"accept":                 {"-P FORWARD DROP; -A FORWARD -j ACCEPT", nil},
		"input":                  {"-P INPUT DROP", input},
		"input reject":           {"-A INPUT -j REJECT", input},
		"both":                   {"-P INPUT DROP; -P FORWARD DROP", append(lacks("INPUT", fromPeers, overlayIn), forward...)},
		"output":                 {"-P OUTPUT DROP", nil},
		"one of two":             {"-P FORWARD DROP; -A FORWARD -o loq+ -j ACCEPT", lacks("FORWARD", fromPeers)},
		"too late":               {"-A FORWARD -j DROP; -A FORWARD -o loq+ -j ACCEPT; -A FORWARD -i loq+ -j ACCEPT", forward},
		"they drop":              {"-P FORWARD DROP; -A FORWARD -o loq+ -j DROP; -A FORWARD -i loq+ -j LOG", forward},
		"of one interface":       {"-P FORWARD DROP; -A FORWARD -o loq0-0 -j ACCEPT; -A FORWARD -i loq0-0 -j ACCEPT", nil},
		"other interfaces":       {"-P FORWARD DROP; -A FORWARD -o l+ -j ACCEPT; -A FORWARD -i l+ -j ACCEPT", forward},
		"input, ports":           {"-P INPUT DROP; -A INPUT -i loq+ -j ACCEPT; -A INPUT -p udp --dport 6000:6100 -j ACCEPT", nil},
		"input, from pods":       {"-P INPUT DROP; -A INPUT -i loq+ -j ACCEPT; -A INPUT -s 10.244.0.0/16 -p udp --dport 6094 -j ACCEPT", nil},
		"input, another port":    {"-P INPUT DROP; -A INPUT -i loq+ -j ACCEPT; -A INPUT -p udp --dport 6095 -j ACCEPT", lacks("INPUT", overlayIn)},
		"input, port of TCP":     {"-P INPUT DROP; -A INPUT -i loq+ -j ACCEPT; -A INPUT -p tcp --dport 6094 -j ACCEPT", lacks("INPUT", overlayIn)},
		"target without content": {"-A FORWARD -j DROP; -I FORWARD -p tcp -j LOG --log-prefix x", forward},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, name)
			restoreLegacy(t, ns, legacyRules)
			legacy(t, ns, test.setup)
			before := ns.Output(t, "iptables-legacy", "-w", "-S")
			got := blocked(t, ns)
			kit.MustBe(t, "result", got, test.want)
			kit.Check(t, "rules after a look", ns.Output(t, "iptables-legacy", "-w", "-S"), before)
			for _, advice := range got {
				_, commands, _ := strings.Cut(advice, "run on this node: ")
				ns.Output(t, "sh", "-ec", commands)
			}
			if again := blocked(t, ns); len(again) > 0 {
				t.Errorf("with the rules it still reports %v", again)
			}
		})
	}
}

// Reading must not create the table: from then on, the kernel would evaluate it for every packet.
func TestLegacyUnused(t *testing.T) {
	names := func(ns *netns.NS) string { return ns.Output(t, "cat", "/proc/thread-self/net/ip_tables_names") }
	for name, setup := range map[string]string{"no table": "", "other table": "-t mangle -A FORWARD -j ACCEPT"} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, "node")
			if setup != "" {
				legacy(t, ns, setup)
			}
			before := names(ns)
			netns.Expect(t, ns, false, "ensure", ensure)
			netns.Expect(t, ns, false, "remove", remove)
			if after := names(ns); after != before || strings.Contains(after, "filter") {
				t.Errorf("tables before %q, after %q", before, after)
			}
		})
	}
}

// The only capability of agents is CAP_NET_ADMIN.
func TestLegacyCapability(t *testing.T) {
	ns := netns.New(t, "node")
	legacy(t, ns, "-P FORWARD DROP")
	ns.Do(t, func() error {
		// Only for this thread, which ends with the function.
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		data := [2]unix.CapUserData{}
		data[0].Effective = 1 << unix.CAP_NET_ADMIN
		data[0].Permitted = data[0].Effective
		if err := unix.Capset(&header, &data[0]); err != nil {
			return err
		}
		var e *firewall.BlockedError
		if _, err := firewall.EnsureAcceptRules(node()); !errors.As(err, &e) || len(e.Advice) != 1 {
			t.Errorf("the error is %v", err)
		}
		return nil
	})
}

// A table as large as some real ones.
func TestLegacyLarge(t *testing.T) {
	ns := netns.New(t, "node")
	var b strings.Builder
	b.WriteString("*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [7:8]\n:OUTPUT ACCEPT [0:0]\n")
	for i := range 1000 {
		fmt.Fprintf(&b, ":C%d - [0:0]\n", i)
	}
	for i := range 1000 {
		fmt.Fprintf(&b, "-A FORWARD -s 10.%d.%d.0/24 -j C%d\n", i/256, i%256, i)
		for j := range 5 {
			fmt.Fprintf(&b, "-A C%d -p tcp -m tcp --dport %d -m comment --comment \"service %d\" -j ACCEPT\n", i, j+1, i)
		}
	}
	b.WriteString("COMMIT\n")
	restoreLegacy(t, ns, b.String())
	start := time.Now()
	got := blocked(t, ns)
	t.Logf("looked at 7000 rules within %s", time.Since(start))
	kit.Check(t, "result", got, lacks("FORWARD", fromPeers, toPeers))
}
