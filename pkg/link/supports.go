package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

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
