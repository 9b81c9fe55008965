package nat

import (
	"context"

	"github.com/liqonet/liqonet/pkg/nft"
	"github.com/liqonet/liqonet/pkg/notify"
)

// Monitor subscribes to the kernel's notifications of the calling thread's network
// namespace, and signals after each change of our tables, whoever made it. Several
// changes become one signal while nobody receives. After a loss of notifications there
// is a signal as well. The channel is never closed; the subscription ends with ctx.
func Monitor(ctx context.Context) (<-chan struct{}, error) {
	signal := notify.NewSignal()
	return signal, nft.Subscribe(ctx, func(_ int, table string) {
		if table == TableName {
			signal.Send()
		}
	}, signal.Send)
}
