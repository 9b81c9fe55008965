package attack_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/cli"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

// Attackers of who uses the command line.
const (
	hostileServer = "hostile API server"
	tenant        = "tenant"
)

// escape is what sets the title of a terminal.
const escape = "\x1b]0;title\a"

// waived is a defence of the command line. The user has a flag that takes it away, or what is
// below it shows what would be without.
type waived struct {
	defence
	is bool
}

func waive(name string) *waived {
	w := &waived{}
	w.defence = defence{name: name, remove: func(*testing.T) { w.is = true }, restore: func(*testing.T) { w.is = false }}
	return w
}

// args are a command line, with more where the defence is waived.
func (w *waived) args(args []string, more ...string) []string {
	if w.is {
		return append(args, more...)
	}
	return args
}

// user has a home with a kubeconfig.
type user struct{ home string }

// run runs a command line. Contexts are names and URLs; the first one is the current one.
func (u user) run(ctx context.Context, t *testing.T, contexts []string, args ...string) (code int, out string) {
	t.Helper()
	var clusters, list string
	for i := 0; i < len(contexts); i += 2 {
		clusters += fmt.Sprintf("- {name: %s, cluster: {server: %q}}\n", contexts[i], contexts[i+1])
		list += fmt.Sprintf("- {name: %[1]s, context: {cluster: %[1]s, user: u}}\n", contexts[i])
	}
	file := u.write(t, "kubeconfig", "apiVersion: v1\nkind: Config\ncurrent-context: "+contexts[0]+"\nusers:\n- {name: u, user: {token: t}}\nclusters:\n"+clusters+"contexts:\n"+list)
	config := u.write(t, "config.yaml", "{}\n") // not that of who runs the test
	var said printed
	code = cli.Run(ctx, append(args, "--kubeconfig", file, "--config", config), cli.Streams{Out: &said, Err: &said})
	return code, said.String()
}

func (u user) write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(u.home, name)
	kit.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// printed can be written by several goroutines.
type printed struct {
	mu sync.Mutex
	bytes.Buffer
}

func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Buffer.Write(b)
}

// newAPI is the API of a cluster that says which one it is, on a node's address of its own.
func newAPI(t *testing.T, id, address, pods string, objs ...client.Object) *fakeapi.Server {
	t.Helper()
	s := kit.Must(fakeapi.New(append(fakeapi.Objects(id, "node-of-"+id, address, pods), objs...)...))(t)
	t.Cleanup(s.Close)
	return s
}

// peered are a user, and two clusters that are peered.
func peered(t *testing.T) (u user, a, b *fakeapi.Server) {
	t.Helper()
	u = user{t.TempDir()}
	a, b = newAPI(t, "id-of-a", "172.18.1.11", "10.244.0.0/16"), newAPI(t, "id-of-b", "172.18.2.11", "10.244.0.0/16")
	if code, out := u.run(t.Context(), t, []string{"a", a.URL, "b", b.URL}, "peer", "a", "b"); code != cli.ExitOK {
		t.Fatalf("peer: exit code %d\n%s", code, out)
	}
	return u, a, b
}

// peerings are those of a cluster.
func peerings(t *testing.T, s *fakeapi.Server) []v1alpha1.Peering {
	t.Helper()
	var list v1alpha1.PeeringList
	kit.NoError(t, s.Client.List(t.Context(), &list))
	return list.Items
}

