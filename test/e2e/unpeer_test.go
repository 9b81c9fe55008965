package e2e

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
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
			"gateway deleted, node agents deleted",
			[][]string{{"-n", "liqonet-system", "delete", "deployments,secrets", "-l", "app.kubernetes.io/managed-by=liqonet"}},
			[][]string{{"-n", "liqonet-system", "delete", "daemonset", "--all"}},
		},
		{
			"namespace deleted, definitions deleted",
			[][]string{{"delete", "namespace", "liqonet-system"}},
			[][]string{{"delete", "customresourcedefinitions", "-l", "app.kubernetes.io/managed-by=liqonet", "--wait=false"}},
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
		if _, err := c.Run(ctx, "", args...); err != nil {
			t.Fatal(err)
		}
	}
}

// A cluster is cleaned although its peer does not answer. The peer is when it answers again.
func TestSecurity_12_UnpeerOneSide(t *testing.T) {
	ctx := begin(t)
	a, b := fx.alpha, fx.beta
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	cfg, err := clientcmd.LoadFromFile(fx.lab.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Clusters[cfg.Contexts[b.Name].Cluster].Server = "https://127.0.0.1:1"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		t.Fatal(err)
	}
	r := liqonet(t, ctx, file, "unpeer", a.Name, b.Name)
	if r.code != 8 || !strings.Contains(r.stdout, "alpha no longer has a peering with beta") || !strings.Contains(r.stderr, "kubectl liqonet unpeer beta alpha") {
		t.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	eventually(t, ctx, noticeTimeout, "beta says that it is alone", func() string {
		if r := liqonet(t, ctx, "", "status", a.Name, b.Name); !strings.Contains(r.stdout, "Orphaned") {
			return r.stdout
		}
		return ""
	})
	if r := liqonet(t, ctx, "", "peer", a.Name, b.Name); r.code != 9 {
		t.Errorf("peer: exit code %d\n%s", r.code, r.stderr)
	}
	mustLiqonet(t, ctx, "unpeer", b.Name, a.Name)
	checkNothingLeft(t, ctx)
}

// Unpeering what is not peered succeeds, says so and does nothing.
func TestUnpeerWithoutPeering(t *testing.T) {
	ctx := begin(t)
	r := mustLiqonet(t, ctx, "unpeer", fx.alpha.Name, fx.beta.Name)
	if want := "alpha and beta are not peered; nothing was changed.\n"; r.stdout != want {
		t.Errorf("got %q, want %q", r.stdout, want)
	}
	r = mustLiqonet(t, ctx, "status", fx.alpha.Name)
	if !strings.Contains(r.stdout, "No peerings") {
		t.Errorf("status: got %q", r.stdout)
	}
	checkNothingLeft(t, ctx)
}
