package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

func TestSecurity_02_NameServersAreReported(t *testing.T) {
	for text, want := range map[string][]string{
		"": nil,
		"search a b\nnameserver 10.20.0.10\n  nameserver\t192.0.2.53 # comment\noptions ndots:5\n": {"10.20.0.10", "192.0.2.53"},
		"nameserver 2001:db8::53\nnameserver ::ffff:10.0.0.2":                                      {"2001:db8::53", "10.0.0.2"},
		// Those are on this node, or on its link.
		"nameserver 127.0.0.53\nnameserver 169.254.169.253\nnameserver fe80::1%eth0\nnameserver ::1\nnameserver 0.0.0.0": nil,
		"nameserver\nnameserver x\n#nameserver 10.0.0.1\nNAMESERVER 10.0.0.1\nnameserver 2001:db8::1%eth0":               nil,
		strings.Repeat("nameserver 10.0.0.1\n", 100):                                                                     slices.Repeat([]string{"10.0.0.1"}, maxResolvers),
	} {
		file := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, ip := range readResolvers(file) {
			got = append(got, ip.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
	if got := readResolvers(filepath.Join(t.TempDir(), "missing")); got != nil {
		t.Errorf("without a file: %v", got)
	}
}

// A node lets in as many new connections of each peer as its Peering says.
func TestSecurity_20_LimitOfEachPeering(t *testing.T) {
	me := local{name: "n1", address: addr("10.80.0.7")}
	limited := peering("b", 2, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.30.0.0/16"), "10.70.0.0/18")
	other := peering("c", 1, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.31.0.0/16"), "10.71.0.0/18")
	limited.Spec.Limits.NewConnections = 1000
	got, err := desire(me, []v1alpha1.Peering{limited, other})
	if err != nil {
		t.Fatal(err)
	}
	limits := map[string]uint32{}
	for _, g := range got.nat.Gateways {
		limits[g.Link] = g.LimitNew
	}
	if diff := cmp.Diff(map[string]uint32{"lq2-0": 1000, "lq1-0": 0}, limits); diff != "" {
		t.Error(diff)
	}
}
