package nat

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// ReceiveUnknown replaces the table as ApplyReceive does, by a rule that the kernel refuses
// with ENOENT, as one without nft_fwd_netdev refuses the real one.
func ReceiveUnknown(underlay string) error {
	receive := base("receive", nftables.ChainHookIngress, *nftables.ChainPriorityFilter, []rule{
		{exprs: []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: "unknown"}}},
	})
	receive.Device = underlay
	return table{family: nftables.TableFamilyNetdev, chains: []chain{receive}}.replaceNetdev(true)
}
