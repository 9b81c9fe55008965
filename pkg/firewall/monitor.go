package firewall

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nft"
	"github.com/liqonet/liqonet/pkg/notify"
)

// settleTime is how long nobody may have changed chains or rules before a signal.
// Firewalld runs a program for each of its steps, all of them within 0.6 s. settleLongest
// bounds the wait, and so the number of signals. Kube-proxy never rests where services
// come and go.
const settleTime, settleLongest = 300 * time.Millisecond, time.Second

// Monitor signals when accept rules may be missing, or not be needed any more. That is
// when others have changed nftables chains or rules in the calling thread's network
// namespace, and have finished. There is about one signal in a second at most, and while
// nobody receives, several become one. After a loss of notifications there is a signal as
// well. The channel is never closed; the subscription ends with ctx. Changes of
// iptables-legacy are not signalled, because the kernel notifies nobody.
func Monitor(ctx context.Context) (<-chan struct{}, error) {
	// Tables, chains and rules have the lowest numbers. Elements of sets change most
	// often, and no chain drops by them.
	changed, err := nft.Subscribe(ctx, func(typ int, table string) bool {
		return table != nft.TableName && typ <= unix.NFT_MSG_DELRULE
	})
	if err != nil {
		return nil, err
	}
	settled := notify.NewSignal()
	go settle(ctx, changed, settled)
	return settled, nil
}

// settle signals when, after a change, nobody has changed anything for a while. A
// firewall is loaded in many transactions. A change of ours between them would be lost
// with the next one. It may also make the loading fail: ebtables-restore 1.8.9
// (nf_tables), one step of firewalld's reload, fails if anything else in nftables
// changes between its look and its transaction.
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
