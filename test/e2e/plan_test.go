package e2e

import (
	"context"
	"encoding/json"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/liqonet/liqonet/test/lab"
)

// clusterPlan is the part of peer --dry-run -o json on which scripts rely.
type clusterPlan struct {
	Cluster string
	Ranges  []struct {
		What         string
		Real, Mapped netip.Prefix
	}
	Endpoints []struct {
		Value     string
		DuringRun bool
	}
	Objects []struct {
		Action, Kind, Namespace, Name, Reason string
	}
}

// readers writes a kubeconfig of the clusters for users who may read what a plan
// needs, Secrets excepted, and nothing else.
func readers(t *testing.T, ctx context.Context, clusters ...*cluster) string {
	t.Helper()
	admin, err := clientcmd.LoadFromFile(fx.lab.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	cfg := clientcmdapi.NewConfig()
	for _, c := range clusters {
		kubectl := func(ctx context.Context, args ...string) {
			if _, err := c.Run(ctx, "", args...); err != nil {
				t.Error(err)
			}
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			kubectl(ctx, "delete", "clusterrole", "e2e-reader", "--ignore-not-found")
		})
		manifest := `{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "e2e-reader"}, "rules": [
			{"apiGroups": [""], "resources": ["nodes", "namespaces", "pods", "services", "configmaps", "serviceaccounts"], "verbs": ["get", "list"]},
			{"apiGroups": ["apps", "rbac.authorization.k8s.io", "apiextensions.k8s.io", "discovery.k8s.io", "networking.k8s.io"], "resources": ["*"], "verbs": ["get", "list"]},
			{"apiGroups": ["*"], "resources": ["clusternetworks", "peerings", "nodenetworks"], "verbs": ["get", "list"]}]}`
		if _, err := c.Run(ctx, manifest, "apply", "-f", "-"); err != nil {
			t.Fatal(err)
		}
		cfg.Clusters[c.Name] = admin.Clusters[admin.Contexts[c.Name].Cluster]
		cfg.AuthInfos[c.Name] = &clientcmdapi.AuthInfo{Token: serviceAccountToken(t, ctx, c, "e2e-reader", "e2e-reader")}
		cfg.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.Name, AuthInfo: c.Name}
	}
	path := filepath.Join(t.TempDir(), "readers")
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// planned makes a dry run.
func planned(t *testing.T, ctx context.Context, kubeconfig string, args ...string) map[string]clusterPlan {
	t.Helper()
	r := liqonet(t, ctx, kubeconfig, append(append([]string{"peer"}, args...), "--dry-run", "-o", "json")...)
	var doc struct {
		Plans []struct{ Clusters []clusterPlan }
	}
	if err := json.Unmarshal([]byte(r.stdout), &doc); r.code != 0 || err != nil || len(doc.Plans) != 1 {
		t.Fatalf("exit code %d, %v\n%s%s", r.code, err, r.stdout, r.stderr)
	}
	out := map[string]clusterPlan{}
	for _, c := range doc.Plans[0].Clusters {
		out[c.Cluster] = c
	}
	return out
}

// A dry run needs permission to read only, changes nothing, and says what peer
// then makes; of what is there it says that nothing would be changed.
func TestDryRun(t *testing.T) {
	ctx := begin(t)
	a, b := fx.alpha, fx.beta
	reader := readers(t, ctx, a, b)
	plans := planned(t, ctx, reader, a.Name, b.Name)
	if left := fx.objectsLeft(ctx, managed, a, b); left != "" {
		t.Fatalf("the dry run made\n%s", left)
	}
	if r := liqonet(t, ctx, reader, "peer", a.Name, b.Name); r.code != exitForbidden {
		t.Errorf("peer with the user of the dry run: exit code %d, want %d\n%s", r.code, exitForbidden, r.stderr)
	}
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	views := parseStatus(t, mustLiqonet(t, ctx, "status", a.Name, b.Name, "-o", "json").stdout)
	before := map[string]string{}
	for _, c := range []*cluster{a, b} {
		have, err := c.objects(ctx, managed)
		if err != nil {
			t.Fatal(err)
		}
		made, said := map[string]bool{}, map[string]bool{}
		for name, u := range have {
			switch u.GetKind() {
			// Those of ours as Kubernetes goes on with them.
			case "Pod", "ReplicaSet", "ControllerRevision", "EndpointSlice", "Endpoints":
			default:
				made[name] = true
				before[c.Name+name] = fixed(u)
			}
		}
		for _, o := range plans[c.Name].Objects {
			name := o.Kind + " " + strings.TrimPrefix(o.Namespace+"/"+o.Name, "/")
			said[name] = true
			if o.Action != "create" && o.Action != "unclear" || o.Reason == "" {
				t.Errorf("%s: %s is to be %q because %q", c.Name, name, o.Action, o.Reason)
			}
		}
		if diff := cmp.Diff(said, made); diff != "" {
			t.Errorf("%s: said (-) and made (+):\n%s", c.Name, diff)
		}
		peer := map[*cluster]*cluster{a: b, b: a}[c]
		for _, m := range viewOf(t, views, c, peer).RemotePods {
			found := false
			for _, r := range plans[c.Name].Ranges {
				found = found || r.Real == m.Real && r.Mapped == m.Mapped
			}
			if !found {
				t.Errorf("%s knows %s as %s, which is not in the plan: %+v", c.Name, m.Real, m.Mapped, plans[c.Name].Ranges)
			}
		}
	}

	for _, kubeconfig := range []string{"", reader} {
		for name, c := range planned(t, ctx, kubeconfig, b.Name, a.Name) {
			for _, o := range c.Objects {
				if o.Action != "keep" && (kubeconfig == "" || o.Kind != "Secret") {
					t.Errorf("%s: %s %s is to be %q, though nothing has changed", name, o.Kind, o.Name, o.Action)
				}
			}
			for _, e := range c.Endpoints {
				if e.DuringRun {
					t.Errorf("%s: endpoint %s should be known", name, e.Value)
				}
			}
		}
	}
	for _, c := range []*cluster{a, b} {
		now, err := c.objects(ctx, managed)
		if err != nil {
			t.Fatal(err)
		}
		for name, u := range now {
			if was, ok := before[c.Name+name]; ok && was != fixed(u) {
				t.Errorf("%s: %s was changed by a dry run:\n%s", c.Name, name, cmp.Diff(was, fixed(u)))
			}
		}
	}
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
	checkNothingLeft(t, ctx)
}

