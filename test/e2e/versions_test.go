package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/lab/image"
)

// Versions are not mixed: a newer command leaves agents as they are until they are upgraded. An older one is refused and
// changes nothing, but may look, and unpeer.
func TestDefect1_06_Versions(t *testing.T) {
	ctx := begin(t)
	a, b := fx.alpha, fx.gamma
	installed := *binDir
	t.Cleanup(func() { *binDir = installed })
	use := map[string]string{}
	for _, version := range []string{"v7.0.0", "v7.1.0"} {
		use[version] = release(t, version)
		for _, c := range []*cluster{a, b} {
			loadImage(t, ctx, c, filepath.Join(use[version], "liqonet-agent.tar"))
		}
	}
	checkVersion := func(want string) {
		t.Helper()
		for _, c := range []*cluster{a, b} {
			for _, kind := range []string{"daemonset", "deployment"} {
				out := jsonPath(t, ctx, c, "{range .items[*]}{.spec.template.spec.containers[0].image} {.metadata.annotations.liqonet\\.io/version}\n{end}",
					"-n", "liqonet-system", "get", kind)
				for line := range strings.Lines(out) {
					if strings.Count(line, want) != 2 {
						t.Errorf("%s: %s: %s, want %s", c.Name, kind, strings.TrimSpace(line), want)
					}
				}
				if out == "" {
					t.Errorf("%s has no %s", c.Name, kind)
				}
			}
		}
	}
	*binDir = use["v7.0.0"]
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	checkVersion("v7.0.0")
	*binDir = use["v7.1.0"]
	if r := mustLiqonet(t, ctx, "status", a.Name, b.Name); !strings.Contains(r.stdout, "Connected") {
		t.Errorf("a newer command shows:\n%s", r.stdout)
	}
	if r := mustLiqonet(t, ctx, "peer", a.Name, b.Name); !strings.Contains(r.stdout, "upgrade") {
		t.Errorf("a newer command says\n%s", r.stdout)
	}
	checkVersion("v7.0.0")
	mustLiqonet(t, ctx, "upgrade", a.Name, b.Name)
	checkVersion("v7.1.0")
	checkPair(t, ctx, a, b)

	before := texts(t, ctx, enduring, unrolled, a, b)
	*binDir = use["v7.0.0"]
	for _, args := range [][]string{
		{"peer", a.Name, b.Name}, {"upgrade", a.Name}, {"rotate-keys", a.Name, b.Name}, {"expose-host", a.Name, b.Name, "192.0.2.7"},
	} {
		r := liqonet(t, ctx, "", args...)
		if r.code != exitUsage {
			t.Errorf("%v of an older command: exit code %d, want %d\n%s%s", args, r.code, exitUsage, r.stdout, r.stderr)
		}
		checkMessage(t, r, "v7.1.0", "v7.0.0")
	}
	if diff := difference(before, texts(t, ctx, enduring, unrolled, a, b)); diff != "" {
		t.Errorf("an older command has changed:\n%s", diff)
	}
	checkPair(t, ctx, a, b)
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
	checkNothingLeft(t, ctx)
}

// release builds the command and the agents' image as of a version, and returns their
// directory.
func release(t *testing.T, version string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, pkg := range map[string]string{"kubectl-liqonet": "./cmd/liqonetctl", "liqonet-agent": "./agent"} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath",
			"-ldflags", "-s -w -X github.com/liqonet/liqonet/pkg/version.version="+version, "-o", filepath.Join(dir, name), pkg)
		cmd.Dir, cmd.Env = filepath.Join("..", ".."), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", cmd.Args, err, out)
		}
	}
	if _, err := image.Build(filepath.Join(dir, "liqonet-agent.tar"), agentImage(version), map[string]string{"/liqonet-agent": filepath.Join(dir, "liqonet-agent")}, []string{"/liqonet-agent"}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// sameImage gives nodes the agents' image by another name, too, and returns that.
func sameImage(t *testing.T, ctx context.Context, clusters ...*cluster) string {
	t.Helper()
	name, archive := agentImage("the-same"), filepath.Join(t.TempDir(), "agent.tar")
	if _, err := image.Build(archive, name, map[string]string{"/liqonet-agent": program("liqonet-agent")}, []string{"/liqonet-agent"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range clusters {
		loadImage(t, ctx, c, archive)
	}
	return name
}

// agentImage is the published one of a version.
func agentImage(version string) string { return "ghcr.io/liqonet/liqonet-agent:" + version }
