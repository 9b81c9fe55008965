package cli

import (
	"net/netip"
	"testing"

	"k8s.io/client-go/rest"
)

// An address in the kubeconfig is used as the API server's address, a name is not resolved.
func TestSecurity_02_TheKubeconfigsAddress(t *testing.T) {
	for server, want := range map[string]string{
		"https://192.0.2.10:6443": "192.0.2.10", "https://192.0.2.10/k8s/clusters/c-1": "192.0.2.10", "192.0.2.10:6443": "192.0.2.10", "https://[2001:db8::1]:6443": "2001:db8::1",
		"https://localhost:6443": "", "https://api.example.com": "", "": "", "https://%zz": "",
	} {
		got := serverAddress(&rest.Config{Host: server})
		if want == "" && got.IsValid() && !got.IsLoopback() || want != "" && got != netip.MustParseAddr(want) {
			t.Errorf("%q: got %s, want %q", server, got, want)
		}
	}
}
