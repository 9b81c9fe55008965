package e2e

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// write is a request by which a command changes a cluster.
type write struct{ cluster, method, path string }

func (w write) String() string { return w.cluster + " " + w.method + " " + w.path }

// kind is the write without what is different in every run, so that one of a kind
// is enough.
func (w write) kind() string {
	parts := strings.Split(w.path, "/")
	for i, p := range parts {
		if strings.HasPrefix(p, "gateway-") {
			parts[i] = "gateway-*"
		} else if strings.HasPrefix(p, "journal-") {
			parts[i] = "journal-*"
		} else if strings.HasPrefix(p, "liqonet-peering-") {
			parts[i] = "liqonet-peering-*"
		} else if i > 0 && (parts[i-1] == "peerings" || parts[i-1] == "nodenetworks") {
			parts[i] = "*"
		}
	}
	return w.cluster + " " + w.method + " " + strings.Join(parts, "/")
}

// failingWrites stands between the CLI and the API servers of clusters.
type failingWrites struct {
	kubeconfig string
	mu         sync.Mutex
	seen       []write
	// fail is the kind of write of which the first is refused; failed is it.
	fail   string
	failed *write
}

// failWrites writes a kubeconfig by which the clusters are reached through it.
func failWrites(t *testing.T, clusters ...*cluster) *failingWrites {
	t.Helper()
	f := &failingWrites{}
	f.kubeconfig = between(t, func(c *cluster, w http.ResponseWriter, r *http.Request, api http.Handler) {
		if f.refuses(c.Name, r) {
			// For good: a server that fails once is asked again.
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422,"message":"refused by the test"}`)
			return
		}
		api.ServeHTTP(w, r)
	}, clusters...)
	return f
}

// between writes a kubeconfig by which clusters are reached through a handler, which answers requests itself or
// hands them on to the API server.
func between(t testing.TB, handle func(c *cluster, w http.ResponseWriter, r *http.Request, api http.Handler), clusters ...*cluster) (kubeconfig string) {
	t.Helper()
	cfg := clientcmdapi.NewConfig()
	for _, c := range clusters {
		rc, err := c.restConfig()
		if err != nil {
			t.Fatal(err)
		}
		transport, err := rest.TransportFor(rc)
		if err != nil {
			t.Fatal(err)
		}
		to, err := url.Parse(rc.Host)
		if err != nil {
			t.Fatal(err)
		}
		proxy := &httputil.ReverseProxy{
			Transport: transport, FlushInterval: -1, // watches
			ErrorLog: log.New(io.Discard, "", 0), // of watches that a command ends
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(to)
				r.Out.Header.Del("Accept-Encoding") // the transport asks for it, and unpacks
			},
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(c, w, r, proxy) }))
		t.Cleanup(func() {
			server.CloseClientConnections()
			server.Close()
		})
		cfg.Clusters[c.Name] = &clientcmdapi.Cluster{Server: server.URL}
		cfg.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.Name}
	}
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

func (f *failingWrites) refuses(cluster string, r *http.Request) bool {
	if r.Method == http.MethodGet || strings.HasSuffix(r.URL.Path, "subjectaccessreviews") {
		return false
	}
	w := write{cluster, r.Method, r.URL.Path}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, w)
	if f.failed != nil || w.kind() != f.fail {
		return false
	}
	f.failed = &w
	return true
}

// peer runs the command, of whose writes one is refused.
func (f *failingWrites) peer(t *testing.T, ctx context.Context, fail string, args ...string) (result, *write) {
	t.Helper()
	f.mu.Lock()
	f.seen, f.fail, f.failed = nil, fail, nil
	f.mu.Unlock()
	r := liqonet(t, ctx, f.kubeconfig, append([]string{"peer"}, args...)...)
	f.mu.Lock()
	defer f.mu.Unlock()
	return r, f.failed
}

// kinds are the kinds of writes of the last command.
func (f *failingWrites) kinds() []string {
	var out []string
	for _, w := range f.seen {
		if k := w.kind(); !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	return out
}

// Whichever step of peer fails, both clusters are as before: their objects and
// their nodes' kernels.
func TestRollback(t *testing.T) {
	ctx := begin(t)
	a, b := fx.alpha, fx.beta
	api := failWrites(t, a, b)
	kinds := api.kindsOfPeer(t, ctx, a, b)
	checkNothingLeft(t, ctx)
	// Nearly all are made in both clusters: each is refused by one of them.
	tried := map[string]bool{}
	for _, kind := range kinds {
		cluster, what, _ := strings.Cut(kind, " ")
		// A renewal of a lock that fails is followed by others, and one that is not given back expires.
		if tried[what] || strings.HasSuffix(what, "/liqonet-peering-*") {
			continue
		}
		tried[what] = true
		if in := []string{a.Name, b.Name}[len(tried)%2]; in != cluster && slices.Contains(kinds, in+" "+what) {
			kind = in + " " + what
		}
		api.checkFails(t, ctx, kind, a, b)
		checkNothingLeft(t, ctx)
		if t.Failed() {
			t.Fatalf("after %s", kind)
		}
	}
}

// A peering that there is already goes on, unchanged, when another one of the same
// cluster fails at whichever step.
func TestRollbackOfSecond(t *testing.T) {
	ctx := begin(t)
	a, b, c := fx.alpha, fx.beta, fx.gamma
	api := failWrites(t, a, b)
	mustLiqonet(t, ctx, "peer", a.Name, c.Name)
	kinds := api.kindsOfPeer(t, ctx, a, b)
	before := texts(t, ctx, managed, unwritten, a, c)
	flows := startFlows(t, ctx, a, c, 0, 0)
	for _, kind := range kinds {
		// beta has no other peering, and what is only for all of them is there.
		if !strings.HasPrefix(kind, a.Name+" ") || !ofOnePeering.MatchString(kind) {
			continue
		}
		api.checkFails(t, ctx, kind, a, b)
		if left, _ := fx.objectsLeft(ctx, b); left != "" {
			t.Errorf("left:\n%s", left)
		}
		if diff := difference(before, texts(t, ctx, managed, unwritten, a, c)); diff != "" {
			t.Errorf("objects changed:\n%s", diff)
		}
		if t.Failed() {
			t.Fatalf("after %s", kind)
		}
	}
	flows.interrupted(t, "failed peer commands", shortTimeout)
	mustLiqonet(t, ctx, "unpeer", a.Name, c.Name)
	checkNothingLeft(t, ctx)
}

// ofOnePeering matches writes of what each peering has of its own, and of the ledger.
var ofOnePeering = regexp.MustCompile("gateway-|peerings|clusternetworks")

// kindsOfPeer peers and unpeers the clusters, and returns the kinds of writes by
// which they were peered.
func (f *failingWrites) kindsOfPeer(t *testing.T, ctx context.Context, a, b *cluster) []string {
	t.Helper()
	r, _ := f.peer(t, ctx, "", a.Name, b.Name)
	if r.code != 0 {
		t.Fatalf("exit code %d\n%s", r.code, r.stderr)
	}
	kinds := f.kinds()
	if len(kinds) < 10 {
		t.Fatalf("these are all writes: %q", kinds)
	}
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
	return kinds
}

// checkFails peers the clusters with one write refused.
func (f *failingWrites) checkFails(t *testing.T, ctx context.Context, kind string, a, b *cluster) {
	t.Helper()
	switch r, failed := f.peer(t, ctx, kind, a.Name, b.Name); {
	case failed == nil:
		t.Errorf("%s: there was none\n%s", kind, r.stderr)
	case r.code != exitError || r.stdout != "":
		t.Errorf("%s: exit code %d, want %d\n%s%s", failed, r.code, exitError, r.stdout, r.stderr)
	default:
		checkMessage(t, r, "cluster", failed.cluster, "refused by the test")
	}
}

// unwritten is what is fixed of an object, without how often it was written.
func unwritten(u *unstructured.Unstructured) string {
	for _, field := range []string{"generation", "resourceVersion", "managedFields"} {
		unstructured.RemoveNestedField(u.Object, "metadata", field)
	}
	return fixed(u)
}
