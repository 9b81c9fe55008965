package bench

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"text/tabwriter"

	agent "github.com/liqonet/liqonet/agent/node"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/load"
)

// mustInside is what may be left of the throughput of others.
const mustInside = 0.99

// BenchmarkInside compares pod to pod of one cluster, on two nodes, with agents' tables, rules and links on these nodes
// and without. As little as that makes needs many rounds to be seen.
func BenchmarkInside(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), timeout)
	defer cancel()
	o := dataplane.Options{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace}
	c := dataplane.New(b, o).A
	from, to := c.Nodes[0].Pod, c.Nodes[1].Pod
	way := load.Path{From: from.Run, To: to.Run, Listen: to.Addr, Address: to.Addr}
	for b.Loop() {
		t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintf(t, "\nMEDIANS OF %d ROUNDS, INSIDE A CLUSTER\tWITH\tWITHOUT\tRATIO\tHALF OF THEM\tMUST\n", *rounds*5)
		r := results{}
		for round := range *rounds * 5 {
			turns := []struct {
				name    string
				prepare func()
			}{{"with", func() { c.Apply(b, o.Overlay) }}, {"without", func() { purge(b, ctx, c) }}}
			if round%2 == 1 {
				slices.Reverse(turns)
			}
			for _, turn := range turns {
				turn.prepare()
				for _, m := range measures {
					if slices.Contains(ofRules, m.metric) {
						r.add(m.metric, turn.name, must(b, ctx, m, way))
					}
				}
			}
		}
		for _, m := range measures {
			values := r[m.metric]
			if len(values) == 0 {
				continue
			}
			ratio, half := spread(ratios(values["with"], values["without"]))
			required, met := mustInside, ratio >= mustInside
			if m.less {
				required, met = 1/mustInside, ratio <= 1/mustInside
			}
			b.ReportMetric(ratio, "inside-"+m.metric)
			fmt.Fprintf(t, "  %s, %s\t"+m.format+"\t"+m.format+"\t%.3f\t%s\t%s\n", m.name, m.unit,
				median(values["with"]), median(values["without"]), ratio, half, verdict("must", required, met))
		}
		if err := t.Flush(); err != nil {
			b.Error(err)
		}
	}
}

// purge takes all that is ours from the nodes.
func purge(b *testing.B, ctx context.Context, c *dataplane.Cluster) {
	b.Helper()
	for i := range c.Nodes {
		c.Nodes[i].Do(b, func() error { return agent.Purge(ctx, func(string) {}) })
	}
}
