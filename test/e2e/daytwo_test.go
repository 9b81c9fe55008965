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

// A cluster's pods get a second range, which the peer's services have already:
// peer prints what it would do, and does it; everything else continues.
func TestDayTwo(t *testing.T) {
	ctx := begin(t)
	a, d := fx.gamma, fx.delta
	mustLiqonet(t, ctx, "peer", a.Name, d.Name)
	t.Run("verify sees a fault", func(t *testing.T) { oneFault(t, ctx, a, d) })
	before := viewOf(t, status(t, ctx, 0, a, d), d, a)

	grown := netip.MustParsePrefix("10.96.0.0/17")
	require(t, grown.Overlaps(a.spec.ServiceCIDR), "%s is not of the services of %s, %s", grown, a.Name, a.spec.ServiceCIDR)
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
	require(t, grown.Contains(there.IP), "the pod on the new node is %s", there.IP)
	eventually(t, ctx, mendTimeout, "the new node's agent has reported", func() string {
		would := changed(planned(t, ctx, "", a.Name, d.Name))
		return unless(!strings.Contains(would, "create"), "%s", would)
	})
	liqonet(t, ctx, "", "map", d.Name, a.Name, there.IP.String()).ends(t, exitUsage)
	// peer makes what its dry run says, while packets flow. The ledger notes the new node, which knows the overlay's key.
	want := []string{a.Name + " change ClusterNetwork", a.Name + " change Peering", d.Name + " change ClusterNetwork", d.Name + " change Peering"}
	slices.Sort(want)
	got := changed(planned(t, ctx, "", a.Name, d.Name))
	expect(t, got == strings.Join(want, ", "), "the plan is to %s; want %s", got, want)
	fs := startFlows(t, ctx, a, d, 0, 0)
	r := mustLiqonet(t, ctx, "peer", a.Name, d.Name)
	fs.interrupted(t, "a second range of pods", shortTimeout)
	if strings.Contains(r.stdout, "nothing was changed") {
		t.Error(r.stdout)
	}
	views := status(t, ctx, 0, a, d)
	ours, theirs := viewOf(t, views, d, a), viewOf(t, views, a, d)
	if len(ours.LocalPods) != 2 || !slices.Contains(ours.LocalPods, before.LocalPods[0]) || !slices.Equal(ours.RemotePods, before.RemotePods) {
		t.Fatalf("ranges before %v and %v, now %v and %v", before.LocalPods, before.RemotePods, ours.LocalPods, ours.RemotePods)
	}
	address := map[string]netip.Addr{there.Pod.Name: mapped(t, ctx, d, a, there.IP.String())}
	seen := ours.seenAs(t, there.IP)
	expect(t, seen == address[there.Pod.Name], "status says %s, map says %s", seen, address[there.Pod.Name])
	for _, p := range a.pods {
		checkCalls(t, p.vantage, []pod{there}, address, theirs.seenAs(t, p.IP))
		address[p.Pod.Name] = theirs.seenAs(t, p.IP)
	}
	checkCalls(t, there.vantage, a.pods, address, ours.seenAs(t, there.IP))
	if p := planned(t, ctx, "", a.Name, d.Name); changed(p) != "" {
		t.Errorf("a second time there would be changed: %s", changed(p))
	}
	mustLiqonet(t, ctx, "unpeer", a.Name, d.Name)
	d.removeNode(t, ctx, guest)
	removed = true
	checkNothingLeft(t, ctx)
}

// addNodeOf adds a node of which the pods are in another range than the cluster's,
// and makes that range known as kube-router does.
func (c *cluster) addNodeOf(t *testing.T, ctx context.Context, pods netip.Prefix) *lab.Node {
	lc := must(fx.lab.Cluster(c.Name))(t)
	lc.Spec.PodCIDR, lc.Spec.NodeCIDRMaskSize = pods, 24 // for this node only
	n := must(lc.AddNode(ctx))(t)
	report(t, errOf(c.Run(ctx, "", "annotate", "node", n.Name, "kube-router.io/pod-cidr="+pods.String())))
	return n
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
