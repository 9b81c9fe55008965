package nft

import (
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// Any program may have written the data of a rule.
func FuzzComment(f *testing.F) {
	f.Add(EncodeComment("peers come by the overlay only #6fa6c196"))
	f.Add([]byte{0, 255, 'a'})
	f.Fuzz(func(t *testing.T, data []byte) {
		comment := DecodeComment(data)
		kit.ErrorIf(t, len(comment) > len(data), "%q of %q", comment, data)
		if comment != "" && len(comment) < 128 {
			kit.Check(t, "comment", DecodeComment(EncodeComment(comment)), comment)
		}
	})
}
