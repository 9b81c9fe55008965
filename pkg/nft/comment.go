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

// maxComment is the longest comment that nft shows (NFTNL_UDATA_COMMENT_MAXLEN).
const maxComment = 128

// Label is the comment that a rule gets in the kernel: a text, and a hash of the
// rule's expressions. With the hash a rule can be compared without decoding it.
func Label(text string, family nftables.TableFamily, exprs []expr.Any) (string, error) {
	h := sha256.New()
	for _, e := range exprs {
		b, err := expr.Marshal(byte(family), e)
		if err != nil {
			return "", fmt.Errorf("encode rule %q: %w", text, err)
		}
		h.Write(b)
	}
	label := fmt.Sprintf("%s #%s", text, hex.EncodeToString(h.Sum(nil))[:8])
	if len(label) >= maxComment {
		return "", fmt.Errorf("comment %q is too long", label)
	}
	return label, nil
}

// EncodeComment encodes a rule's comment as nft does.
func EncodeComment(text string) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, text)
}

// DecodeComment returns a rule's comment, or "" if it has none. Anybody may have
// written the data, and the library trusts the length in it, so it is not used here.
func DecodeComment(data []byte) string {
	const header = 2
	for len(data) >= header {
		typ, length := userdata.Type(data[0]), int(data[1])
		if len(data) < header+length {
			return ""
		}
		if typ == userdata.TypeComment {
			return string(bytes.TrimSuffix(data[header:header+length], []byte{0}))
		}
		data = data[header+length:]
	}
	return ""
}
