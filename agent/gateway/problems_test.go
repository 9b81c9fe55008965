package gateway

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/pkg/exchange"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/test/kit"
)

// A gateway whose probes are answered reports that nothing arrives by TCP, and rules of others, as long as that is so.
func TestProblemsAlthoughConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		channel := exchange.New(netip.MustParseAddr("10.80.31.254"), netip.MustParseAddr("10.9.31.254"), true, notify.NewSignal())
		var m measurements
		says := func(want string) {
			t.Helper()
			got := strings.Join(m.problems(channel), "; ")
			kit.ErrorIf(t, want == "" && got != "" || !strings.Contains(got, want), "says %q, want %q", got, want)
		}
		time.Sleep(2 * tcpSilence)
		says("") // the tunnel does not work either
		m.connectedSince = time.Now()
		says("")
		time.Sleep(tcpSilence / 2)
		says("") // the channel may need some time
		time.Sleep(tcpSilence)
		says("TCP does not pass between the gateways, although UDP does")
		m.foreign = "nftables chain nat PREROUTING"
		says("others have rules in this gateway's network namespace, which may redirect or drop packets of the peering: nftables chain nat PREROUTING;")
		m = measurements{}
		says("")
		for _, step := range []struct {
			all  uint64
			want string
		}{{7, ""}, {9, ""}, {12, "packets arrive at this gateway with wrong checksums"}, {12, ""}} {
			m.checksums.update(func() uint64 { return step.all }, time.Now())
			says(step.want)
			time.Sleep(checksumWindow / 2)
			m.checksums.update(func() uint64 { panic("too early") }, time.Now())
			says(step.want)
			time.Sleep(checksumWindow / 2)
		}
	})
}
