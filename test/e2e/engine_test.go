package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/samber/lo"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/workload"
)

// engineTimeout is how long an engine may take until a policy holds. kube-router does it
// when a policy changes, and looks again every five minutes.
const engineTimeout = time.Minute

// With the policy for the gateways that the documents give, peering works where the namespace
// of liqonet denies everything. Without it, it does not.
func TestDefaultDeny(t *testing.T) {
	ctx := begin(t)
	dir := policyPrograms(t, ctx)
	a, b := fx.alpha, fx.beta
	knowRouter(t, ctx, dir, a, b)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), restoreTimeout)
		defer cancel()
		_, _ = a.Run(ctx, "", "delete", "networkpolicies", "--namespace=liqonet-system", "--all") // the namespace is gone, if all is well
	})
	stop := []func(){runKubeRouter(t, ctx, a, dir), runKubeRouter(t, ctx, b, dir)}
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	// What is tracked goes on. Gateways that start have new connections.
	restart := func() {
		t.Helper()
		for _, c := range []*cluster{a, b} {
			c.kubectl(t, ctx, "delete", "pods", "--namespace=liqonet-system", "--selector=app.kubernetes.io/component=gateway", "--wait=false")
		}
	}
	to := viewOf(t, status(t, ctx, 0, a, b), b, a).seenAs(t, b.pods[0].IP)
	connected := func() string {
		for _, p := range a.pods {
			if _, err := p.call("tcp", to, callTimeout); err != nil {
				return err.Error()
			}
		}
		return ""
	}
	eventually(t, ctx, engineTimeout, "after peering", connected)
	for _, c := range []*cluster{a, b} {
		apply(t, ctx, c, denyAll)
	}
	restart()
	eventually(t, ctx, engineTimeout, "everything is denied", func() string {
		return unless(connected() != "", "pods still reach each other")
	})
	policy := documentedPolicy(t)
	for _, c := range []*cluster{a, b} {
		apply(t, ctx, c, policy)
	}
	eventually(t, ctx, 2*engineTimeout, "the documented policy", connected)
	// Nothing depends on what was there before.
	restart()
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	eventually(t, ctx, 2*engineTimeout, "after another start", connected)
	checkVerified(t, ctx, a, b)
	for _, f := range stop {
		f()
	}
	unpeered(t, ctx, a, b)
}

// documentedPolicy is the one of docs/ports-and-permissions.md.
func documentedPolicy(t *testing.T) string {
	page := must(os.ReadFile("../../docs/ports-and-permissions.md"))(t)
	_, policy, found := strings.Cut(string(page), "```yaml\n")
	policy, _, _ = strings.Cut(policy, "```")
	require(t, found && strings.Contains(policy, "kind: NetworkPolicy"), "the page has no policy")
	return policy
}

// policyPrograms returns the directory of kube-router.
func policyPrograms(t *testing.T, ctx context.Context) string {
	t.Helper()
	return must(fx.lab.BuildPolicies(ctx))(t)
}

// routerPolicy matches the comment of the rules that apply a policy to a pod.
var routerPolicy = regexp.MustCompile(`run through nw policy ([^"]+)"`)

// awaitPolicies waits until kube-router applies these policies, and no others, on all nodes.
func awaitPolicies(t *testing.T, ctx context.Context, c *cluster, names ...string) {
	t.Helper()
	eventually(t, ctx, engineTimeout, "rules of kube-router", func() string {
		for _, n := range c.nodes {
			out, err := n.NetCommand(ctx, "iptables-save", "-t", "filter").CombinedOutput()
			require(t, err == nil, "rules of kube-router on %s: %v: %s", n.Node.Name, err, out)
			applied := lo.Uniq(lo.Map(routerPolicy.FindAllStringSubmatch(string(out), -1), func(m []string, _ int) string { return m[1] }))
			if !lo.ElementsMatch(applied, names) {
				return fmt.Sprintf("%s applies %v, not %v", n.Node.Name, applied, names)
			}
		}
		return ""
	})
}

