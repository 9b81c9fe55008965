// Package notify turns the kernel's notifications, which come by netlink, into
// signals: something has changed, look at it.
package notify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// resubscribeDelay is the pause before a broken subscription is renewed.
const resubscribeDelay = time.Second

// drainPause is how long a socket that was full has nothing to read when it is empty.
const drainPause = 10 * time.Millisecond

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
	if err := s.dial(); err != nil {
		return nil, err
	}
	return s, nil
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
// or since it broke and had to be renewed, it says so.
func (s *Subscription) Run(ctx context.Context, received func(netlink.Message), lost func()) {
	for {
		s.receive(ctx, received, lost)
		for broken := true; broken; broken = s.dial() != nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(resubscribeDelay):
			}
		}
		lost()
	}
}

// receive reads until the connection breaks, and closes it.
func (s *Subscription) receive(ctx context.Context, received func(netlink.Message), lost func()) {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer func() {
		if stop() {
			_ = s.conn.Close()
		}
	}()
	for full := false; ; {
		if full {
			_ = s.conn.SetReadDeadline(time.Now().Add(drainPause))
		}
		msgs, err := s.conn.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			full = true
			lost()
			continue
		case full && errors.Is(err, os.ErrDeadlineExceeded):
			// Until the socket was empty the kernel went on to drop notifications, and did
			// not say so again.
			full = false
			_ = s.conn.SetReadDeadline(time.Time{})
			lost()
			continue
		case err != nil:
			return
		}
		for _, m := range msgs {
			received(m)
		}
	}
}
