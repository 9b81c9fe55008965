// Package liveness finds out within fractions of a second that a way does not carry packets any
// more, as bidirectional forwarding detection does (RFC 5880). One end asks ten times a second while
// the way is in use, with small packets and with ones of full size; the other end answers.
//
// Answers may also be late, because they wait in a queue. Where packets of any kind come by the way
// it is not down. Then the end to which nothing comes tells the other one.
//
// A node asks its cluster's gateway, by the overlay. A gateway asks the peer's gateway, by the tunnel,
// and tells in its answers to nodes how that is. So a node knows the whole way, however many nodes
// there are.
//
// Out of scope: what is done about it (package failover), and measuring (package tunnel).
package liveness

import (
	"context"
	"encoding/binary"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/udp"
)

// Port is the UDP port on which gateways answer.
const Port = 6098

// A question and its answer have the same length: headerLength bytes, and zeros. In network byte
// order:
//
//	0  magic "lqlv"
//	4  version
//	5  kind: question or answer
//	6  flags
//	7  zero
//	8  nonce of who asks, 8 bytes: answers to others are ignored
//	16 sequence number, 4 bytes
//	20 in answers: for how long the responder's own way has been down, ms, 2 bytes
//	22 in answers: for how long that has lost nothing, tenths of a second, 2 bytes
//	24 in answers: the least interval of questions, ms, 2 bytes
//	26 zeros
const (
	magic        = "lqlv"
	version      = 1
	question     = 1
	answer       = 2
	headerLength = 32
	// maxLength is what fits into a UDP packet of IPv4.
	maxLength = 65507
)

// Flags. In a question flagUp says that whoever asks sends packets by this way, flagDeaf that nothing comes by it to
// whoever asks.
const (
	flagUp      = 1
	flagLeaving = 2
	flagDeaf    = 4
)

// State is what is known of a way.
type State struct {
	// Up says that it carries packets, as far as the other end's own way.
	Up bool
	// Leaving says that the gateway at the other end is about to end, and carries packets until then.
	Leaving bool
	// Down is for how long it has not carried them, Clean for how long nothing was lost.
	Down, Clean time.Duration
}

// Answer is what a responder says of the way behind it.
type Answer struct {
	State
	// Interval is the least time between questions that the responder asks for.
	Interval time.Duration
}

// Question is what is said of a way by who asks.
type Question struct {
	// InUse says that packets are sent by it, Deaf that none come by it.
	InUse, Deaf bool
}

// frame is a packet. What it says is a Question or an Answer, by its kind.
type frame struct {
	kind     byte
	nonce    [8]byte
	sequence uint32
	Question
	Answer
}

// encode writes the frame into a buffer of the frame's length.
func (f frame) encode(b []byte) {
	clear(b)
	copy(b, magic)
	b[4], b[5] = version, f.kind
	b[6] = lo.Ternary[byte](f.InUse || f.Up, flagUp, 0) | lo.Ternary[byte](f.Leaving, flagLeaving, 0) | lo.Ternary[byte](f.Deaf, flagDeaf, 0)
	copy(b[8:], f.nonce[:])
	binary.BigEndian.PutUint32(b[16:], f.sequence)
	binary.BigEndian.PutUint16(b[20:], saturated(f.Down, time.Millisecond))
	binary.BigEndian.PutUint16(b[22:], saturated(f.Clean, 100*time.Millisecond))
	binary.BigEndian.PutUint16(b[24:], saturated(f.Interval, time.Millisecond))
}

// decode reads a packet, and says whether it is one of ours, of a kind.
func decode(b []byte, kind byte) (f frame, ok bool) {
	if len(b) < headerLength || string(b[:4]) != magic || b[4] != version || b[5] != kind {
		return f, false
	}
	isUp := b[6]&flagUp != 0
	f.kind, f.nonce, f.sequence = kind, [8]byte(b[8:16]), binary.BigEndian.Uint32(b[16:])
	f.Question = Question{InUse: isUp, Deaf: b[6]&flagDeaf != 0}
	f.State = State{
		Up: isUp, Leaving: b[6]&flagLeaving != 0,
		Down:  time.Duration(binary.BigEndian.Uint16(b[20:])) * time.Millisecond,
		Clean: time.Duration(binary.BigEndian.Uint16(b[22:])) * 100 * time.Millisecond,
	}
	f.Interval = time.Duration(binary.BigEndian.Uint16(b[24:])) * time.Millisecond
	return f, true
}

// saturated is a time in units, as far as it fits.
func saturated(d, unit time.Duration) uint16 { return uint16(min(max(d/unit, 0), 1<<16-1)) }

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
	frame
	at time.Time
}

// Serve answers on conn until ctx ends or conn does not work any more, and closes it. The end of ctx
// is no error. No answer is longer than its question.
func (r *Responder) Serve(ctx context.Context, conn net.PacketConn) error {
	r.mu.Lock()
	r.conn, r.askers = conn, map[netip.AddrPort]asker{}
	r.mu.Unlock()
	return udp.Serve(ctx, conn, maxLength, func(b []byte, by netip.AddrPort) {
		if f, ok := decode(b, question); ok {
			r.asked(f, by, b)
		}
	})
}

// asked answers a question.
func (r *Responder) asked(f frame, by netip.AddrPort, b []byte) {
	now := time.Now()
	r.Asked(by.Addr(), f.Question)
	r.mu.Lock()
	if _, known := r.askers[by]; known || len(r.askers) < maxAskers {
		r.askers[by] = asker{f, now}
	} else {
		r.forget(now)
	}
	r.mu.Unlock()
	r.answer(f, by, b)
}

// answer answers a question with what is true now, in a packet of the length of b.
func (r *Responder) answer(f frame, to netip.AddrPort, b []byte) {
	frame{kind: answer, nonce: f.nonce, sequence: f.sequence, Answer: r.State(to.Addr())}.encode(b)
	_, _ = r.conn.WriteTo(b, net.UDPAddrFromAddrPort(to)) // lost like any packet if it cannot be sent
}

// forget drops who has not asked for long.
func (r *Responder) forget(now time.Time) {
	maps.DeleteFunc(r.askers, func(_ netip.AddrPort, a asker) bool { return now.Sub(a.at) > askerLife })
}

// Push repeats the last answer to all that have asked lately, with what is true now.
func (r *Responder) Push() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(time.Now())
	b := make([]byte, headerLength)
	for to, a := range r.askers { // none before Serve
		r.answer(a.frame, to, b)
	}
}
