// Package notify turns the kernel's notifications, which come by netlink, into
// signals: something has changed, look at it.
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
	// resubscribeDelay is the pause before a subscription that cannot be renewed is tried again.
	resubscribeDelay = time.Second
	// restFactor is how many times as long as looking at everything took nobody looks at it again. While thousands of
	// links are made, a socket is full sooner than somebody has looked.
	restFactor = 10
)

// Signal carries that something has changed, not how often: several changes are
// one signal while nobody receives.
type Signal chan struct{}

// NewSignal makes one.
func NewSignal() Signal { return make(Signal, 1) }

// Send never blocks.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Subscription is to multicast groups of one netlink protocol, in the network
// namespace of the thread that has made it.
type Subscription struct {
	protocol int
	groups   []uint32
	conn     *netlink.Conn
}

// Subscribe joins groups of a protocol, for instance NETLINK_ROUTE. What happens
// from here on is kept until Run reads it.
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

// Run passes on each notification until ctx ends; then the subscription is
// closed. Where some were lost, since more happened than the socket could hold
// or since it broke, the subscription is renewed. Then it says so: lost is to look at everything.
// If that takes long, it is not called again soon.
func (s *Subscription) Run(ctx context.Context, received func(netlink.Message), lost func()) {
	var next time.Time // not before it is everything looked at again
	for {
		err, pause := s.receive(ctx, received), resubscribeDelay
		if errors.Is(err, unix.ENOBUFS) {
			pause = time.Until(next)
		}
		// Until it is empty, a socket that was full goes on to lose notifications, and
		// does not say so again. A new one is empty.
		for err != nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
				err, pause = s.dial(), resubscribeDelay
			}
		}
		start := time.Now()
		lost()
		next = time.Now().Add(restFactor * time.Since(start))
	}
}

// receive reads until the connection breaks, and closes it.
func (s *Subscription) receive(ctx context.Context, received func(netlink.Message)) error {
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
			received(m)
		}
	}
}
