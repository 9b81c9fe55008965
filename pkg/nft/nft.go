// Package nft has the code that packages share that write nftables rules: expressions and comments of rules, complete
// lists of chains, and notifications.
//
// Out of scope: which rules there are (packages nat and firewall).
package nft

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/notify"
)

// Equal compares the value that an expression loads into register 1.
func Equal(load expr.Any, value []byte) []expr.Any {
	return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value}}
}

// Port compares the port at an offset of the transport header with a range.
func Port(offset uint32, first, last uint16) []expr.Any {
	from, to := binary.BigEndian.AppendUint16(nil, first), binary.BigEndian.AppendUint16(nil, last)
	if first == last {
		return Equal(TransportHeader(offset, 2), from)
	}
	return []expr.Any{TransportHeader(offset, 2), &expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: from, ToData: to}}
}

// Meta compares the kernel's metadata of a packet, such as its interface, with a value.
func Meta(key expr.MetaKey, value ...byte) []expr.Any {
	return Equal(&expr.Meta{Key: key, Register: 1}, value)
}

// IPHeader loads bytes of the IP header into register 1.
func IPHeader(offset, length uint32) *expr.Payload {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

// TransportHeader loads bytes after the IP header into register 1.
func TransportHeader(offset, length uint32) *expr.Payload {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: length}
}

// Label returns the comment of a rule in the kernel: a text, and a hash of the rule's expressions. With the hash, a
// rule can be compared without decoding it. Nft shows no comment of more than 128 bytes.
func Label(text string, family nftables.TableFamily, exprs []expr.Any) string {
	h := sha256.New()
	for _, e := range exprs {
		b, _ := expr.Marshal(byte(family), e) // sending the rule returns the error
		h.Write(b)
	}
	return fmt.Sprintf("%s #%s", text, hex.EncodeToString(h.Sum(nil))[:8])
}

// EncodeComment encodes a rule's comment as nft does.
func EncodeComment(text string) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, text)
}

// DecodeComment returns the comment at the start of a rule's data, or "". It does not use the library, which trusts the
// length in the data: anyone may have written it.
func DecodeComment(data []byte) string {
	const header = 2
	if len(data) < header || userdata.Type(data[0]) != userdata.TypeComment || len(data) < header+int(data[1]) {
		return ""
	}
	return string(bytes.TrimSuffix(data[header:header+int(data[1])], []byte{0}))
}

const (
	// listAttempts bounds how often a list is repeated while others change it.
	listAttempts = 5
	// HeaderLength is the length in bytes of nfgenmsg, which precedes the attributes of each message.
	HeaderLength = 4
)

// ListChains returns the chains of a family, or of all families.
func ListChains(c *nftables.Conn, family nftables.TableFamily) (chains []*nftables.Chain, err error) {
	err = retryInterrupted(func() error {
		chains, err = c.ListChainsOfTableFamily(family)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	return chains, nil
}

// retryInterrupted repeats a list of nftables objects if another process changed nftables at the same time. The kernel
// continues a long list by position, so a change makes it leave out objects that did not change. It marks such a list
// (NLM_F_DUMP_INTR), but the library ignores the mark. The last attempt counts in any case. Lists of the rules of one
// chain or table do not need this: their positions are those in the chain or table.
func retryInterrupted(list func() error) error {
	for range listAttempts {
		before, err := generation()
		if err != nil {
			return err
		}
		if err := list(); err != nil {
			return err
		}
		if after, err := generation(); err != nil || after == before {
			return err
		}
	}
	return nil
}

// generation returns the number of the last transaction in nftables, as the kernel encodes it.
func generation() (number string, err error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	req.AddData(&nl.Nfgenmsg{Version: unix.NFNETLINK_V0})
	replies, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return "", fmt.Errorf("read the generation of nftables: %w", err)
	}
	// The number is the first attribute, of 8 bytes with its header. The others describe the process that requests it.
	return string(replies[0][HeaderLength:][:8]), nil
}

// TableName is the name of our table in each address family.
const TableName = "liqonet"

// Subscribe signals changes of nftables in the calling thread's network namespace, until ctx ends. The caller selects
// them by their type, such as unix.NFT_MSG_NEWRULE, and the name of the table. After a loss of notifications there is
// also a signal.
func Subscribe(ctx context.Context, signal notify.Signal, concerns func(typ int, table string) bool) error {
	s, err := notify.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return fmt.Errorf("subscribe to nftables: %w", err)
	}
	go s.Run(ctx, func(m netlink.Message) {
		typ := int(m.Header.Type & 0xff)
		if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || typ == unix.NFT_MSG_NEWGEN || len(m.Data) < HeaderLength {
			return
		}
		// In all messages about tables, chains, rules, sets and elements, the first attribute is the table's name, so
		// reading it costs little.
		d, err := netlink.NewAttributeDecoder(m.Data[HeaderLength:])
		if err == nil && d.Next() && d.Type() == unix.NFTA_TABLE_NAME && concerns(typ, d.String()) {
			signal.Send()
		}
	}, signal.Send)
	return nil
}

// FlagOwner is NFT_TABLE_F_OWNER of linux/netfilter/nf_tables.h, since Linux 5.12: only the socket that created the
// table can change it, and the kernel removes the table with that socket.
const FlagOwner = 0x2

// IsOwned reports whether a table has FlagOwner. The kernel writes flags in network byte order, and the library reads
// them in native byte order.
func IsOwned(t *nftables.Table) bool {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, t.Flags))&FlagOwner != 0
}
