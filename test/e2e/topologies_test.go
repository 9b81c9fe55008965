package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/workload"
)

// One cluster is peered with three others, one after the other: with one of
// equal ranges, with one of disjoint ranges, and with one whose range is a part
// of its own. All work, alone and together; nobody notices the others come and
// go; and no cluster's own traffic notices anything.
func TestTopologies(t *testing.T) {
	ctx := begin(t)
	a, b, c, d := fx.alpha, fx.beta, fx.gamma, fx.delta
	var inside []stream
	for _, x := range fx.clusters {
		inside = append(inside, x.ownTraffic()...)
	}
	own := probe(ctx, inside)

	step := func(name string, f func(t *testing.T)) {
		if !t.Run(name, f) {
			own.cancel()
			t.FailNow() // what follows would fail for the same reason
		}
	}
	step("equal ranges", func(t *testing.T) {
		mustLiqonet(t, ctx, "peer", a.Name, b.Name)
		checkPair(t, ctx, a, b)
		views := status(t, ctx, 0, a, b)
		for _, v := range []view{viewOf(t, views, a, b), viewOf(t, views, b, a)} {
			if m := v.LocalPods[0]; m.Mapped.Overlaps(m.Real) {
				t.Errorf("%s is known to %s as %s, which is also a range of its own", v.Cluster, v.Peer, m.Mapped)
			}
		}
		execEveryToEvery(t, a, b)
		checkPackets(t, ctx, a, b)
	})
	step("disjoint ranges", func(t *testing.T) {
		before := probe(ctx, peerTraffic(t, ctx, a, b))
		mustLiqonet(t, ctx, "peer", c.Name, a.Name)
		before.stop(t)
		checkPair(t, ctx, a, c)
		checkPackets(t, ctx, a, c)
		views := status(t, ctx, 0, a, c)
		for _, v := range []view{viewOf(t, views, a, c), viewOf(t, views, c, a)} {
			if m := v.LocalPods[0]; m.Mapped != m.Real {
				t.Errorf("%s is known to %s as %s, not as what it is, %s: there is no conflict", v.Cluster, v.Peer, m.Mapped, m.Real)
			}
		}
	})
	step("partly overlapping ranges", func(t *testing.T) {
		before := probe(ctx, slices.Concat(peerTraffic(t, ctx, a, b), peerTraffic(t, ctx, a, c)))
		// From outside it looks as if delta's pods had the /16 around their range.
		mustLiqonet(t, ctx, "peer", a.Name, d.Name, "--pod-cidr", d.Name+"="+d.spec.PodCIDR.String())
		before.stop(t)
		checkPair(t, ctx, d, a)
		checkPackets(t, ctx, d, a)
		views := status(t, ctx, 0, a, d)
		for _, v := range []view{viewOf(t, views, a, d), viewOf(t, views, d, a)} {
			m := v.LocalPods[0]
			if want := map[string]*cluster{a.Name: a, d.Name: d}[v.Cluster].spec.PodCIDR; m.Real != want || m.Mapped.Bits() != want.Bits() {
				t.Errorf("%s is known to %s as %s, which is %s; want another of the length of %s", v.Cluster, v.Peer, m.Mapped, m.Real, want)
			}
			for _, x := range []*cluster{a, d} {
				if m.Mapped.Overlaps(x.spec.PodCIDR) || m.Mapped.Overlaps(x.spec.ServiceCIDR) {
					t.Errorf("%s is known to %s as %s, which overlaps with what %s has itself", v.Cluster, v.Peer, m.Mapped, x.Name)
				}
			}
		}
	})
	step("all at once", func(t *testing.T) {
		for _, peer := range []*cluster{b, c, d} {
			checkPair(t, ctx, a, peer)
		}
		checkNoTransit(t, c, b)
		checkNoTransit(t, b, c)
	})
	step("the others stay when one goes", func(t *testing.T) {
		others := probe(ctx, slices.Concat(peerTraffic(t, ctx, a, b), peerTraffic(t, ctx, a, d)))
		mustLiqonet(t, ctx, "unpeer", a.Name, c.Name)
		others.stop(t)
		if left, _ := fx.objectsLeft(ctx, c); left != "" {
			t.Errorf("objects are left in a cluster without a peering:\n%s", left)
		}
		other := probe(ctx, peerTraffic(t, ctx, a, b))
		mustLiqonet(t, ctx, "unpeer", d.Name, a.Name)
		other.stop(t)
		checkPair(t, ctx, a, b)
	})
	step("the last one", func(t *testing.T) {
		mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
		checkNothingLeft(t, ctx)
	})
	own.stop(t)
}

