package nat

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/notify"
)

const (
	// settleTime is how long nobody may have changed nftables before passes are
	// looked after, settleLongest how long that is waited for: where services come
	// and go all the time kube-proxy never rests. Firewalld runs a program for each of
	// its steps, all of them within 0.6 s.
	settleTime, settleLongest = 300 * time.Millisecond, time.Second
	// genmsgLength is the length of nfgenmsg, before the attributes.
	genmsgLength = 4
	// tableAttribute holds the table's name in the messages about tables,
	// chains, rules, sets and elements alike.
	tableAttribute = unix.NFTA_TABLE_NAME
)

// Monitor subscribes to the kernel's notifications of the calling thread's
// network namespace, and signals after changes of our table, by whomever, at
// once, and of chains in which EnsurePasses may have put rules, and those that it has
// followed, if that is not nil, when others have done what they are doing.
// Several changes become one signal while nobody receives; after a loss of
// notifications there is a signal as well. The channel is never closed; the
// subscription ends with ctx.
func Monitor(ctx context.Context, followed *Followed) (<-chan struct{}, error) {
	s, err := notify.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return nil, fmt.Errorf("subscribe to nftables: %w", err)
	}
	w := &watcher{passing: map[chainKey]bool{}, followed: followed}
	// Later ones are notified.
	if err := w.list(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	signal, passes, anything := notify.NewSignal(), notify.NewSignal(), notify.NewSignal()
	go settle(ctx, passes, anything, signal)
	go s.Run(ctx, func(m netlink.Message) {
		anything.Send()
		switch w.concern(m) {
		case ofTable:
			signal.Send()
		case ofPasses:
			passes.Send()
		}
	}, signal.Send)
	return signal, nil
}

// watcher decides what notifications are about.
type watcher struct {
	// passing are the chains at the hooks of EnsurePasses.
	passing  map[chainKey]bool
	followed *Followed
}

// concern is what a notification is about.
type concern int

const (
	ofOthers concern = iota
	ofTable
	ofPasses
)

type chainKey struct {
	family       byte
	table, chain string
}

// Followed are the chains of others that EnsurePasses has looked at because every
// packet gets there from a chain with a hook. The zero value is for use.
type Followed struct {
	mu     sync.Mutex
	chains map[chainKey]bool
}

// add comes before the look, so that no later change is missed.
func (f *Followed) add(key chainKey) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.chains == nil {
		f.chains = map[chainKey]bool{}
	}
	f.chains[key] = true
}

// set forgets all others.
func (f *Followed) set(chains map[chainKey]bool) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.chains = chains
}

func (f *Followed) has(key chainKey) bool {
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.chains[key]
}

// list finds the chains that there are.
func (w *watcher) list() (err error) {
	c, err := dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.CloseLasting()) }()
	chains, err := listChains(c, nftables.TableFamilyUnspecified)
	if err != nil {
		return err
	}
	for _, ch := range chains {
		if _, ok := hookOf(ch); ok {
			w.passing[chainKey{byte(ch.Table.Family), ch.Table.Name, ch.Name}] = true
		}
	}
	return nil
}

// settle sends when, after a change, nobody has changed anything for a while.
// Who loads a firewall's rules does so in many transactions. A change of ours in
// between would be lost with the next one, and is one that not every program can
// cope with: ebtables-restore 1.8.9 (nf_tables), one step of firewalld's reload,
// fails if anything else in nftables changes between its look and its
// transaction.
func settle(ctx context.Context, changed, anything <-chan struct{}, settled notify.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-anything:
			continue
		case <-changed:
		}
		longest := time.After(settleLongest)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-anything:
				continue
			case <-longest:
			case <-time.After(settleTime):
			}
			waiting = false
		}
		settled.Send()
	}
}

// concern says what a notification is about, and remembers new chains.
func (w *watcher) concern(m netlink.Message) concern {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || m.Header.Type&0xff == unix.NFT_MSG_NEWGEN ||
		len(m.Data) < genmsgLength {
		return ofOthers
	}
	d, err := netlink.NewAttributeDecoder(m.Data[genmsgLength:])
	if err != nil {
		return ofOthers
	}
	d.ByteOrder = binary.BigEndian
	// The table comes first, so changes of others cost little.
	if !d.Next() || d.Type() != tableAttribute {
		return ofOthers
	}
	key := chainKey{family: m.Data[0], table: d.String()}
	if key.table == TableName {
		return ofTable
	}
	switch m.Header.Type & 0xff {
	case unix.NFT_MSG_DELRULE, unix.NFT_MSG_NEWRULE:
		for d.Next() {
			if d.Type() == unix.NFTA_RULE_CHAIN {
				key.chain = d.String()
				break
			}
		}
		if w.followed.has(key) && mayDecide(d) {
			return ofPasses
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
	}
	if w.passing[key] {
		return ofPasses
	}
	return ofOthers
}

// mayDecide says whether a rule, of which the chain was read, may be about every
// packet, by its expressions. kube-proxy writes those of a chain that FORWARD jumps
// to anew with each service that comes or goes, and all of them have conditions.
func mayDecide(rule *netlink.AttributeDecoder) bool {
	may := true
	expression := func(e *netlink.AttributeDecoder) error {
		var name string
		for e.Next() {
			switch e.Type() {
			case unix.NFTA_EXPR_NAME:
				name = e.String()
				// `meta nfproto ipv4` is no condition.
				may = may && slices.Contains([]string{"counter", "log", "match", "meta", "cmp", "immediate", "reject", "target"}, name)
			case unix.NFTA_EXPR_DATA:
				if name != "match" {
					continue
				}
				e.Nested(func(match *netlink.AttributeDecoder) error {
					for match.Next() {
						may = may && (match.Type() != unix.NFTA_MATCH_NAME || match.String() == "comment")
					}
					return nil
				})
			}
		}
		return nil
	}
	for rule.Next() {
		if rule.Type() != unix.NFTA_RULE_EXPRESSIONS {
			continue
		}
		rule.Nested(func(list *netlink.AttributeDecoder) error {
			for list.Next() {
				list.Nested(expression)
			}
			return nil
		})
	}
	return may
}
