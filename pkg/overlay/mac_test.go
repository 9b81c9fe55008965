package overlay_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/quick"

	"github.com/liqonet/liqonet/pkg/overlay"
)

// All addresses are locally administered unicast ones, depend on key, link and
// end, and on nothing else.
func TestMAC(t *testing.T) {
	type input struct {
		Key  overlay.Key
		VNI  uint32
		Addr [4]byte
	}
	mac := func(i input) overlay.MAC { return i.Key.MAC(i.VNI, netip.AddrFrom4(i.Addr)) }
	property := func(a, b input) bool {
		other := a
		other.Addr = b.Addr
		return mac(a)[0]&3 == 2 && (mac(a) == mac(b)) == (a == b) && (mac(a) == mac(other)) == (a == other)
	}
	if err := quick.Check(property, nil); err != nil {
		t.Error(err)
	}
}

func TestReadKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if _, err := overlay.ReadKey(file); err == nil {
		t.Error("no error without a file")
	}
	for length, ok := range map[int]bool{0: false, 31: false, 32: true, 33: false} {
		if err := os.WriteFile(file, make([]byte, length), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := overlay.ReadKey(file); (err == nil) != ok {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
}
