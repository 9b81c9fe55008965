package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// servedTimeout is how soon a node that is Ready is served, so how soon an agent
// has to see what is new, and servedLooks the same on a slow machine: how often kubectl
// could have asked the API server, one time after the other.
const (
	servedTimeout = 5 * time.Second
	servedLooks   = 25
)

// While the API server is silent, or refuses, the agents look after their kernels as
// ever. When it is back they see at once what has changed, not when they happen to
// ask again.
func outage(t *testing.T, ctx context.Context, a, b *cluster) {
	target := a.nodes[0]
	gateway := a.gateway(t)
	patients := []*patient{
		{gateway, a.agents(t, "gateway")[0], "remote"},
		{target.vantage, a.nodeAgent(t, target.Node.Name), "pods"},
	}

	cp := must(fx.lab.Node(a.Name + "-cp"))(t)
	api := must(nodeVantage(cp))(t)
	defer func() { _, _ = api.shell(context.WithoutCancel(ctx), "nft delete table ip outage") }()
	outage := func(verdict string) {
		t.Helper()
		if out, err := api.shell(ctx, `nft 'add table ip outage; delete table ip outage; add table ip outage
			add chain ip outage input { type filter hook input priority -5; }
			add rule ip outage input iifname != "lo" tcp dport 6443 `+verdict+`'`); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	repaired := func() {
		t.Helper()
		for _, p := range patients {
			p.repaired(t, ctx, slices.Repeat([]string{"ip link del LINK"}, 5))
		}
	}
	// Something to report.
	must(target.shell(ctx, "ip link add outage0 type bridge; ip addr add 198.51.100.1/24 dev outage0; ip link set outage0 up"))(t)
	removeLink := func() { _, _ = target.shell(context.WithoutCancel(ctx), "ip link del outage0") }
	defer removeLink()
	outage("drop")
	// So long that all have begun to report.
	time.Sleep(v1alpha1.ReportInterval + time.Second)
	repaired()
	// So long that a client that tries again later and later comes to pauses of
	// more than servedTimeout.
	outage("reject with tcp reset")
	refused := time.Now()
	repaired()
	time.Sleep(time.Until(refused.Add(25 * time.Second)))
	must(api.shell(ctx, "nft delete table ip outage"))(t)

	endpoints := jsonPath(t, ctx, a, "{.spec.planes[0].endpoints}", "get", "peering", b.Name)
	// The last of the endpoints is one that nobody comes to.
	if _, err := a.Run(ctx, "", "patch", "peering", b.Name, "--type=json", "-p",
		`[{"op":"add","path":"/spec/planes/0/endpoints/-","value":"192.0.2.9:9"}]`); err != nil {
		t.Fatal(err)
	}
	begun, looks := time.Now(), 0
	eventually(t, ctx, podTimeout, "the gateway has seen the change", func() string {
		looks++
		out, err := a.Run(ctx, "", "get", "peering", b.Name, "-o", "jsonpath={.metadata.generation} {.status.planes[0].observedGeneration}")
		wants, has, _ := strings.Cut(out, " ")
		return unless(err == nil && wants == has, "%q, %v", out, err)
	})
	took := time.Since(begun)
	if _, err := a.Run(ctx, "", "patch", "peering", b.Name, "--type=json", "-p",
		`[{"op":"replace","path":"/spec/planes/0/endpoints","value":`+endpoints+`}]`); err != nil {
		t.Fatal(err)
	}
	t.Logf("the gateway has seen the change after %s", took.Round(10*time.Millisecond))
	expect(t, took <= servedTimeout || looks <= servedLooks,
		"the gateway has seen the change after %s and %d looks at it, want %s", took, looks, servedTimeout)
	removeLink()
	// On a busy machine it may have taken them for lost.
	a.kubectl(t, ctx, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=30s")
	checkMended(t, ctx, a, b)
}
