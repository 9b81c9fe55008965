package probe

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/probe"
)

// What struct sock_extended_err of linux/errqueue.h has, and the address behind it.
const (
	errorOrigin  = 4
	errorType    = 5
	errorCode    = 6
	errorInfo    = 8
	errorSize    = 16
	offenderAt   = errorSize + 4
	offenderSize = errorSize + 8
)

// parseRefusal is what the kernel tells of one error, nil if it is about something else.
func parseRefusal(data []byte) *probe.Refusal {
	if len(data) < errorSize {
		return nil
	}
	r := &probe.Refusal{}
	switch data[errorOrigin] {
	case unix.SO_EE_ORIGIN_LOCAL:
	case unix.SO_EE_ORIGIN_ICMP:
		r.Type, r.Code = data[errorType], data[errorCode]
		if len(data) >= offenderSize {
			r.From, _ = netip.AddrFromSlice(data[offenderAt:offenderSize])
		}
	default:
		return nil
	}
	if unix.Errno(binary.NativeEndian.Uint32(data)) == unix.EMSGSIZE {
		r.MTU = int(binary.NativeEndian.Uint32(data[errorInfo:]))
	}
	return r
}
