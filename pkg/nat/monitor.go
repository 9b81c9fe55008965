package nat

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
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
	// forwardChainName is that of iptables; those of others contain it.
	forwardChainName = "FORWARD"
	// proxyChainPrefix starts the names of kube-proxy's chains, which are at no
	// hook and are written anew all the time.
	proxyChainPrefix = "KUBE-"
)

// Monitor subscribes to the kernel's notifications of the calling thread's
// network namespace, and signals after changes of our table, by whomever, and
// of chains at the hook forward, or whose name says so, in which EnsureForward
// may have to put rules, and of the rules that it has put there.
// Several changes become one signal while nobody receives; after a loss of
// notifications there is a signal as well. The channel is never closed; the
// subscription ends with ctx.
func Monitor(ctx context.Context) (<-chan struct{}, error) {
	conn, err := subscribe()
	if err != nil {
		return nil, err
	}
	signal := make(chan struct{}, 1)
	go run(ctx, conn, signal)
	return signal, nil
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

func run(ctx context.Context, conn *netlink.Conn, signal chan<- struct{}) {
	for ctx.Err() == nil {
		receive(ctx, conn, signal)
		select {
		case <-ctx.Done():
			return
		case <-time.After(resubscribeDelay):
		}
		var err error
		if conn, err = subscribe(); err != nil {
			conn = nil
		}
		notify(signal)
	}
	if conn != nil {
		_ = conn.Close()
	}
}

// receive reads until the connection breaks, and closes it.
func receive(ctx context.Context, conn *netlink.Conn, signal chan<- struct{}) {
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
			notify(signal)
			continue
		case err != nil:
			return
		}
		for _, m := range msgs {
			if isOurs(m) {
				notify(signal)
				break
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

func isOurs(m netlink.Message) bool {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || m.Header.Type&0xff == unix.NFT_MSG_NEWGEN ||
		len(m.Data) < genmsgLength {
		return false
	}
	d, err := netlink.NewAttributeDecoder(m.Data[genmsgLength:])
	if err != nil {
		return false
	}
	// The table comes first, so changes of others cost little.
	if !d.Next() || d.Type() != tableAttribute {
		return false
	}
	if d.String() == TableName {
		return true
	}
	switch m.Header.Type & 0xff {
	case unix.NFT_MSG_DELRULE, unix.NFT_MSG_NEWRULE:
		return isForwardRule(d)
	case unix.NFT_MSG_NEWCHAIN:
		return isForwardChain(d)
	}
	return false
}

// isForwardRule says whether a message is about a rule of ours, or of a chain
// that is called like one that forwards: the message does not tell its hook.
func isForwardRule(d *netlink.AttributeDecoder) bool {
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_RULE_CHAIN:
			name := strings.ToUpper(d.String())
			if strings.Contains(name, forwardChainName) && !strings.HasPrefix(name, proxyChainPrefix) {
				return true
			}
		case unix.NFTA_RULE_USERDATA:
			return strings.HasPrefix(label(d.Bytes()), forwardComment)
		}
	}
	return false
}

func isForwardChain(d *netlink.AttributeDecoder) bool {
	forward := false
	for d.Next() {
		if d.Type() == unix.NFTA_CHAIN_HOOK {
			d.Nested(func(hook *netlink.AttributeDecoder) error {
				hook.ByteOrder = binary.BigEndian
				for hook.Next() {
					if hook.Type() == unix.NFTA_HOOK_HOOKNUM {
						forward = hook.Uint32() == unix.NF_INET_FORWARD
					}
				}
				return nil
			})
		}
	}
	return forward
}
