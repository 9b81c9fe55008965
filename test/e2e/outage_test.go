package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// While the API server is silent, or refuses, the agents look after their kernels as
// ever.
func outage(t *testing.T, ctx context.Context, a, b *cluster) {
	target := a.nodes[0]
	gateway := a.gateway(t)
	patients := []*patient{
		{gateway, a.agents(t, "gateway")[0], "remote"},
		{target.vantage, a.nodeAgent(t, target.Node.Name), "pods"},
	}

	api := a.machine(t)
	defer func() { _, _ = api.shell(context.WithoutCancel(ctx), "nft delete table ip outage") }()
	outage := func(verdict string) {
		t.Helper()
		must(api.shell(ctx, `nft 'add table ip outage; delete table ip outage; add table ip outage
			add chain ip outage input { type filter hook input priority -5; }
			add rule ip outage input iifname != "lo" tcp dport 6443 `+verdict+`'`))(t)
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
	outage("reject with tcp reset")
	repaired()
	must(api.shell(ctx, "nft delete table ip outage"))(t)

	removeLink()
	// On a busy machine it may have taken them for lost.
	a.kubectl(t, ctx, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=30s")
	checkMended(t, ctx, a, b)
}
