package liveness

import (
	"encoding/binary"
	"time"
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

// frame is a packet.
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
	if f.InUse || f.Up {
		b[6] |= flagUp
	}
	if f.Leaving {
		b[6] |= flagLeaving
	}
	if f.Deaf {
		b[6] |= flagDeaf
	}
	copy(b[8:], f.nonce[:])
	binary.BigEndian.PutUint32(b[16:], f.sequence)
	binary.BigEndian.PutUint16(b[20:], saturated(f.Down, time.Millisecond))
	binary.BigEndian.PutUint16(b[22:], saturated(f.Clean, 100*time.Millisecond))
	binary.BigEndian.PutUint16(b[24:], saturated(f.Interval, time.Millisecond))
}

// decode reads a packet, and says whether it is one of ours.
func decode(b []byte) (f frame, ok bool) {
	if len(b) < headerLength || string(b[:4]) != magic || b[4] != version {
		return f, false
	}
	f.kind, f.nonce, f.sequence = b[5], [8]byte(b[8:16]), binary.BigEndian.Uint32(b[16:])
	up := b[6]&flagUp != 0
	if f.kind == question {
		f.Question = Question{InUse: up, Deaf: b[6]&flagDeaf != 0}
		return f, true
	}
	f.State = State{
		Up: up, Leaving: b[6]&flagLeaving != 0,
		Down:  time.Duration(binary.BigEndian.Uint16(b[20:])) * time.Millisecond,
		Clean: time.Duration(binary.BigEndian.Uint16(b[22:])) * 100 * time.Millisecond,
	}
	f.Interval = time.Duration(binary.BigEndian.Uint16(b[24:])) * time.Millisecond
	return f, f.kind == answer
}

// saturated is a time in units, as far as it fits.
func saturated(d, unit time.Duration) uint16 { return uint16(min(max(d/unit, 0), 1<<16-1)) }
