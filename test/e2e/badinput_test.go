package e2e

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Exit codes as documented (pkg/cli).
const (
	exitUsage       = 2
	exitUnreachable = 3
	exitForbidden   = 4
	exitNotReady    = 5
	exitBusy        = 13
)

// checkMessage wants one error on stderr that names what it is about and has
// none of the marks of an error that nobody looked at.
func checkMessage(t testing.TB, r result, names ...string) {
	t.Helper()
	n := strings.Count("\n"+r.stderr, "\nError: ")
	expect(t, n == 1, "%d errors on stderr, want 1:\n%s", n, r.stderr)
	_, message, _ := strings.Cut("\n"+r.stderr, "\nError: ")
	for _, name := range names {
		expect(t, strings.Contains(message, name), "the error does not name %q:\n%s", name, message)
	}
	// The second line says what to do; with wrong flags the first one does.
	_, advice, _ := strings.Cut(message, "\n")
	expect(t, r.code == exitUsage || strings.TrimSpace(advice) != "", "the error does not say what to do:\n%s", message)
	for _, bad := range []string{"%!", "&{", "0xc0", "goroutine ", "panic", "<nil>"} {
		expect(t, !strings.Contains(r.stderr, bad), "stderr contains %q:\n%s", bad, r.stderr)
	}
	if n := strings.Count(strings.TrimSpace(message), "\n"); n > 4 {
		t.Errorf("the error has %d lines, want a short one:\n%s", n+1, message)
	}
}

// Bad input ends in time, with one clear message and the documented exit code,
// prints nothing to stdout and changes nothing in any cluster.
func TestBadInput(t *testing.T) {
	ctx := begin(t)
	a, b := fx.alpha.Name, fx.beta.Name
	other := otherContexts(t, ctx)
	t.Run("commands", func(t *testing.T) {
		for _, test := range []struct {
			name       string
			kubeconfig string
			args       []string
			code       int
			within     time.Duration
			names      []string
		}{
			{"unknown context", "", []string{"peer", a, "nope"}, exitUsage, 0, []string{`"nope"`, "alpha, beta"}},
			{"closed port", other, []string{"peer", a, "closed"}, exitUnreachable, 0, []string{`"closed"`}},
			{"no answer", other, []string{"peer", a, "silent", "--timeout=8s"}, exitUnreachable, 12 * time.Second, []string{`"silent"`}},
			{"wrong certificate authority", other, []string{"peer", a, "untrusted"}, exitUnreachable, 0, []string{`"untrusted"`, "certificate"}},
			{"no permission at all", other, []string{"peer", "nobody", b}, exitForbidden, 0, []string{`"nobody"`}},
			{"permission to view only", other, []string{"peer", b, "viewer"}, exitForbidden, 0, []string{`"viewer"`, "create", "customresourcedefinitions"}},
			{"wrong token", other, []string{"peer", "stranger", b}, exitForbidden, 0, []string{`"stranger"`, "credentials"}},
			{"same cluster by two contexts", other, []string{"peer", a, "alpha-again"}, exitUsage, 0, []string{a, "alpha-again", "same cluster"}},
			{"map without peering", "", []string{"map", a, b, "default/x"}, exitUsage, 0, []string{a, b, "not peered"}},
		} {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel() // some wait
				within := max(test.within, 5*time.Second)
				limited, cancel := context.WithTimeout(ctx, within+5*time.Second)
				defer cancel()
				r := liqonet(t, limited, test.kubeconfig, test.args...)
				expect(t, r.took <= within, "it took %s, want %s", r.took, within)
				require(t, limited.Err() == nil, "it was killed then")
				r.refused(t, test.code)
				checkMessage(t, r, test.names...)
			})
		}
	})
	checkNothingLeft(t, ctx)
}

// What fails after it has begun is taken back.
func TestFailedPeer(t *testing.T) {
	a, b := fx.alpha.Name, fx.beta.Name
	for _, test := range []struct {
		name   string
		args   []string
		within time.Duration
		names  []string
	}{
		{"image that cannot be pulled", []string{"--agent-image=lab.local/nope:1", "--timeout=40s"}, 45 * time.Second, []string{"lab.local/nope:1", "cluster", "--agent-image"}},
		{"not enough time", []string{"--timeout=2500ms"}, 15 * time.Second, []string{"timed out after 2.5s", "cluster"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx := begin(t)
			r := liqonet(t, ctx, "", append([]string{"peer", a, b}, test.args...)...)
			r.refused(t, exitNotReady)
			checkMessage(t, r, test.names...)
			expect(t, r.took <= test.within, "it took %s, want %s", r.took, test.within)
			checkNothingLeft(t, ctx)
		})
	}
}

// otherContexts writes a kubeconfig with those of the lab and others, by which a
// cluster cannot be reached or may not be changed.
func otherContexts(t *testing.T, ctx context.Context) string {
	cfg := must(clientcmd.LoadFromFile(fx.lab.Kubeconfig()))(t)
	alpha := cfg.Contexts[fx.alpha.Name]
	server := *cfg.Clusters[alpha.Cluster]
	add := func(name string, change func(*clientcmdapi.Cluster, *clientcmdapi.Context)) {
		cluster, context := server, *alpha
		context.Cluster = name
		change(&cluster, &context)
		cfg.Clusters[name], cfg.Contexts[name] = &cluster, &context
	}
	toServer := func(url string) func(*clientcmdapi.Cluster, *clientcmdapi.Context) {
		return func(c *clientcmdapi.Cluster, _ *clientcmdapi.Context) { c.Server = url }
	}
	asUser := func(name, token string) {
		cfg.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
		add(name, func(_ *clientcmdapi.Cluster, c *clientcmdapi.Context) { c.AuthInfo = name })
	}
	closed := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	add("closed", toServer("https://"+closed.Addr().String()))
	closed.Close()
	// The kernel takes connections, but nobody ever answers.
	silent := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { silent.Close() })
	add("silent", toServer("https://"+silent.Addr().String()))
	beta := cfg.Clusters[cfg.Contexts[fx.beta.Name].Cluster]
	add("untrusted", func(c *clientcmdapi.Cluster, _ *clientcmdapi.Context) {
		c.CertificateAuthorityData = beta.CertificateAuthorityData
	})
	add("alpha-again", func(*clientcmdapi.Cluster, *clientcmdapi.Context) {})
	asUser("stranger", "not-a-token")
	asUser("nobody", serviceAccountToken(t, ctx, fx.alpha, "e2e-nobody", ""))
	asUser("viewer", serviceAccountToken(t, ctx, fx.alpha, "e2e-viewer", "view"))

	path := filepath.Join(t.TempDir(), "kubeconfig")
	try(t, clientcmd.WriteToFile(*cfg, path))
	return path
}

// serviceAccountToken makes a user of a cluster with a cluster role, or none, who
// is gone when the test ends.
func serviceAccountToken(t *testing.T, ctx context.Context, c *cluster, name, role string) string {
	t.Helper()
	kubectl := func(ctx context.Context, args ...string) string {
		out, err := c.Run(ctx, "", args...)
		report(t, err)
		return out
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		kubectl(ctx, "delete", "serviceaccount", name, "--ignore-not-found")
		kubectl(ctx, "delete", "clusterrolebinding", name, "--ignore-not-found")
	})
	kubectl(ctx, "create", "serviceaccount", name)
	if role != "" {
		kubectl(ctx, "create", "clusterrolebinding", name, "--clusterrole="+role, fmt.Sprintf("--serviceaccount=default:%s", name))
	}
	return kubectl(ctx, "create", "token", name)
}
