package cli

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/fakeapi"
)

// recorded starts a cluster with a peering, and makes it the current context. It returns a function for the headers of its requests.
func recorded(t *testing.T) func() []http.Header {
	t.Helper()
	api, err := fakeapi.New(append(fakeapi.Objects("id-of-a", "a-1", "172.18.0.11", "10.244.0.0/16"), peeringWith("b", "id-of-b"))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	var mu sync.Mutex
	var all []http.Header
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		all = append(all, r.Header.Clone())
		mu.Unlock()
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	home := isolate(t)
	t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(home, "kubeconfig"), "a="+server.URL))
	return func() []http.Header {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// -v=6 logs requests, and no higher level logs credentials or what requests contain.
func TestRequestsAreLogged(t *testing.T) {
	recorded(t)
	for _, tt := range []struct {
		flag   string
		logged bool
	}{{"-v", false}, {"-v=5", false}, {"-v=6", true}, {"-v=7", true}, {"-v=10", true}} {
		code, stdout, stderr := run(t, "status", "a", tt.flag)
		if code != ExitUnhealthy || !strings.HasPrefix(stdout, "CLUSTER ") || strings.Contains(stdout, "/api/v1") {
			t.Errorf("%s: exit code %d\n%s", tt.flag, code, stdout)
		}
		if got := strings.Contains(stderr, "/api/v1/namespaces/kube-system"); got != tt.logged {
			t.Errorf("%s: requests are logged: %t\n%s", tt.flag, got, stderr)
		}
		for _, secret := range []string{"Bearer t", "Request Body", "Response Body", "externalCIDR"} {
			if strings.Contains(stderr, secret) {
				t.Errorf("%s: %q is logged\n%s", tt.flag, secret, stderr)
			}
		}
	}
	if code, _, stderr := run(t, "status", "a"); code != ExitUnhealthy || stderr != "" {
		t.Errorf("without -v: exit code %d\n%s", code, stderr)
	}
}

// --as and --as-group are in each request.
func TestImpersonation(t *testing.T) {
	headers := recorded(t)
	if code, _, stderr := run(t, "status", "a", "--as", "alice", "--as-group", "dev", "--as-group", "ops"); code != ExitUnhealthy {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	if len(headers()) == 0 {
		t.Error("no request")
	}
	for _, h := range headers() {
		if h.Get("Impersonate-User") != "alice" || !slices.Equal(h.Values("Impersonate-Group"), []string{"dev", "ops"}) {
			t.Errorf("got %v", h)
		}
	}
}

// --request-timeout ends a request long before --timeout.
func TestRequestTimeout(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	home := isolate(t)
	t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(home, "kubeconfig"), "a="+server.URL))
	start := time.Now()
	code, _, stderr := run(t, "status", "a", "--request-timeout", "100ms", "--timeout", "1m")
	if took := time.Since(start); code != ExitUnreachable || took > identifies/2 {
		t.Errorf("exit code %d after %s\n%s", code, took, stderr)
	}
	if code, _, stderr := run(t, "status", "a", "--request-timeout", "soon"); code != ExitUsage {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

// identifies is how long a command waits for the first response of a cluster.
const identifies = 10 * time.Second

// status --wait ends when the peerings are connected or, with the last table, after --timeout.
func TestStatusWaits(t *testing.T) {
	a, b, at := twoAPIs(t)
	if code, stdout, stderr := run(t, "status", "a", "b", "--wait"); code != ExitOK || strings.Count(stdout, "Connected") < 2 {
		t.Errorf("connected: exit code %d\n%s%s", code, stdout, stderr)
	}
	if err := a.Client.Create(t.Context(), peeringWith("c", "id-of-c")); err != nil {
		t.Fatal(err)
	}
	at(a.URL, b.URL)
	code, stdout, stderr := run(t, "status", "a", "--wait", "--timeout", "1500ms")
	if code != ExitUnhealthy || strings.Count(stdout, "CLUSTER ") == 0 || !strings.Contains(stdout, "Unknown") || strings.Contains(stderr, "Error") {
		t.Errorf("not connected: exit code %d\n%s%s", code, stdout, stderr)
	}
}

// expose-host --list shows the hosts, with the addresses by which the other cluster reaches them.
func TestExposedHostsAreListed(t *testing.T) {
	twoAPIs(t)
	if code, stdout, stderr := run(t, "expose-host", "a", "b", "--list"); code != ExitOK || stdout != "" {
		t.Errorf("none: exit code %d\n%s%s", code, stdout, stderr)
	}
	code, mapped, stderr := run(t, "expose-host", "a", "b", "192.0.2.7")
	if code != ExitOK {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	code, stdout, stderr := run(t, "expose-host", "a", "b", "--list")
	if want := "HOST        SEEN BY B AS\n192.0.2.7   " + mapped; code != ExitOK || stdout != want {
		t.Errorf("exit code %d, got %q, want %q\n%s", code, stdout, want, stderr)
	}
	if code, stdout, _ = run(t, "expose-host", "b", "a", "--list"); code != ExitOK || stdout != "" {
		t.Errorf("the other direction: exit code %d\n%s", code, stdout)
	}
}

// The command line takes precedence over the file of peer, which takes precedence over the environment and the configuration file.
func TestPrecedenceOfFile(t *testing.T) {
	home := isolate(t)
	file := filepath.Join(home, "peering.yaml")
	write(t, file, "clusters: [a, b]\ntimeout: 7m\noverlay: vxlan\nmap: [a=10.60.0.0/16, b=10.61.0.0/16]\n")
	write(t, filepath.Join(home, "xdg", "liqonet", "config.yaml"), "overlay: auto\nserver: a\n")
	t.Setenv("LIQONET_TIMEOUT", "3m")
	t.Setenv("LIQONET_OVERLAY", "geneve")
	t.Setenv("LIQONET_PLANES", "3")
	for _, how := range []string{"flag", "environment"} {
		args := []string{"--timeout", "5m"}
		if how == "flag" {
			args = append(args, "-f", file)
		} else {
			t.Setenv("LIQONET_FILENAME", file)
		}
		f, err := parse(t, "peer", args...)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{
			"timeout": "5m0s", "overlay": "vxlan", "planes": "3", "server": "a", "map": "a=10.60.0.0/16 b=10.61.0.0/16", "clusters": "[a,b]",
		} {
			if got := f.Lookup(name).Value.String(); got != want {
				t.Errorf("the file by %s: --%s is %q, not %q", how, name, got, want)
			}
		}
		if refs, hub := members(f, nil); hub || !slices.Equal(refs, []string{"a", "b"}) {
			t.Errorf("the file by %s: clusters %v", how, refs)
		}
	}
}
