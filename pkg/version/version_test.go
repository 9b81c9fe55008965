package version

import (
	"strings"
	"testing"
)

func TestOlder(t *testing.T) {
	ordered := []string{"v0.1.0-rc.1", "v0.1.0", "v0.1.0-2-gabc0123", "v0.1.0-10-gabc0123-dirty", "v0.1.1", "v0.2.0", "v0.10.0", "v1.0.0"}
	for i, a := range ordered {
		for j, b := range ordered {
			if got := Older(a, b); got != (i < j) {
				t.Errorf("%s is older than %s: %t", a, b, got)
			}
		}
	}
	for _, unknown := range []string{"", "dev", "076aa63", "076aa63-dirty", "v", "vX", "v1"} {
		if Older(unknown, "v1.0.0") || Older("v1.0.0", unknown) {
			t.Errorf("%q is compared", unknown)
		}
	}
}

func TestDocURL(t *testing.T) {
	defer func(before string) { version = before }(version)
	for _, tt := range []struct{ version, ref string }{
		{"v0.1.0", "v0.1.0"}, {"v0.2.0-rc.1", "v0.2.0-rc.1"}, {"v0.1.0-2-gabc0123", "main"}, {"v0.1.0-dirty", "main"}, {"dev", "main"}, {"076aa63", "main"},
	} {
		version = tt.version
		if got := DocURL("x.md#y"); !strings.HasSuffix(got, "/liqonet/liqonet/blob/"+tt.ref+"/docs/x.md#y") {
			t.Errorf("%s: got %s", version, got)
		}
	}
}