// The side that can be reached is the server, whichever it is: packets to the
// nodes of one cluster are dropped between the clusters unless they answer.
func TestUnreachableServer(t *testing.T) {
	ctx := begin(t)
	a, b := fx.alpha, fx.beta
	first := a
	for _, c := range planned(t, ctx, "", a.Name, b.Name) {
		if len(c.Endpoints) > 0 && c.Cluster == b.Name {
			first = b
		}
	}
	for _, n := range labNodes(first) {
		closeToPeers(t, ctx, n)
	}
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--timeout", "3m")
	views := parseStatus(t, mustLiqonet(t, ctx, "status", a.Name, b.Name, "-o", "json").stdout)
	peer := map[*cluster]*cluster{a: b, b: a}[first]
	if role := viewOf(t, views, first, peer).Role; role != "Client" {
		t.Errorf("%s cannot be called and is the %s", first.Name, role)
	}
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
}

// closeToPeers drops what comes to a node's NodePorts from outside, in the node's
// own namespace, until the test ends.
func closeToPeers(t *testing.T, ctx context.Context, n *lab.Node) {
	t.Helper()
	nft := func(ctx context.Context, args ...string) error { return n.NetCommand(ctx, "nft", args...).Run() }
	if err := nft(ctx, "add table ip e2e_nat; add chain ip e2e_nat in { type filter hook prerouting priority -150; }; "+
		"add rule ip e2e_nat in fib daddr type local ct state new udp dport 30000-32767 drop"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := nft(ctx, "delete table ip e2e_nat"); err != nil {
			t.Error(err)
		}
	})
}

// Three clusters, every two with gateways of their own; one that fails does not
// keep the others from it.
func TestMesh(t *testing.T) {
	ctx := begin(t)
	a, b, c := fx.alpha, fx.beta, fx.gamma
	r := liqonet(t, ctx, "", "peer", a.Name, b.Name, c.Name, "--mesh", "--timeout", "3m")
	if r.code != 0 || strings.Count(r.stdout, "are peered,") != 3 {
		t.Fatalf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	for _, pair := range [][2]*cluster{{a, b}, {b, c}, {c, a}} {
		addr := mapped(t, ctx, pair[1], pair[0], "default/"+pair[1].pods[0].Pod.Name)
		back := strings.TrimSpace(mustLiqonet(t, ctx, "map", pair[1].Name, pair[0].Name, addr.String(), "--reverse").stdout)
		if want := pair[1].pods[0].IP.String(); back != want {
			t.Errorf("%s in %s is %s, back it is %s, want %s", pair[1].Name, pair[0].Name, addr, back, want)
		}
	}
	if r := liqonet(t, ctx, "", "unpeer", a.Name, "--spokes", b.Name+","+c.Name); r.code != 0 {
		t.Errorf("unpeer of two of three: exit code %d\n%s", r.code, r.stderr)
	}
	views := parseStatus(t, mustLiqonet(t, ctx, "status", b.Name, c.Name, "-o", "json").stdout)
	if len(views) != 2 || viewOf(t, views, b, c).State != "Connected" {
		t.Errorf("the third peering is not as it was: %+v", views)
	}

	cfg, err := clientcmd.LoadFromFile(fx.lab.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Clusters["closed"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
	cfg.Contexts["closed"] = &clientcmdapi.Context{Cluster: "closed", AuthInfo: cfg.Contexts[a.Name].AuthInfo}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		t.Fatal(err)
	}
	r = liqonet(t, ctx, file, "peer", b.Name, "--spokes", "closed,"+c.Name)
	if r.code != 8 || !strings.Contains(r.stdout, "nothing was changed") || !strings.Contains(r.stderr, "1 of 2 pairs failed") ||
		!strings.Contains(r.stderr, b.Name+" - closed: ") {
		t.Errorf("one spoke that cannot be reached: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	mustLiqonet(t, ctx, "unpeer", b.Name, c.Name)
	checkNothingLeft(t, ctx)
}
