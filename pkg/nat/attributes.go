package nat

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Messages of netfilter that the libraries do not have are made of these.

func attribute(typ uint16, data ...byte) netlink.Attribute {
	return netlink.Attribute{Type: typ, Data: data}
}

func number(typ uint16, n uint32) netlink.Attribute {
	return attribute(typ, binary.BigEndian.AppendUint32(nil, n)...)
}

func text(typ uint16, s string) netlink.Attribute { return attribute(typ, append([]byte(s), 0)...) }

func nested(typ uint16, attributes ...netlink.Attribute) netlink.Attribute {
	return attribute(unix.NLA_F_NESTED|typ, encode(attributes...)...)
}

// encode cannot fail: no attribute is as long as 64 KiB.
func encode(attributes ...netlink.Attribute) []byte {
	b, _ := netlink.MarshalAttributes(attributes)
	return b
}

// message is one to a part of netfilter, such as unix.NFNL_SUBSYS_NFTABLES.
func message(subsystem, typ int, flags netlink.HeaderFlags, family byte, attributes ...netlink.Attribute) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(subsystem<<8 | typ), Flags: netlink.Request | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, encode(attributes...)...),
	}
}
