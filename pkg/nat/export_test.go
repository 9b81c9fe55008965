package nat

import "github.com/google/nftables/expr"

// Of Monitor.
const SettleTime, SettleLongest = settleTime, settleLongest

// Settle is how Monitor waits.
var Settle = settle

// ListAttempts is how often Uninterrupted lists at the most.
const ListAttempts = listAttempts

// Uninterrupted is how chains are listed.
var Uninterrupted = uninterrupted

// ReceiveUnknown replaces the table as ApplyReceive does, by a rule that the kernel refuses
// with ENOENT, as one without nft_fwd_netdev refuses the real one.
func ReceiveUnknown(underlay string) error {
	r := Receive{Underlay: underlay}
	rules := []rule{{exprs: []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: "unknown"}}}}
	return r.replace(true, rules, []string{"unknown"}, index(underlay))
}
