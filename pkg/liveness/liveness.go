// Package liveness detects within fractions of a second that a path does not carry packets any more, as bidirectional
// forwarding detection does (RFC 5880). One end sends ten requests per second while the path is in use, with small
// packets and with packets of full size. The other end answers.
//
// Answers may also be late because they wait in a queue. While packets of any kind arrive over the path, it counts
// as up. Since that hides a failure of the other direction, the end at which nothing arrives tells the other one.
//
// A node asks its cluster's gateway, through the overlay. A gateway asks the peer's gateway, through the tunnel, and
// reports the result in its answers to nodes. So a node knows the state of the whole path, however many nodes there
// are.
//
// Some requests only measure ([Prober]): nodes and gateways send them to the peer's gateway, for the round trip time,
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

	"github.com/liqonet/liqonet/pkg/udp"
)

// Port is the UDP port on which gateways answer.
const Port = 6098

// A request and its answer have the same length: headerLength bytes, followed by zeros. In network byte order:
//
//	0  magic "lqlv"
//	4  version
//	5  kind: request or answer
//	6  flags
//	7  in requests of nodes: the planes through which the node reaches the peer
//	8  nonce of the requester, 8 bytes: it ignores answers with another one
//	16 sequence number, 4 bytes
//	20 in answers: how long the responder's own path has been down, ms, 2 bytes
//	22 in answers: how long that has lost nothing, tenths of a second, 2 bytes
//	24 in answers: the minimum interval of requests, ms, 2 bytes
//	26 in answers to requests that measure: the responder's MTU, bytes, 2 bytes
//	28 zeros
const (
	magic        = "lqlv"
	version      = 1
	kindRequest  = 1
	kindAnswer   = 2
	headerLength = 32
	// maxLength is the maximum payload of a UDP packet over IPv4.
	maxLength = 65507
)

// Flags. In a request, flagUp means Request.InUse. flagMeasures is set in requests that only measure.
const (
	flagUp           = 1
	flagLeaving      = 2
	flagLosesAnswers = 4
	flagMeasures     = 8
)

// State is the state of a path.
type State struct {
	// Up is set if the path carries packets, including the other end's own path.
	Up bool
	// Leaving is set if the gateway at the other end is about to end. It carries packets until then.
	Leaving bool
	// Down is how long the path has carried no packets, and LossFree how long it has lost nothing.
	Down, LossFree time.Duration
}

// Answer is the state of the path behind a responder.
type Answer struct {
	State
	// Interval is the minimum time between requests that the responder asks for.
	Interval time.Duration
	// MTU is the responder's MTU, in bytes, only in answers to requests that measure. These have no state.
	MTU uint16
}

// Request is the requester's report about a path.
type Request struct {
	// InUse is set if the requester sends packets over the path, and LosesAnswers if it receives no answers, or none of
	// full size.
	InUse, LosesAnswers bool
	// Measures is set if the request only measures.
	Measures bool
	// Reached are the planes through which a node reaches the peer: ReachKnown and a bit for each plane. It is 0 while
	// that is not known, and in requests of gateways.
	Reached uint8
}

// ReachKnown is set in Request.Reached if the other bits mean something.
const ReachKnown = 0x80

// frame is a packet. It contains a Request or an Answer, depending on its kind.
type frame struct {
	kind     byte
	nonce    [8]byte
	sequence uint32
	Request
	Answer
}