// routerChain is where kube-router's rules for forwarded packets begin.
const routerChain = "KUBE-ROUTER-FORWARD"

// runKubeRouter has kube-router enforce the policies of a cluster, until the test ends or
// calls what is returned. It runs in the network of each node, with what else it does
// switched off.
func runKubeRouter(t *testing.T, ctx context.Context, c *cluster, dir string) (stop func()) {
	t.Helper()
	var stops []func()
	stop = sync.OnceFunc(func() {
		for _, f := range stops {
			f()
		}
	})
	t.Cleanup(stop)
	config := inside(t, ctx, c)
	for _, n := range c.nodes {
		end := background(t, n.Node, filepath.Join(dir, "kube-router"),
			"--run-router=false", "--run-service-proxy=false", "--run-firewall=true", "--enable-cni=false", "--health-port=0", "--metrics-port=0",
			"--kubeconfig="+config, "--hostname-override="+n.Node.Name)
		stops = append(stops, func() {
			end()
			// Its own command for that needs IPVS in the kernel.
			err := removeChains(context.Background(), n.Node, "KUBE-ROUTER-", "KUBE-POD-FW-", "KUBE-NWPLCY-")
			expect(t, err == nil, "clean up after kube-router on %s: %v", n.Node.Name, err)
			report(t, runs(n.NetCommand(context.Background(), "ipset", "destroy")))
		})
	}
	for _, n := range c.nodes {
		eventually(t, ctx, engineTimeout, "kube-router of "+n.Node.Name, func() string {
			out, err := n.NetCommand(ctx, "iptables", "-S", routerChain).CombinedOutput()
			return unless(err == nil, "%v: %s", err, out)
		})
	}
	return stop
}

// removeChains removes the chains of the table filter whose names begin so, and what leads
// to them.
func removeChains(ctx context.Context, n *lab.Node, prefixes ...string) error {
	saved, err := n.NetCommand(ctx, "iptables-save", "-t", "filter").Output()
	if err != nil {
		return fmt.Errorf("iptables-save: %w", err)
	}
	isOurs := func(name string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	}
	var flush, remove []string
	for line := range strings.Lines(string(saved)) {
		line = strings.TrimSpace(line)
		if rule, isRule := strings.CutPrefix(line, "-A "); isRule {
			from, _, _ := strings.Cut(rule, " ")
			_, to, _ := strings.Cut(rule, " -j ")
			if isOurs(to) && !isOurs(from) {
				flush = append(flush, "-D "+rule)
			}
		}
		if name, _, _ := strings.Cut(strings.TrimPrefix(line, ":"), " "); strings.HasPrefix(line, ":") && isOurs(name) {
			flush, remove = append(flush, "-F "+name), append(remove, "-X "+name)
		}
	}
	cmd := n.NetCommand(ctx, "iptables-restore", "--noflush")
	cmd.Stdin = strings.NewReader("*filter\n" + strings.Join(append(flush, remove...), "\n") + "\nCOMMIT\n")
	return runs(cmd)
}

// knowRouter takes what kube-router leaves behind for what was there before: iptables keeps
// tables and base chains that it has made.
func knowRouter(t *testing.T, ctx context.Context, dir string, clusters ...*cluster) {
	t.Helper()
	for _, c := range clusters {
		runKubeRouter(t, ctx, c, dir)()
	}
	fx.before = must(workload.SettledSnapshots(ctx, fx.nodes))(t)
}

// inside returns the administrator's kubeconfig as it works in the cluster's own network.
func inside(t *testing.T, ctx context.Context, c *cluster) string {
	t.Helper()
	config := must(clientcmd.LoadFromFile(c.Kubeconfig))(t)
	config.CurrentContext = c.Name
	try(t, clientcmdapi.MinifyConfig(config))
	server := jsonPath(t, ctx, c, "{.items[0].endpoints[0].addresses[0]}:{.items[0].ports[0].port}", "get", "endpointslices", "-l", "kubernetes.io/service-name=kubernetes")
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + server
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	try(t, clientcmd.WriteToFile(*config, path))
	return path
}
