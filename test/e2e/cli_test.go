package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sync/errgroup"
)

// Exit codes as documented (pkg/cli).
const (
	exitUsage     = 2
	exitForbidden = 4
	exitNotReady  = 5
	exitBusy      = 13
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

// command is the CLI with a kubeconfig of the test's choice, or the lab's.
func command(ctx context.Context, kubeconfig string, args ...string) *exec.Cmd {
	fx.clean.Store(false)
	if kubeconfig == "" {
		kubeconfig = fx.lab.Kubeconfig()
	}
	cmd := exec.CommandContext(ctx, program("kubectl-liqonet"), args...)
	// Nothing of the developer's own configuration.
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "KUBECONFIG=" + kubeconfig,
		// Most tests look at what one gateway does. Those of several planes say so.
		"LIQONET_PLANES=1",
	}
	// A test that is ended leaves no command behind that still changes clusters.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

type result struct {
	args           []string
	code           int
	stdout, stderr string
	took           time.Duration
}

// ends fails the test unless the command has ended with a code, and has said some texts.
func (r result) ends(t testing.TB, code int, texts ...string) {
	t.Helper()
	expect(t, r.code == code, "kubectl liqonet %v: exit code %d, want %d\n%s%s", r.args, r.code, code, r.stdout, r.stderr)
	for _, text := range texts {
		expect(t, strings.Contains(r.stdout+r.stderr, text), "kubectl liqonet %v does not say %q:\n%s%s", r.args, text, r.stdout, r.stderr)
	}
}

// refused fails the test unless the command has ended with a code, and has printed no result.
func (r result) refused(t testing.TB, code int) {
	t.Helper()
	r.ends(t, code)
	expect(t, r.stdout == "", "kubectl liqonet %v: stdout has %q, want nothing", r.args, r.stdout)
}

// says fails the test unless the result has a text.
func (r result) says(t testing.TB, text string) {
	t.Helper()
	expect(t, strings.Contains(r.stdout, text), "kubectl liqonet %v does not say %q:\n%s%s", r.args, text, r.stdout, r.stderr)
}

// liqonet runs the CLI to its end.
func liqonet(t testing.TB, ctx context.Context, kubeconfig string, args ...string) result {
	t.Helper()
	return interrupted(t, ctx, kubeconfig, time.Hour, syscall.Signal(0), args...)
}

// interrupted sends a signal to a command at some moment, and waits for its end.
func interrupted(t testing.TB, ctx context.Context, kubeconfig string, at time.Duration, signal os.Signal, args ...string) result {
	t.Helper()
	start := time.Now()
	cmd := command(ctx, kubeconfig, args...)
	cmd.SysProcAttr = nil // this goroutine's thread may end before the command
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Start()
	if err == nil {
		timer := time.AfterFunc(at, func() { _ = cmd.Process.Signal(signal) }) // it may have ended
		defer timer.Stop()
		err = cmd.Wait()
	}
	r := result{args: args, stdout: out.String(), stderr: errs.String(), took: time.Since(start)}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		r.code = exit.ExitCode()
	} else if err != nil {
		t.Errorf("kubectl liqonet %s: %v", strings.Join(args, " "), err)
		r.code = -1
	}
	if args[0] != "map" && args[0] != "status" { // there are too many of them
		t.Logf("kubectl liqonet %s: exit code %d after %.1f s", strings.Join(args, " "), r.code, r.took.Seconds())
	}
	return r
}

