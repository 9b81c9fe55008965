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

// Key is a secret of the nodes and gateways of one cluster. The MAC addresses inside the overlay are derived from it.
// The kernel drops frames to other addresses, because they are not for the link on which they arrive. So forging outer
// addresses, as anyone on the nodes' network can, is not enough to send into the overlay.
type Key [KeyBytes]byte

// Keys are the keys that an agent knows, by generation. Links change their keys one after the other, so an agent may
// need several.
type Keys map[int32]Key

// ReadKeys reads the keys in a directory, where each file is named after its generation. It returns an error if there
// is no key, or a file that is not a key.
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

// ForGeneration returns the key of a generation, or the oldest key if that generation is unknown. Both ends of a link
// whose key was never chosen use the oldest key, even if other links have newer ones.
func (k Keys) ForGeneration(generation int32) Key {
	return lo.ValueOr(k, generation, k[lo.Min(lo.Keys(k))])
}

// MAC is an Ethernet address.
type MAC [6]byte

// MAC derives the MAC address of the link end with the address addr. It is locally administered and unicast, and has 46
// bits that cannot be guessed.
func (k Key) MAC(vni uint32, addr netip.Addr) MAC {
	h := hmac.New(sha256.New, k[:])
	h.Write(binary.BigEndian.AppendUint32(nil, vni))
	h.Write(addr.AsSlice())
	m := MAC(h.Sum(nil)[:6])
	m[0] = m[0]&^0x01 | 0x02
	return m
}
