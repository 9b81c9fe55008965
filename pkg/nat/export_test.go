package nat

import "github.com/google/nftables/expr"

// ReceiveUnknown replaces the table as ApplyReceive does, by a rule that the kernel refuses
// with ENOENT, as one without nft_fwd_netdev refuses the real one.
func ReceiveUnknown(underlay string) error {
	r := Receive{Underlay: underlay}
	rules := []rule{{exprs: []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: "unknown"}}}}
	return r.replace(true, rules, []string{"unknown"}, index(underlay))
}
