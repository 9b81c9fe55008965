package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/workload"
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

// closeToPeers drops what comes to a node's NodePorts from outside, but for one
// address, in the node's own namespace, until the test ends.
func closeToPeers(t *testing.T, ctx context.Context, n *lab.Node, but netip.Addr) {
	nft := func(ctx context.Context, args ...string) error { return n.NetCommand(ctx, "nft", args...).Run() }
	try(t, nft(ctx, "add table ip e2e_nat; add chain ip e2e_nat in { type filter hook prerouting priority -150; }; "+
		"add rule ip e2e_nat in ip saddr != "+but.String()+" fib daddr type local ct state new udp dport 30000-32767 drop"))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		report(t, nft(ctx, "delete table ip e2e_nat"))
	})
}

// A gateway behind a NAT with one forwarded port is called there: a machine of
// neither cluster stands for the NAT, and the nodes themselves do not answer.
func TestBehindNAT(t *testing.T) {
	ctx := begin(t)
	a, b := fx.alpha, fx.beta
	const nodePort = "30999"
	router := fx.delta.machine(t)
	outside := netip.AddrPortFrom(router.addr, 41999)
	for _, n := range labNodes(b) {
		closeToPeers(t, ctx, n, router.addr)
	}
	forward(t, ctx, router, outside.Port(), netip.MustParseAddrPort(net.JoinHostPort(b.nodes[0].addr.String(), nodePort)))
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--server", b.Name,
		"--service-type", b.Name+"=NodePort:"+nodePort, "--endpoint", b.Name+"="+outside.String())
	views := status(t, ctx, 0, a, b)
	v := viewOf(t, views, a, b)
	expect(t, v.Role == "Client" && v.Endpoint == outside.String(), "%s is %s and calls %s, want %s", a.Name, v.Role, v.Endpoint, outside)
	checkOnePacket(t, ctx, a, b)
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
}

// forward has a machine send what comes to a UDP port of its own on, as if it were its
// own, until the test ends.
func forward(t *testing.T, ctx context.Context, at *vantage, port uint16, to netip.AddrPort) {
	t.Helper()
	run := func(ctx context.Context, script string) {
		report(t, errOf(at.shell(ctx, script)))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		run(ctx, "nft delete table ip e2e_forward")
	})
	run(ctx, fmt.Sprintf("sysctl -qw net.ipv4.ip_forward=1; nft 'add table ip e2e_forward; add chain ip e2e_forward in { type nat hook prerouting priority -110; }; "+
		"add chain ip e2e_forward out { type nat hook postrouting priority 90; }; "+
		"add rule ip e2e_forward in udp dport %d dnat to %s; add rule ip e2e_forward out ip daddr %s udp dport %d masquerade'",
		port, to, to.Addr(), to.Port()))
}

// What reflects Services and EndpointSlices of one cluster in the other is told
// where their endpoints are, by map and by the Peering, and these answer there.
func mapService(t *testing.T, ctx context.Context, a, b *cluster) {
	remote := remotePods(t, ctx, a, b)
	want := map[netip.AddrPort]string{}
	for _, p := range b.pods {
		for _, m := range remote {
			if m.Real.Contains(p.IP) {
				want[netip.AddrPortFrom(transfer(p.IP, m), workload.HTTPPort)] = p.Pod.Name
			}
		}
	}
	require(t, len(want) == len(b.pods), "the Peering translates %v", remote)
	for _, service := range []string{"default/tester", b.service.String()} {
		lines := strings.Fields(mustLiqonet(t, ctx, "map", b.Name, a.Name, service).stdout)
		expect(t, len(lines) == len(want), "%s has %q, want %v", service, lines, want)
		for _, line := range lines {
			endpoint, err := netip.ParseAddrPort(line)
			name, ok := want[endpoint]
			if err != nil || !ok {
				t.Errorf("%s has the endpoint %q, want one of %v", service, line, want)
				continue
			}
			got, err := a.pods[0].call("http", endpoint.Addr(), callTimeout)
			expect(t, err == nil && got.hostname == name, "%s: it was %q who answered, want %s; %v", endpoint, got.hostname, name, err)
		}
	}
}

// remotePods are the ranges by which a cluster's Peering says that it knows the peer's pods.
func remotePods(t *testing.T, ctx context.Context, c, peer *cluster) (out []mapping) {
	raw, err := c.Run(ctx, "", "get", "peering", peer.Name, "-o", "jsonpath={.spec.remote.pods}")
	if err == nil {
		err = json.Unmarshal([]byte(raw), &out)
	}
	require(t, err == nil, "%v: %s", err, raw)
	return out
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
