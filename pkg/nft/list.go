package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// listAttempts bounds how often a list is repeated that others keep changing.
	listAttempts = 5
	// HeaderLength is the length of nfgenmsg, which precedes the attributes of each
	// message, in bytes.
	HeaderLength = 4
)

// ListChains returns the chains of a family, or of all families.
func ListChains(c *nftables.Conn, family nftables.TableFamily) (chains []*nftables.Chain, err error) {
	err = uninterrupted(func() error {
		chains, err = c.ListChainsOfTableFamily(family)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	return chains, nil
}

// uninterrupted repeats a list of nftables objects if somebody changed nftables
// meanwhile. The kernel continues a long list by position, so a change makes it leave
// out objects that nobody touched. It marks such a list (NLM_F_DUMP_INTR), but the
// library ignores the mark. The last attempt counts in any case. Lists of the rules
// of one chain do not need this: their positions are those in the chain.
func uninterrupted(list func() error) (err error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	before, err := generation(c)
	if err != nil {
		return err
	}
	for range listAttempts {
		listErr := list()
		after, err := generation(c)
		if err != nil || listErr != nil || after == before {
			return errors.Join(listErr, err)
		}
		before = after
	}
	return nil
}

// generation is the number of the last transaction in nftables.
func generation(c *netlink.Conn) (uint32, error) {
	answers, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   make([]byte, HeaderLength),
	})
	if err != nil {
		return 0, fmt.Errorf("ask nftables for its generation: %w", err)
	}
	for _, m := range answers {
		if len(m.Data) < HeaderLength {
			continue
		}
		d, err := netlink.NewAttributeDecoder(m.Data[HeaderLength:])
		if err != nil {
			continue
		}
		d.ByteOrder = binary.BigEndian
		for d.Next() {
			if d.Type() == unix.NFTA_GEN_ID {
				return d.Uint32(), nil
			}
		}
	}
	return 0, errors.New("the kernel tells no generation of nftables")
}
