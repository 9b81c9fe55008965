package feed

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/services/feed"
)

const (
	// The peer's bytes and messages are read at these rates at most. What exceeds them stays in the socket's buffer, and
	// then with the peer.
	bytesPerSecond, bytesAtOnce       = 1 << 20, 4 << 20
	messagesPerSecond, messagesAtOnce = 200, 2000
	// writeTimeout is how long a peer may take to read a message.
	writeTimeout = 30 * time.Second
	// receiveBuffer is the size of the socket's buffer, in bytes.
	receiveBuffer = 128 << 10
)

// session is one connection to the peer's gateway. The Feed's lock protects its fields.
type session struct {
	conn   net.Conn
	wake   notify.Signal
	sender *feed.Sender
	// queue has messages that are sent before those of the sender.
	queue []*feed.Message
}

// run sends and receives until one of these fails.
func (s *session) run(ctx context.Context, f *Feed) error {
	if tcp, is := s.conn.(*net.TCPConn); is {
		_ = tcp.SetReadBuffer(receiveBuffer) // smaller buffers only make it slower
	}
	both, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() { _ = s.conn.Close() })()
	both.Go(func() error { return fmt.Errorf("send services to the peer's gateway: %w", s.send(ctx, f)) })
	both.Go(func() error { return fmt.Errorf("receive services from the peer's gateway: %w", s.receive(ctx, f)) })
	return both.Wait()
}

// next returns the next message to send, or how long to wait for one.
func (s *session) next(f *Feed) (*feed.Message, time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(s.queue) > 0 {
		m := s.queue[0]
		s.queue = s.queue[1:]
		return m, 0
	}
	return s.sender.Next(time.Now())
}

func (s *session) send(ctx context.Context, f *Feed) error {
	for {
		m, wait := s.next(f)
		if m == nil {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-s.wake:
			case <-time.After(wait):
			}
			continue
		}
		_ = s.conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails only for a closed connection, as Write does
		if _, err := s.conn.Write(m.Encode()); err != nil {
			return err
		}
		if m.Type == feed.TypeBye {
			close(f.left)
			<-ctx.Done() // nothing follows
			return ctx.Err()
		}
	}
}

// receive reads messages until that fails. The connection ends when the peer's kernel is silent: see exchange.Connector.
func (s *session) receive(ctx context.Context, f *Feed) error {
	bytes, messages := rate.NewLimiter(bytesPerSecond, bytesAtOnce), rate.NewLimiter(messagesPerSecond, messagesAtOnce)
	for {
		m, size, err := feed.Read(s.conn)
		if err == nil {
			err = cmp.Or(bytes.WaitN(ctx, size), messages.Wait(ctx))
		}
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		if m != nil {
			if err := s.handle(f, m); err != nil {
				return err
			}
		}
	}
}

// handle processes one message.
func (s *session) handle(f *Feed, m *feed.Message) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.session != s {
		return io.ErrClosedPipe // a newer connection is in use
	}
	s.sender.Receive(m)
	if f.receiver != nil {
		changes, answers := f.receiver.Receive(m, time.Now())
		f.store.add(changes)
		s.queue = append(s.queue, answers...)
	}
	s.wake.Send()
	return nil
}
