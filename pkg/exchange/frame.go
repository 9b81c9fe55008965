package exchange

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/wire"
)

const (
	// Port is the TCP port of a gateway's overlay address.
	Port uint16 = wire.ExchangePort

	// MaxFrame is the most that a frame may hold after its length, bytes: an announcement
	// of the most addresses, of IPv6, fits.
	MaxFrame = 256 << 10
	// MaxEndpoints and MaxNodeIPs are what an announcement may hold, as in the definition of
	// Peering.
	MaxEndpoints, MaxNodeIPs = 16, 4096

	frameVersion     = 1
	typeAnnouncement = 1
	headerLength     = 2
)

// Announcement is what a gateway tells of its cluster: where it can be called, nowhere
// if it only calls itself, and the real addresses of the cluster's nodes. From and to these
// go the tunnel's packets.
type Announcement = v1alpha1.RemoteAnnouncement

func equal(a, b Announcement) bool {
	return slices.Equal(a.Endpoints, b.Endpoints) && slices.Equal(a.NodeIPs, b.NodeIPs)
}

// errMalformed ends a connection.
var errMalformed = errors.New("malformed frame")

// encode makes a frame.
func encode(a Announcement) ([]byte, error) {
	a.Endpoints, a.NodeIPs = a.Endpoints[:min(len(a.Endpoints), MaxEndpoints)], a.NodeIPs[:min(len(a.NodeIPs), MaxNodeIPs)]
	content, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("encode an announcement: %w", err)
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(headerLength+len(content)))
	return append(append(frame, frameVersion, typeAnnouncement), content...), nil
}

// readFrame reads one frame, without its length.
func readFrame(r io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n < headerLength || n > MaxFrame {
		return nil, fmt.Errorf("%w: it claims to have %d bytes", errMalformed, n)
	}
	// Memory is taken as bytes come: a length alone must not cost much.
	var frame bytes.Buffer
	if _, err := io.CopyN(&frame, r, int64(n)); err != nil {
		return nil, err
	}
	return frame.Bytes(), nil
}

// decode reads what a frame holds. It returns nil if the frame is of another version or
// type.
func decode(frame []byte) (*Announcement, error) {
	if frame[0] != frameVersion || frame[1] != typeAnnouncement {
		return nil, nil
	}
	a := &Announcement{}
	if err := json.Unmarshal(frame[headerLength:], a); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if len(a.Endpoints) > MaxEndpoints || len(a.NodeIPs) > MaxNodeIPs {
		return nil, fmt.Errorf("%w: %d endpoints, %d node addresses", errMalformed, len(a.Endpoints), len(a.NodeIPs))
	}
	for i, e := range a.Endpoints {
		addrPort, err := netip.ParseAddrPort(e)
		if err != nil || addrPort.Addr().Zone() != "" || addrPort.Port() == 0 {
			return nil, fmt.Errorf("%w: endpoint %q", errMalformed, e)
		}
		a.Endpoints[i] = netip.AddrPortFrom(addrPort.Addr().Unmap(), addrPort.Port()).String()
	}
	for i, ip := range a.NodeIPs {
		if !ip.IsValid() { // what is no address is read as such
			return nil, fmt.Errorf("%w: node address %d", errMalformed, i)
		}
		a.NodeIPs[i].Addr = ip.Unmap()
	}
	return a, nil
}
