package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Before anything is peered, doctor says whether it would work, and leaves nothing. Who may see little is told what, and that is no failure.
// Credentials that are not accepted, and a clock that is wrong, are named.
func TestDoctorBeforePeering(t *testing.T) {
	ctx := begin(t)
	a, b := fx.alpha, fx.beta
	if d := diagnose(t, ctx, a, b); d.code != 0 || !strings.HasPrefix(d.First, "Nothing found") {
		t.Errorf("before peering:\n%s", d.stdout)
	}
	var cures []func()
	for _, n := range b.nodes {
		cures = append(cures, n.dropPackets(t, ctx, "in udp dport 30000-32767 drop"))
	}
	for _, n := range a.nodes {
		cures = append(cures, n.dropPackets(t, ctx, "in udp dport 30000-32767 drop"))
	}
	if d := diagnose(t, ctx, a, b); d.code != 11 || !strings.Contains(d.First, "UDP from its nodes does not reach") {
		t.Errorf("with UDP blocked:\n%s", d.stdout)
	}
	for _, cure := range cures {
		cure()
	}

	viewer := withToken(t, a, serviceAccountToken(t, ctx, a, "e2e-doctor", "view"))
	r := liqonet(t, ctx, viewer, "doctor", a.Name)
	if r.code != 0 || !strings.Contains(r.stdout, "were skipped") || !strings.Contains(r.stdout, "you may not") {
		t.Errorf("with few rights: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	r = liqonet(t, ctx, withToken(t, a, "not-a-token"), "doctor", a.Name)
	if r.code != 11 || !strings.Contains(r.stdout, a.Name+": the API server does not accept the credentials") {
		t.Errorf("with a wrong token: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	late := between(t, func(_ *cluster, w http.ResponseWriter, r *http.Request, api http.Handler) {
		w.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		api.ServeHTTP(shifted{w}, r)
	}, a)
	r = liqonet(t, ctx, late, "doctor", a.Name)
	// Its other stamps are of the true time, as of another API server: by these, kubelets are silent.
	if !strings.Contains(r.stdout, "the API server's clock is 1h0m0s ahead of this machine's") && !strings.Contains(r.stdout, "clock is 59m") {
		t.Errorf("with a clock an hour ahead: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	checkNothingLeft(t, ctx)
}

// shifted keeps the date of an answer, which the API server's own would replace.
type shifted struct{ http.ResponseWriter }

func (s shifted) WriteHeader(code int) {
	s.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
	s.ResponseWriter.WriteHeader(code)
}

// Flush sends what was written: watches wait for it.
func (s shifted) Flush() { s.ResponseWriter.(http.Flusher).Flush() }

// withToken is a kubeconfig of a user of a cluster.
func withToken(t *testing.T, c *cluster, token string) string {
	t.Helper()
	rc, err := c.restConfig()
	if err != nil {
		t.Fatal(err)
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[c.Name] = &clientcmdapi.Cluster{Server: rc.Host, CertificateAuthorityData: rc.CAData, CertificateAuthority: rc.CAFile}
	cfg.AuthInfos[c.Name] = &clientcmdapi.AuthInfo{Token: token}
	cfg.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.Name, AuthInfo: c.Name}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		t.Fatal(err)
	}
	return file
}
