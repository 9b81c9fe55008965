package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/output"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// status interprets the name of a peer only as a context: it opens no file of that name, and runs no program that such a file names.
func TestStatusOpensNoFile(t *testing.T) {
	hub := startCluster(t, "hub", peeringWith("evil", "id-of-evil"))
	p := &v1alpha1.Peering{}
	kit.NoError(t, hub.Client.Get(t.Context(), client.ObjectKey{Name: "evil"}, p))
	home := isolate(t)
	t.Chdir(home)
	ran := filepath.Join(home, "ran")
	write(t, filepath.Join(home, "evil.conf"), kubeconfigWithPlugin(nobody, "echo x >> "+ran))
	for _, name := range []string{"./evil.conf", "evil.conf", filepath.Join(home, "evil.conf"), "./evil.conf#c", "#c"} {
		p.Spec.Remote.Name = name
		kit.NoError(t, hub.Client.Update(t.Context(), p))
		for what, contexts := range map[string][]string{
			"no context": {"hub=" + hub.URL}, "a context of the file's name": {"hub=" + hub.URL, "./evil.conf=https://127.0.0.1:1", "evil.conf=https://127.0.0.1:1"},
		} {
			t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(home, "kubeconfig"), contexts...))
			code, stdout, stderr := run(t, "status", "--timeout", "5s")
			kit.ErrorIf(t, code != ExitUnhealthy || !strings.Contains(stdout, name), "%s, %s: exit code %d\n%s%s", name, what, code, stdout, stderr)
			kit.FatalIf(t, exists(ran), "%s, %s: the program that the file names ran", name, what)
		}
	}
	// If the user names the file, its program does run.
	t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(home, "kubeconfig"), "hub="+hub.URL))
	_, _, stderr := run(t, "status", "./evil.conf", "--timeout", "5s")
	kit.ErrorIf(t, !exists(ran), "the program would not have run: this proves nothing\n%s", stderr)
}

// A word that is no context is no file of the working directory either: whoever may write there would choose a program that runs.
func TestWordIsNoFile(t *testing.T) {
	home := useContexts(t, "staging="+nobody)
	shared := t.TempDir()
	t.Chdir(shared)
	ran := filepath.Join(home, "ran")
	write(t, filepath.Join(shared, "prod"), kubeconfigWithPlugin(nobody, "echo x >> "+ran))
	for _, line := range []string{
		"status prod", "status prod#c", "status --context prod", "doctor prod --objects-only", "peer prod staging", "peer staging prod --dry-run",
		"unpeer staging prod", "verify staging prod", "upgrade prod", "graph prod", "map staging prod default/x", "rotate-keys prod staging",
	} {
		command(t, append(strings.Fields(line), "--timeout", "5s")...).ends(ExitUsage).warns(" is neither a context ")
		kit.FatalIf(t, exists(ran), "%s: the program that the file names ran", line)
	}
	command(t, "status", "./prod", "--timeout", "5s")
	kit.ErrorIf(t, !exists(ran), "the program would not have run: this proves nothing")
}

// kubeconfigWithPlugin returns a kubeconfig whose context c has a credential plugin.
func kubeconfigWithPlugin(server, script string) string {
	return `apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "` + server + `"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: /bin/sh, args: [-c, ` + strconv.Quote(script) + `]}}}]
`
}

// Without arguments, doctor runs pods only in clusters that prove to be peers, whatever Peerings of the current cluster say.
func TestDoctorLeavesOthersAlone(t *testing.T) {
	kit.NotShort(t)
	spoils := map[string]func(t *testing.T, a, b *fakeapi.Server){
		"another ID": func(t *testing.T, a, _ *fakeapi.Server) {
			changePeering(t, a, func(p *v1alpha1.Peering) { p.Spec.Remote.ClusterID = "id-of-x" })
		},
		"no peering back": func(t *testing.T, _, b *fakeapi.Server) {
			changeLedger(t, b, func(e *v1alpha1.PeerAllocation) { e.ClusterID = "id-of-x" })
		},
		"it has pinned another key": func(t *testing.T, _, b *fakeapi.Server) {
			changeLedger(t, b, func(e *v1alpha1.PeerAllocation) { e.IdentityKey = "x" })
		},
		"another key is pinned for it": func(t *testing.T, a, _ *fakeapi.Server) {
			changeLedger(t, a, func(e *v1alpha1.PeerAllocation) { e.IdentityKey = "x" })
		},
	}
	chosen := kubetest.Some(t, slices.Sorted(maps.Keys(spoils)), 1, len(spoils))
	for _, name := range append(chosen, "a proved peer") {
		t.Run(name, func(t *testing.T) {
			a, b, _ := twoAPIs(t)
			if spoil := spoils[name]; spoil != nil {
				spoil(t, a, b)
			}
			o := command(t, "doctor", "--timeout", "6s")
			isTouched := b.Client.LastChange("jobs") > 0
			o.is("pods in a", a.Client.LastChange("jobs") == 0)
			o.is("pods in proved peers only", isTouched != (name == "a proved peer"))
			if !isTouched {
				o.warns("Note: context b is not examined: ", "name it: kubectl liqonet doctor a b\n").stdoutLacks("b:")
			}
		})
	}
}

