package overlay_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/quick"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/kit"
)

// All MAC addresses are locally administered unicast addresses, and depend only on the key, the link and the end.
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
	kit.CheckNoError(t, quick.Check(property, nil))
}

// Gateways have different keys, also in different generations. Each end of a link derives the same one.
func TestForGateway(t *testing.T) {
	keys := overlay.Keys{7: {1}, 8: {2}}
	seen := map[overlay.Key]string{keys[7]: "the cluster's", keys[8]: "the cluster's next"}
	for _, name := range []string{"gateway-b-0", "gateway-b-1", "gateway-b-10", "gateway-c-0"} {
		for _, generation := range []int32{7, 8} {
			key, what := keys.ForGateway(name, generation), fmt.Sprint(name, ", generation ", generation)
			kit.ErrorIf(t, seen[key] != "", "%s has the key of %s", what, seen[key])
			seen[key] = what
			mounted := overlay.Keys{generation: overlay.Key(wire.GatewayKey(lo.ToPtr(keys[generation])[:], name, generation))}
			kit.ErrorIf(t, mounted.ForGeneration(generation) != key, "%s: the gateway has another key than nodes", what)
		}
		kit.ErrorIf(t, keys.ForGateway(name, 0) != keys.ForGateway(name, 7), "%s: an unknown generation is not that of the oldest key", name)
	}
}

func TestReadKeys(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, length int) {
		t.Helper()
		kit.NoError(t, os.WriteFile(filepath.Join(dir, name), bytes.Repeat([]byte{byte(length + len(name))}, length), 0o600))
	}
	if _, err := overlay.ReadKeys(filepath.Join(dir, "missing")); err == nil {
		t.Error("no error without a directory")
	}
	write("..data", 3)
	if _, err := overlay.ReadKeys(dir); err == nil {
		t.Error("no error without a key")
	}
	for length, ok := range map[int]bool{0: false, 31: false, 32: true, 33: false} {
		write("7", length)
		if _, err := overlay.ReadKeys(dir); (err == nil) != ok {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
	write("7", 32)
	write("10", 32)
	keys, err := overlay.ReadKeys(dir)
	if err != nil || len(keys) != 2 || keys[7] == keys[10] {
		t.Fatal(keys, err)
	}
	for generation, want := range map[int32]int32{7: 7, 10: 10, 0: 7, 8: 7, 11: 7} {
		kit.ErrorIf(t, keys.ForGeneration(generation) != keys[want], "generation %d does not have the key of generation %d", generation, want)
	}
}