// encode writes the frame to a buffer, and fills the rest with zeros.
func (f frame) encode(b []byte) {
	clear(b)
	copy(b, magic)
	b[4], b[5] = version, f.kind
	b[6] = lo.Ternary[byte](f.InUse || f.Up, flagUp, 0) | lo.Ternary[byte](f.Leaving, flagLeaving, 0) |
		lo.Ternary[byte](f.LosesAnswers, flagLosesAnswers, 0) | lo.Ternary[byte](f.Measures, flagMeasures, 0)
	b[7] = f.Reached
	copy(b[8:], f.nonce[:])
	binary.BigEndian.PutUint32(b[16:], f.sequence)
	binary.BigEndian.PutUint16(b[20:], saturated(f.Down, time.Millisecond))
	binary.BigEndian.PutUint16(b[22:], saturated(f.LossFree, 100*time.Millisecond))
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
	f.Request = Request{InUse: isUp, LosesAnswers: b[6]&flagLosesAnswers != 0, Measures: b[6]&flagMeasures != 0, Reached: b[7]}
	f.State = State{
		Up: isUp, Leaving: b[6]&flagLeaving != 0,
		Down:     time.Duration(binary.BigEndian.Uint16(b[20:])) * time.Millisecond,
		LossFree: time.Duration(binary.BigEndian.Uint16(b[22:])) * 100 * time.Millisecond,
	}
	f.Interval = time.Duration(binary.BigEndian.Uint16(b[24:])) * time.Millisecond
	f.MTU = binary.BigEndian.Uint16(b[26:])
	return f, true
}

// saturated returns a time in units, limited to 16 bits.
func saturated(d, unit time.Duration) uint16 { return uint16(min(max(d/unit, 0), 1<<16-1)) }

// requesterTimeout is how long after its last request a requester is notified of changes.
const requesterTimeout = 15 * time.Second

// Responder answers requests. Its methods are safe for concurrent use.
type Responder struct {
	// OnRequest is called for each request that does not measure, and reports whether the requester is known. Others
	// get no answer, and are not notified of changes: so the number of known addresses has to be limited. State returns
	// the answer for an address.
	OnRequest func(by netip.Addr, q Request) (known bool)
	State     func(to netip.Addr) Answer
	// Measured is called for each request that measures, from any address. It takes the requester's nonce, and returns the
	// answer.
	Measured func(by netip.Addr, nonce [8]byte) (mtu uint16)

	mu         sync.Mutex
	conn       net.PacketConn
	requesters map[netip.Addr]requester
}

// requester holds the last request of a requester, with the port from which it came, and its time.
type requester struct {
	frame
	port uint16
	at   time.Time
}

// Serve answers on conn until ctx ends or conn fails, and closes conn. It returns nil if ctx ends. No answer is
// longer than its request.
func (r *Responder) Serve(ctx context.Context, conn net.PacketConn) error {
	r.mu.Lock()
	r.conn, r.requesters = conn, map[netip.Addr]requester{}
	r.mu.Unlock()
	return udp.Serve(ctx, conn, maxLength, func(b []byte, by netip.AddrPort) {
		f, ok := decode(b, kindRequest)
		switch {
		case !ok:
		case !f.Measures:
			r.handle(f, by, b)
		case len(b) == headerLength:
			r.send(f, Answer{MTU: r.Measured(by.Addr(), f.nonce)}, by, b)
		}
	})
}

// handle records and answers a request.
func (r *Responder) handle(f frame, by netip.AddrPort, b []byte) {
	if !r.OnRequest(by.Addr(), f.Request) {
		return
	}
	if len(b) == headerLength { // Push answers no request of full size
		r.mu.Lock()
		r.requesters[by.Addr()] = requester{f, by.Port(), time.Now()}
		r.mu.Unlock()
	}
	r.send(f, r.State(by.Addr()), by, b)
}

// send answers a request, in a packet of the length of b.
func (r *Responder) send(f frame, a Answer, to netip.AddrPort, b []byte) {
	frame{kind: kindAnswer, nonce: f.nonce, sequence: f.sequence, Answer: a}.encode(b)
	_, _ = r.conn.WriteTo(b, net.UDPAddrFromAddrPort(to)) // if it cannot be sent, it counts as lost
}

// Push repeats the last answer to a small request to all recent requesters, with the current state.
func (r *Responder) Push() {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.requesters, func(_ netip.Addr, a requester) bool { return time.Since(a.at) > requesterTimeout })
	b := make([]byte, headerLength)
	for to, a := range r.requesters { // none before Serve
		r.send(a.frame, r.State(to), netip.AddrPortFrom(to, a.port), b)
	}
}
