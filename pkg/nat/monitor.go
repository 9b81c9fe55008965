package nat

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// resubscribeDelay is the pause before a broken subscription is renewed.
	resubscribeDelay = time.Second
	// genmsgLength is the length of nfgenmsg, before the attributes.
	genmsgLength = 4
	// tableAttribute holds the table's name in the messages about tables,
	// chains, rules, sets and elements alike.
	tableAttribute = unix.NFTA_TABLE_NAME
)

// Monitor subscribes to the kernel's notifications of the calling thread's
// network namespace, and signals after changes of our table, by whomever, and
// of chains in which EnsurePasses may have put rules.
// Several changes become one signal while nobody receives; after a loss of
// notifications there is a signal as well. The channel is never closed; the
// subscription ends with ctx.
func Monitor(ctx context.Context) (<-chan struct{}, error) {
	conn, err := subscribe()
	if err != nil {
		return nil, err
	}
	w := &watcher{signal: make(chan struct{}, 1), passing: map[chainKey]bool{}}
	// Later ones are notified.
	if err := w.list(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	go w.run(ctx, conn)
	return w.signal, nil
}

// watcher decides which notifications matter.
type watcher struct {
	signal chan struct{}
	// passing are the chains at the hooks of EnsurePasses.
	passing map[chainKey]bool
}

type chainKey struct {
	family       byte
	table, chain string
}

// list finds the chains that there are.
func (w *watcher) list() (err error) {
	c, err := dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.CloseLasting()) }()
	chains, err := c.ListChains()
	if err != nil {
		return fmt.Errorf("list nftables chains: %w", err)
	}
	for _, ch := range chains {
		if _, ok := hookOf(ch); ok {
			w.passing[chainKey{byte(ch.Table.Family), ch.Table.Name, ch.Name}] = true
		}
	}
	return nil
}

func subscribe() (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("subscribe to nftables: %w", err)
	}
	if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to nftables: %w", err), conn.Close())
	}
	return conn, nil
}

func (w *watcher) run(ctx context.Context, conn *netlink.Conn) {
	for ctx.Err() == nil {
		w.receive(ctx, conn)
		select {
		case <-ctx.Done():
			return
		case <-time.After(resubscribeDelay):
		}
		var err error
		if conn, err = subscribe(); err != nil {
			conn = nil
		}
		notify(w.signal)
	}
	if conn != nil {
		_ = conn.Close()
	}
}

// receive reads until the connection breaks, and closes it.
func (w *watcher) receive(ctx context.Context, conn *netlink.Conn) {
	if conn == nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if stop() {
			_ = conn.Close()
		}
	}()
	for {
		msgs, err := conn.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			notify(w.signal)
			continue
		case err != nil:
			return
		}
		for _, m := range msgs {
			// All of them: each may tell of a chain.
			if w.matters(m) {
				notify(w.signal)
			}
		}
	}
}

func notify(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// matters says whether a notification is about our table or about a chain with
// passes.
func (w *watcher) matters(m netlink.Message) bool {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || m.Header.Type&0xff == unix.NFT_MSG_NEWGEN ||
		len(m.Data) < genmsgLength {
		return false
	}
	d, err := netlink.NewAttributeDecoder(m.Data[genmsgLength:])
	if err != nil {
		return false
	}
	d.ByteOrder = binary.BigEndian
	// The table comes first, so changes of others cost little.
	if !d.Next() || d.Type() != tableAttribute {
		return false
	}
	key := chainKey{family: m.Data[0], table: d.String()}
	if key.table == TableName {
		return true
	}
	switch m.Header.Type & 0xff {
	case unix.NFT_MSG_DELRULE, unix.NFT_MSG_NEWRULE:
		for d.Next() {
			if d.Type() == unix.NFTA_RULE_CHAIN {
				key.chain = d.String()
				return w.passing[key]
			}
		}
	case unix.NFT_MSG_NEWCHAIN:
		for d.Next() {
			switch d.Type() {
			case unix.NFTA_CHAIN_NAME:
				key.chain = d.String()
			case unix.NFTA_CHAIN_HOOK:
				d.Nested(func(a *netlink.AttributeDecoder) error {
					for a.Next() {
						if a.Type() == unix.NFTA_HOOK_HOOKNUM && slices.Contains(passHooks(), hook(a.Uint32())) {
							w.passing[key] = true
						}
					}
					return nil
				})
			}
		}
		return w.passing[key]
	}
	return false
}
