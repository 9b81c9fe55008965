package nat

import (
	"context"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// ReceiveUnknown replaces the table as ApplyReceive does, with a rule that the kernel refuses with ENOENT, as a kernel
// without nft_fwd_netdev refuses the real one.
func ReceiveUnknown(underlay string) error {
	receive := base("receive", nftables.ChainHookIngress, *nftables.ChainPriorityFilter, rules{
		{exprs: []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: "unknown"}}},
	})
	receive.Device = underlay
	return table{family: nftables.TableFamilyNetdev, chains: []chain{receive}}.replaceNetdev(true)
}

// ApplyUncountable is ApplyGateway for a kernel that refuses counters with ENOENT, as a kernel without nft_objref does.
func ApplyUncountable(ctx context.Context, g Gateway) (changed bool, err error) {
	t := g.table()
	for _, c := range t.chains {
		for _, r := range c.rules {
			for _, e := range r.exprs {
				if o, ok := e.(*expr.Objref); ok {
					o.Type = int(nftables.ObjTypeQuota) // no quota has that name
				}
			}
		}
	}
	return apply(ctx, t)
}
