package nat

import (
	"context"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nft"
	"github.com/liqonet/liqonet/pkg/notify"
)

// Monitor subscribes to the kernel's notifications of the calling thread's network
// namespace, and signals after each change of our tables, whoever made it. Several
// changes become one signal while nobody receives. After a loss of notifications there
// is a signal as well. The channel is never closed; the subscription ends with ctx.
func Monitor(ctx context.Context) (<-chan struct{}, error) {
	s, err := notify.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return nil, fmt.Errorf("subscribe to nftables: %w", err)
	}
	signal := notify.NewSignal()
	go s.Run(ctx, func(m netlink.Message) {
		if _, table := nft.Notification(m); table == TableName {
			signal.Send()
		}
	}, signal.Send)
	return signal, nil
}
