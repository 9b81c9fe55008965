package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
)

const identityPath = "/secrets/" + manifests.IdentitySecretName

// peer prints fingerprints, as text and as a document. Later ones can be required on the command line, in the environment and in a file.
func TestFingerprints(t *testing.T) {
	startTwo(t)
	var doc peerResult
	kit.NoError(t, json.Unmarshal([]byte(command(t, "peer", "a", "b", "-o", "json").ends(ExitOK).stdout), &doc))
	kit.FatalIf(t, len(doc.Identities) != 2 || doc.Identities[0].Cluster != "a" || doc.Identities[1].ClusterID != "id-of-b", "%+v", doc.Identities)
	ofA, ofB := doc.Identities[0].Fingerprint, doc.Identities[1].Fingerprint
	kit.ErrorIf(t, ofA == ofB || !strings.HasPrefix(ofA, "SHA256:"), "the fingerprints are %s and %s", ofA, ofB)
	right := "b=" + ofB
	command(t, "peer", "a", "b", "--fingerprint", right, "--fingerprint", "a="+ofA).ends(ExitOK).
		prints("Identity of a: "+ofA+"\n", "Identity of b: "+ofB+"\n")
	command(t, "peer", "a", "b", "--fingerprint", ofB).ends(ExitOK)
	for _, args := range []string{"", " --dry-run", " --replace"} {
		command(t, strings.Fields("peer a b --fingerprint "+ofA+args)...).ends(ExitIdentity).warns("but has the fingerprint " + ofB)
	}
	command(t, "peer", "a", "b", "--fingerprint", "c="+ofA).ends(ExitUsage).warns(`"c" is none of the clusters a, b`)
	command(t, "peer", "a", "b", "--fingerprint", ofB, "--fingerprint", right).ends(ExitUsage).warns("name the cluster")
	command(t, "peer", "a", "b", "--fingerprint", "b=MD5:00").ends(ExitUsage).warns("as peer prints it")
	t.Setenv("LIQONET_FINGERPRINT", right+" a="+ofB)
	command(t, "peer", "a", "b").ends(ExitIdentity)
	t.Setenv("LIQONET_FINGERPRINT", "")
	for fingerprint, code := range map[string]int{ofA: ExitIdentity, ofB: ExitOK} {
		file := t.TempDir() + "/config.yaml"
		write(t, file, "fingerprint: [b="+fingerprint+"]\n")
		command(t, "peer", "a", "b", "--config", file).ends(code)
	}
}

// proxy returns an API server before another one, which answers requests for the identity itself.
func proxy(t *testing.T, before *httptest.Server, identity http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, identityPath) && r.Method == http.MethodGet {
			identity(w, r)
			return
		}
		before.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func notAllowed(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		kit.CheckNoError(t, json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden,
		}))
	}
}

// Who may not read the other cluster's identity is told by commands that read that it is unverified; others end.
func TestUnverified(t *testing.T) {
	a, b, at := twoAPIs(t)
	for _, args := range []string{"map a b 10.244.0.7", "expose-host a b --list", "status a b"} {
		o := command(t, strings.Fields(args)...).ends(ExitOK)
		o.is("nothing about identities", strings.Contains(o.stdout+o.stderr, "unverified"))
	}
	at(a.URL, proxy(t, b.Server, notAllowed(t)))
	for _, args := range []string{"map a b 10.244.0.7", "expose-host a b --list", "status a b", "status a b -o json", "doctor a b --objects-only"} {
		o := command(t, strings.Fields(args)...)
		o.is("an exit code that does not mean an identity", o.code == ExitIdentity)
		o.warns("unverified: whether b is the cluster that a was peered with is not known")
	}
	command(t, "status", "a", "b", "-o", "json").prints(`"unverified": [`)
	for _, args := range []string{"peer a b --dry-run", "unpeer a b --dry-run", "upgrade a b --dry-run"} {
		command(t, strings.Fields(args)...).ends(ExitOK).prints("unverified: ")
	}
	for _, args := range []string{"peer a b", "rotate-keys a b", "upgrade a b", "expose-host a b 192.168.7.7"} {
		command(t, strings.Fields(args)...).ends(ExitIdentity).warns("nothing was changed")
	}
	command(t, "unpeer", "a", "b").ends(ExitOK).is("that a is clean", !isClean(t, a))
}

// A cluster that has another key is no peer for any command.
func TestEachCommandChecksTheIdentity(t *testing.T) {
	a, b, at := twoAPIs(t)
	at(a.URL, proxy(t, b.Server, func(w http.ResponseWriter, _ *http.Request) {
		secret := manifests.IdentitySecret(make([]byte, 32))
		secret.TypeMeta = metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"}
		w.Header().Set("Content-Type", "application/json")
		kit.CheckNoError(t, json.NewEncoder(w).Encode(secret))
	}))
	for _, args := range []string{
		"map a b 10.244.0.7", "map b a 10.244.0.7", "expose-host a b --list", "expose-host a b 192.168.7.7", "expose-host a b 192.168.7.7 --remove",
		"verify a b", "status a b", "upgrade a b", "upgrade a b --dry-run", "rotate-keys a b", "peer a b", "peer a b --dry-run", "unpeer a b", "unpeer a b --dry-run",
	} {
		command(t, strings.Fields(args)...).ends(ExitIdentity).warns("b claims to be the cluster that a knows as b, but has another key")
	}
	command(t, "status", "a", "b", "-o", "json").ends(ExitIdentity).prints("but has another key")
	o := command(t, "doctor", "a", "b", "--objects-only", "-o", "json").prints("but has another key")
	o.is("a failure", o.code != ExitIdentity && o.code != ExitProblems)
	at(a.URL, b.URL)
	command(t, "status", "a", "b").ends(ExitOK)
}

// An API server that redirects requests, all or only those for the identity, to the true peer is not taken for it.
func TestRedirectsLendNoIdentity(t *testing.T) {
	a, b, at := twoAPIs(t)
	m := startNumbered(t, 7, "id-of-b", "b")
	for _, code := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		redirect := func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, b.URL+r.URL.RequestURI(), code) }
		at(a.URL, proxy(t, m.Server, redirect))
		command(t, "peer", "a", "b", "--dry-run").ends(ExitUnreachable).warns("redirects of API servers are not followed")
		all := httptest.NewServer(http.HandlerFunc(redirect))
		t.Cleanup(all.Close)
		at(a.URL, all.URL)
		command(t, "peer", "a", "b", "--dry-run").ends(ExitUnreachable)
	}
	var secrets corev1.SecretList
	kit.NoError(t, m.Client.List(t.Context(), &secrets))
	kit.ErrorIf(t, len(secrets.Items) > 0, "the other cluster has %d Secrets", len(secrets.Items))
}
