package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/workload"
)

// neighbour is a cluster that the first one is peered with.
type neighbour struct {
	*cluster
	ranges string
	args   []string
	check  func(t *testing.T, views []view)
}

// One cluster is peered with three others, one after the other: with one of
// equal ranges, with one of disjoint ranges, and with one whose range is a part
// of its own. All work, alone and together; nobody notices the others come and
// go; and no cluster's own traffic notices anything. Two of the three guard every change.
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
	neighbours := []neighbour{
		{b, "equal ranges", []string{a.Name, b.Name}, func(t *testing.T, views []view) {
			for _, v := range views {
				m := v.LocalPods[0]
				expect(t, !m.Mapped.Overlaps(m.Real), "%s is known to %s as %s, which is also a range of its own", v.Cluster, v.Peer, m.Mapped)
			}
		}},
		{c, "disjoint ranges", []string{c.Name, a.Name}, func(t *testing.T, views []view) {
			for _, v := range views {
				m, peer := v.LocalPods[0], map[string]*cluster{a.Name: a, c.Name: c}[v.Peer]
				taken := peer.rangesOfPeersBut(t, ctx, v.Cluster) // random, and chosen before this peer was known
				if inUse := slices.ContainsFunc(taken, m.Real.Overlaps); inUse != (m.Mapped != m.Real) {
					t.Errorf("%s is known to %s as %s, and is %s; %s has given out %s", v.Cluster, v.Peer, m.Mapped, m.Real, v.Peer, taken)
				}
			}
		}},
		// From outside it looks as if delta's pods had the /16 around their range.
		{d, "partly overlapping ranges", []string{a.Name, d.Name, "--pod-cidr", d.Name + "=" + d.spec.PodCIDR.String()}, func(t *testing.T, views []view) {
			for _, v := range views {
				m := v.LocalPods[0]
				want := map[string]*cluster{a.Name: a, d.Name: d}[v.Cluster].spec.PodCIDR
				expect(t, m.Real == want && m.Mapped.Bits() == want.Bits(),
					"%s is known to %s as %s, which is %s; want another of the length of %s", v.Cluster, v.Peer, m.Mapped, m.Real, want)
				for _, x := range []*cluster{a, d} {
					expect(t, !m.Mapped.Overlaps(x.spec.PodCIDR) && !m.Mapped.Overlaps(x.spec.ServiceCIDR),
						"%s is known to %s as %s, which overlaps with what %s has itself", v.Cluster, v.Peer, m.Mapped, x.Name)
				}
			}
		}},
	}
	var peers []*cluster
	traffic := func(t *testing.T) *probing {
		t.Helper()
		var all []stream
		for _, peer := range peers {
			all = append(all, peerTraffic(t, ctx, a, peer)...)
		}
		return probe(ctx, all)
	}
	for _, i := range sample(random(t), len(neighbours), 2) {
		n := neighbours[i]
		step(n.ranges, func(t *testing.T) {
			var others *probing
			if len(peers) > 0 {
				others = traffic(t)
			}
			mustLiqonet(t, ctx, append([]string{"peer"}, n.args...)...)
			if others != nil {
				others.stop(t)
			}
			checkPair(t, ctx, a, n.cluster)
			views := status(t, ctx, 0, a, n.cluster)
			n.check(t, []view{viewOf(t, views, a, n.cluster), viewOf(t, views, n.cluster, a)})
			checkPackets(t, ctx, a, n.cluster)
		})
		peers = append(peers, n.cluster)
	}
	step("all at once", func(t *testing.T) {
		for _, peer := range peers {
			checkPair(t, ctx, a, peer)
		}
		last := len(peers) - 1
		checkNoTransit(t, peers[0], peers[last])
		checkNoTransit(t, peers[last], peers[0])
	})
	step("the others stay when one goes", func(t *testing.T) {
		for len(peers) > 1 {
			gone := peers[len(peers)-1]
			peers = peers[:len(peers)-1]
			others := traffic(t)
			mustLiqonet(t, ctx, "unpeer", gone.Name, a.Name)
			others.stop(t)
			none(t, fx.ours(ctx, gone), "objects are left in a cluster without a peering")
		}
		checkPair(t, ctx, a, peers[0])
	})
	step("the last one", func(t *testing.T) {
		unpeered(t, ctx, a, peers[0])
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
	for from, peer := range bothWays(a, c) {
		for i, p := range from.pods {
			to := peer.pods[i].IP
			go func() {
				failed <- p.do(func() error { return askPatiently(asking, to) })
			}()
		}
	}
	mustLiqonet(t, ctx, "peer", a.Name, c.Name)
	checkOnePacket(t, ctx, a, c)
	time.AfterFunc(callTimeout, stop)
	for range cap(failed) {
		report(t, <-failed)
	}
	unpeered(t, ctx, a, c)
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

// rangesOfPeersBut are the ranges by which a cluster knows all peers but one.
func (c *cluster) rangesOfPeersBut(t *testing.T, ctx context.Context, peer string) (out []netip.Prefix) {
	var ledger v1alpha1.ClusterNetwork
	try(t, must(c.reader())(t).Get(ctx, client.ObjectKey{Name: v1alpha1.ClusterNetworkName}, &ledger))
	for _, entry := range ledger.Spec.Peers {
		if entry.Name == peer {
			continue
		}
		out = append(out, entry.ExternalCIDR.Prefix)
		for _, m := range entry.Pods {
			out = append(out, m.Mapped.Prefix)
		}
	}
	return out
}

// What a cluster knows a peer's pods by may be a range that the peer itself uses
// for something else: for its services, or for the pods of another peer. Each
// meaning holds where it belongs, with ranges of different lengths, and nobody's
// own traffic notices.
func TestMappedRangeUsedInPeer(t *testing.T) {
	ctx := begin(t)
	a, b, c, d := fx.alpha, fx.beta, fx.gamma, fx.delta
	// What delta's pods have cannot be seen exactly from outside.
	peer := [][]string{
		{"peer", a.Name, b.Name},
		{"peer", b.Name, c.Name},
		{"peer", c.Name, d.Name, "--pod-cidr", d.Name + "=" + d.spec.PodCIDR.String()},
	}
	wants := []struct {
		in, of *cluster
		mapped netip.Prefix
	}{
		// beta knows gamma's pods by this.
		{a, b, c.spec.PodCIDR},
		{d, c, c.spec.ServiceCIDR},
		{c, d, netip.PrefixFrom(d.spec.ServiceCIDR.Addr(), d.spec.PodCIDR.Bits())},
	}
	// What else is chosen must not be there by chance.
	first := slices.Clone(peer)
	for _, want := range wants {
		for j := range first {
			if slices.Contains(first[j], want.in.Name) {
				first[j] = append(slices.Clip(first[j]), fmt.Sprintf("--reserve=%s=%s", want.in.Name, want.mapped))
			}
		}
	}
	together(t, ctx, first...)
	var inside []stream
	for _, x := range fx.clusters {
		inside = append(inside, x.ownTraffic()...)
	}
	own := probe(ctx, inside)

	for _, want := range wants {
		remap(t, ctx, want.in, want.of, want.mapped)
	}
	together(t, ctx, peer...)
	views := status(t, ctx, 0, fx.clusters...)
	for _, want := range wants {
		got := viewOf(t, views, want.of, want.in).LocalPods[0].Mapped
		expect(t, got == want.mapped, "%s knows the pods of %s by %s, want %s", want.in.Name, want.of.Name, got, want.mapped)
	}
	got := viewOf(t, views, c, b).LocalPods[0].Mapped
	expect(t, got == c.spec.PodCIDR, "%s knows the pods of %s by %s, want what they have", b.Name, c.Name, got)
	for _, pair := range [][2]*cluster{{a, b}, {b, c}, {c, d}} {
		checkPair(t, ctx, pair[0], pair[1])
	}
	// The same address is a pod of beta in alpha, and one of gamma in beta.
	checkNoTransit(t, a, c)
	own.stop(t)
	together(t, ctx, []string{"unpeer", a.Name, b.Name}, []string{"unpeer", b.Name, c.Name}, []string{"unpeer", c.Name, d.Name})
	checkNothingLeft(t, ctx)
}

// remap writes into the ledger of a cluster by what it is to know the pods of a
// peer; what is written there is kept, where it is free of conflicts.
func remap(t *testing.T, ctx context.Context, in, of *cluster, mapped netip.Prefix) {
	names := in.kubectl(t, ctx, "get", "clusternetwork", "cluster", "-o", "jsonpath={range .spec.peers[*]}{.name}{\"\\n\"}{end}")
	for i, name := range strings.Fields(names) {
		if name != of.Name {
			continue
		}
		patch := fmt.Sprintf(`[{"op":"test","path":"/spec/peers/%[1]d/name","value":%[2]q},{"op":"replace","path":"/spec/peers/%[1]d/pods/0/mapped","value":%[3]q}]`, i, name, mapped)
		in.kubectl(t, ctx, "patch", "clusternetwork", "cluster", "--type=json", "-p", patch)
		return
	}
	t.Fatalf("the ledger of %s has no entry for %s: %s", in.Name, of.Name, names)
}
