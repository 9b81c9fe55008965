package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/load"
)

// mustInside is what may be left of the throughput of others.
const mustInside = 0.99

// BenchmarkInside compares pod to pod of one cluster, on two nodes, while the cluster is peered and while it is not. As
// little as that makes needs many rounds to be seen.
func BenchmarkInside(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), timeout)
	defer cancel()
	l := kit.Must(lab.New(lab.Options{Name: *labName, Images: []string{program("liqonet-agent.tar")}, Log: os.Stderr}))(b)
	up(b, l)
	ends, err := newSide(b, ctx, l, "a").ends(b, ctx)
	kit.FatalIf(b, err != nil || len(ends) < 2, "test pods: %v, %v", ends, err)
	from, to := ends[0], ends[1]
	way := load.Path{From: from.ns.Run, To: to.ns.Run, Listen: to.addr, Address: to.addr}
	rounds := *rounds * 2
	for b.Loop() {
		t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintf(t, "\nMEDIANS OF %d ROUNDS, INSIDE A CLUSTER\tWITH\tWITHOUT\tRATIO\tHALF OF THEM\tMUST\n", rounds)
		r := results{}
		for round := range rounds {
			turns := [][]string{{"peer", "a", "b"}, {"unpeer", "a", "b"}}
			if round%2 == 1 {
				slices.Reverse(turns)
			}
			for _, turn := range turns {
				liqonet(b, ctx, l, turn...)
				idle(b)
				for _, m := range measures() {
					if slices.Contains(ofRules, m.metric) {
						r.add(m.metric, turn[0], must(b, ctx, m, way))
					}
				}
			}
		}
		for _, m := range measures() {
			values := r[m.metric]
			if len(values) == 0 {
				continue
			}
			ratio, half := spread(ratios(values["peer"], values["unpeer"]))
			required, met := mustInside, ratio >= mustInside
			if m.less {
				required, met = 1/mustInside, ratio <= 1/mustInside
			}
			b.ReportMetric(ratio, "inside-"+m.metric)
			fmt.Fprintf(t, "  %s, %s\t"+m.format+"\t"+m.format+"\t%.3f\t%s\t%s\n", m.name, m.unit,
				median(values["peer"]), median(values["unpeer"]), ratio, half, verdict("must", required, met))
		}
		kit.CheckNoError(b, t.Flush())
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