// forbids answers everything with a refusal that has control characters.
func forbids(t *testing.T, asked func()) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked()
		refusal := apierrors.NewForbidden(corev1.Resource("things"), "", errors.New(escape)).Status()
		refusal.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(refusal)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func cliAttacks() []attack {
	var (
		contextsOnly = waive("status takes a peer's name for a context, and not for a file as a user's argument")
		harmless     = waive("what is printed is made printable")
		key          = waive("a cluster has to have its keys (--replace)")
		keyOfOther   = waive("a cluster that the user calls otherwise has to have its keys")
		ownContext   = waive("what one cluster answers does not end the work in the other")
		private      = waive("public ranges are mapped (--map)")
		ownNamespace = waive("the namespace has to be ours (--adopt-namespace)")
	)
	return []attack{
		{hostileServer, "runs a program by the name of a peering", &contextsOnly.defence, func(t *testing.T) bool {
			u := user{t.TempDir()}
			ran := filepath.Join(u.home, "ran")
			file := u.write(t, "evil.conf", `apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: /bin/sh, args: [-c, "echo x >> `+ran+`"]}}}]
`)
			hostile := newPeering("b", 0)
			hostile.Spec.Remote.Name = file
			a := newAPI(t, "id-of-a", "172.18.1.11", "10.244.0.0/16", hostile)
			u.run(t.Context(), t, []string{"a", a.URL}, contextsOnly.args([]string{"status", "--timeout", "5s"}, file)...)
			_, err := os.Stat(ran)
			return !errors.Is(err, fs.ErrNotExist)
		}},
		{hostileServer, "controls the terminal by the name of a peering", &harmless.defence, func(t *testing.T) bool {
			hostile := newPeering("b", 0)
			hostile.Spec.Remote.Name = escape
			a := newAPI(t, "id-of-a", "172.18.1.11", "10.244.0.0/16", hostile)
			if harmless.is {
				views := kit.Must(status.Views(t.Context(), (&kube.Cluster{Name: "a", Client: a.Client, Now: time.Now})))(t)
				return strings.Contains(fmt.Sprint(views[0].Peer), escape)
			}
			_, out := user{t.TempDir()}.run(t.Context(), t, []string{"a", a.URL}, "status")
			return strings.ContainsAny(out, "\x1b\a")
		}},
		{hostileServer, "controls the terminal by its refusal", &harmless.defence, func(t *testing.T) bool {
			url := forbids(t, func() {})
			if harmless.is {
				resp := kit.Must(http.Get(url))(t)
				defer func() { _ = resp.Body.Close() }()
				var refusal metav1.Status
				kit.NoError(t, json.NewDecoder(resp.Body).Decode(&refusal))
				return strings.Contains(refusal.Message, escape)
			}
			_, out := user{t.TempDir()}.run(t.Context(), t, []string{"a", url}, "status")
			return strings.ContainsAny(out, "\x1b\a")
		}},
		{hostileServer, "passes for another cluster, and gets its peering", &key.defence, func(t *testing.T) bool {
			u, a, _ := peered(t)
			impostor := newAPI(t, "id-of-b", "172.18.7.11", "10.244.0.0/16")
			before := peerings(t, a)[0].Spec.Planes[0].RemotePublicKey
			u.run(t.Context(), t, []string{"a", a.URL, "b", impostor.URL}, key.args([]string{"peer", "a", "b"}, "--replace")...)
			return peerings(t, a)[0].Spec.Planes[0].RemotePublicKey != before
		}},
		{hostileServer, "passes for another cluster, and has its peering removed", &keyOfOther.defence, func(t *testing.T) bool {
			u, a, _ := peered(t)
			impostor := newAPI(t, "id-of-b", "172.18.7.11", "10.244.0.0/16")
			called := "c"
			if keyOfOther.is {
				called = "b"
			}
			u.run(t.Context(), t, []string{"a", a.URL, called, impostor.URL}, "unpeer", "a", called)
			return len(peerings(t, a)) == 0
		}},
		{hostileServer, "keeps its peering by refusing everything", &ownContext.defence, func(t *testing.T) bool {
			u, a, _ := peered(t)
			ctx, end := context.WithCancel(t.Context())
			defer end()
			url := forbids(t, func() {
				if ownContext.is {
					end()
				}
			})
			code, out := u.run(ctx, t, []string{"a", a.URL, "b", url}, "unpeer", "a", "b")
			t.Logf("exit code %d\n%s", code, out)
			return len(peerings(t, a)) > 0
		}},
		{hostileServer, "attracts a public range", &private.defence, func(t *testing.T) bool {
			const public = "8.8.0.0/16"
			u := user{t.TempDir()}
			a, b := newAPI(t, "id-of-a", "172.18.1.11", "10.244.0.0/16"), newAPI(t, "id-of-b", "172.18.2.11", public)
			code, out := u.run(t.Context(), t, []string{"a", a.URL, "b", b.URL}, private.args([]string{"peer", "a", "b"}, "--map", "b="+public)...)
			if code != cli.ExitOK {
				t.Logf("exit code %d\n%s", code, out)
				return false
			}
			return peerings(t, a)[0].Spec.Remote.Pods[0].Mapped.String() == public
		}},
		{tenant, "makes the agents' namespace first, and keeps it", &ownNamespace.defence, func(t *testing.T) bool {
			u := user{t.TempDir()}
			a := newAPI(t, "id-of-a", "172.18.1.11", "10.244.0.0/16", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}})
			b := newAPI(t, "id-of-b", "172.18.2.11", "10.244.0.0/16")
			u.run(t.Context(), t, []string{"a", a.URL, "b", b.URL}, ownNamespace.args([]string{"peer", "a", "b"}, "--adopt-namespace")...)
			return len(peerings(t, a)) > 0
		}},
	}
}

// What an API server answers to who uses the command line.
func TestAttackCLI(t *testing.T) {
	kit.NotShort(t)
	// Each command needs a processor, and loses its locks if it waits for one for seconds.
	run(t, cliAttacks(), false)
}
