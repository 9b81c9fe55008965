package notify

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	netlinks "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// patience is how long a signal may take on a busy machine.
const patience = 10 * time.Second

func TestSignal(t *testing.T) {
	s := NewSignal()
	for range 3 {
		s.Send()
	}
	kit.ErrorIf(t, len(s) != 1, "three changes are %d signals", len(s))
	<-s
	s.Send()
	kit.ErrorIf(t, len(s) != 1, "a later change sends no signal")
}

func await(t *testing.T, what string, signal <-chan struct{}) {
	t.Helper()
	select {
	case <-signal:
	case <-time.After(patience):
		t.Fatalf("not within %s: %s", patience, what)
	}
}

// subscribe returns a subscription to the addresses of a namespace.
func subscribe(t *testing.T, ns *netns.NS) *Subscription {
	t.Helper()
	var s *Subscription
	ns.Do(t, func() (err error) {
		s, err = Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR)
		return err
	})
	return s
}

// addAddresses adds addresses to lo. Each one causes a notification.
func addAddresses(t *testing.T, ns *netns.NS, network byte, count int) {
	t.Helper()
	ns.Do(t, func() error {
		lo, err := netlinks.LinkByName("lo")
		if err != nil {
			return err
		}
		for i := range count {
			ip := net.IPv4(127, network, byte(i>>8), byte(i))
			if err := netlinks.AddrAdd(lo, &netlinks.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)}}); err != nil {
				return err
			}
		}
		return nil
	})
}

// Notifications after Subscribe are kept until Run reads them. Run ends with its context, and closes the subscription.
func TestSubscription(t *testing.T) {
	ns := netns.New(t, "node")
	s := subscribe(t, ns)
	addAddresses(t, ns, 1, 1)
	ctx, cancel := context.WithCancel(context.Background())
	received, lost, ended := NewSignal(), NewSignal(), NewSignal()
	go func() {
		s.Run(ctx, func(m netlink.Message) {
			if m.Header.Type == unix.RTM_NEWADDR {
				received.Send()
			}
		}, lost.Send)
		ended.Send()
	}()
	await(t, "what was there before Run", received)
	addAddresses(t, ns, 2, 1)
	await(t, "a later change", received)
	kit.ErrorIf(t, len(lost) > 0, "something was lost")
	cancel()
	await(t, "the end", ended)
	if _, err := s.conn.Receive(); err == nil {
		t.Error("the subscription is open")
	}
}

// If there are more notifications than the socket can hold, lost is called, and the subscription continues. The new
// socket is in the namespace of Run's thread.
func TestLost(t *testing.T) {
	ns := netns.New(t, "node")
	s := subscribe(t, ns)
	addAddresses(t, ns, 1, 3000)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lost, last := NewSignal(), NewSignal()
	go ns.Do(t, func() error {
		s.Run(ctx, func(m netlink.Message) {
			if attrs, err := netlink.UnmarshalAttributes(m.Data[unix.SizeofIfAddrmsg:]); err == nil && len(attrs) > 0 && attrs[0].Data[1] == 2 {
				last.Send()
			}
		}, lost.Send)
		return nil
	})
	await(t, "the loss", lost)
	addAddresses(t, ns, 2, 1)
	await(t, "a change after the loss", last)
}

// If notifications are lost repeatedly, and reading everything takes long, most of the time stays free for other work.
func TestLostAgain(t *testing.T) {
	const work = 10 * time.Millisecond // for each notification, too, so that the socket becomes full
	ns := netns.New(t, "node")
	s := subscribe(t, ns)
	ctx, cancel := context.WithCancel(context.Background())
	calls := make(chan time.Time)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() {
		ns.Do(t, func() error {
			s.Run(ctx, func(netlink.Message) { time.Sleep(work) }, func() {
				select {
				case calls <- time.Now():
				case <-ctx.Done():
				}
				time.Sleep(work)
			})
			return nil
		})
	})
	all.Go(func() {
		for ctx.Err() == nil {
			addAddresses(t, ns, 1, 100)
			ns.Do(t, removeAddresses)
		}
	})
	last := <-calls
	for range 3 {
		at := <-calls
		kit.ErrorIf(t, at.Sub(last) < cooldownFactor*work, "%s after the last one", at.Sub(last))
		last = at
	}
}

func removeAddresses() error {
	lo, err := netlinks.LinkByName("lo")
	if err != nil {
		return err
	}
	addrs, err := netlinks.AddrList(lo, netlinks.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if err := netlinks.AddrDel(lo, &a); err != nil {
			return err
		}
	}
	return nil
}

// A subscription that breaks is renewed, and notifications in the meantime count as lost. The new socket is in the
// process's own namespace, as an agent's is.
func TestBroken(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the pause before a renewal")
	}
	s := kit.Must(Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR))(t)
	kit.NoError(t, s.Close())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lost := NewSignal()
	go s.Run(ctx, func(netlink.Message) {}, lost.Send)
	await(t, "the renewal", lost)
}

func TestSubscribeError(t *testing.T) {
	if _, err := Subscribe(unix.NETLINK_ROUTE, 1<<20); err == nil {
		t.Error("a missing group was joined")
	}
	if _, err := Subscribe(1<<10, 1); err == nil {
		t.Error("a missing protocol was opened")
	}
}
