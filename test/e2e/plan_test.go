package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// clusterPlan is the part of peer --dry-run -o json on which scripts rely.
type clusterPlan struct {
	Cluster string
	Ranges  []struct {
		What         string
		Real, Mapped netip.Prefix
	}
	Objects []struct {
		Action, Kind, Namespace, Name, Reason string
	}
}

// readers writes a kubeconfig of the clusters for users who may read what a plan
// needs, Secrets excepted, and nothing else.
func readers(t *testing.T, ctx context.Context, clusters ...*cluster) string {
	t.Helper()
	admin := must(clientcmd.LoadFromFile(fx.lab.Kubeconfig()))(t)
	cfg := clientcmdapi.NewConfig()
	for _, c := range clusters {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			report(t, errOf(c.Run(ctx, "", "delete", "clusterrole", "e2e-reader", "--ignore-not-found")))
		})
		manifest := `{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "e2e-reader"}, "rules": [
			{"apiGroups": [""], "resources": ["nodes", "namespaces", "pods", "services", "configmaps", "serviceaccounts", "resourcequotas"], "verbs": ["get", "list"]},
			{"apiGroups": ["apps", "rbac.authorization.k8s.io", "apiextensions.k8s.io", "admissionregistration.k8s.io", "discovery.k8s.io", "networking.k8s.io", "coordination.k8s.io"], "resources": ["*"], "verbs": ["get", "list"]},
			{"apiGroups": ["*"], "resources": ["clusternetworks", "peerings", "nodenetworks"], "verbs": ["get", "list"]}]}`
		apply(t, ctx, c, manifest)
		cfg.Clusters[c.Name] = admin.Clusters[admin.Contexts[c.Name].Cluster]
		cfg.AuthInfos[c.Name] = &clientcmdapi.AuthInfo{Token: serviceAccountToken(t, ctx, c, "e2e-reader", "e2e-reader")}
		cfg.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.Name, AuthInfo: c.Name}
	}
	path := filepath.Join(t.TempDir(), "readers")
	try(t, clientcmd.WriteToFile(*cfg, path))
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

// dryRun needs permission to read only, and changes nothing.
func dryRun(t *testing.T, ctx context.Context, reader string, a, b *cluster) (plans map[string]clusterPlan) {
	t.Helper()
	plans = planned(t, ctx, reader, a.Name, b.Name)
	left, _ := fx.objectsLeft(ctx, a, b)
	require(t, left == "", "the dry run made\n%s", left)
	liqonet(t, ctx, reader, "peer", a.Name, b.Name).ends(t, exitForbidden)
	return plans
}

// dryRunWasRight looks whether peer has made what a dry run said.
func dryRunWasRight(t *testing.T, ctx context.Context, plans map[string]clusterPlan, a, b *cluster) {
	views := status(t, ctx, 0, a, b)
	for _, c := range []*cluster{a, b} {
		have := must(c.objects(ctx, managed))(t)
		made, said := map[string]bool{}, map[string]bool{}
		for name, u := range have {
			switch u.GetKind() {
			// Those of ours as Kubernetes goes on with them, and what agents tell.
			case "Pod", "ReplicaSet", "ControllerRevision", "EndpointSlice", "Endpoints", "Event":
			default:
				if isRecord(u) {
					continue
				}
				made[name] = true
			}
		}
		for _, o := range plans[c.Name].Objects {
			name := o.Kind + " " + strings.TrimPrefix(o.Namespace+"/"+o.Name, "/")
			said[name] = true
			expect(t, (o.Action == "create" || o.Action == "unclear") && o.Reason != "",
				"%s: %s is to be %q because %q", c.Name, name, o.Action, o.Reason)
		}
		none(t, cmp.Diff(said, made), "%s: said (-) and made (+)", c.Name)
		peer := map[*cluster]*cluster{a: b, b: a}[c]
		for _, m := range viewOf(t, views, c, peer).RemotePods {
			found := false
			for _, r := range plans[c.Name].Ranges {
				found = found || r.Real == m.Real && r.Mapped == m.Mapped
			}
			expect(t, found, "%s knows %s as %s, which is not in the plan: %+v", c.Name, m.Real, m.Mapped, plans[c.Name].Ranges)
		}
	}
}

// A gateway behind a NAT with one forwarded port is called there: a machine of
// neither cluster stands for the NAT, and the nodes themselves do not answer.
func TestBehindNAT(t *testing.T) {
	ctx := begin(t)
	a, b := fx.alpha, fx.beta
	const nodePort = "30999"
	router := fx.delta.machine(t)
	outside := netip.AddrPortFrom(router.addr, 41999)
	for _, n := range b.nodes { // but for the router, nobody outside reaches NodePorts
		t.Cleanup(n.during(t, ctx, "nft 'add table ip e2e_nat; add chain ip e2e_nat in { type filter hook prerouting priority -150; }; "+
			"add rule ip e2e_nat in ip saddr != "+router.addr.String()+" fib daddr type local ct state new udp dport 30000-32767 drop'", "nft delete table ip e2e_nat"))
	}
	to := b.nodes[0].addr
	t.Cleanup(router.during(t, ctx, fmt.Sprintf("sysctl -qw net.ipv4.ip_forward=1; nft 'add table ip e2e_forward; "+
		"add chain ip e2e_forward in { type nat hook prerouting priority -110; }; add chain ip e2e_forward out { type nat hook postrouting priority 90; }; "+
		"add rule ip e2e_forward in udp dport %[1]d dnat to %[2]s:%[3]s; add rule ip e2e_forward out ip daddr %[2]s udp dport %[3]s masquerade'",
		outside.Port(), to, nodePort), "nft delete table ip e2e_forward"))
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--server", b.Name,
		"--service-type", b.Name+"=NodePort:"+nodePort, "--endpoint", b.Name+"="+outside.String())
	views := status(t, ctx, 0, a, b)
	v := viewOf(t, views, a, b)
	expect(t, v.Role == "Client" && v.Endpoint == outside.String(), "%s is %s and calls %s, want %s", a.Name, v.Role, v.Endpoint, outside)
	checkOnePacket(t, ctx, a, b)
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
}

// serviceAccountToken makes a user of a cluster with a cluster role, or none, who
// is gone when the test ends.
func serviceAccountToken(t *testing.T, ctx context.Context, c *cluster, name, role string) string {
	t.Helper()
	kubectl := func(ctx context.Context, args ...string) string {
		out, err := c.Run(ctx, "", args...)
		report(t, err)
		return out
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		kubectl(ctx, "delete", "serviceaccount", name, "--ignore-not-found")
		kubectl(ctx, "delete", "clusterrolebinding", name, "--ignore-not-found")
	})
	kubectl(ctx, "create", "serviceaccount", name)
	if role != "" {
		kubectl(ctx, "create", "clusterrolebinding", name, "--clusterrole="+role, fmt.Sprintf("--serviceaccount=default:%s", name))
	}
	return kubectl(ctx, "create", "token", name)
}
