package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/test/lab"
)

// Snapshot is what a node's kernel holds of networking, by subject, in a form
// in which two snapshots of the same state are equal.
type Snapshot map[string]string

// subjects are what a snapshot holds, and the commands that print it.
var subjects = []struct {
	name, command string
	normalize     func(string) (string, error)
}{
	{"links", "ip -o link show", identity},
	{"addresses", "ip -o addr show", withoutLifetimes},
	{"rules", "ip rule show", identity},
	{"routes", "ip route show table all", sortLines},
	{"routes6", "ip -6 route show table all", sortLines},
	{"neighbours", "ip -j neigh show", permanent},
	{"fdb", "bridge fdb show", configured},
	{"nftables", "nft list ruleset", nftables},
	{"iptables", "iptables-save", iptables},
	{"iptables-legacy", "iptables-legacy-save", iptables},
	{"sysctls", `sysctl -a --pattern '^net\.(ipv4|ipv6)\.(conf|neigh|ip_forward)|^net\.netfilter\.nf_conntrack_(max|acct|tcp_be)'`, sortLines},
}

// separator ends what a command has printed.
const separator = "\x1e\n"

// TakeSnapshot reads links, addresses, rules, routes, neighbors, nftables,
// iptables and network sysctls of a node.
func TakeSnapshot(ctx context.Context, n *lab.Node) (Snapshot, error) {
	script := "set -e"
	for _, q := range subjects {
		script += "\n" + q.command + "; printf '\\036\\n'"
	}
	out, err := n.NetCommand(ctx, "sh", "-c", script).Output()
	printed := strings.Split(string(out), separator)
	if err != nil || len(printed) != len(subjects)+1 {
		failed := subjects[min(len(printed), len(subjects))-1].command
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return nil, fmt.Errorf("node %s: %s: %w: %s", n.Name, failed, err, exit.Stderr)
		}
		return nil, fmt.Errorf("node %s: %s: %w", n.Name, failed, err)
	}
	s := Snapshot{}
	for i, q := range subjects {
		if s[q.name], err = q.normalize(printed[i]); err != nil {
			return nil, fmt.Errorf("node %s: %s: %w", n.Name, q.command, err)
		}
	}
	return s, nil
}

// Diff says what differs, empty if nothing does.
func (s Snapshot) Diff(after Snapshot) string {
	var b strings.Builder
	for _, subject := range slices.Sorted(maps.Keys(s)) {
		if s[subject] == after[subject] {
			continue
		}
		before, now := lines(s[subject]), lines(after[subject])
		fmt.Fprintf(&b, "%s:\n", subject)
		gone, added := lo.Difference(before, now)
		for _, l := range gone {
			fmt.Fprintf(&b, "  - %s\n", l)
		}
		for _, l := range added {
			fmt.Fprintf(&b, "  + %s\n", l)
		}
		if len(gone)+len(added) == 0 {
			for i := range min(len(before), len(now)) {
				if before[i] != now[i] {
					fmt.Fprintf(&b, "  order, line %d: %q was %q\n", i, now[i], before[i])
					break
				}
			}
		}
	}
	return b.String()
}

func lines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }

func identity(s string) (string, error) { return s, nil }

func sortLines(s string) (string, error) {
	l := lines(s)
	slices.Sort(l)
	return strings.Join(l, "\n"), nil
}

var (
	lifetime = regexp.MustCompile(`(valid|preferred)_lft \S+`)
	counter  = regexp.MustCompile(`packets \d+ bytes \d+|\[\d+:\d+\]`)
	comment  = regexp.MustCompile(`(?m)^#.*$`)
)

func withoutLifetimes(s string) (string, error) { return lifetime.ReplaceAllString(s, ""), nil }

// WithoutCounters takes out what nft and iptables print of the traffic.
func WithoutCounters(s string) string {
	return comment.ReplaceAllString(counter.ReplaceAllString(s, ""), "")
}

// iptables sorts the chains of each table, whose order means nothing and
// changes whenever kube-proxy writes, and keeps the order inside of a chain,
// but for those of kube-proxy, which writes services in any order.
func iptables(s string) (string, error) {
	var out, table []string
	chain := func(line string) string {
		fields := strings.Fields(line)
		if len(fields) > 1 && fields[0] == "-A" {
			return fields[1]
		}
		return strings.TrimPrefix(fields[0], ":")
	}
	for _, line := range lines(WithoutCounters(s)) {
		switch {
		case strings.TrimSpace(line) == "":
		case line == "COMMIT" || line[0] == '*':
			slices.SortStableFunc(table, func(a, b string) int {
				if c := strings.Compare(chain(a), chain(b)); c != 0 || !strings.HasPrefix(chain(a), "KUBE-") {
					return c
				}
				return strings.Compare(a, b)
			})
			out = append(append(out, table...), line)
			table = nil
		default:
			table = append(table, line)
		}
	}
	return strings.Join(out, "\n"), nil
}

// nftables sorts tables, and the chains, sets and maps of each, and keeps the order
// inside of these, but for kube-proxy's. Of these it leaves out the chains without
// rules: kube-proxy deletes those of a Service that is gone only when the next
// Service changes.
func nftables(s string) (string, error) {
	var tables, blocks []string
	var table, block string
	for _, line := range strings.Split(WithoutCounters(s), "\n") {
		switch {
		case strings.HasPrefix(line, "\t"):
			block += line + "\n"
			if line == "\t}" {
				if strings.HasPrefix(block, "\tchain KUBE-") {
					block, _ = sortLines(block)
				}
				if !strings.HasSuffix(table, " kube-proxy {") || strings.Count(block, "\n") > 2 {
					blocks = append(blocks, block)
				}
				block = ""
			}
		case line == "}":
			slices.Sort(blocks)
			tables = append(tables, table+"\n"+strings.Join(blocks, "")+line)
			blocks = nil
		case strings.TrimSpace(line) != "":
			table = line
		}
	}
	slices.Sort(tables)
	return strings.Join(tables, "\n"), nil
}

// configured keeps the entries of bridges that somebody configured. Those that a
// bridge learned come and go with the traffic.
func configured(s string) (string, error) {
	out := lo.Filter(lines(s), func(l string, _ int) bool { return strings.Contains(l, " permanent") || strings.Contains(l, " static") })
	return sortLines(strings.Join(out, "\n"))
}

// permanent keeps the neighbors that somebody configured. Those that the kernel
// learned come and go with the traffic.
func permanent(s string) (string, error) {
	var all []struct {
		Dst, Dev, Lladdr string
		State            []string
	}
	if err := json.Unmarshal([]byte(s), &all); err != nil {
		return "", err
	}
	var out []string
	for _, n := range all {
		if slices.Contains(n.State, "PERMANENT") {
			out = append(out, n.Dst+" dev "+n.Dev+" lladdr "+n.Lladdr)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n"), nil
}
