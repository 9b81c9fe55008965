package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/test/workload"
)

// denyTimeout is within what a refusal has to arrive: the kernel sends few ICMP
// errors per second to one address.
const denyTimeout = 15 * time.Second

const policyManifest = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: %s, namespace: default}
spec:
  podSelector: {matchLabels: {app: tester}}
  %s
`

// party is somebody who calls, and the addresses of those who are called.
type party struct {
	from *vantage
	to   []netip.Addr
}

// policyTest is a policy, who calls under it, and who is admitted.
type policyTest struct {
	name, spec string
	parties    map[string]party
	protocol   string
	// admitted begin the names of those who are.
	admitted []string
}

// A NetworkPolicy sees a pod of the peer by the address that this cluster knows
// it by, on the pod's node, in both directions: an ipBlock of the mapped range
// matches, that of the peer's own range does not, selectors never do. Nodes of
// the peer come from the external range. What is refused is refused to the
// caller in the other cluster, at once.
//
// The lab's network plugin enforces no policies, kube-router does.
func TestNetworkPolicy(t *testing.T) {
	ctx := begin(t)
	dir := policyPrograms(t, ctx)
	a := fx.alpha
	knowRouter(t, ctx, dir, a)
	tests, inbound := policyTests(t, ctx)
	t.Cleanup(func() { removePolicies(t, a) })
	stop := runKubeRouter(t, ctx, a, dir)
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			name := fmt.Sprintf("e2e-%d", i)
			apply(t, ctx, a, fmt.Sprintf(policyManifest, name, test.spec))
			must(a.Run(ctx, "", "delete", "networkpolicies", "--field-selector=metadata.name!="+name))(t)
			awaitPolicies(t, ctx, a, name)
			checkVerdicts(t, test.parties, test.protocol, test.admitted)
		})
	}
	removePolicies(t, a)
	awaitPolicies(t, ctx, a)
	checkVerdicts(t, inbound, "tcp", []string{"mapped", "unmapped", "local"})
	stop()
	together(t, ctx, []string{"unpeer", fx.alpha.Name, fx.beta.Name}, []string{"unpeer", fx.alpha.Name, fx.gamma.Name})
	checkNothingLeft(t, ctx)
}

// removePolicies deletes those of the test.
func removePolicies(t *testing.T, c *cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), restoreTimeout)
	defer cancel()
	report(t, errOf(c.Run(ctx, "", "delete", "networkpolicies", "--all")))
}

// policyTests peers alpha with beta and gamma. It returns policies of alpha, and those who
// call its pods.
func policyTests(t *testing.T, ctx context.Context) (tests []policyTest, inbound map[string]party) {
	t.Helper()
	// alpha and beta have the same ranges, gamma another: seen as what it is.
	a, b, c := fx.alpha, fx.beta, fx.gamma
	mustLiqonet(t, ctx, "peer", a.Name, c.Name) // first: otherwise beta's pods may get gamma's range in alpha
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	views := status(t, ctx, 0, a, b, c)
	ab, ba, ca := viewOf(t, views, a, b), viewOf(t, views, b, a), viewOf(t, views, c, a)
	require(t, ba.LocalPods[0].Real != ba.LocalPods[0].Mapped && ca.LocalPods[0].Real == ca.LocalPods[0].Mapped,
		"%s is seen as %v and %s as %v: want one that is mapped and one that is not", b.Name, ba.LocalPods, c.Name, ca.LocalPods)
	mapped, own, unmapped := ba.LocalPods[0].Mapped, ba.LocalPods[0].Real, ca.LocalPods[0].Real
	one := ba.seenAs(t, b.pods[0].IP)
	external := netip.PrefixFrom(ba.Nodes[0].SeenAs, 18).Masked()
	for _, n := range append(ba.Nodes, ca.Nodes...) {
		got := external.Contains(n.SeenAs)
		require(t, got == strings.HasPrefix(n.Name, b.Name), "node %s is seen as %s, in %s: %v", n.Name, n.SeenAs, external, got)
	}

	// Who calls the pods of alpha.
	near := []netip.Addr{a.pods[0].IP}
	inbound = map[string]party{"local pod": {a.pods[1].vantage, near}}
	var hereForB, hereForC []netip.Addr
	for _, p := range a.pods {
		hereForB = append(hereForB, ab.seenAs(t, p.IP))
		hereForC = append(hereForC, viewOf(t, views, a, c).seenAs(t, p.IP))
	}
	for i := range 2 {
		inbound[fmt.Sprintf("mapped pod %d", i)] = party{b.pods[i].vantage, hereForB}
		inbound[fmt.Sprintf("mapped node %d", i)] = party{b.nodes[i].vantage, hereForB}
		inbound[fmt.Sprintf("unmapped pod %d", i)] = party{c.pods[i].vantage, hereForC}
	}
	remote := lo.OmitBy(inbound, func(name string, _ party) bool { return strings.HasPrefix(name, "local") })
	// Whom both pods of alpha call.
	calls := func(from int, to netip.Addr) party { return party{a.pods[from].vantage, []netip.Addr{to}} }
	outbound := map[string]party{"local pod": calls(0, a.pods[1].IP)}
	for i := range 2 {
		outbound[fmt.Sprintf("mapped pod %d", i)] = calls(i, ba.seenAs(t, b.pods[i].IP))
		outbound[fmt.Sprintf("unmapped pod %d", i)] = calls(i, ca.seenAs(t, c.pods[i].IP))
	}

	from := func(peers string) string { return "policyTypes: [Ingress]\n  ingress: [{from: [" + peers + "]}]" }
	to := func(peers string) string { return "policyTypes: [Egress]\n  egress: [{to: [" + peers + "]}]" }
	block := func(p netip.Prefix, except ...string) string {
		return fmt.Sprintf("{ipBlock: {cidr: %s, except: [%s]}}", p, strings.Join(except, ", "))
	}
	const private = "10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16"
	everything := netip.MustParsePrefix("0.0.0.0/0")
	first := netip.PrefixFrom(one, 32).String()
	return []policyTest{
		{"nobody", "policyTypes: [Ingress]", inbound, "tcp", nil},
		{"the mapped range", from(block(mapped)), inbound, "tcp", []string{"mapped pod"}},
		{"the mapped range, UDP", from(block(mapped)), inbound, "udp", []string{"mapped pod"}},
		{"the mapped range but one", from(block(mapped, first)), inbound, "tcp", []string{"mapped pod 1"}},
		{"the peer's own range, which is this cluster's own, too", from(block(own)), inbound, "tcp", []string{"local pod"}},
		{"a range that is not mapped", from(block(unmapped)), inbound, "tcp", []string{"unmapped pod"}},
		{"pods by labels that all have", from("{podSelector: {matchLabels: {app: tester}}, namespaceSelector: {}}"), inbound, "tcp", []string{"local pod"}},
		{"the nodes", from(block(external)), inbound, "tcp", []string{"mapped node"}},
		{"everything", from(block(everything)), inbound, "tcp", []string{"mapped", "unmapped", "local"}},
		{"the internet", from(block(everything, private)), inbound, "tcp", nil},
		{"another port", fmt.Sprintf("policyTypes: [Ingress]\n  ingress: [{from: [%s], ports: [{port: %d}]}]", block(mapped), workload.TCPPort+1), inbound, "tcp", nil},
		{"this port", fmt.Sprintf("policyTypes: [Ingress]\n  ingress: [{from: [%s], ports: [{port: %d}]}]", block(mapped), workload.TCPPort), inbound, "tcp", []string{"mapped pod"}},

		{"to nobody", "policyTypes: [Egress]", outbound, "tcp", nil},
		{"to the mapped range", to(block(mapped)), outbound, "tcp", []string{"mapped"}},
		{"to the mapped range, UDP", to(block(mapped)), outbound, "udp", []string{"mapped"}},
		{"to the mapped range but one", to(block(mapped, first)), outbound, "tcp", []string{"mapped pod 1"}},
		{"to the peer's own range, which is this cluster's own, too", to(block(own)), outbound, "tcp", []string{"local"}},
		{"to a range that is not mapped", to(block(unmapped)), outbound, "tcp", []string{"unmapped"}},
		{"to pods by labels that all have", to("{podSelector: {matchLabels: {app: tester}}, namespaceSelector: {}}"), outbound, "tcp", []string{"local"}},
		// Answers to those who may call are no matter of egress.
		{"to nobody, called by all", "policyTypes: [Egress]", remote, "tcp", []string{"mapped", "unmapped"}},
	}, inbound
}

// checkVerdicts has all parties call, and wants those to be answered whose name
// begins with one that is admitted, and all others to be refused.
func checkVerdicts(t *testing.T, parties map[string]party, protocol string, admitted []string) {
	t.Helper()
	for name, p := range parties {
		allowed := false
		for _, prefix := range admitted {
			allowed = allowed || strings.HasPrefix(name, prefix)
		}
		for _, to := range p.to {
			if allowed {
				_, err := p.from.call(protocol, to, callTimeout)
				expect(t, err == nil, "%s: %v", name, err)
				continue
			}
			eventually(t, t.Context(), denyTimeout, fmt.Sprintf("%s: %s to %s is refused", name, p.from, to), func() string {
				switch _, err := p.from.call(protocol, to, shortTimeout); {
				case err == nil:
					t.Errorf("%s: %s reaches %s", name, p.from, to)
					return ""
				case errors.Is(err, syscall.ECONNREFUSED):
					return ""
				default:
					return err.Error()
				}
			})
		}
	}
}
