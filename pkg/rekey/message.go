package rekey

import (
	"crypto/mlkem"
	"encoding/binary"
	"errors"
	"fmt"
)

// kind of a message.
type kind byte

const (
	// hello says which key the sender's WireGuard has, and no more.
	hello kind = 1 + iota
	// offer has the client's encapsulation key, answer the server's ciphertext and its tag, accept the client's tag.
	offer
	answer
	accept
)

// MaxMessage is how many bytes a message has at most.
const MaxMessage = 1 + tagLength + 8 + mlkem.EncapsulationKeySize768

// message is what one gateway says to the other. In network byte order it is its kind (1 byte), the name of the key that it goes
// by (16 bytes), and what the kind has.
type message struct {
	kind kind
	name tag
	// epoch is of an offer: how many keys were agreed on after the base key, with this one.
	epoch uint64
	// encapsulation is of an offer, ciphertext of an answer.
	encapsulation, ciphertext []byte
	tag                       tag
}

func (m message) encode() []byte {
	b := append([]byte{byte(m.kind)}, m.name[:]...)
	switch m.kind {
	case offer:
		return append(binary.BigEndian.AppendUint64(b, m.epoch), m.encapsulation...)
	case answer:
		return append(append(b, m.ciphertext...), m.tag[:]...)
	case accept:
		return append(b, m.tag[:]...)
	}
	return b
}

var errMalformed = errors.New("malformed message about keys")

// decode reads a message. It returns false without an error if a later version has sent it.
func decode(b []byte) (m message, known bool, err error) {
	if len(b) < 1+tagLength {
		return m, false, fmt.Errorf("%w: %d bytes", errMalformed, len(b))
	}
	m.kind, m.name = kind(b[0]), tag(b[1:1+tagLength])
	rest := b[1+tagLength:]
	want, ok := map[kind]int{hello: 0, offer: 8 + mlkem.EncapsulationKeySize768, answer: mlkem.CiphertextSize768 + tagLength, accept: tagLength}[m.kind]
	if !ok {
		return m, false, nil
	}
	if len(rest) != want {
		return m, false, fmt.Errorf("%w: %d bytes of kind %d", errMalformed, len(b), m.kind)
	}
	switch m.kind {
	case offer:
		m.epoch, m.encapsulation = binary.BigEndian.Uint64(rest), rest[8:]
	case answer:
		m.ciphertext, m.tag = rest[:mlkem.CiphertextSize768], tag(rest[mlkem.CiphertextSize768:])
	case accept:
		m.tag = tag(rest)
	}
	return m, true, nil
}
