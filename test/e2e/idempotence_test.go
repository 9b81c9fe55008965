package e2e

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/samber/lo"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/workload"
)

// kubeadmFile writes the kubeconfig of one cluster as kubeadm does: context and
// user have the same names in every file.
func kubeadmFile(t testing.TB, dir string, c *cluster) string {
	t.Helper()
	lab := must(clientcmd.LoadFromFile(c.Kubeconfig))(t)
	context := lab.Contexts[c.Name]
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["kubernetes"] = lab.Clusters[context.Cluster]
	cfg.AuthInfos["kubernetes-admin"] = lab.AuthInfos[context.AuthInfo]
	cfg.Contexts[kubeadmContext] = &clientcmdapi.Context{Cluster: "kubernetes", AuthInfo: "kubernetes-admin"}
	cfg.CurrentContext = kubeadmContext
	path := filepath.Join(dir, c.Name+".conf")
	try(t, clientcmd.WriteToFile(*cfg, path))
	return path
}

const kubeadmContext = "kubernetes-admin@kubernetes"

// A second peer command, in either order and by whatever names the clusters are
// given, changes nothing: no object, and nothing in any kernel.
func peerAgain(t *testing.T, ctx context.Context, a, b *cluster, fileA, fileB string) {
	pods, nodes := peered(t, ctx, a, b), append(labNodes(a), labNodes(b)...)
	kernel := must(workload.SettledSnapshots(ctx, nodes))(t)

	at := func(n node, _ int) *vantage { return n.vantage }
	monitors := watchKernels(t, ctx, lo.Map(slices.Concat(a.nodes, b.nodes), at))
	for _, again := range []struct {
		kubeconfig string
		args       []string
	}{
		{"", []string{"peer", a.Name, b.Name}},
		{"", []string{"peer", b.Name, a.Name}},
		{"/nonexistent", []string{"peer", fileB + "#" + kubeadmContext, fileA + "#" + kubeadmContext}},
	} {
		liqonet(t, ctx, again.kubeconfig, again.args...).ends(t, 0, "nothing was changed")
	}
	time.Sleep(500 * time.Millisecond) // what a node's agent would still do
	none(t, monitors(), "changes of links, addresses, rules or routes during the commands")
	none(t, cmp.Diff(pods, peered(t, ctx, a, b)), "objects changed")
	now := must(workload.TakeSnapshots(ctx, nodes))(t)
	none(t, kernel.Diff(now), "kernels changed")

	// The other commands by files.
	r := liqonet(t, ctx, "/nonexistent", "status", fileA, fileB, "-o", "json")
	views := parseStatus(t, r.stdout)
	expect(t, r.code == 0 && len(views) == 2,
		"status of two files: exit code %d, %d views, want 2\n%s%s", r.code, len(views), r.stdout, r.stderr)
	want := mapped(t, ctx, a, b, "default/"+a.pods[0].Pod.Name)
	r = liqonet(t, ctx, "/nonexistent", "map", fileA, fileB, a.pods[0].IP.String())
	expect(t, r.code == 0 && r.stdout == want.String()+"\n",
		"map by files and address: exit code %d, printed %q, want %s", r.code, r.stdout, want)
}

// peered are the objects of the product in both clusters, as far as they may not
// change by themselves.
func peered(t *testing.T, ctx context.Context, clusters ...*cluster) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, c := range clusters {
		for name, u := range must(c.objects(ctx, mentioned))(t) {
			if !passing(u) {
				out[c.Name+": "+name] = fixed(u)
			}
		}
	}
	return out
}

func labNodes(c *cluster) []*lab.Node {
	return lo.Map(c.nodes, func(n node, _ int) *lab.Node { return n.Node })
}
