package e2e

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// commitOfV010 is the commit of the release to upgrade from: a clone need not have tags.
const commitOfV010 = "d92da4d"

// buildCommit builds the command and the agents' image of a commit as a version, and returns their directory.
func buildCommit(t *testing.T, ctx context.Context, commit, version string) (dir string) {
	t.Helper()
	source := t.TempDir()
	archive := exec.CommandContext(ctx, "git", "-C", filepath.Join("..", ".."), "archive", commit)
	out, err := archive.StdoutPipe()
	if err == nil {
		err = archive.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	unpack(t, out, source)
	if err := archive.Wait(); err != nil {
		t.Fatalf("%v: %v: a whole clone is needed", archive.Args, err)
	}
	return build(t, ctx, source, version)
}

// unpack writes the files of an archive that git has made.
func unpack(t *testing.T, from io.Reader, dir string) {
	t.Helper()
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(file, 0o755)
		case tar.TypeReg:
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(file, content, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// upgrades are the clusters of a test, with commands of several versions.
type upgrades struct {
	a, b *cluster
	// head and old are directories with the commands.
	head, old string
}

func newUpgrades(t *testing.T, ctx context.Context, commit, version string) *upgrades {
	t.Helper()
	x := &upgrades{a: fx.alpha, b: fx.beta, head: *binDir, old: buildCommit(t, ctx, commit, version)}
	t.Cleanup(func() { *binDir = x.head })
	for _, c := range []*cluster{x.a, x.b} {
		loadImage(t, ctx, c, filepath.Join(x.old, "liqonet-agent.tar"))
	}
	return x
}

// with runs something with the command of a directory.
func (x *upgrades) with(dir string, do func()) {
	*binDir = dir
	defer func() { *binDir = x.head }()
	do()
}

// run runs an upgrade under load, which loses nothing. It returns what the command says.
func (x *upgrades) run(t *testing.T, ctx context.Context, what string, args ...string) result {
	t.Helper()
	return x.runAtMost(t, ctx, what, 0, args...)
}

// runAtMost runs one that may lose packets for some time.
func (x *upgrades) runAtMost(t *testing.T, ctx context.Context, what string, lost time.Duration, args ...string) result {
	t.Helper()
	fs := sendEightWays(t, ctx, x.a, x.b)
	r := mustLiqonet(t, ctx, append([]string{"upgrade"}, args...)...)
	t.Logf("%s: %s\n%s%s", what, r.took, r.stderr, r.stdout)
	checkPair(t, ctx, x.a, x.b)
	if lost > 0 {
		fs.interrupted(t, what, lost)
	} else {
		fs.lossless(t, what)
	}
	if t.Failed() {
		t.FailNow() // what happened is in the diagnosis
	}
	return r
}

// check fails the test unless all agents of the clusters are of a version: what objects say, and what the agents themselves say in their Leases.
func (x *upgrades) check(t *testing.T, ctx context.Context, version string, clusters ...*cluster) {
	t.Helper()
	for _, c := range clusters {
		for _, kind := range []string{"daemonset", "deployment", "lease"} {
			out := jsonPath(t, ctx, c, "{range .items[*]}{.metadata.name} {.metadata.annotations.liqonet\\.io/version}\n{end}", "-n", "liqonet-system", "get", kind)
			for line := range strings.Lines(out) {
				if _, of, _ := strings.Cut(strings.TrimSpace(line), " "); of != version {
					t.Errorf("%s: %s %s, want %s", c.Name, kind, strings.TrimSpace(line), version)
				}
			}
		}
		if got := jsonPath(t, ctx, c, "{.items[*].spec.updateStrategy.type}", "-n", "liqonet-system", "get", "daemonset"); got != "RollingUpdate" {
			t.Errorf("%s: the DaemonSet is updated by %s", c.Name, got)
		}
	}
}

// headVersion is that of the command that is tested.
func headVersion(t *testing.T, ctx context.Context) string {
	t.Helper()
	_, version, found := strings.Cut(mustLiqonet(t, ctx, "version").stdout, "agents "+agentImage(""))
	if !found {
		t.Fatal("the command does not say which agents belong to it")
	}
	return strings.TrimSpace(version)
}

// peerOld peers both clusters by the command of v0.1.0.
func (x *upgrades) peerOld(t *testing.T, ctx context.Context, planes string) {
	t.Helper()
	x.with(x.old, func() { mustLiqonet(t, ctx, "peer", x.a.Name, x.b.Name, "--planes", planes) })
	x.check(t, ctx, "v0.1.0", x.a, x.b)
}

// TestUpgrade brings two clusters from v0.1.0 to this version and back while packets are sent, and loses none. An image that is not there
// goes back by itself. One of two clusters can be upgraded alone. An older command is refused.
func TestUpgrade(t *testing.T) {
	begin(t)
	ctx := t.Context()
	x := newUpgrades(t, ctx, commitOfV010, "v0.1.0")
	a, b := x.a, x.b
	head := headVersion(t, ctx)
	x.peerOld(t, ctx, "2")

	// What does not start goes back.
	fs := sendEightWays(t, ctx, x.a, x.b)
	r := liqonet(t, ctx, "", "upgrade", a.Name, b.Name, "--agent-image", agentImage("is-not-there"))
	if r.code != exitNotReady || !strings.Contains(r.stderr, "cannot be pulled") {
		t.Errorf("an image that is not there: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	checkPair(t, ctx, a, b)
	fs.lossless(t, "an image that is not there")
	x.check(t, ctx, "v0.1.0", a, b)

	// One of them, with a dry run before.
	if r := mustLiqonet(t, ctx, "upgrade", a.Name, "--dry-run"); !strings.Contains(r.stdout, "nothing was changed") {
		t.Errorf("a dry run says\n%s", r.stdout)
	}
	x.check(t, ctx, "v0.1.0", a)
	x.run(t, ctx, "one of two clusters", a.Name)
	x.check(t, ctx, head, a)
	x.check(t, ctx, "v0.1.0", b)
	// The next peer leaves both as they are, and agents of v0.1.0 are told nothing new.
	fs = sendEightWays(t, ctx, x.a, x.b)
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2", "--limit-new", "100000")
	checkPair(t, ctx, a, b)
	x.check(t, ctx, "v0.1.0", b)
	fs.lossless(t, "peer of clusters with different versions")
	x.run(t, ctx, "the other one", a.Name, b.Name)
	x.check(t, ctx, head, a, b)
	if r := mustLiqonet(t, ctx, "upgrade", a.Name, b.Name); strings.Count(r.stdout, "nothing was changed") != 2 {
		t.Errorf("again, it says\n%s", r.stdout)
	}
	if r := mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2"); !strings.Contains(r.stdout, "nothing was changed") {
		t.Errorf("the next peer says\n%s", r.stdout)
	}

	// An older command is refused, and changes nothing.
	known := func(u *unstructured.Unstructured) bool { // it takes the records of changes for leftovers
		return enduring(u) && !strings.HasPrefix(u.GetName(), "history-")
	}
	before := texts(t, ctx, known, unrolled, a, b)
	x.with(x.old, func() {
		if r := liqonet(t, ctx, "", "peer", a.Name, b.Name, "--planes", "2"); r.code == 0 || !strings.Contains(r.stderr, "this command is older than liqonet in the cluster") {
			t.Errorf("a command of v0.1.0: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
		}
	})
	if diff := difference(before, texts(t, ctx, known, unrolled, a, b)); diff != "" {
		t.Errorf("an older command has changed:\n%s", diff)
	}

	// By both planes at once, back to what knows no such mode.
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2", "--planes-mode", "spread")
	x.run(t, ctx, "back", a.Name, b.Name, "--to", "v0.1.0")
	x.check(t, ctx, "v0.1.0", a, b)
	x.with(x.old, func() { mustLiqonet(t, ctx, "unpeer", a.Name, b.Name) })
	checkNothingLeft(t, ctx)
}

// lostByV010 is how long packets may be lost when a peering with gateways of v0.1.0 gets a second plane, or has one again: the one that
// calls begins its session anew.
const lostByV010 = time.Second

// TestUpgradeWithOnePlane does so with one plane, which gets a temporary one meanwhile. A command that was killed is done again. Nothing is
// lost but by gateways of v0.1.0.
func TestUpgradeWithOnePlane(t *testing.T) {
	begin(t)
	ctx := t.Context()
	x := newUpgrades(t, ctx, commitOfV010, "v0.1.0")
	a, b, head := x.a, x.b, headVersion(t, ctx)
	x.peerOld(t, ctx, "1")
	fs := sendEightWays(t, ctx, x.a, x.b)
	random := random(t)
	for range 3 {
		interrupted(t, ctx, "", time.Duration(random.Int64N(int64(40*time.Second))), syscall.SIGKILL, "upgrade", a.Name, b.Name)
	}
	if fs.interrupted(t, "commands that are killed", lostByV010); t.Failed() {
		t.FailNow()
	}
	x.runAtMost(t, ctx, "to this version, after commands that were killed", lostByV010, a.Name, b.Name)
	x.check(t, ctx, head, a, b)
	// Between later versions nothing is lost.
	x.run(t, ctx, "another image of this version", a.Name, b.Name, "--agent-image", sameImage(t, ctx, a, b))
	x.check(t, ctx, head, a, b)
	x.runAtMost(t, ctx, "back", lostByV010, a.Name, b.Name, "--to", "v0.1.0", "--agent-image", agentImage("v0.1.0"))
	x.check(t, ctx, "v0.1.0", a, b)
	r := x.runAtMost(t, ctx, "to this version", lostByV010, a.Name, b.Name)
	if !strings.Contains(r.stdout, "may be lost for a second") {
		t.Errorf("it does not say that packets may be lost:\n%s", r.stdout)
	}
	x.runAtMost(t, ctx, "back again", lostByV010, a.Name, b.Name, "--to", "v0.1.0")
	// Nothing is left that v0.1.0 does not know.
	x.with(x.old, func() { mustLiqonet(t, ctx, "unpeer", a.Name, b.Name) })
	checkNothingLeft(t, ctx)
}

// TestUpgradeUnpeerOfOlder removes what this version has made with the command of v0.1.0: it is refused to change it, and not to remove it.
func TestUpgradeUnpeerOfOlder(t *testing.T) {
	ctx := begin(t)
	x := newUpgrades(t, ctx, commitOfV010, "v0.1.0")
	mustLiqonet(t, ctx, "peer", x.a.Name, x.b.Name)
	x.with(x.old, func() { mustLiqonet(t, ctx, "unpeer", x.a.Name, x.b.Name) })
	// What it does not know is left: permissions to send Events, which no account has any more.
	for _, c := range []*cluster{x.a, x.b} {
		if left := jsonPath(t, ctx, c, "{.items[*].metadata.name}", "get", "crd,namespaces,clusterroles,validatingadmissionpolicies", "-l", "app.kubernetes.io/managed-by=liqonet"); left != "" {
			t.Errorf("%s has %s", c.Name, left)
		}
		if _, err := c.Run(ctx, "", "delete", "roles,rolebindings", "-n", "default", "-l", "app.kubernetes.io/managed-by=liqonet"); err != nil {
			t.Error(err)
		}
		if _, err := c.Run(ctx, "", "delete", "events", "-n", "default", "--field-selector=involvedObject.kind=Peering"); err != nil {
			t.Error(err)
		}
	}
	checkNothingLeft(t, ctx)
}
