package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

// recorded starts a cluster with a peering, and makes it the current context. It returns a function for the headers of its requests. It
// answers requests about anything but its ID with a status, unless that is 0.
func recorded(t *testing.T, status int) func() []http.Header {
	t.Helper()
	api := startCluster(t, "a", peeringWith("b", "id-of-b"))
	var mu sync.Mutex
	var all []http.Header
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		all = append(all, r.Header.Clone())
		mu.Unlock()
		if status > 0 && r.URL.Path != "/api/v1/namespaces/kube-system" {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(status)
			return
		}
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	useContexts(t, "a="+server.URL)
	return func() []http.Header {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// -v=6 logs requests, and no higher level logs credentials or what requests contain.
func TestRequestsAreLogged(t *testing.T) {
	recorded(t, 0)
	for _, tt := range []struct {
		flag   string
		logged bool
	}{{"-v", false}, {"-v=5", false}, {"-v=6", true}, {"-v=7", true}, {"-v=10", true}} {
		code, stdout, stderr := run(t, "status", "a", tt.flag)
		kit.ErrorIf(t, code != ExitUnhealthy || !strings.HasPrefix(stdout, "CLUSTER ") || strings.Contains(stdout, "/api/v1"),
			"%s: exit code %d\n%s", tt.flag, code, stdout)
		got := strings.Contains(stderr, "/api/v1/namespaces/kube-system")
		kit.ErrorIf(t, got != tt.logged, "%s: requests are logged: %t\n%s", tt.flag, got, stderr)
		for _, secret := range []string{"Bearer t", "Request Body", "Response Body", "externalCIDR"} {
			kit.ErrorIf(t, strings.Contains(stderr, secret), "%s: %q is logged\n%s", tt.flag, secret, stderr)
		}
	}
	command(t, "status", "a").ends(ExitUnhealthy).stderrIs("")
}

// --as and --as-group are in each request.
func TestImpersonation(t *testing.T) {
	headers := recorded(t, 0)
	command(t, "status", "a", "--as", "alice", "--as-group", "dev", "--as-group", "ops").ends(ExitUnhealthy)
	kit.ErrorIf(t, len(headers()) == 0, "no request")
	for _, h := range headers() {
		kit.ErrorIf(t, h.Get("Impersonate-User") != "alice" || !slices.Equal(h.Values("Impersonate-Group"), []string{"dev", "ops"}), "got %v", h)
	}
}

// An API server that becomes overloaded is not only a command that ends too early.
func TestOverloadedLater(t *testing.T) {
	for status, text := range map[int]string{429: "Too Many Requests", 503: "Service Unavailable"} {
		recorded(t, status)
		for _, line := range []string{"status a", "doctor a --objects-only", "graph a", "unpeer a --peer b --dry-run"} {
			c := command(t, append(strings.Fields(line), "--timeout", "400ms")...).ends(ExitUnreachable)
			if strings.HasPrefix(line, "doctor") { // prints what it found until then
				c.prints("the command ended before it was read")
			} else {
				c.stdoutIs("")
			}
			c.warns(`cluster "a": `, fmt.Sprintf(": the server answers %d %s\n  the API server is starting or overloaded", status, text))
		}
	}
}

// --request-timeout ends a request long before --timeout.
func TestRequestTimeout(t *testing.T) {
	useContexts(t, "a="+silentServer(t).URL)
	start := time.Now()
	code, _, stderr := run(t, "status", "a", "--request-timeout", "100ms", "--timeout", "1m")
	took := time.Since(start)
	kit.ErrorIf(t, code != ExitUnreachable || took > identifies/2, "exit code %d after %s\n%s", code, took, stderr)
	command(t, "status", "a", "--request-timeout", "soon").ends(ExitUsage)
}

// identifies is how long a command waits for the first response of a cluster.
const identifies = 10 * time.Second

// status --wait ends when the peerings are connected or, with the last table, after --timeout.
func TestStatusWaits(t *testing.T) {
	a, b, at := twoAPIs(t)
	command(t, "status", "a", "b", "--wait").ends(ExitOK).prints("Connected")
	kit.NoError(t, a.Client.Create(t.Context(), peeringWith("c", "id-of-c")))
	at(a.URL, b.URL)
	not := command(t, "status", "a", "--wait", "--timeout", "1500ms").ends(ExitUnhealthy).prints("CLUSTER ", "Unknown")
	not.is("no error", strings.Contains(not.stderr, "Error"))
}

// expose-host --list shows the hosts, with the addresses by which the other cluster reaches them.
func TestExposedHostsAreListed(t *testing.T) {
	twoAPIs(t)
	command(t, "expose-host", "a", "b", "--list").ends(ExitOK).stdoutIs("")
	mapped := command(t, "expose-host", "a", "b", "192.0.2.7").ends(ExitOK).stdout
	command(t, "expose-host", "a", "b", "--list").ends(ExitOK).stdoutIs("HOST        SEEN BY B AS\n192.0.2.7   " + mapped)
	command(t, "expose-host", "b", "a", "--list").ends(ExitOK).stdoutIs("")
}

// The command line takes precedence over the file of peer, which takes precedence over the environment and the configuration file.
func TestPrecedenceOfFile(t *testing.T) {
	home := isolate(t)
	file := filepath.Join(home, "peering.yaml")
	write(t, file, "clusters: [a, b]\ntimeout: 7m\noverlay: vxlan\nmap: [a=10.60.0.0/16, b=10.61.0.0/16]\ngateway-toleration: ''\n")
	write(t, filepath.Join(home, "xdg", "liqonet", "config.yaml"), "overlay: auto\nserver: a\n")
	t.Setenv("LIQONET_TIMEOUT", "3m")
	t.Setenv("LIQONET_OVERLAY", "geneve")
	t.Setenv("LIQONET_PLANES", "3")
	t.Setenv("LIQONET_CLUSTERS", "c d")
	for _, how := range []string{"flag", "environment"} {
		args := []string{"--timeout", "5m"}
		if how == "flag" {
			args = append(args, "-f", file)
		} else {
			t.Setenv("LIQONET_FILENAME", file)
		}
		f := kit.Must(parse(t, "peer", args...))(t)
		for name, want := range map[string]string{
			"timeout": "5m0s", "overlay": "vxlan", "planes": "3", "server": "a", "map": "a=10.60.0.0/16 b=10.61.0.0/16",
		} {
			kit.Check(t, fmt.Sprintf("the file by %s: --%s", how, name), f.Lookup(name).Value.String(), want)
		}
		kit.ErrorIf(t, !f.Changed("gateway-toleration"), "the file by %s: an empty value does not reset the tolerations", how)
		refs, hub := parseMembers(f, nil)
		kit.ErrorIf(t, hub || !slices.Equal(refs, []string{"a", "b"}), "the file by %s: clusters %v", how, refs)
	}
}
