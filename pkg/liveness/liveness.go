// Package liveness detects within fractions of a second that a path does not carry packets any more, as bidirectional
// forwarding detection does (RFC 5880). One end sends ten questions per second while the path is in use, with small
// packets and with packets of full size. The other end answers.
//
// Answers may also be late because they wait in a queue. While packets of any kind arrive over the path, it counts
// as up. Since that hides a failure of the other direction, the end at which nothing arrives tells the other one.
//
// A node asks its cluster's gateway, through the overlay. A gateway asks the peer's gateway, through the tunnel, and
// reports the result in its answers to nodes. So a node knows the state of the whole path, however many nodes there
// are.
//
// Some questions only measure ([Prober]): nodes and gateways send them to the peer's gateway, for the round trip time,
// the loss and the MTU. They do not count when the package decides whether a path works.
//
// Out of scope: the reaction to a failure (package failover).
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
	"golang.org/x/time/rate"

	"github.com/liqonet/liqonet/pkg/udp"
)

// Port is the UDP port on which gateways answer.
const Port = 6098

// A question and its answer have the same length: headerLength bytes, followed by zeros. In network byte order:
//
//	0  magic "lqlv"
//	4  version
//	5  kind: question or answer
//	6  flags
//	7  zero
//	8  nonce of the asker, 8 bytes: it ignores answers with another one
//	16 sequence number, 4 bytes
//	20 in answers: how long the responder's own path has been down, ms, 2 bytes
//	22 in answers: how long that has lost nothing, tenths of a second, 2 bytes
//	24 in answers: the minimum interval of questions, ms, 2 bytes
//	26 in answers to questions that measure: the responder's MTU, bytes, 2 bytes
//	28 zeros
const (
	magic        = "lqlv"
	version      = 1
	question     = 1
	answer       = 2
	headerLength = 32
	// maxLength is the maximum payload of a UDP packet over IPv4.
	maxLength = 65507
)

// Flags. In a question, flagUp means that the asker sends packets over this path, and flagDeaf that it receives none.
// flagMeasures is set in questions that only measure.
const (
	flagUp       = 1
	flagLeaving  = 2
	flagDeaf     = 4
	flagMeasures = 8
)

// State is the state of a path.
type State struct {
	// Up is set if the path carries packets, including the other end's own path.
	Up bool
	// Leaving is set if the gateway at the other end is about to end. It carries packets until then.
	Leaving bool
	// Down is how long the path has carried no packets, and Clean how long it has lost nothing.
	Down, Clean time.Duration
}

// Answer is the state of the path behind a responder.
type Answer struct {
	State
	// Interval is the minimum time between questions that the responder asks for.
	Interval time.Duration
	// MTU is the responder's MTU, in bytes, only in answers to questions that measure. These have no state.
	MTU uint16
}

// Question is the asker's report about a path.
type Question struct {
	// InUse is set if the asker sends packets over the path, and Deaf if it receives none.
	InUse, Deaf bool
	// Measures is set if the question only measures.
	Measures bool
}

// frame is a packet. It contains a Question or an Answer, depending on its kind.
type frame struct {
	kind     byte
	nonce    [8]byte
	sequence uint32
	Question
	Answer
}

// encode writes the frame to a buffer, and fills the rest with zeros.
func (f frame) encode(b []byte) {
	clear(b)
	copy(b, magic)
	b[4], b[5] = version, f.kind
	b[6] = lo.Ternary[byte](f.InUse || f.Up, flagUp, 0) | lo.Ternary[byte](f.Leaving, flagLeaving, 0) |
		lo.Ternary[byte](f.Deaf, flagDeaf, 0) | lo.Ternary[byte](f.Measures, flagMeasures, 0)
	copy(b[8:], f.nonce[:])
	binary.BigEndian.PutUint32(b[16:], f.sequence)
	binary.BigEndian.PutUint16(b[20:], saturated(f.Down, time.Millisecond))
	binary.BigEndian.PutUint16(b[22:], saturated(f.Clean, 100*time.Millisecond))
	binary.BigEndian.PutUint16(b[24:], saturated(f.Interval, time.Millisecond))
	binary.BigEndian.PutUint16(b[26:], f.MTU)
}

