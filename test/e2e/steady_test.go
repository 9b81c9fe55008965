package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/liqonet/liqonet/test/flow"
)

const (
	// lossyFor is how long a link loses packets, or the processors are busy.
	lossyFor = 3 * time.Minute
	// backWithin is how soon after the first of two planes works again packets pass. The goal is 1 s; a machine that is
	// busy with the lab is given more.
	backWithin = 2 * time.Second
)

var loadTime = flag.Duration("load", lossyFor, "for how long TestPlanesThatAreBad sends as much as passes")

// What is bad without having failed makes nobody change the plane again and again, and what has failed wholly comes back
// by itself.
func TestPlanesThatAreBad(t *testing.T) {
	a, b := fx.alpha, fx.beta
	begin(t)
	ctx := t.Context() // it takes minutes
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2", "--server", a.Name)
	checkPair(t, ctx, a, b)
	unchanged := func(t *testing.T, begun time.Time) {
		for name, n := range switches(t, ctx, begun, "is down", a, b) {
			t.Errorf("%s has changed the plane %d times, and nothing has failed", name, n)
		}
	}
	t.Run("processors are busy", func(t *testing.T) {
		fs := startFlows(t, ctx, a, b, 0, 0)
		begun := time.Now()
		ctx, cancel := context.WithTimeout(ctx, lossyFor)
		defer cancel()
		for range 2 * runtime.NumCPU() {
			busy := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
			try(t, busy.Start())
			defer func() { _ = busy.Wait() }() // it was killed
		}
		<-ctx.Done()
		for _, r := range flow.End(fs...) {
			t.Logf("%s, late by %s", r, r.Late)
		}
		unchanged(t, begun)
	})
	t.Run("full load", func(t *testing.T) {
		views := status(t, ctx, 0, a, b)
		begun := time.Now()
		until := begun.Add(*loadTime)
		var sent atomic.Int64
		var group errgroup.Group
		for from, peer := range bothWays(a, b) {
			theirs := viewOf(t, views, peer, from)
			for i, p := range from.pods {
				to := theirs.seenAs(t, peer.pods[i].IP)
				group.Go(func() error {
					return p.do(func() error {
						for time.Now().Before(until) {
							if err := bulk(to, 8<<20); err != nil {
								return err
							}
							sent.Add(8)
						}
						return nil
					})
				})
			}
		}
		report(t, group.Wait())
		t.Logf("%d MiB there and back, at once between all pods, in %s", sent.Load(), time.Since(begun))
		unchanged(t, begun)
	})
	t.Run("some packets are lost", func(t *testing.T) {
		gateway := inUse(t, ctx, a, b, b.nodes[0])
		at := a.at(gateway.node)
		fs := startFlows(t, ctx, a, b, (at+1)%len(a.nodes), 0)
		begun := time.Now()
		repair := a.nodes[at].dropPackets(t, ctx, "in numgen random mod 100 < 30 drop")
		time.Sleep(lossyFor)
		repair()
		flow.End(fs...)
		for name, n := range switches(t, ctx, begun, "", a, b) {
			t.Logf("%s has changed the plane %d times in %s", name, n, lossyFor)
			expect(t, n <= int(lossyFor/time.Minute), "%s has changed the plane %d times in %s, want once a minute at most", name, n, lossyFor)
		}
		checkBothPlanes(t, ctx, a, b)
	})
	t.Run("both planes have failed", func(t *testing.T) {
		checkBothPlanes(t, ctx, a, b)
		fs := startFlows(t, ctx, a, b, 0, 0)
		fs.answering(t, ctx, callTimeout)
		gateways := a.agents(t, "gateway")
		for _, p := range gateways {
			p.holdUp(t, ctx)
		}
		time.Sleep(faultTime)
		first := time.Now()
		for _, p := range gateways {
			try(t, syscall.Kill(p.pid, syscall.SIGCONT))
			fs.answering(t, ctx, moveTimeout)
		}
		for _, r := range flow.End(fs...) {
			back := r.Since.Add(r.Gap).Sub(first)
			t.Logf("%s: packets passed %s after the first plane was back", r, back)
			expect(t, back <= backWithin, "%s: packets passed %s after the first plane was back, want %s", r, back, backWithin)
		}
	})
	unpeered(t, ctx, a, b)
}

// switches are how often each node has changed the plane since then for a reason, by what its agent has noted. A node also
// returns to the plane that it prefers.
func switches(t *testing.T, ctx context.Context, since time.Time, reason string, clusters ...*cluster) map[string]int {
	t.Helper()
	time.Sleep(historyDelay)
	out := map[string]int{}
	for _, e := range histories(t, ctx, clusters...) {
		if e.What == "plane in use" && e.Time.After(since) && strings.Contains(e.Reason, reason) {
			t.Logf("%s of %s: %s to %s: %s", e.Agent, e.Cluster, e.From, e.To, e.Reason)
			out[strings.TrimPrefix(e.Agent, "node ")]++
		}
	}
	return out
}

// historyDelay is longer than agents wait until they write what has changed.
const historyDelay = 20 * time.Second

// change is an entry of status --history.
type change struct {
	Time                                   time.Time
	Cluster, Agent, What, From, To, Reason string
}

// histories are what the agents of clusters have noted.
func histories(t *testing.T, ctx context.Context, clusters ...*cluster) []change {
	var doc struct{ Entries []change }
	r := mustLiqonet(t, ctx, append([]string{"status", "--history", "-o", "json"}, namesOf(clusters)...)...)
	if err := json.Unmarshal([]byte(r.stdout), &doc); err != nil {
		t.Fatalf("status --history: %v\n%s", err, r.stdout)
	}
	return doc.Entries
}
