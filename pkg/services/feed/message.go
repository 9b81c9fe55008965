// Package feed is the protocol by which a gateway tells the peer's gateway which services its cluster exports, and learns
// which the peer exports. A Sender and a Receiver are the two ends of one direction. They are state machines: they have
// neither sockets nor a clock.
//
// A message has one service at most. The Receiver says which services it has, by their hashes, and the Sender sends what
// differs. Then it sends changes, and from time to time a digest of everything, by which the Receiver finds out whether
// something is missing. So a new connection, through the same plane or another one, costs nothing but the hashes.
//
// On a connection, a message is the length of the rest (4 bytes, network byte order), the version (1 byte), the type
// (1 byte), and the content as JSON. Messages of another version or an unknown type are skipped.
package feed

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// Type is the type of a message.
type Type byte

// The types of messages. The receiving side sends Have and Stop, and the sending side the others. Hello is from both.
const (
	TypeHello Type = iota + 1
	TypeHave
	TypeStop
	TypePut
	TypeGone
	TypeSynced
	TypeBye
)

const (
	// MaxFrame is the maximum size of a message after its length, in bytes.
	MaxFrame = 256 << 10
	// MaxRecordBytes is the maximum size of a record as JSON. The rest of a message is for its key and hash.
	MaxRecordBytes = MaxFrame - 1024

	version      = 1
	headerLength = 2
	// maxKeys is how many keys one message has: each takes at most 170 bytes, with its hash.
	maxKeys = 1000
	// maxKey and maxHash are the maximum lengths of a key and a hash.
	maxKey, maxHash = 127, 26
)

// Message is one message. Only the fields of its type are set.
type Message struct {
	Type Type `json:"-"`
	// Versions are the versions that a Hello offers.
	Versions []int `json:"versions,omitempty"`
	// Hashes of a Have are those of the services that the receiver has, by their keys. If More is set, the next Have continues.
	Hashes map[string]string `json:"hashes,omitempty"`
	More   bool              `json:"more,omitempty"`
	// Key, Hash and Record of a Put are a service. The key is NAMESPACE.NAME.
	Key    string                  `json:"key,omitempty"`
	Hash   string                  `json:"hash,omitempty"`
	Record *v1alpha1.ServiceRecord `json:"record,omitempty"`
	// Keys of a Gone are services that are not exported any more.
	Keys []string `json:"keys,omitempty"`
	// Digest of a Synced is that of all services.
	Digest string `json:"digest,omitempty"`
}

// ErrMalformed ends a connection.
var ErrMalformed = errors.New("malformed message")

// Encode returns the bytes of a message. It returns nil if it is too large.
func (m *Message) Encode() []byte {
	content, _ := json.Marshal(m) // strings, numbers and addresses always encode
	if headerLength+len(content) > MaxFrame {
		return nil
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+headerLength+len(content)), uint32(headerLength+len(content)))
	return append(append(frame, version, byte(m.Type)), content...)
}

// Read reads one message. It returns its size on the connection, in bytes, also for one that is to be skipped, which is nil.
func Read(r io.Reader) (m *Message, size int, err error) {
	var header struct {
		Length        uint32
		Version, Type byte
	}
	if err := binary.Read(r, binary.BigEndian, &header); err != nil {
		return nil, 0, err
	}
	if header.Length < headerLength || header.Length > MaxFrame {
		return nil, 0, fmt.Errorf("%w: it claims to have %d bytes", ErrMalformed, header.Length)
	}
	size = 4 + int(header.Length)
	rest := int64(header.Length) - headerLength
	if header.Version != version || Type(header.Type) < TypeHello || Type(header.Type) > TypeBye {
		_, err := io.CopyN(io.Discard, r, rest)
		return nil, size, err
	}
	var content bytes.Buffer // grows only as bytes arrive: a length alone must not cost much
	if _, err := io.CopyN(&content, r, rest); err != nil {
		return nil, size, err
	}
	m = &Message{}
	if err := json.Unmarshal(content.Bytes(), m); err != nil {
		return nil, size, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	m.Type = Type(header.Type)
	return m, size, m.check()
}

// check returns an error if a message has more than its type may have, or lacks something.
func (m *Message) check() error {
	keys := slices.Concat(m.Keys, slices.Collect(maps.Keys(m.Hashes)))
	hashes := slices.Collect(maps.Values(m.Hashes))
	if m.Type == TypePut {
		keys, hashes = append(keys, m.Key), append(hashes, m.Hash)
	}
	switch {
	case m.Type == TypePut && m.Record == nil:
		return fmt.Errorf("%w: it has no record", ErrMalformed)
	case len(keys) > maxKeys:
		return fmt.Errorf("%w: it has %d keys", ErrMalformed, len(keys))
	case slices.ContainsFunc(keys, func(k string) bool { return k == "" || len(k) > maxKey }):
		return fmt.Errorf("%w: a key is empty or too long", ErrMalformed)
	case slices.ContainsFunc(hashes, func(h string) bool { return h == "" || len(h) > maxHash || strings.Trim(h, hashLetters) != "" }):
		return fmt.Errorf("%w: a hash is not valid", ErrMalformed)
	}
	return nil
}

// hashLetters are the letters of a hash, as in the definition of ReceivedService.
const hashLetters = "abcdefghijklmnopqrstuvwxyz234567"