// mustLiqonet runs the CLI with the lab's kubeconfig; it has to succeed.
func mustLiqonet(t testing.TB, ctx context.Context, args ...string) result {
	t.Helper()
	r := liqonet(t, ctx, "", args...)
	require(t, r.code == 0, "kubectl liqonet %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	return r
}

// together runs several commands at once, which saves time. All have to succeed.
func together(t testing.TB, ctx context.Context, commands ...[]string) {
	t.Helper()
	togetherAtMost(t, ctx, len(commands), commands...)
}

// togetherAtMost runs so many of the commands at the same time.
func togetherAtMost(t testing.TB, ctx context.Context, most int, commands ...[]string) {
	t.Helper()
	results := make([]result, len(commands))
	var group errgroup.Group
	group.SetLimit(most)
	for i, args := range commands {
		group.Go(func() error {
			results[i] = liqonet(t, ctx, "", args...)
			return nil
		})
	}
	try(t, group.Wait())
	for i, r := range results {
		if r.code != 0 {
			t.Fatalf("kubectl liqonet %s: exit code %d\n%s%s", strings.Join(commands[i], " "), r.code, r.stdout, r.stderr)
		}
	}
}

// mapping and the rest are the parts of status -o json on which scripts rely.
type mapping struct{ Real, Mapped netip.Prefix }

type view struct {
	Cluster, Peer, State, Message string
	LocalPods, RemotePods         []mapping
	NodesReady                    int
	planeView                     `json:"-"` // of the only plane
	Planes                        []planeView
	NodesNotReady                 []string
	Nodes                         []struct {
		Name   string
		SeenAs netip.Addr
	}
}

// planeView is the part of a view about one gateway.
type planeView struct {
	Role, Endpoint   string
	MTU, LossPercent int
}

// status reads status -o json; the exit code has to be the wanted one.
func status(t testing.TB, ctx context.Context, code int, clusters ...*cluster) map[[2]string]view {
	t.Helper()
	r := statusDocument(t, ctx, clusters...)
	require(t, r.code == code, "status: exit code %d, want %d\n%s%s", r.code, code, r.stdout, r.stderr)
	return parseStatus(t, r.stdout)
}

// anyStatus is the same in whatever state the peerings are: ranges and addresses are told all the same.
func anyStatus(t testing.TB, ctx context.Context, clusters ...*cluster) map[[2]string]view {
	t.Helper()
	return parseStatus(t, statusDocument(t, ctx, clusters...).stdout)
}

// namesOf are those of clusters.
func namesOf(clusters []*cluster) []string {
	return lo.Map(clusters, func(c *cluster, _ int) string { return c.Name })
}

func statusDocument(t testing.TB, ctx context.Context, clusters ...*cluster) result {
	t.Helper()
	return liqonet(t, ctx, "", append([]string{"status", "-o", "json"}, namesOf(clusters)...)...)
}

func parseStatus(t testing.TB, document string) map[[2]string]view {
	t.Helper()
	var doc struct{ Peerings []view }
	err := json.Unmarshal([]byte(document), &doc)
	require(t, err == nil, "status -o json: %v\n%s", err, document)
	out := map[[2]string]view{}
	for _, v := range doc.Peerings {
		require(t, len(v.Planes) != 0, "%s shows %d planes of %s", v.Cluster, len(v.Planes), v.Peer)
		v.planeView = v.Planes[0]
		out[[2]string{v.Cluster, v.Peer}] = v
	}
	return out
}

// viewOf is what one cluster says about its peering with another.
func viewOf(t testing.TB, views map[[2]string]view, c, peer *cluster) view {
	t.Helper()
	v, ok := views[[2]string{c.Name, peer.Name}]
	require(t, ok, "status shows no peering of %s with %s", c.Name, peer.Name)
	return v
}

// seenAs is by which address the peer knows one of the cluster's pods, after
// the status.
func (v view) seenAs(t testing.TB, addr netip.Addr) netip.Addr {
	t.Helper()
	for _, m := range v.LocalPods {
		if m.Real.Contains(addr) {
			return transfer(addr, m)
		}
	}
	t.Fatalf("status of %s with %s has no range of pod %s: %v", v.Cluster, v.Peer, addr, v.LocalPods)
	return netip.Addr{}
}

// transfer exchanges the prefix of an address and keeps the rest; written again,
// so that it does not share the product's faults.
func transfer(addr netip.Addr, m mapping) netip.Addr {
	bits, a, to := m.Real.Bits(), addr.As4(), m.Mapped.Addr().As4()
	for i := range a {
		host := byte(1<<max(0, min(8, 8*(i+1)-bits)) - 1)
		a[i] = to[i]&^host | a[i]&host
	}
	return netip.AddrFrom4(a)
}

// mapped asks the CLI by which address a peer knows something of a cluster.
func mapped(t testing.TB, ctx context.Context, of, in *cluster, what string) netip.Addr {
	t.Helper()
	out := mustLiqonet(t, ctx, "map", of.Name, in.Name, what).stdout
	addr, err := netip.ParseAddr(strings.TrimSuffix(out, "\n"))
	require(t, err == nil, "map %s %s %s printed %q, not an address and nothing else", of.Name, in.Name, what, out)
	return addr
}

// TestKubectlCompletes asks kubectl, as a shell does, how commands of the plugin go on.
func TestKubectlCompletes(t *testing.T) {
	ctx := begin(t)
	kubectl := must(fx.lab.Kubectl())(t)
	script := must(filepath.Abs(filepath.Join("..", "..", "scripts", "kubectl_complete-liqonet")))(t)
	dir := t.TempDir()
	for name, of := range map[string]string{"kubectl": kubectl, "kubectl-liqonet": program("kubectl-liqonet"), "kubectl_complete-liqonet": script} {
		try(t, os.Symlink(of, filepath.Join(dir, name)))
	}
	for _, tt := range []struct {
		typed []string
		want  string
	}{
		{[]string{"liqo"}, "liqonet\t"},
		{[]string{"liqonet", "stat"}, "status\t"},
		{[]string{"liqonet", "peer", "al"}, "alpha\n"},
		{[]string{"liqonet", "peer", "--overlay", "gen"}, "geneve\n"},
	} {
		cmd := exec.CommandContext(ctx, kubectl, append([]string{"__complete"}, tt.typed...)...)
		cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=/nonexistent", "KUBECONFIG=" + fx.lab.Kubeconfig()}
		out, err := cmd.Output()
		expect(t, err == nil && strings.Contains("\n"+string(out), "\n"+tt.want),
			"kubectl %s is completed by %q: %v", strings.Join(tt.typed, " "), out, err)
	}
}
