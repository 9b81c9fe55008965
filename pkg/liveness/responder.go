package liveness

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/liqonet/liqonet/pkg/udp"
)

const (
	// maxAskers bounds whom a responder tells of changes: more than there are nodes.
	maxAskers = 8192
	// askerLife is how long after a question a change is told to who asked.
	askerLife = 15 * time.Second
)

// Responder answers questions. Its methods may be called at once from several goroutines.
type Responder struct {
	// State says what is answered to an address. Asked is told who asks, and what that says of the way.
	State func(to netip.Addr) Answer
	Asked func(by netip.Addr, q Question)

	mu     sync.Mutex
	conn   net.PacketConn
	askers map[netip.AddrPort]asker
}

// asker is who has asked, and the last question.
type asker struct {
	at       time.Time
	nonce    [8]byte
	sequence uint32
}

// Serve answers on conn until ctx ends or conn does not work any more, and closes it. The end of ctx
// is no error. No answer is longer than its question.
func (r *Responder) Serve(ctx context.Context, conn net.PacketConn) error {
	r.mu.Lock()
	r.conn, r.askers = conn, map[netip.AddrPort]asker{}
	r.mu.Unlock()
	err := udp.Serve(ctx, conn, maxLength, func(b []byte, from net.Addr) {
		f, ok := decode(b)
		if addr, isUDP := from.(*net.UDPAddr); ok && isUDP && f.kind == question {
			r.answer(f, addr.AddrPort(), b)
		}
	})
	if err != nil {
		return fmt.Errorf("answer whether the way works: %w", err)
	}
	return nil
}

// answer answers one question.
func (r *Responder) answer(f frame, from netip.AddrPort, b []byte) {
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	now := time.Now()
	r.Asked(from.Addr(), f.Question)
	r.mu.Lock()
	if _, known := r.askers[from]; known || len(r.askers) < maxAskers {
		r.askers[from] = asker{now, f.nonce, f.sequence}
	} else {
		r.forget(now)
	}
	r.mu.Unlock()
	f.kind, f.Question, f.Answer = answer, Question{}, r.State(from.Addr())
	f.encode(b)
	_, _ = r.conn.WriteTo(b, net.UDPAddrFromAddrPort(from)) // lost like any packet if it cannot be sent
}

// forget drops who has not asked for long.
func (r *Responder) forget(now time.Time) {
	for from, a := range r.askers {
		if now.Sub(a.at) > askerLife {
			delete(r.askers, from)
		}
	}
}

// Push repeats the last answer to all that have asked lately, with what is true now.
func (r *Responder) Push() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn == nil {
		return
	}
	r.forget(time.Now())
	b := make([]byte, headerLength)
	for to, a := range r.askers {
		frame{kind: answer, nonce: a.nonce, sequence: a.sequence, Answer: r.State(to.Addr())}.encode(b)
		_, _ = r.conn.WriteTo(b, net.UDPAddrFromAddrPort(to))
	}
}
