package nat

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// listAttempts bounds listing what others change all the time.
const listAttempts = 5

// listChains returns the chains of a family, or of all.
func listChains(c *nftables.Conn, family nftables.TableFamily) (chains []*nftables.Chain, err error) {
	err = uninterrupted(func() error {
		chains, err = c.ListChainsOfTableFamily(family)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	return chains, nil
}

// uninterrupted lists something of nftables again while others have changed
// something meanwhile: the kernel goes on by numbers, so with many chains some are
// left out, be they changed or not. It marks such an answer (NLM_F_DUMP_INTR), which
// the library does not look at. The last attempt counts, whatever it is. Lists of one
// chain's rules do not need it: they are by numbers in that chain.
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
		Data:   make([]byte, genmsgLength),
	})
	if err != nil {
		return 0, fmt.Errorf("ask nftables for its generation: %w", err)
	}
	for _, m := range answers {
		if len(m.Data) < genmsgLength {
			continue
		}
		d, err := netlink.NewAttributeDecoder(m.Data[genmsgLength:])
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