// A pod that asks a pod of the other cluster again and again, from one socket and
// since before the clusters were peered, gets its answer when they are: what the
// kernel remembers of the packets that went elsewhere must not keep it away.
func TestAskedBeforePeering(t *testing.T) {
	ctx := begin(t)
	a, c := fx.alpha, fx.gamma // which know each other by real addresses
	asking, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, len(a.pods)+len(c.pods))
	for _, direction := range [][2]*cluster{{a, c}, {c, a}} {
		for i, p := range direction[0].pods {
			to := direction[1].pods[i].IP
			go func() {
				failed <- p.do(func() error { return askPatiently(asking, to) })
			}()
		}
	}
	mustLiqonet(t, ctx, "peer", a.Name, c.Name)
	checkOnePacket(t, ctx, a, c)
	time.AfterFunc(callTimeout, stop)
	for range cap(failed) {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	mustLiqonet(t, ctx, "unpeer", a.Name, c.Name)
	checkNothingLeft(t, ctx)
}

// askPatiently sends from one socket until there is an answer or ctx ends.
func askPatiently(ctx context.Context, to netip.Addr) error {
	conn, err := net.Dial("udp", workload.Target("udp", to))
	if err != nil {
		return err
	}
	defer conn.Close()
	for ctx.Err() == nil {
		if err := conn.SetDeadline(time.Now().Add(probePause)); err != nil {
			return err
		}
		if _, err := askUDP(conn); err == nil {
			return nil
		}
		time.Sleep(probePause)
	}
	return fmt.Errorf("%s never got an answer of %s", conn.LocalAddr(), to)
}

// execEveryToEvery sends from the test pods' own process, as the demo does, so
// that it is proven once that the test's own packets go the same way.
func execEveryToEvery(t *testing.T, a, b *cluster) {
	t.Helper()
	ctx := t.Context()
	views := status(t, ctx, 0, a, b)
	for _, direction := range [][2]*cluster{{a, b}, {b, a}} {
		from, to := direction[0], direction[1]
		ours, theirs := viewOf(t, views, from, to), viewOf(t, views, to, from)
		contacts := workload.EveryToEvery(ctx, from.workloadPods(), to.workloadPods(), []string{"tcp", "udp", "icmp"}, func(p workload.Pod) netip.Addr {
			return theirs.seenAs(t, p.IP)
		})
		for _, c := range contacts {
			if c.Err != nil {
				t.Error(c.Err)
			} else if want := ours.seenAs(t, c.From.IP); c.Protocol != "icmp" && c.Answer.Source() != want {
				t.Errorf("%s called %s by %s: it saw %s, want %s", c.From, c.To, c.Protocol, c.Answer.Source(), want)
			}
		}
	}
}

func (c *cluster) workloadPods() []workload.Pod {
	var out []workload.Pod
	for _, p := range c.pods {
		out = append(out, p.Pod)
	}
	return out
}

// checkNoTransit calls a cluster that is a peer's peer by its own addresses.
func checkNoTransit(t *testing.T, from, to *cluster) {
	t.Helper()
	for _, p := range to.pods {
		// A short timeout: no answer is what is hoped for. from's own pod may have
		// the same address.
		got, err := from.pods[0].call("udp", p.IP, shortTimeout)
		if err == nil && got.hostname == p.Pod.Name {
			t.Errorf("%s reaches %s, whose cluster is no peer", from.pods[0].vantage, p.Pod)
		}
	}
}
