package e2e

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// Where all gateways of a cluster are dead, neither `kubectl wait` nor status believes what they have said last. It is as before
// when they are back.
func TestGatewaysAreDead(t *testing.T) {
	a, b := fx.gamma, fx.delta
	ctx := begin(t)
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2")
	wait := func(timeout string) error {
		_, connected := a.Run(ctx, "", "wait", "--for=condition=Connected", "peering/"+b.Name, "--timeout="+timeout)
		_, ready := a.Run(ctx, "", "wait", "--for=condition=Ready", "peering/"+b.Name, "--timeout="+timeout)
		expect(t, (connected == nil) == (ready == nil), "Connected: %v; Ready: %v", connected, ready)
		return connected
	}
	try(t, wait("20s"))
	gateways := a.agents(t, "gateway")
	require(t, len(gateways) == 2, "%s has gateways %v", a.Name, gateways)
	signal := func(s syscall.Signal) (err error) {
		for _, g := range gateways {
			err = errors.Join(err, syscall.Kill(g.pid, s))
		}
		return err
	}
	defer func() { _ = signal(syscall.SIGCONT) }()
	try(t, signal(syscall.SIGSTOP))
	stopped := time.Now()
	eventually(t, ctx, 20*time.Second, "status of dead gateways", func() string {
		r := liqonet(t, ctx, "", "status", a.Name)
		return unless(r.code == 7 && strings.Contains(r.stdout, "Unknown"), "%s", r.stdout)
	})
	t.Logf("status says so %.1f s after they were stopped", time.Since(stopped).Seconds())
	eventually(t, ctx, 45*time.Second, "the condition Connected", func() string {
		reason, err := a.Run(ctx, "", "get", "peering", b.Name, "-o", `jsonpath={.status.conditions[?(@.type=="Connected")].reason}`)
		return unless(err == nil && reason == v1alpha1.ReasonGatewaysSilent, "%s", reason)
	})
	t.Logf("the condition says so %.1f s after they were stopped", time.Since(stopped).Seconds())
	err := wait("1s")
	expect(t, err != nil, "kubectl wait takes dead gateways for connected")
	try(t, signal(syscall.SIGCONT))
	report(t, wait("20s"))
	checkMended(t, ctx, a, b)
	unpeered(t, ctx, a, b)
}
