package nft

import "github.com/google/nftables/expr"

// Equal compares what an expression loads into register 1 with a value.
func Equal(load expr.Any, value []byte) []expr.Any {
	return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value}}
}

// Meta compares what the kernel knows of a packet, such as its interface, with a value.
func Meta(key expr.MetaKey, value ...byte) []expr.Any {
	return Equal(&expr.Meta{Key: key, Register: 1}, value)
}

// IPHeader loads bytes of the IP header into register 1.
func IPHeader(offset, length uint32) *expr.Payload {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

// TransportHeader loads bytes of what follows the IP header into register 1.
func TransportHeader(offset, length uint32) *expr.Payload {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: length}
}
