package nft

import (
	"context"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/notify"
)

// TableName is the name of our table in each address family.
const TableName = "liqonet"

// Subscribe passes on what happens to nftables in the calling thread's network namespace,
// until ctx ends: the type of each change, such as unix.NFT_MSG_NEWRULE, and the name of
// the table. After a loss of notifications it calls lost.
func Subscribe(ctx context.Context, changed func(typ int, table string), lost func()) error {
	s, err := notify.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return fmt.Errorf("subscribe to nftables: %w", err)
	}
	go s.Run(ctx, func(m netlink.Message) {
		typ := int(m.Header.Type & 0xff)
		if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || typ == unix.NFT_MSG_NEWGEN || len(m.Data) < HeaderLength {
			return
		}
		// In the messages about tables, chains, rules, sets and elements alike the first
		// attribute is the table's name, so reading it costs little.
		d, err := netlink.NewAttributeDecoder(m.Data[HeaderLength:])
		if err == nil && d.Next() && d.Type() == unix.NFTA_TABLE_NAME {
			changed(typ, d.String())
		}
	}, lost)
	return nil
}
