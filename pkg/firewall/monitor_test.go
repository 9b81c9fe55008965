package firewall_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/pkg/firewall"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/test/kit"
)

func TestSettle(t *testing.T) {
	const step = 50 * time.Millisecond
	for _, test := range []struct {
		name string
		// others change something at every step until this time.
		others time.Duration
		want   time.Duration
	}{
		{"nobody else", 0, firewall.SettleTime},
		{"a few others", 6 * step, 6*step + firewall.SettleTime},
		{"others that never rest", time.Minute, firewall.SettleLongest},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				changed, settled := notify.NewSignal(), notify.NewSignal()
				go firewall.Settle(ctx, changed, settled)
				time.Sleep(time.Minute)
				kit.FatalIf(t, len(settled) > 0, "a signal without a change")
				for range 2 {
					for len(settled) > 0 {
						<-settled
					}
					begun := time.Now()
					changed.Send()
					go func() {
						for time.Since(begun) < test.others {
							time.Sleep(step)
							changed.Send()
						}
					}()
					<-settled
					if took := time.Since(begun); took != test.want {
						t.Errorf("settled after %s, want %s", took, test.want)
					}
					time.Sleep(2 * time.Minute)
				}
			})
		})
	}
}
