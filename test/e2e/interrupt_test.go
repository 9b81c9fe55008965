package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// What fails after it has begun is rolled back.
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

// Ctrl-C rolls back what was done, before the command ends.
func TestInterrupted(t *testing.T) {
	a, b, r := fx.alpha, fx.beta, random(t)
	const earliest, latest = 200 * time.Millisecond, 2 * time.Second
	for _, i := range sample(r, 12, 1) {
		at := earliest + time.Duration(r.Int64N(int64(latest-earliest))).Round(time.Millisecond)
		t.Run(fmt.Sprintf("number %d", i+1), func(t *testing.T) {
			ctx := begin(t)
			r := interrupted(t, ctx, "", at, os.Interrupt, "peer", a.Name, b.Name)
			r.refused(t, 130)
			checkMessage(t, r, "interrupted")
			checkNothingLeft(t, ctx)
		})
	}
}

// deadly stands between a command and the API servers, and sends it a signal after one of its writes, which was done, before
// it knows.
type deadly struct {
	kubeconfig string
	signal     syscall.Signal
	// reached gets what the write was.
	reached chan string
	mu      sync.Mutex
	command *exec.Cmd
	// after is the number of the write, written how many there were, last what the last one was.
	after, written int
	last           string
}

func signalAfterWrites(t *testing.T, signal syscall.Signal, clusters ...*cluster) *deadly {
	t.Helper()
	d := &deadly{signal: signal, reached: make(chan string, 1)}
	d.kubeconfig = between(t, func(c *cluster, w http.ResponseWriter, r *http.Request, api http.Handler) {
		// Neither dry runs, nor questions about permissions, nor locks change what the command works on.
		if r.Method == http.MethodGet || r.URL.Query().Has("dryRun") || strings.HasSuffix(r.URL.Path, "reviews") || strings.Contains(r.URL.Path, "/namespaces/kube-system/leases") {
			api.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		api.ServeHTTP(answer, r)
		d.mu.Lock()
		if d.written++; d.written == d.after {
			d.last = c.Name + " " + r.Method + " " + r.URL.Path
			_ = d.command.Process.Signal(d.signal)
			d.reached <- d.last
		}
		d.mu.Unlock()
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}, clusters...)
	return d
}

// run runs a command that is killed after so many writes. It says false if the command has fewer of them, and came to
// its end.
func (d *deadly) run(t *testing.T, ctx context.Context, after int, args ...string) (killed bool) {
	t.Helper()
	cmd, errs := d.start(t, ctx, after, args...)
	err := cmd.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	require(t, d.last != "" || err == nil, "%v: %v\n%s", args, err, errs.String())
	t.Logf("%v, killed after write %d: %s", args, after, d.last)
	if d.last == "" {
		return false
	}
	<-d.reached
	return true
}

// start starts a command that gets the signal after so many writes.
func (d *deadly) start(t *testing.T, ctx context.Context, after int, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := command(ctx, d.kubeconfig, args...)
	cmd.SysProcAttr = nil // this goroutine's thread may end before the command
	var errs bytes.Buffer
	cmd.Stderr = &errs
	d.mu.Lock()
	defer d.mu.Unlock()
	d.command, d.after, d.written, d.last = cmd, after, 0, ""
	try(t, cmd.Start())
	return cmd, &errs
}

// leastWrites is how many writes peer and unpeer have at least.
const leastWrites = 20

// A peering that is half made is completed by peer and removed by unpeer, whichever write of the two API servers was
// the last one.
func TestKilledAfterEachWrite(t *testing.T) {
	begin(t)
	a, b := fx.alpha, fx.beta
	peer, unpeer := peerAndUnpeer(a, b)
	killedAfterEach(t, peer, func(ctx context.Context, after int) {
		if after%2 == 0 {
			mustLiqonet(t, ctx, peer...)
			checkOnePacket(t, ctx, a, b)
			checkBothPlanes(t, ctx, a, b)
		}
		mustLiqonet(t, ctx, unpeer...)
		checkNothingLeft(t, ctx)
	}, a, b)
	unpeered(t, t.Context(), a, b)
}

// The same with one that is half removed.
func TestKilledAfterEachWriteOfUnpeer(t *testing.T) {
	begin(t)
	a, b := fx.gamma, fx.delta
	peer, unpeer := peerAndUnpeer(a, b)
	established := func(ctx context.Context) {
		mustLiqonet(t, ctx, peer...)
		checkOnePacket(t, ctx, a, b)
		checkBothPlanes(t, ctx, a, b)
	}
	established(t.Context())
	killedAfterEach(t, unpeer, func(ctx context.Context, after int) {
		if after%2 == 0 {
			mustLiqonet(t, ctx, unpeer...)
			checkNothingLeft(t, ctx)
		}
		established(ctx)
	}, a, b)
	unpeered(t, t.Context(), a, b)
}

func peerAndUnpeer(a, b *cluster) (peer, unpeer []string) {
	return []string{"peer", a.Name, b.Name, "--planes", "2"}, []string{"unpeer", a.Name, b.Name}
}

// killedAfterEach runs a command that is killed after its first write, then after its second one, until it has no more;
// with every change, after one of them. Each time, repair has to find what it left repairable.
func killedAfterEach(t *testing.T, args []string, repair func(ctx context.Context, after int), clusters ...*cluster) {
	t.Helper()
	ctx := t.Context() // there are many writes
	d := signalAfterWrites(t, syscall.SIGKILL, clusters...)
	after := 1
	if !whole() {
		after += random(t).IntN(leastWrites)
		require(t, d.run(t, ctx, after, args...), "%v has fewer writes", args)
		repair(ctx, after)
		return
	}
	for ; d.run(t, ctx, after, args...) && !t.Failed(); after++ {
		repair(ctx, after)
	}
	// As benchmarks are printed, which are kept with the result.
	fmt.Printf("BenchmarkKilledAfterEachWrite/%s 1 %d writes\n", args[0], after-1)
	if after <= leastWrites {
		t.Errorf("these are not all writes of %s", args[0])
	}
}

// stopped is how long a command is stopped: far longer than its locks last.
const stopped = time.Minute

// TestStopped stops commands at one of their writes for a minute, in which others change what they work on. When such a command
// continues, it changes nothing of what the other one has decided, and says by whom it was overtaken. If that was unpeer of the last
// peering, it names that as a possible cause.
func TestStopped(t *testing.T) {
	a, b, random := fx.gamma, fx.delta, random(t)
	peer, unpeer := peerAndUnpeer(a, b)
	const image = "IMAGE"
	all := []struct {
		first, then []string
		// writes is how many the first one has at least, without those of its end.
		writes int
	}{
		{peer, unpeer, leastWrites},
		{unpeer, peer, 10},
		{[]string{"rotate-keys", a.Name, b.Name}, unpeer, 12},
		{[]string{"rotate-keys", a.Name, b.Name}, peer, 12},
		{[]string{"upgrade", a.Name, b.Name, "--agent-image", image}, unpeer, 4},
		{[]string{"upgrade", a.Name, b.Name, "--agent-image", image}, []string{"rotate-keys", a.Name, b.Name}, 4},
	}
	for _, i := range sample(random, len(all), 1) {
		tt := all[i]
		t.Run(tt.first[0]+", overtaken by "+tt.then[0], func(t *testing.T) {
			ctx := begin(t)
			if tt.first[0] != "peer" {
				mustLiqonet(t, ctx, peer...)
			}
			first := strings.Split(strings.ReplaceAll(strings.Join(tt.first, " "), image, agentImage("the-same")), " ")
			if tt.first[0] == "upgrade" {
				sameImage(t, ctx, a, b)
			}
			d := signalAfterWrites(t, syscall.SIGSTOP, a, b)
			cmd, errs := d.start(t, ctx, 1+random.IntN(tt.writes), first...)
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case write := <-d.reached:
				t.Logf("%v is stopped after %s", first, write)
			case err := <-ended:
				t.Fatalf("%v has fewer writes: %v\n%s", first, err, errs)
			}
			minute := time.After(stopped)
			mustLiqonet(t, ctx, tt.then...)
			<-minute
			try(t, cmd.Process.Signal(syscall.SIGCONT))
			select {
			case err := <-ended:
				exit := (*exec.ExitError)(nil)
				expect(t, errors.As(err, &exit) && exit.ExitCode() == exitBusy, "%v ended with %v, want exit code %d\n%s", first, err, exitBusy, errs)
				want := "overtaken by " + tt.then[0] + " of "
				if tt.then[0] == "unpeer" { // nothing is left that names it
					want = "such as unpeer of the last peering"
				}
				expect(t, strings.Contains(errs.String(), want), "%v does not say %q\n%s", first, want, errs)
			case <-time.After(20 * time.Second):
				t.Errorf("%v goes on\n%s", first, errs)
			}
			if tt.then[0] != "unpeer" {
				checkPair(t, ctx, a, b)
				checkBothPlanes(t, ctx, a, b)
				would := mustLiqonet(t, ctx, append(slices.Clone(peer), "--dry-run")...)
				r := mustLiqonet(t, ctx, peer...)
				expect(t, strings.Contains(r.stdout, "nothing was changed"),
					"the next peer says\n%s\nA dry run before said\n%s", r.stdout, would.stdout)
				mustLiqonet(t, ctx, unpeer...)
			}
			checkNothingLeft(t, ctx)
		})
	}
}

// between writes a kubeconfig by which clusters are reached through a handler, which answers requests itself or
// hands them on to the API server.
func between(t testing.TB, handle func(c *cluster, w http.ResponseWriter, r *http.Request, api http.Handler), clusters ...*cluster) (kubeconfig string) {
	t.Helper()
	cfg := clientcmdapi.NewConfig()
	for _, c := range clusters {
		rc := must(c.restConfig())(t)
		transport := must(rest.TransportFor(rc))(t)
		to := must(url.Parse(rc.Host))(t)
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
	try(t, clientcmd.WriteToFile(*cfg, kubeconfig))
	return kubeconfig
}
