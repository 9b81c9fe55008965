package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// dumpAttempts is how often a dump is repeated that the kernel reports as
// interrupted by a change.
const dumpAttempts = 5

// Conn is a connection to rtnetlink in the network namespace in which it was
// opened. It is safe for concurrent use.
type Conn struct {
	// Handle does what needs no attribute unknown to the netlink library.
	Handle *netlink.Handle
	socket *nl.SocketHandle
}

// Open connects to rtnetlink in the calling thread's network namespace.
func Open() (*Conn, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	// A subscription to no group is a plain socket.
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	// Extended errors say what the kernel disliked; kernels without them
	// answer with the number alone.
	_ = socket.SetExtAck(true)
	return &Conn{handle, &nl.SocketHandle{Socket: socket}}, nil
}

// Close releases the connection.
func (c *Conn) Close() {
	c.Handle.Close()
	c.socket.Close()
}

// NewRequest starts a request on this connection.
func (c *Conn) NewRequest(proto, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(proto, flags)
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: c.socket}
	return r
}

// Dump calls list again while the kernel says that a change interrupted it.
func Dump[T any](list func() (T, error)) (out T, err error) {
	for range dumpAttempts {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

// probeName is not a valid interface name (dev_valid_name in the kernel
// refuses the slash), so that a request with it never leaves an interface.
const probeName = "loq/probe"

// Supports says whether the kernel can make interfaces of this kind
// ("vxlan", "geneve", "wireguard"). It asks for one with an invalid name:
// the kernel looks for the kind, loading its module, before it refuses the
// name. CAP_NET_ADMIN in the network namespace is all it takes, and nothing
// is left behind.
func (c *Conn) Supports(kind string) (bool, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = probeName
	err := c.Handle.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: kind})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return false, nil
	case errors.Is(err, unix.EINVAL):
		return true, nil
	case err == nil:
		return false, fmt.Errorf("probe for interfaces of kind %q: the kernel accepted the name %q", kind, probeName)
	default:
		return false, fmt.Errorf("probe for interfaces of kind %q: %w", kind, err)
	}
}
