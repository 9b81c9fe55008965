package nft

import "github.com/google/nftables/expr"

// Equal compares what an expression loads into register 1 with a value.
func Equal(load expr.Any, value []byte) []expr.Any {
	return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value}}
}
