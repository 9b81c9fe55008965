package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// A resolv.conf(5) yields a few addresses of other machines.
func FuzzResolvers(f *testing.F) {
	f.Add("# comment\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\nnameserver ::ffff:192.0.2.54\noptions x\n")
	file := filepath.Join(f.TempDir(), "resolv.conf")
	f.Fuzz(func(t *testing.T, text string) {
		kit.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		got := readResolvers(file)
		kit.ErrorIf(t, len(got) > maxResolvers, "%d name servers", len(got))
		for _, ip := range got {
			kit.ErrorIf(t, !ip.IsGlobalUnicast() || ip.Zone() != "" || ip.Is4In6(), "%s", ip)
		}
	})
}
