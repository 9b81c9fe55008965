package version

import (
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

func TestOlder(t *testing.T) {
	ordered := []string{"v0.1.0-rc.1", "v0.1.0", "v0.1.0-2-gabc0123", "v0.1.0-10-gabc0123-dirty", "v0.1.1", "v0.2.0", "v0.10.0", "v1.0.0"}
	for i, a := range ordered {
		for j, b := range ordered {
			got := Older(a, b)
			kit.ErrorIf(t, got != (i < j), "%s is older than %s: %t", a, b, got)
		}
	}
	for _, unknown := range []string{"", "dev", "076aa63", "076aa63-dirty", "v", "vX", "v1"} {
		kit.ErrorIf(t, Older(unknown, "v1.0.0") || Older("v1.0.0", unknown), "%q is compared", unknown)
	}
}

func TestDocURL(t *testing.T) {
	defer func(before string) { version = before }(version)
	for _, tt := range []struct{ version, ref string }{
		{"v0.1.0", "v0.1.0"}, {"v0.2.0-rc.1", "v0.2.0-rc.1"}, {"v0.1.0-2-gabc0123", "main"}, {"v0.1.0-dirty", "main"}, {"dev", "main"}, {"076aa63", "main"},
	} {
		version = tt.version
		got := DocURL("x.md#y")
		kit.ErrorIf(t, !strings.HasSuffix(got, "/liqonet/liqonet/blob/"+tt.ref+"/docs/x.md#y"), "%s: got %s", version, got)
	}
}
