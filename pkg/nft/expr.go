package nft

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
)

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

// Label is the comment that a rule gets in the kernel: a text, and a hash of the
// rule's expressions. With the hash a rule can be compared without decoding it. Nft
// shows no comment of more than 128 bytes.
func Label(text string, family nftables.TableFamily, exprs []expr.Any) string {
	h := sha256.New()
	for _, e := range exprs {
		b, _ := expr.Marshal(byte(family), e) // who sends the rule gets the error
		h.Write(b)
	}
	return fmt.Sprintf("%s #%s", text, hex.EncodeToString(h.Sum(nil))[:8])
}

// EncodeComment encodes a rule's comment as nft does.
func EncodeComment(text string) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, text)
}

// DecodeComment returns the comment with which a rule's data begins, or "". Anybody may
// have written the data, and the library trusts the length in it, so it is not used here.
func DecodeComment(data []byte) string {
	const header = 2
	if len(data) < header || userdata.Type(data[0]) != userdata.TypeComment || len(data) < header+int(data[1]) {
		return ""
	}
	return string(bytes.TrimSuffix(data[header:header+int(data[1])], []byte{0}))
}
