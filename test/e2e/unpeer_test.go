package e2e

import (
	"context"
	"testing"
)

// partial is what is removed by hand, or dies, before unpeer.
type partial struct {
	name string
	// inA and inB are what kubectl does in each cluster between peer and unpeer.
	inA, inB [][]string
}

// Whatever was removed by hand, or died, before unpeer: it removes the rest.
func TestUnpeerPartialState(t *testing.T) {
	a, b := fx.alpha, fx.beta
	states := []partial{
		{
			"agents killed, Peering deleted",
			[][]string{{"-n", "liqonet-system", "delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false"}},
			[][]string{{"delete", "peerings", "--all"}},
		},
		{
			"permissions and namespace deleted, account and definitions deleted",
			[][]string{
				{"delete", "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings", "-l", "app.kubernetes.io/managed-by=liqonet"},
				{"delete", "namespace", "liqonet-system"},
			},
			[][]string{
				{"-n", "liqonet-system", "delete", "serviceaccounts", "--all"},
				{"delete", "customresourcedefinitions", "-l", "app.kubernetes.io/managed-by=liqonet", "--wait=false"},
			},
		},
		{
			"one cluster has nothing any more",
			nil,
			[][]string{
				{"delete", "peerings", "--all"},
				{"patch", "clusternetwork", "cluster", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`},
				{"delete", "clusternetworks", "--all"},
			},
		},
	}
	for _, i := range sample(random(t), len(states), 1) {
		test := states[i]
		t.Run(test.name, func(t *testing.T) {
			ctx := begin(t)
			mustLiqonet(t, ctx, "peer", a.Name, b.Name)
			damage(t, ctx, a, test.inA)
			damage(t, ctx, b, test.inB)
			mustLiqonet(t, ctx, "unpeer", a.Name, b.Name, "--timeout=30s")
			checkNothingLeft(t, ctx)
		})
	}
}

func damage(t *testing.T, ctx context.Context, c *cluster, commands [][]string) {
	t.Helper()
	for _, args := range commands {
		c.kubectl(t, ctx, args...)
	}
}