func changePeering(t *testing.T, s *fakeapi.Server, change func(*v1alpha1.Peering)) {
	t.Helper()
	var peerings v1alpha1.PeeringList
	kit.NoError(t, s.Client.List(t.Context(), &peerings))
	change(&peerings.Items[0])
	kit.NoError(t, s.Client.Update(t.Context(), &peerings.Items[0]))
}

func changeLedger(t *testing.T, s *fakeapi.Server, change func(*v1alpha1.PeerAllocation)) {
	t.Helper()
	cn := &v1alpha1.ClusterNetwork{}
	kit.NoError(t, s.Client.Get(t.Context(), client.ObjectKey{Name: v1alpha1.ClusterNetworkName}, cn))
	change(&cn.Spec.Peers[0])
	kit.NoError(t, s.Client.Update(t.Context(), cn))
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// startTwo starts the clusters a and b. The function at sets the servers of both names.
func startTwo(t *testing.T) (a, b *fakeapi.Server, at func(urlOfA, urlOfB string)) {
	t.Helper()
	a, b = startNumbered(t, 0, "id-of-a", "a"), startNumbered(t, 1, "id-of-b", "b")
	home := isolate(t)
	at = func(urlOfA, urlOfB string) {
		t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(home, "kubeconfig"), "a="+urlOfA, "b="+urlOfB))
	}
	at(a.URL, b.URL)
	return a, b, at
}

// twoAPIs returns the clusters of startTwo after they were peered.
func twoAPIs(t *testing.T) (a, b *fakeapi.Server, at func(urlOfA, urlOfB string)) {
	t.Helper()
	a, b, at = startTwo(t)
	command(t, "peer", "a", "b").ends(ExitOK)
	return a, b, at
}

// isClean reports whether a cluster contains nothing of ours.
func isClean(t *testing.T, s *fakeapi.Server) bool {
	t.Helper()
	var namespaces corev1.NamespaceList
	var peerings v1alpha1.PeeringList
	kit.NoError(t, errors.Join(s.Client.List(t.Context(), &namespaces), s.Client.List(t.Context(), &peerings)))
	return len(namespaces.Items) == 1 && len(peerings.Items) == 0
}

// disconnect makes the gateways of a cluster report that they are not connected.
func disconnect(t *testing.T, s *fakeapi.Server) {
	t.Helper()
	var peerings v1alpha1.PeeringList
	kit.NoError(t, s.Client.List(t.Context(), &peerings))
	for i := range peerings.Items {
		peerings.Items[i].Status.Planes[0].Connected = false
		kit.NoError(t, s.Client.Status().Update(t.Context(), &peerings.Items[i]))
	}
}

func forbidding(w http.ResponseWriter, _ *http.Request) {
	status := apierrors.NewForbidden(corev1.Resource("things"), "", errors.New("go\x1b[2J away\nb -> a: Connected")).Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	_ = json.NewEncoder(w).Encode(status)
}

