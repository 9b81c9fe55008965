package cli

import (
	"crypto/tls"
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

// overTLS returns the address of a server that also serves the API, over TLS with the given groups for the key exchange.
func overTLS(t *testing.T, api *fakeapi.Server, groups ...tls.CurveID) string {
	t.Helper()
	s := httptest.NewUnstartedServer(api)
	s.EnableHTTP2, s.TLS = true, &tls.Config{CurvePreferences: groups}
	s.StartTLS()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL
}

// Each command that writes pre-shared keys prints which key exchange protected them, and status prints it later.
func TestKeyExchangeIsShown(t *testing.T) {
	kit.Slow(t)
	hub, spokes, plain := hubAndSpokes(t, 1)
	spoke := spokes[0]
	file := func(ofHub, ofSpoke string) string {
		f := kubeconfig(t, filepath.Join(t.TempDir(), "kubeconfig"), "hub="+ofHub, "spoke-1="+ofSpoke)
		text := kit.Must(os.ReadFile(f))(t)
		write(t, f, strings.ReplaceAll(string(text), "{server: https", "{insecure-skip-tls-verify: true, server: https"))
		return f
	}
	hybrid, classical, better := overTLS(t, hub), overTLS(t, spoke, tls.X25519), overTLS(t, spoke)
	by := file(hybrid, classical)
	does := func(file, line string) string {
		t.Helper()
		return command(t, append(strings.Fields(line), "--kubeconfig", file)...).ends(ExitOK).stdout
	}
	shows := func(file, line string, ofHub, ofSpoke kube.KeyExchange) {
		t.Helper()
		var doc peerResult
		kit.NoError(t, json.Unmarshal([]byte(does(file, line+" -o json")), &doc))
		got := map[string]kube.KeyExchange{}
		for _, v := range doc.Peerings {
			got[v.Cluster] = v.PresharedKeyExchange
		}
		kit.Check(t, line, got, map[string]kube.KeyExchange{"hub": ofHub, "spoke-1": ofSpoke})
	}
	const lineHybrid = "Pre-shared keys reached hub (HUB) over TLS 1.3 with a hybrid (post-quantum) key exchange, up to each address.\n"
	const lineClassical = "Pre-shared keys reached spoke-1 (SPOKE) over a classical key exchange: a quantum computer may decrypt recordings of it.\n"
	says := func(file, line string, want ...string) {
		t.Helper()
		out := strings.NewReplacer(hybrid, "HUB", classical, "SPOKE", better, "SPOKE", hub.URL, "HUB", spoke.URL, "SPOKE").Replace(does(file, line))
		var got []string
		for l := range strings.Lines(out) {
			if strings.Contains(l, "re-shared key") {
				got = append(got, l)
			}
		}
		kit.Check(t, line, got, want)
	}
	says(by, "peer hub spoke-1", lineHybrid, lineClassical)
	says(by, "peer hub spoke-1", lineHybrid, lineClassical)
	shows(by, "peer hub spoke-1", kube.Hybrid, kube.Classical)
	shows(plain, "status hub spoke-1", kube.Hybrid, kube.Classical)
	says(file(hybrid, better), "rotate-keys hub spoke-1 --psk-only", "Pre-shared keys reached hub (HUB), spoke-1 (SPOKE) over TLS 1.3 with a hybrid (post-quantum) key exchange, up to each address.\n")
	shows(plain, "status hub spoke-1", kube.Hybrid, kube.Hybrid)
	says(plain, "rotate-keys hub spoke-1 --psk-only", "It is not known which key exchange protected pre-shared keys on their way to hub (HUB), spoke-1 (SPOKE).\n")
	shows(plain, "status hub spoke-1", kube.UnknownKeyExchange, kube.UnknownKeyExchange)
	shows(by, "rotate-keys hub spoke-1 --psk-only", kube.Hybrid, kube.Classical)
}
