package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// probeName is not a valid interface name (dev_valid_name in the kernel
// refuses the slash), so that a request with it never leaves an interface.
const probeName = "lq/probe"

// Supports says whether the kernel can make interfaces of this kind
// ("vxlan", "geneve", "wireguard"). It asks for one with an invalid name:
// the kernel looks for the kind, loading its module, before it refuses the
// name. CAP_NET_ADMIN in the network namespace is all it takes, and nothing
// is left behind.
func (c *Conn) Supports(kind string) (bool, error) {
	req := c.NewRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(probeName)))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(kind))
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
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
