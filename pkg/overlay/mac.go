package overlay

import "net/netip"

// MACFor derives the locally administered MAC address (02:6c and 32 bits of
// the address) of the interface with an overlay address, so that both ends
// know it without being told.
func MACFor(addr netip.Addr) [6]byte {
	b := addr.AsSlice()
	mac := [6]byte{macPrefix0, macPrefix1}
	copy(mac[2:], b[max(0, len(b)-4):])
	return mac
}

const macPrefix0, macPrefix1 = 0x02, 0x6c