// Whatever responds instead of b, or if nothing does: a is cleaned, and b once it is back. In the meantime, status shows b's side as
// orphaned.
func TestOtherClusterCannotKeepThePeering(t *testing.T) {
	tls := httptest.NewTLSServer(http.HandlerFunc(forbidding))
	t.Cleanup(tls.Close)
	forbids := httptest.NewServer(http.HandlerFunc(forbidding))
	t.Cleanup(forbids.Close)
	for what, url := range map[string]string{
		"it hangs": "", "it forbids everything": forbids.URL, "it cannot be reached": "https://127.0.0.1:1", "its certificate is wrong": tls.URL,
	} {
		t.Run(what, func(t *testing.T) {
			if url == "" {
				kit.NotShort(t) // the command gives up after 10 s
				url = silentServer(t).URL
			}
			a, b, at := twoAPIs(t)
			at(a.URL, url)
			for _, said := range []string{"a no longer has a peering with b", "a and b are not peered; nothing was changed."} {
				o := command(t, "unpeer", "a", "b").ends(ExitPartial).prints(said).warns("\n  when b can be reached again: kubectl liqonet unpeer b a\n")
				o.is("that the server does not write to the terminal", strings.ContainsRune(o.stderr, '\x1b') || strings.Contains(o.stderr, "\nb -> a"))
			}
			kit.FatalIf(t, !isClean(t, a) || isClean(t, b), "a is not clean, or b is")
			at(a.URL, b.URL)
			disconnect(t, b)
			for args, isOrphan := range map[string]bool{"status": true, "status a b": true, "status b": false} {
				file := kubeconfig(t, filepath.Join(t.TempDir(), "of-b"), "b="+b.URL, "a="+a.URL) // b is its current context
				o := command(t, append(strings.Fields(args), "--kubeconfig", file)...).ends(ExitUnhealthy)
				o.is("a warning about an orphan, or none", strings.Contains(o.stdout, "Orphaned") != isOrphan || strings.Contains(o.stdout, "unpeer b --peer a") != isOrphan)
			}
			command(t, "peer", "a", "b").ends(ExitIdentity).warns("a claims to be the cluster that b knows as a, but has no peering with it")
			last := []string{"unpeer", "b", "a"}
			if what == "it forbids everything" {
				last = []string{"unpeer", "b", "--peer", "a"}
			}
			command(t, last...).ends(ExitOK).is("that b is clean", !isClean(t, b))
			command(t, "unpeer", "a", "b").ends(ExitOK).stdoutIs("a and b are not peered; nothing was changed.\n")
		})
	}
}

// With --peer or --force, the second cluster is not contacted. With --peer, it needs no kubeconfig.
func TestOtherClusterIsNotAsked(t *testing.T) {
	for _, args := range []string{"unpeer a --peer b", "unpeer a b --force"} {
		t.Run(args, func(t *testing.T) {
			a, b, at := twoAPIs(t)
			at(a.URL, "https://127.0.0.1:1")
			if args == "unpeer a --peer b" {
				t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(t.TempDir(), "kubeconfig"), "a="+a.URL))
			}
			before := b.Requests()
			command(t, strings.Fields(args)...).ends(ExitOK).prints("a no longer has a peering with b (").is("that a is clean", !isClean(t, a))
			command(t, strings.Fields(args)...).ends(ExitOK).stdoutIs("a and b are not peered; nothing was changed.\n")
			kit.ErrorIf(t, b.Requests() != before || isClean(t, b), "b was asked, or changed")
		})
	}
}

// If the first cluster does not respond, the other one is not changed.
func TestFirstClusterHangs(t *testing.T) {
	_, b, at := twoAPIs(t)
	at(silentServer(t).URL, b.URL)
	command(t, "unpeer", "a", "b", "--timeout", "300ms").ends(ExitUnreachable).stdoutIs("")
	kit.ErrorIf(t, isClean(t, b), "b was changed")
}

