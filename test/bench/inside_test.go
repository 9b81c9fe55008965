package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/load"
)

// mustInside is what may be left of the throughput of others.
const mustInside = 0.99

// States of the cluster: chains are those that agents have at the same hooks, without a rule. That is the least that any
// filter with nftables costs.
const (
	withAgents    = "with"
	withoutAgents = "without"
	emptyChains   = "chains"
)

// BenchmarkInside compares pod to pod of one cluster, on two nodes, while the cluster is peered and while it is not. As
// little as that makes needs many rounds to be seen.
func BenchmarkInside(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), timeout)
	defer cancel()
	l, err := lab.New(lab.Options{Name: *labName, Images: []string{program("liqonet-agent.tar")}, Log: os.Stderr})
	if err != nil {
		b.Fatal(err)
	}
	up(b, l)
	ends, err := newSide(b, ctx, l, "a").ends(b, ctx)
	if err != nil || len(ends) < 2 {
		b.Fatalf("test pods: %v, %v", ends, err)
	}
	from, to := ends[0], ends[1]
	way := load.Path{From: from.ns.Run, To: to.ns.Run, Listen: to.addr, Address: to.addr}
	liqonet(b, ctx, l, "peer", "a", "b")
	empty := withoutRules(b, ctx, from.node)
	rounds := *rounds * 2
	for b.Loop() {
		t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintf(t, "\nMEDIANS OF %d ROUNDS, INSIDE A CLUSTER\tWITH\tWITHOUT\tRATIO\tHALF OF THEM\tMUST\tEMPTY CHAINS\tRATIO\n", rounds)
		r := results{}
		for round := range rounds {
			turns := []string{withAgents, withoutAgents, emptyChains}
			if round%2 == 1 {
				slices.Reverse(turns)
			}
			for _, turn := range turns {
				change := []string{"unpeer", "a", "b"}
				if turn == withAgents {
					change[0] = "peer"
				}
				liqonet(b, ctx, l, change...)
				for _, e := range []end{from, to} {
					nft(b, ctx, e.node, emptyTable)
					if turn == emptyChains {
						nft(b, ctx, e.node, empty)
					}
				}
				idle(b)
				for _, m := range measures() {
					if slices.Contains(ofRules, m.metric) {
						r.add(m.metric, turn, must(b, ctx, m, way))
					}
				}
			}
		}
		for _, m := range measures() {
			values := r[m.metric]
			if len(values) == 0 {
				continue
			}
			ratio, half := spread(ratios(values[withAgents], values[withoutAgents]))
			chains, _ := spread(ratios(values[emptyChains], values[withoutAgents]))
			required, met := mustInside, ratio >= mustInside
			if m.less {
				required, met = 1/mustInside, ratio <= 1/mustInside
			}
			b.ReportMetric(ratio, "inside-"+m.metric)
			b.ReportMetric(chains, "chains-"+m.metric)
			fmt.Fprintf(t, "  %s, %s\t"+m.format+"\t"+m.format+"\t%.3f\t%s\t%s\t"+m.format+"\t%.3f\n", m.name, m.unit,
				median(values[withAgents]), median(values[withoutAgents]), ratio, half, verdict("must", required, met), median(values[emptyChains]), chains)
		}
		if err := t.Flush(); err != nil {
			b.Error(err)
		}
	}
}

// emptyTable takes all chains from the table that withoutRules describes.
const emptyTable = "add table ip bench; delete table ip bench"

// withoutRules is a table with the chains that the node's agent has at hooks, but without their rules.
func withoutRules(b *testing.B, ctx context.Context, n *lab.Node) string {
	b.Helper()
	ours, err := n.NetCommand(ctx, "nft", "list", "table", "ip", "liqonet").Output()
	if err != nil {
		b.Fatal(err)
	}
	var table strings.Builder
	for _, chain := range regexp.MustCompile(`chain \S+ \{\n\s*type .*\n`).FindAll(ours, -1) {
		fmt.Fprintf(&table, "%s}\n", chain)
	}
	if table.Len() == 0 {
		b.Fatalf("no chain is at a hook:\n%s", ours)
	}
	return "table ip bench {\n" + table.String() + "}"
}

func nft(b *testing.B, ctx context.Context, n *lab.Node, commands string) {
	b.Helper()
	if out, err := n.NetCommand(ctx, "nft", commands).CombinedOutput(); err != nil {
		b.Fatalf("nft on %s: %v: %s", n.Name, err, out)
	}
}

// idle waits until the machine has nothing else to do.
func idle(b *testing.B) {
	b.Helper()
	const patience, while, little = time.Minute, 500 * time.Millisecond, 100 * time.Millisecond
	kit.Within(b, patience, "the processors are idle", func() string {
		had, before := busy()
		time.Sleep(while)
		has, after := busy()
		if err := errors.Join(before, after); err != nil || has-had > little {
			return fmt.Sprint("in ", while, " they are busy for ", has-had, " ", err)
		}
		return ""
	})
}
