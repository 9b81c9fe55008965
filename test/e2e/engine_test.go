package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/liqonet/liqonet/test/netpol"
	"github.com/liqonet/liqonet/test/workload"
)

// engineTimeout is how long an engine may take until a policy holds. kube-router does it
// when a policy changes, and looks again every five minutes.
const engineTimeout = time.Minute

// What TestNetworkPolicy says of an engine of the tests is true of kube-router, and it is what
// the evaluator of kube-network-policies says about packets as nodes see them.
func TestNetworkPolicyEngine(t *testing.T) {
	ctx := begin(t)
	dir := policyPrograms(t, ctx)
	a := fx.alpha
	knowRouter(t, ctx, dir, a)
	tests, inbound := policyTests(t, ctx)
	t.Cleanup(func() { removePolicies(t, a) })
	stop := runKubeRouter(t, ctx, a, dir)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before := routerRules(t, ctx, a)
			apply(t, ctx, a, fmt.Sprintf(policyManifest, test.spec))
			expected := oracle(t, ctx, a, dir, test)
			var admits []string
			for name, admitted := range expected {
				if admitted {
					admits = append(admits, name)
				}
				documented := false
				for _, prefix := range test.admitted {
					documented = documented || strings.HasPrefix(name, prefix)
				}
				expect(t, admitted == documented, "%s is admitted: %v by the evaluator, %v by the documents", name, admitted, documented)
			}
			awaitRules(t, ctx, a, before)
			checkVerdicts(t, test.parties, test.protocol, admits)
		})
	}
	before := routerRules(t, ctx, a)
	removePolicies(t, a)
	awaitRules(t, ctx, a, before)
	checkVerdicts(t, inbound, "tcp", []string{"mapped", "unmapped", "local"})
	stop()
	unpeerForPolicies(t, ctx)
}

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

// policyPrograms returns the directory of kube-router and policy-oracle.
func policyPrograms(t *testing.T, ctx context.Context) string {
	t.Helper()
	dir := must(fx.lab.BuildPolicies(ctx))(t)
	return dir
}

// oracle says for each party whether its calls are admitted.
func oracle(t *testing.T, ctx context.Context, c *cluster, dir string, test policyTest) map[string]bool {
	t.Helper()
	type packet struct {
		From, To netip.Addr
		Protocol string
		Port     int
	}
	question := struct {
		netpol.Objects
		Packets []packet
	}{Objects: policyObjects(t, ctx, c)}
	var names []string
	port := map[string]int{"tcp": workload.TCPPort, "udp": workload.UDPPort}[test.protocol]
	for name, p := range test.parties {
		for _, to := range p.seenTo {
			names = append(names, name)
			question.Packets = append(question.Packets, packet{p.seenFrom, to, strings.ToUpper(test.protocol), port})
		}
	}
	in := must(json.Marshal(question))(t)
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "policy-oracle"))
	cmd.Stdin = bytes.NewReader(in)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	require(t, err == nil, "policy-oracle: %v: %s", err, said.String())
	var admitted []bool
	if err := json.Unmarshal(out, &admitted); err != nil {
		t.Fatalf("policy-oracle: %v: %s", err, out)
	}
	verdicts := map[string]bool{}
	for i, name := range names {
		before, known := verdicts[name]
		require(t, !known || before == admitted[i], "%s has two verdicts", name)
		verdicts[name] = admitted[i]
	}
	return verdicts
}

// routerRules are kube-router's rules by node. Names of its chains change whenever it looks at
// the policies.
func routerRules(t *testing.T, ctx context.Context, c *cluster) map[string]string {
	t.Helper()
	rules := map[string]string{}
	for _, n := range c.nodes {
		out, err := n.NetCommand(ctx, "iptables", "-S", routerChain).CombinedOutput()
		require(t, err == nil, "rules of kube-router on %s: %v: %s", n.Node.Name, err, out)
		rules[n.Node.Name] = string(out)
	}
	return rules
}

// awaitRules waits until all nodes have other rules.
func awaitRules(t *testing.T, ctx context.Context, c *cluster, before map[string]string) {
	t.Helper()
	eventually(t, ctx, engineTimeout, "rules of kube-router", func() string {
		for node, rules := range routerRules(t, ctx, c) {
			if rules == before[node] {
				return "they are as before on " + node
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
			err := netpol.RemoveChains(context.Background(), n.Node, "KUBE-ROUTER-", "KUBE-POD-FW-", "KUBE-NWPLCY-")
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
	for _, slice := range list[discoveryv1.EndpointSlice](t, ctx, c, discoveryv1.SchemeGroupVersion.WithResource("endpointslices")) {
		if slice.Namespace == "default" && slice.Labels[discoveryv1.LabelServiceName] == "kubernetes" {
			for _, cluster := range config.Clusters {
				cluster.Server = fmt.Sprintf("https://%s:%d", slice.Endpoints[0].Addresses[0], *slice.Ports[0].Port)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	try(t, clientcmd.WriteToFile(*config, path))
	return path
}
