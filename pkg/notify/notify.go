// Package notify turns the kernel's netlink notifications into signals that something has changed and has to be read
// again.
package notify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// resubscribeDelay is the pause before another attempt to renew a subscription.
	resubscribeDelay = time.Second
	// cooldownFactor limits how often everything is read again: after a read, the pause is this many times as long as
	// the read took. While thousands of links are created, a socket fills up faster than a read finishes.
	cooldownFactor = 10
)

// Signal means that something has changed, but not how often: signals that are not received are merged into one.
type Signal chan struct{}

// NewSignal returns a new Signal.
func NewSignal() Signal { return make(Signal, 1) }

// Send sends the signal, and never blocks.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Subscription is a subscription to multicast groups of one netlink protocol, in the network namespace of the thread
// that created it.
type Subscription struct {
	protocol int
	groups   []uint32
	conn     *netlink.Conn
}

// Subscribe joins groups of a protocol, for instance NETLINK_ROUTE. Notifications from now on are kept until Run reads
// them.
func Subscribe(protocol int, groups ...uint32) (*Subscription, error) {
	s := &Subscription{protocol: protocol, groups: groups}
	return s, s.dial()
}

func (s *Subscription) dial() error {
	conn, err := netlink.Dial(s.protocol, nil)
	if err != nil {
		return fmt.Errorf("open a netlink socket (protocol %d): %w", s.protocol, err)
	}
	for _, group := range s.groups {
		if err := conn.JoinGroup(group); err != nil {
			return errors.Join(fmt.Errorf("join netlink group %d (protocol %d): %w", group, s.protocol, err), conn.Close())
		}
	}
	s.conn = conn
	return nil
}

// Close ends a subscription that is not running.
func (s *Subscription) Close() error { return s.conn.Close() }

// Run calls onMessage for each notification until ctx ends, and then closes the subscription. It renews the
// subscription if notifications were lost, because the socket was full, or if it broke. Then it calls onLoss, which has
// to read everything again. If that takes long, the next call is delayed.
func (s *Subscription) Run(ctx context.Context, onMessage func(netlink.Message), onLoss func()) {
	var next time.Time // earliest time of the next call of onLoss for a full socket
	for {
		err, pause := s.receive(ctx, onMessage), resubscribeDelay
		if errors.Is(err, unix.ENOBUFS) {
			pause = time.Until(next)
		}
		// Until it is empty, a full socket continues to lose notifications without reporting it again. A new socket is
		// empty.
		for err != nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
				err, pause = s.dial(), resubscribeDelay
			}
		}
		start := time.Now()
		onLoss()
		next = time.Now().Add(cooldownFactor * time.Since(start))
	}
}

// receive reads notifications until the connection breaks, and closes it.
func (s *Subscription) receive(ctx context.Context, onMessage func(netlink.Message)) error {
	conn := s.conn
	closed := func() { _ = conn.Close() }
	defer closed()
	defer context.AfterFunc(ctx, closed)()
	for {
		msgs, err := conn.Receive()
		if err != nil {
			return err
		}
		for _, m := range msgs {
			onMessage(m)
		}
	}
}
