package dataplane

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/nft"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/netns"
)

// PluginRule is a rule that network plugins may have on a node. It is in a separate chain.
type PluginRule struct {
	Hook     *nftables.ChainHook
	Priority nftables.ChainPriority
	// Match selects packets, Do is the action in addition to counting.
	Match, Do []expr.Any
}

// Plugin adds rules to a table of a node. The function that it returns counts the packets of each rule.
func Plugin(t testing.TB, ns *netns.NS, rules ...PluginRule) (packets func() []uint64) {
	t.Helper()
	table := &nftables.Table{Name: "plugin", Family: nftables.TableFamilyIPv4}
	chain := func(i int) *nftables.Chain {
		r := &rules[i]
		return &nftables.Chain{
			Name: fmt.Sprintf("rule%d", i), Table: table, Type: nftables.ChainTypeFilter, Hooknum: r.Hook, Priority: &r.Priority,
		}
	}
	ns.Do(t, func() error {
		c := &nftables.Conn{}
		c.AddTable(table)
		for i, r := range rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: c.AddChain(chain(i)), Exprs: join(r.Match, []expr.Any{&expr.Counter{}}, r.Do)})
		}
		return c.Flush()
	})
	return func() (counts []uint64) {
		t.Helper()
		ns.Do(t, func() error {
			for i, r := range rules {
				in, err := (&nftables.Conn{}).GetRules(table, chain(i))
				if err != nil || len(in) != 1 {
					return fmt.Errorf("rules of %s: %d, %w", chain(i).Name, len(in), err)
				}
				counts = append(counts, in[0].Exprs[len(r.Match)].(*expr.Counter).Packets)
			}
			return nil
		})
		return counts
	}
}

// Marked matches packets with a mark.
func Marked(mark uint32) []expr.Any { return nft.Meta(expr.MetaKeyMARK, native32(mark)...) }

// NotMarked matches packets with another mark, or without one.
func NotMarked(mark uint32) []expr.Any {
	load := &expr.Meta{Key: expr.MetaKeyMARK, Register: 1}
	return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: native32(mark)}}
}

// Mark sets a mark on packets.
func Mark(mark uint32) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: 1, Data: native32(mark)}, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1}}
}

// FromOverlay matches packets from the overlay, ToOverlay packets to it.
func FromOverlay() []expr.Any { return nft.Meta(expr.MetaKeyIIFGROUP, native32(overlay.Group)...) }

// ToOverlay matches packets to the overlay.
func ToOverlay() []expr.Any { return nft.Meta(expr.MetaKeyOIFGROUP, native32(overlay.Group)...) }

// ToUDP matches packets to a UDP port.
func ToUDP(port uint16) []expr.Any {
	return join(nft.Meta(expr.MetaKeyL4PROTO, unix.IPPROTO_UDP), nft.Equal(nft.TransportHeader(2, 2), binary.BigEndian.AppendUint16(nil, port)))
}
