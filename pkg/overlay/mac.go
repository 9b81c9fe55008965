package overlay

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/samber/lo"
)

// KeyBytes is the length of a Key.
const KeyBytes = 32

// Key is what nodes and gateways of one cluster know and others do not. From it
// follow the MAC addresses inside the overlay: a frame that bears another one is
// not for the link that it came to, and the kernel drops it. So outer addresses,
// which anybody on the nodes' network may forge, let nobody in.
type Key [KeyBytes]byte

// Keys are those that an agent knows, by their generations. Links change their keys one after the
// other, so an agent may need several.
type Keys map[int32]Key

// ReadKeys reads the keys in a directory, of which each file has the name of a generation. It
// returns an error if there is none, or one that is no key.
func ReadKeys(dir string) (Keys, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the overlay's keys: %w", err)
	}
	keys := Keys{}
	for _, e := range entries {
		generation, err := strconv.ParseInt(e.Name(), 10, 32)
		if err != nil {
			continue // a kubelet's own directories
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the overlay's key: %w", err)
		}
		if len(b) != KeyBytes {
			return nil, fmt.Errorf("read the overlay's key: %s has %d bytes instead of %d", e.Name(), len(b), KeyBytes)
		}
		keys[int32(generation)] = Key(b)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("read the overlay's keys: there is none in %s", dir)
	}
	return keys, nil
}

// Of is the key of a generation. Where that is not known, it is the oldest one: both ends of a link
// whose key nobody has chosen have it, whatever newer ones other links have.
func (k Keys) Of(generation int32) Key {
	if key, ok := k[generation]; ok {
		return key
	}
	return k[lo.Min(lo.Keys(k))]
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
