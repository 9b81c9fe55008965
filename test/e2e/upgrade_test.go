package e2e

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
)

// olderVersion is older than that of any build.
const olderVersion = "v0.0.1"

// upgrades are the clusters of a test, with commands of two versions of the same sources.
type upgrades struct {
	a, b *cluster
	// head and old are directories with the commands.
	head, old string
}

func newUpgrades(t *testing.T, ctx context.Context) *upgrades {
	x := &upgrades{a: fx.alpha, b: fx.beta, head: *binDir, old: release(t, olderVersion)}
	t.Cleanup(func() { *binDir = x.head })
	for _, c := range []*cluster{x.a, x.b} {
		loadImage(t, ctx, c, filepath.Join(x.old, "liqonet-agent.tar"))
	}
	return x
}

// run runs an upgrade under load, which loses nothing. It returns what the command says.
func (x *upgrades) run(t *testing.T, ctx context.Context, what string, args ...string) result {
	t.Helper()
	fs := sendEightWays(t, ctx, x.a, x.b)
	r := mustLiqonet(t, ctx, append([]string{"upgrade"}, args...)...)
	t.Logf("%s: %s\n%s%s", what, r.took, r.stderr, r.stdout)
	checkPair(t, ctx, x.a, x.b)
	if fs.lossless(t, what); t.Failed() {
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
				_, of, _ := strings.Cut(strings.TrimSpace(line), " ")
				expect(t, of == version, "%s: %s %s, want %s", c.Name, kind, strings.TrimSpace(line), version)
			}
		}
		got := jsonPath(t, ctx, c, "{.items[*].spec.updateStrategy.type}", "-n", "liqonet-system", "get", "daemonset")
		expect(t, got == "RollingUpdate", "%s: the DaemonSet is updated by %s", c.Name, got)
	}
}

// headVersion is that of the command that is tested.
func headVersion(t *testing.T, ctx context.Context) string {
	_, version, found := strings.Cut(mustLiqonet(t, ctx, "version").stdout, "agents "+agentImage(""))
	require(t, found, "the command does not say which agents belong to it")
	return strings.TrimSpace(version)
}

// peerOld peers both clusters by the command of the older version.
func (x *upgrades) peerOld(t *testing.T, ctx context.Context, planes string) {
	*binDir = x.old
	mustLiqonet(t, ctx, "peer", x.a.Name, x.b.Name, "--planes", planes)
	*binDir = x.head
	x.check(t, ctx, olderVersion, x.a, x.b)
}

// TestUpgrade brings two clusters from an older version to this one while packets are sent, and loses none. An image that is not there
// goes back by itself. One of two clusters can be upgraded alone.
func TestUpgrade(t *testing.T) {
	begin(t)
	ctx := t.Context()
	x := newUpgrades(t, ctx)
	a, b := x.a, x.b
	head := headVersion(t, ctx)
	x.peerOld(t, ctx, "2")

	// What does not start goes back.
	fs := sendEightWays(t, ctx, x.a, x.b)
	liqonet(t, ctx, "", "upgrade", a.Name, b.Name, "--agent-image", agentImage("is-not-there")).ends(t, exitNotReady, "cannot be pulled")
	checkPair(t, ctx, a, b)
	fs.lossless(t, "an image that is not there")
	x.check(t, ctx, olderVersion, a, b)

	// One of them, with a dry run before.
	mustLiqonet(t, ctx, "upgrade", a.Name, "--dry-run").says(t, "nothing was changed")
	x.check(t, ctx, olderVersion, a)
	x.run(t, ctx, "one of two clusters", a.Name)
	x.check(t, ctx, head, a)
	x.check(t, ctx, olderVersion, b)
	// The next peer leaves both as they are.
	fs = sendEightWays(t, ctx, x.a, x.b)
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2", "--limit-new", "100000")
	checkPair(t, ctx, a, b)
	x.check(t, ctx, olderVersion, b)
	fs.lossless(t, "peer of clusters with different versions")
	x.run(t, ctx, "the other one", a.Name, b.Name)
	x.check(t, ctx, head, a, b)
	if r := mustLiqonet(t, ctx, "upgrade", a.Name, b.Name); strings.Count(r.stdout, "nothing was changed") != 2 {
		t.Errorf("again, it says\n%s", r.stdout)
	}
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2").says(t, "nothing was changed")

	// By both planes at the same time.
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2", "--planes-mode", "spread")
	x.run(t, ctx, "another image of this version", a.Name, b.Name, "--agent-image", sameImage(t, ctx, a, b))
	x.check(t, ctx, head, a, b)
	unpeered(t, ctx, a, b)
}
