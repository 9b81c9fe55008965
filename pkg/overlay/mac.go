package overlay

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
)

// KeyBytes is the length of a Key.
const KeyBytes = 32

// Key is what nodes and gateways of one cluster know and others do not. From it
// follow the MAC addresses inside the overlay: a frame that bears another one is
// not for the link that it came to, and the kernel drops it. So outer addresses,
// which anybody on the nodes' network may forge, let nobody in.
type Key [KeyBytes]byte

// ReadKey reads it from a file.
func ReadKey(file string) (Key, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return Key{}, fmt.Errorf("read the overlay's key: %w", err)
	}
	if len(b) != KeyBytes {
		return Key{}, fmt.Errorf("read the overlay's key: %s has %d bytes instead of %d", file, len(b), KeyBytes)
	}
	return Key(b), nil
}

// MAC is an Ethernet address.
type MAC [6]byte

// MAC derives the address of the end of a link that bears addr: locally
// administered, unicast, and 46 bits that cannot be guessed.
func (k Key) MAC(vni uint32, addr netip.Addr) MAC {
	h := hmac.New(sha256.New, k[:])
	h.Write(binary.BigEndian.AppendUint32(nil, vni))
	h.Write(addr.AsSlice())
	m := MAC(h.Sum(nil)[:6])
	m[0] = m[0]&^0x01 | 0x02
	return m
}
