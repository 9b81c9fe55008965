package lab

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

func TestIssuer(t *testing.T) {
	made := kit.Must(newIssuer("https://172.18.1.2:6443"))(t)
	dir := filepath.Join(t.TempDir(), "pki")
	kit.NoError(t, made.save(dir))
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory of keys: %v, %v", info.Mode(), err)
	}
	// Another process issues with the same authority.
	loaded := kit.Must(loadIssuer(dir, made.apiServer))(t)
	cp := kit.Must(made.controlPlane(netip.MustParseAddr("172.18.1.2"), netip.MustParseAddr("10.96.0.1")))(t)
	worker := kit.Must(loaded.worker("a-w1", netip.MustParseAddr("172.18.1.11")))(t)
	if _, ok := worker["ca.key"]; ok {
		t.Error("a worker gets the authority's key")
	}

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(made.root.certificate)
	for _, tc := range []struct {
		in   files
		file string
		name string
	}{
		{cp, "apiserver", "127.0.0.1"},
		{cp, "apiserver", "10.96.0.1"},
		{cp, "apiserver", "kubernetes.default.svc"},
		{worker, "kubelet", "172.18.1.11"},
		{worker, "kubelet", "a-w1"},
	} {
		if _, err := tls.X509KeyPair(tc.in[tc.file+".crt"], tc.in[tc.file+".key"]); err != nil {
			t.Errorf("%s: %v", tc.file, err)
		}
		block, _ := pem.Decode(tc.in[tc.file+".crt"])
		certificate := kit.Must(x509.ParseCertificate(block.Bytes))(t)
		if _, err := certificate.Verify(x509.VerifyOptions{Roots: roots, DNSName: tc.name}); err != nil {
			t.Errorf("%s for %s: %v", tc.file, tc.name, err)
		}
	}
}

func TestEncodeKubeconfig(t *testing.T) {
	got := string(encodeKubeconfig([]kubeconfigEntry{
		{name: "a", server: "https://127.0.0.1:1", authority: []byte("CA"), client: pemPair{[]byte("C"), []byte("K")}},
		{name: "1", server: "https://127.0.0.1:2"},
	}))
	want := `apiVersion: v1
kind: Config
current-context: "a"
clusters:
- name: "a"
  cluster:
    server: https://127.0.0.1:1
    certificate-authority-data: Q0E=
- name: "1"
`
	if !strings.HasPrefix(got, want) {
		t.Errorf("got\n%s\nwant it to begin with\n%s", got, want)
	}
}
