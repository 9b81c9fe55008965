package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/lab"
)

// A cluster's pods get a second range, which the peer's services have already; then
// a node of the peer gets a subnet within the range that was chosen for it. Each
// time peer shows what it would do, does that, and the rest goes on meanwhile.
func TestDayTwo(t *testing.T) {
	ctx := begin(t)
	a, d := fx.gamma, fx.delta
	mustLiqonet(t, ctx, "peer", a.Name, d.Name)
	t.Run("verify sees a fault", func(t *testing.T) { oneFault(t, ctx, a, d) })
	before := viewOf(t, status(t, ctx, 0, a, d), d, a)

	grown := netip.MustParsePrefix("10.96.0.0/17")
	if !grown.Overlaps(a.spec.ServiceCIDR) {
		t.Fatalf("%s is not of the services of %s, %s", grown, a.Name, a.spec.ServiceCIDR)
	}
	guest := d.addNodeOf(t, ctx, grown)
	removed := false
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if !removed {
			d.removeNode(t, ctx, guest)
		}
	}()
	there, _ := d.podOn(t, ctx, guest)
	defer there.ns.Close()
	if !grown.Contains(there.IP) {
		t.Fatalf("the pod on the new node is %s", there.IP)
	}
	eventually(t, ctx, mendTimeout, "the new node's agent has reported", func() string {
		if would := changed(planned(t, ctx, "", a.Name, d.Name)); strings.Contains(would, "create") {
			return would
		}
		return ""
	})
	if r := liqonet(t, ctx, "", "map", d.Name, a.Name, there.IP.String()); r.code != exitUsage {
		t.Errorf("a pod of a range that the peer does not know has an address there: exit code %d, %q", r.code, r.stdout)
	}
	// peer makes what its dry run says, while packets flow.
	again := func(what string, want int, others ...string) view {
		t.Helper()
		checkChange(t, planned(t, ctx, "", a.Name, d.Name), a, d, what, others...)
		fs := startFlows(t, ctx, a, d, 0, 0)
		r := mustLiqonet(t, ctx, "peer", a.Name, d.Name)
		fs.interrupted(t, what, shortTimeout)
		if strings.Contains(r.stdout, "nothing was changed") {
			t.Errorf("%s: %s", what, r.stdout)
		}
		views := status(t, ctx, 0, a, d)
		ours, theirs := viewOf(t, views, d, a), viewOf(t, views, a, d)
		if len(ours.LocalPods) != want || !slices.Contains(ours.LocalPods, before.LocalPods[0]) || !slices.Equal(ours.RemotePods, before.RemotePods) {
			t.Fatalf("%s: ranges before %v and %v, now %v and %v", what, before.LocalPods, before.RemotePods, ours.LocalPods, ours.RemotePods)
		}
		address := map[string]netip.Addr{there.Pod.Name: mapped(t, ctx, d, a, there.IP.String())}
		if seen := ours.seenAs(t, there.IP); seen != address[there.Pod.Name] {
			t.Errorf("status says %s, map says %s", seen, address[there.Pod.Name])
		}
		for _, from := range a.pods {
			checkCalls(t, from.vantage, []pod{there}, address, theirs.seenAs(t, from.IP))
		}
		peers := map[string]netip.Addr{}
		for _, p := range a.pods {
			peers[p.Pod.Name] = theirs.seenAs(t, p.IP)
		}
		checkCalls(t, there.vantage, a.pods, peers, ours.seenAs(t, there.IP))
		if p := planned(t, ctx, "", a.Name, d.Name); changed(p) != "" {
			t.Errorf("%s: a second time there would be changed: %s", what, changed(p))
		}
		return ours
	}
	// The ledger notes the new node, which knows the overlay's key.
	second := again("a second range of pods", 2, d.Name+" change ClusterNetwork")
	var inTheWay netip.Prefix
	for _, m := range second.LocalPods {
		if m.Real.Contains(there.IP) {
			inTheWay = netip.PrefixFrom(m.Mapped.Addr(), 24)
		}
	}

	n := a.nodes[0].Node
	remove := addSubnet(t, ctx, n, inTheWay)
	eventually(t, ctx, mendTimeout, "the node's agent reports "+inTheWay.String(), func() string {
		if changed(planned(t, ctx, "", a.Name, d.Name)) == "" {
			return "nothing would be changed"
		}
		return ""
	})
	if m := viewOf(t, status(t, ctx, 0, a, d), a, d).Message; !strings.Contains(m, n.Name+" has a route to "+inTheWay.String()) {
		t.Errorf("status says %q of %s on %s", m, inTheWay, n.Name)
	}
	third := again("a subnet of a node", 2)
	for _, m := range third.LocalPods {
		if m.Mapped.Overlaps(inTheWay) {
			t.Errorf("%s is known as %s, though %s has %s", m.Real, m.Mapped, n.Name, inTheWay)
		}
	}
	remove()
	mustLiqonet(t, ctx, "unpeer", a.Name, d.Name)
	d.removeNode(t, ctx, guest)
	removed = true
	checkNothingLeft(t, ctx)
}

// addNodeOf adds a node of which the pods are in another range than the cluster's,
// and makes that range known as kube-router does.
func (c *cluster) addNodeOf(t *testing.T, ctx context.Context, pods netip.Prefix) *lab.Node {
	t.Helper()
	lc, err := fx.lab.Cluster(c.Name)
	if err != nil {
		t.Fatal(err)
	}
	lc.Spec.PodCIDR, lc.Spec.NodeCIDRMaskSize = pods, 24 // for this node only
	n, err := lc.AddNode(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Run(ctx, "", "annotate", "node", n.Name, "kube-router.io/pod-cidr="+pods.String()); err != nil {
		t.Error(err)
	}
	return n
}

// addSubnet gives a node a link with an address, until the test ends or the function
// that it returns is called.
func addSubnet(t *testing.T, ctx context.Context, n *lab.Node, subnet netip.Prefix) (remove func()) {
	t.Helper()
	const link = "e2e-subnet"
	ip := func(ctx context.Context, args ...string) {
		if out, err := n.NetCommand(ctx, "ip", args...).CombinedOutput(); err != nil {
			t.Errorf("ip %v: %v: %s", args, err, out)
		}
	}
	there := true
	remove = func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if there {
			there = false
			ip(ctx, "link", "delete", link)
		}
	}
	t.Cleanup(remove)
	ip(ctx, "link", "add", link, "type", "bridge")
	ip(ctx, "address", "add", netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits()).String(), "dev", link)
	ip(ctx, "link", "set", link, "up")
	return remove
}

// changed are the objects that a plan changes.
func changed(plan map[string]clusterPlan) string {
	var out []string
	for name, c := range plan {
		for _, o := range c.Objects {
			if o.Action != "keep" {
				out = append(out, fmt.Sprintf("%s %s %s", name, o.Action, o.Kind))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// checkChange wants a plan in which nothing but ranges changes.
func checkChange(t *testing.T, plan map[string]clusterPlan, of, growing *cluster, what string, others ...string) {
	t.Helper()
	changes := []string{of.Name + " change ClusterNetwork", of.Name + " change Peering", growing.Name + " change Peering"}
	changes = append(changes, others...)
	slices.Sort(changes)
	want := strings.Join(changes, ", ")
	if got := changed(plan); got != want {
		t.Errorf("%s: the plan is to %s; want %s", what, got, want)
	}
}
