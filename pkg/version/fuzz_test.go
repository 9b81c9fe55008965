package version

import (
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// No version that an agent reports is older than itself, or both older and newer than another one.
func FuzzOlder(f *testing.F) {
	f.Add("v0.1.0", "v0.2.0-3-gabcdef-dirty")
	f.Add("v99999999999999999999.0.0", "v1.0.0-99999999999999999999-gabc")
	f.Fuzz(func(t *testing.T, a, b string) {
		kit.ErrorIf(t, Older(a, a) || Older(a, b) && Older(b, a), "%q and %q", a, b)
	})
}
