package nft

import (
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// TableName is the name of our table in each address family.
const TableName = "liqonet"

// Notification reads what a notification of the kernel is about: its type, such as
// unix.NFT_MSG_NEWRULE, and the table's name, which is empty if it is about none.
func Notification(m netlink.Message) (typ int, table string) {
	typ = int(m.Header.Type & 0xff)
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || typ == unix.NFT_MSG_NEWGEN || len(m.Data) < HeaderLength {
		return typ, ""
	}
	// In the messages about tables, chains, rules, sets and elements alike the first
	// attribute is the table's name, so reading it costs little.
	d, err := netlink.NewAttributeDecoder(m.Data[HeaderLength:])
	if err != nil || !d.Next() || d.Type() != unix.NFTA_TABLE_NAME {
		return typ, ""
	}
	return typ, d.String()
}