// decode parses a packet, and reports whether it is one of ours and of the given kind.
func decode(b []byte, kind byte) (f frame, ok bool) {
	if len(b) < headerLength || string(b[:4]) != magic || b[4] != version || b[5] != kind {
		return f, false
	}
	isUp := b[6]&flagUp != 0
	f.kind, f.nonce, f.sequence = kind, [8]byte(b[8:16]), binary.BigEndian.Uint32(b[16:])
	f.Question = Question{InUse: isUp, Deaf: b[6]&flagDeaf != 0, Measures: b[6]&flagMeasures != 0}
	f.State = State{
		Up: isUp, Leaving: b[6]&flagLeaving != 0,
		Down:  time.Duration(binary.BigEndian.Uint16(b[20:])) * time.Millisecond,
		Clean: time.Duration(binary.BigEndian.Uint16(b[22:])) * 100 * time.Millisecond,
	}
	f.Interval = time.Duration(binary.BigEndian.Uint16(b[24:])) * time.Millisecond
	f.MTU = binary.BigEndian.Uint16(b[26:])
	return f, true
}

// saturated returns a time in units, limited to 16 bits.
func saturated(d, unit time.Duration) uint16 { return uint16(min(max(d/unit, 0), 1<<16-1)) }

const (
	// askerLife is how long after its last question an asker is notified of changes.
	askerLife = 15 * time.Second
	// maxMeasures is how many questions per second may measure: every host of a peer can send some. They must not keep
	// the responder from answering the others. All nodes of the peer together send this many only if there are more than
	// 2,000, and only in the second after the path begins to work.
	maxMeasures = 20000
)

// Responder answers questions. Its methods are safe for concurrent use.
type Responder struct {
	// Asked is called for each question that does not measure, and reports whether the asker is known. Others get no
	// answer, and are not notified of changes: so the number of known addresses has to be limited. State returns the
	// answer for an address.
	Asked func(by netip.Addr, q Question) (known bool)
	State func(to netip.Addr) Answer
	// MTU returns the answer to questions that measure, from any address. Nothing else happens when they arrive.
	MTU func() uint16

	mu     sync.Mutex
	conn   net.PacketConn
	askers map[netip.Addr]asker
}

// asker is an asker's last question, with the port from which it came, and its time.
type asker struct {
	frame
	port uint16
	at   time.Time
}

// Serve answers on conn until ctx ends or conn fails, and closes conn. It returns nil if ctx ends. No answer is
// longer than its question.
func (r *Responder) Serve(ctx context.Context, conn net.PacketConn) error {
	r.mu.Lock()
	r.conn, r.askers = conn, map[netip.Addr]asker{}
	r.mu.Unlock()
	measures := rate.NewLimiter(maxMeasures, maxMeasures)
	return udp.Serve(ctx, conn, maxLength, func(b []byte, by netip.AddrPort) {
		f, ok := decode(b, question)
		switch {
		case !ok:
		case !f.Measures:
			r.asked(f, by, b)
		case len(b) == headerLength && measures.Allow():
			r.send(f, Answer{MTU: r.MTU()}, by, b)
		}
	})
}

// asked records and answers a question.
func (r *Responder) asked(f frame, by netip.AddrPort, b []byte) {
	if !r.Asked(by.Addr(), f.Question) {
		return
	}
	if len(b) == headerLength { // Push answers no question of full size
		r.mu.Lock()
		r.askers[by.Addr()] = asker{f, by.Port(), time.Now()}
		r.mu.Unlock()
	}
	r.send(f, r.State(by.Addr()), by, b)
}

// send answers a question, in a packet of the length of b.
func (r *Responder) send(f frame, a Answer, to netip.AddrPort, b []byte) {
	frame{kind: answer, nonce: f.nonce, sequence: f.sequence, Answer: a}.encode(b)
	_, _ = r.conn.WriteTo(b, net.UDPAddrFromAddrPort(to)) // if it cannot be sent, it counts as lost
}

// Push repeats the last answer to a small question to all recent askers, with the current state.
func (r *Responder) Push() {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.askers, func(_ netip.Addr, a asker) bool { return time.Since(a.at) > askerLife })
	b := make([]byte, headerLength)
	for to, a := range r.askers { // none before Serve
		r.send(a.frame, r.State(to), netip.AddrPortFrom(to, a.port), b)
	}
}
