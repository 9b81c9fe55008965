package firewall

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nft"
	"github.com/liqonet/liqonet/pkg/notify"
)

// settleTime is how long chains and rules must not have changed before a signal. Firewalld runs a program for each of
// its steps, all of them within 0.6 s. The wait, and so the number of signals, is bounded by settleLongest: kube-proxy
// never stops making changes where services come and go.
const settleTime, settleLongest = 300 * time.Millisecond, time.Second

// Monitor signals when accept rules may be missing, or no longer needed. That is after others have changed nftables
// chains or rules in the calling thread's network namespace, and have finished. There is at most about one signal per
// second. After a loss of notifications there is also a signal. The subscription ends with ctx. Changes of
// iptables-legacy are not signaled, because the kernel sends no notifications of them.
func Monitor(ctx context.Context, settled notify.Signal) error {
	changed := notify.NewSignal()
	go settle(ctx, changed, settled)
	// Tables, chains and rules have the lowest numbers. Elements of sets change most often, and no chain drops because
	// of them.
	return nft.Subscribe(ctx, changed, func(typ int, table string) bool {
		return table != nft.TableName && typ <= unix.NFT_MSG_DELRULE
	})
}

// settle signals when nothing has changed for a while after a change. A firewall is loaded in many transactions. A
// change of ours between them would be lost with the next one. It may also make the loading fail: ebtables-restore
// 1.8.9 (nf_tables), one step of firewalld's reload, fails if anything else in nftables changes between its read and
// its transaction.
func settle(ctx context.Context, changed <-chan struct{}, settled notify.Signal) {
	var quiet, longest <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if quiet = time.After(settleTime); longest == nil {
				longest = time.After(settleLongest)
			}
			continue
		case <-quiet:
		case <-longest:
		}
		quiet, longest = nil, nil
		settled.Send()
	}
}
