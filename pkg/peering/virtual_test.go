package peering

import (
	"context"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

// Nodes without a Linux kernel of their own have no agents: peer does not wait for them, and a dry run plans nothing
// for them.
func TestNodesWithoutAgents(t *testing.T) {
	kit.Slow(t)
	var without []client.Object
	for kind, n := range fakeapi.Nodes() {
		if kind != "linux" {
			without = append(without, n)
		}
	}
	a, b := TwoSites(t, without...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // on a busy machine
	defer cancel()
	kit.Must(Peer(ctx, a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}))(t)
	for _, c := range DryRun(t, a, b, engine.Options{}).Clusters {
		for _, s := range append(slices.Clone(c.Facts), c.Choices...) {
			kit.ErrorIf(t, s.Assumed && s.Subject != "node range",
				"%s: %s is assumed, though all agents have reported: %s", c.Cluster, s.Subject, s.Reason)
		}
		for _, o := range c.Objects {
			kit.ErrorIf(t, o.Action != plan.Keep, "%s: %s %s %s", c.Cluster, o.Action, o.Kind, o.Name)
		}
	}
}
