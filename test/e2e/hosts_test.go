package e2e

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"
)

// A host outside of both clusters, a machine that has nothing of ours, can be
// reached by the peer's pods and nodes once it is exposed, by the address that is
// printed, and no longer when that is taken back.
func exposeHost(t *testing.T, ctx context.Context, a, b *cluster) {
	host := fx.delta.machine(t).addr
	said := mustLiqonet(t, ctx, "expose-host", a.Name, b.Name, host.String()).stdout
	again := mustLiqonet(t, ctx, "expose-host", a.Name, b.Name, host.String()).stdout
	expect(t, again == said, "it was %q, and then %q", said, again)
	mapped := mapped(t, ctx, a, b, host.String())
	require(t, said == mapped.String()+"\n", "expose-host says %q, map says %s", said, mapped)
	callers := []*vantage{b.pods[0].vantage, b.pods[1].vantage, b.nodes[0].vantage}
	reach := func(from *vantage, to netip.Addr, timeout time.Duration) error {
		return from.do(func() error {
			conn, err := net.DialTimeout("tcp", net.JoinHostPort(to.String(), strconv.Itoa(apiPort)), timeout)
			if err != nil {
				return err
			}
			return conn.Close()
		})
	}
	for _, from := range callers {
		err := reach(from, mapped, callTimeout)
		expect(t, err == nil, "%s calls the exposed host: %v", from, err)
		if _, err := from.call("icmp", mapped, callTimeout); err != nil {
			t.Errorf("%s pings the exposed host: %v", from, err)
		}
	}
	// A second peer keeps it, and so does a second way for what its packets are answered with.
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2", "--planes-mode", "spread")
	for _, from := range callers {
		err := reach(from, mapped, callTimeout)
		expect(t, err == nil, "by both planes, %s calls the exposed host: %v", from, err)
	}
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes-mode", "single")
	for range 2 { // the second one says that there was nothing
		mustLiqonet(t, ctx, "expose-host", a.Name, b.Name, host.String(), "--remove")
	}
	for _, from := range callers {
		err := reach(from, mapped, shortTimeout)
		expect(t, err != nil, "%s reaches the host that is not exposed any more", from)
	}
}
