package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
