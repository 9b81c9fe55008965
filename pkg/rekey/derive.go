package rekey

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Key is a pre-shared key of WireGuard. It is not shown where it is printed.
type Key [32]byte

// String does not tell the key.
func (Key) String() string { return "(secret)" }

// GoString does not, either.
func (k Key) GoString() string { return k.String() }

// Tunnel is what both gateways know before they agree on anything. Every key is bound to it.
type Tunnel struct {
	// Base is the pre-shared key of the Secrets, the zero value if there is none.
	Base Key
	// Plane is the plane's index. Client and Server are the gateways' public keys of WireGuard, which no other tunnel has.
	Plane          int32
	Client, Server [32]byte
}

// tagLength is that of tags and names, bytes.
const tagLength = 16

type tag [tagLength]byte

// context begins what is told to HKDF. All parts have fixed lengths.
func (t Tunnel) context(purpose byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte("liqonet psk 1"), uint32(t.Plane))
	return append(append(append(b, t.Client[:]...), t.Server[:]...), purpose)
}

// name tells a key from others, and not what it is.
func (t Tunnel) name(k Key) tag {
	return tag(expand(k[:], nil, t.context('n'), tagLength))
}

// derived is what follows from an agreement: the next key, and tags by which each shows that it has it.
type derived struct {
	key            Key
	server, client tag
}

// derive is HKDF-SHA256 (RFC 5869) of ML-KEM's shared secret. The salt is the key before, and the rest all that was said.
func (t Tunnel) derive(before Key, shared []byte, epoch uint64, encapsulation, ciphertext []byte) (d derived) {
	info := binary.BigEndian.AppendUint64(t.context('k'), epoch)
	info = append(append(info, encapsulation...), ciphertext...)
	out := expand(shared, before[:], info, len(d.key)+2*tagLength)
	copy(d.key[:], out)
	copy(d.server[:], out[len(d.key):])
	copy(d.client[:], out[len(d.key)+tagLength:])
	return d
}

func expand(secret, salt, info []byte, length int) []byte {
	out, err := hkdf.Key(sha256.New, secret, salt, string(info), length)
	if err != nil {
		panic(fmt.Sprintf("HKDF of %d bytes: %v", length, err)) // only of more than 255 hashes
	}
	return out
}
