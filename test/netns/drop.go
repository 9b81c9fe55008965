package netns

import (
	"encoding/binary"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Drop has an interface lose packets with more bytes than above, those that come in, go out, or both.
func (ns *NS) Drop(t testing.TB, name string, in, out bool, above uint32) (repair func()) {
	t.Helper()
	table := &nftables.Table{Name: "cut", Family: nftables.TableFamilyNetdev}
	ns.Do(t, func() error {
		c := &nftables.Conn{}
		c.AddTable(table)
		for direction, hook := range map[string]*nftables.ChainHook{"in": nftables.ChainHookIngress, "out": nftables.ChainHookEgress} {
			if direction == "in" && !in || direction == "out" && !out {
				continue
			}
			chain := c.AddChain(&nftables.Chain{
				Name: direction, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRef(-500), Device: name,
			})
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
				&expr.Meta{Key: expr.MetaKeyLEN, Register: 1},
				&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
				&expr.Cmp{Op: expr.CmpOpGt, Register: 1, Data: binary.BigEndian.AppendUint32(nil, above)},
				&expr.Verdict{Kind: expr.VerdictDrop},
			}})
		}
		return c.Flush()
	})
	return func() {
		ns.Do(t, func() error {
			c := &nftables.Conn{}
			c.DelTable(table)
			return c.Flush()
		})
	}
}
