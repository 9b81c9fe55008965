package e2e

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/workload"
)

// No object of the cluster names its pods' range. The node agents' reports do: peer says
// what it has inferred and how to override it, a dry run before there are agents says that
// it will be known. A pod outside of the range is told with the command to run, which
// mends it.
func TestRangesWithoutSource(t *testing.T) {
	c := useClusters(t, lab.ClusterSpec{Name: "unnamed", PodCIDR: netip.MustParsePrefix("10.60.0.0/16"), NoNodeCIDRs: true})[0]
	peer := fx.alpha
	ctx := begin(t)
	c.kubectl(t, ctx, "annotate", "nodes", "--all", "kube-router.io/pod-cidr-")
	outside := netip.MustParsePrefix("10.99.250.0/24")
	p := &peculiar{t: t, ctx: ctx}
	start := p.networkOf(c, 0, outside)
	t.Cleanup(p.deletePods)
	fx.before = must(workload.SettledSnapshots(ctx, fx.nodes))(t)

	mustLiqonet(t, ctx, "peer", c.Name, peer.Name, "--dry-run").says(t, "(inferred from the node agents' reports)")
	checkNothingLeft(t, ctx)
	told := mustLiqonet(t, ctx, "peer", c.Name, peer.Name)
	for _, want := range []string{c.spec.PodCIDR.String(), "inferred", "--pod-cidr " + c.Name + "="} {
		expect(t, strings.Contains(told.stdout+told.stderr, want), "the result does not say %q:\n%s%s", want, told.stdout, told.stderr)
	}
	checkPair(t, ctx, c, peer)

	start()
	command := "kubectl liqonet peer " + c.Name + " " + peer.Name
	eventually(t, ctx, callTimeout, "status tells of the pod outside", func() string {
		r := liqonet(t, ctx, "", "status", c.Name, peer.Name)
		said := r.stdout + r.stderr
		return unless(strings.Contains(said, p.made[0].IP.String()) && strings.Contains(said, command), "%s", said)
	})
	mustLiqonet(t, ctx, "peer", c.Name, peer.Name)
	p.checkPods(c, peer, []pair{p.made[0], {c, c.pods[0]}, {c, c.pods[1]}, {peer, peer.pods[0]}})
	mustLiqonet(t, ctx, "unpeer", c.Name, peer.Name)
	p.deletePods()
	checkNothingLeft(t, ctx)
}