// Text from clusters cannot start a line or control the terminal.
func TestNothingControlsTheTerminal(t *testing.T) {
	const evil = "x\x1b]0;title\a\u009b2J\r\u202e\x7f\nb -> a: Connected\ty\xff"
	check := func(what, got string, lines int) {
		t.Helper()
		for _, r := range got {
			if r != '\n' && (r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0x202e) {
				t.Errorf("%s: %q", what, got)
				break
			}
		}
		if n := strings.Count(got, "\n"); n != lines || strings.Contains(got, "\nb -> a") || !strings.Contains(got, "x") {
			t.Errorf("%s: %d lines instead of %d: %q", what, n, lines, got)
		}
	}
	v := views()[1]
	v.Name, v.Peer, v.Message, v.Overlay, v.State = evil, evil, evil, evil, status.State(evil)
	v.Planes = []status.PlaneView{{Role: evil, Backend: evil, Node: evil, Endpoint: evil}}
	p := &plan.Plan{}
	for i := range p.Clusters {
		s := []plan.Statement{{Subject: evil, Value: plan.Known(evil), Reason: evil}}
		p.Clusters[i] = plan.ClusterPlan{
			Cluster: evil, ClusterID: evil, Facts: s, Choices: s, Keys: s, Endpoints: s, Warnings: []string{evil}, Notes: []string{evil},
			Ranges: []plan.RangePlan{{Subject: evil, Reason: evil}}, Objects: []plan.ObjectPlan{{Action: plan.Action(evil), Kind: evil, Namespace: evil, Name: evil, Reason: evil}},
		}
	}
	for _, format := range []string{"table", "wide"} {
		var out bytes.Buffer
		o := outputOf(t, format)
		printViews(o, &out, []status.View{v})
		check("status "+format, out.String(), map[string]int{"table": 2 + 3 + 2, "wide": 2 + 3 + 3 + 2}[format])
		out.Reset()
		printRanges(o, &out, v)
		check("ranges "+format, out.String(), 2)
		out.Reset()
		kit.NoError(t, printPlans(o, &out, []*plan.Plan{p}))
		check("plan "+format, out.String(), 1+2*(2+6*3+2)+2)
	}
	for format, lines := range map[string]int{"jsonpath={.peerings[0].overlay}": 1, "go-template={{(index .peerings 0).overlay}}": 1} {
		var out bytes.Buffer
		kit.NoError(t, outputOf(t, format).Print(&out, "Status", documentOf(v), nil, nil))
		// A template may print newlines, as the user requested.
		got := out.String()
		kit.ErrorIf(t, strings.ContainsAny(got, "\x1b\a\r\x7f\u009b\u202e") || strings.Count(got, "\n") != lines, "%s: %q", format, got)
	}
	for _, tt := range []struct {
		err   error
		lines int
	}{
		{errors.New(evil), 0},
		{&kube.Error{Cluster: "b", Op: evil, Err: errors.New(evil), Hint: evil}, 1},
		{errors.Join(errors.New(evil), &kube.Error{Op: evil, Hint: evil}), 1},
		{pairFailures([]peering.Outcome{
			{Pair: peering.Pair{{Name: evil}, {Name: evil}}, Err: &kube.Error{Op: evil, Hint: evil}},
			{Pair: peering.Pair{{Name: "a"}, {Name: "b"}}, Err: errors.New(evil)},
		}), 3},
	} {
		check("error", string(explain(tt.err, "  ")), tt.lines)
	}
	var out bytes.Buffer
	(&globals{streams: Streams{Out: &out, Err: &out}}).err().Printf("%s %q %v %d\n", evil, evil, errors.New(evil), 7)
	check("text", out.String(), 1)
	out.Reset()
	_ = output.PlainProgress{W: &out, Prefix: "a - b: "}.Step(t.Context(), evil, func(context.Context) error { return errors.New("") })
	check("step", out.String(), 2)
}

// All output is printed through one type, which sanitizes values.
func TestOneWayToPrint(t *testing.T) {
	files := kit.Must(filepath.Glob("*.go"))(t)
	for _, file := range files {
		raw := kit.Must(os.ReadFile(file))(t)
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, print := range []string{"fmt.Fprint", "fmt.Print", "println(", "os.Std"} {
			kit.ErrorIf(t, strings.Contains(string(raw), print), "%s: %s", file, print)
		}
	}
}

// A cluster that claims the ID of a peer has its own exit code.
func TestExitCodeOfAnImpostor(t *testing.T) {
	a, _, at := twoAPIs(t)
	at(a.URL, startNumbered(t, 7, "id-of-b", "b").URL)
	for _, args := range []string{"peer a b", "peer a b --dry-run"} {
		command(t, strings.Fields(args)...).ends(ExitIdentity).stdoutIs("").
			warns("b claims to be the cluster that a knows as b, but has no peering with it", "--replace")
	}
	command(t, "peer", "a", "b", "--replace").ends(ExitOK)
}

// A namespace that liqonet has not created is used only with --adopt-namespace.
func TestAdoptNamespace(t *testing.T) {
	a, _, _ := startTwo(t)
	kit.NoError(t, a.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}}))
	for _, args := range []string{"peer a b", "peer a b --dry-run"} {
		command(t, strings.Fields(args)...).ends(ExitUsage).stdoutIs("").warns("--adopt-namespace")
	}
	command(t, "peer", "a", "b", "--adopt-namespace").ends(ExitOK)
}
