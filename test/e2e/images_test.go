package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/liqonet/liqonet/test/lab/image"
)

// release builds the command and the agents' image as of a version, and returns their
// directory.
func release(t *testing.T, version string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, pkg := range map[string]string{"kubectl-liqonet": "./cmd/liqonetctl", "liqonet-agent": "./agent"} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath",
			"-ldflags", "-s -w -X github.com/liqonet/liqonet/pkg/version.version="+version, "-o", filepath.Join(dir, name), pkg)
		cmd.Dir, cmd.Env = filepath.Join("..", ".."), append(os.Environ(), "CGO_ENABLED=0")
		try(t, runs(cmd))
	}
	must(image.Build(filepath.Join(dir, "liqonet-agent.tar"), agentImage(version), map[string]string{"/liqonet-agent": filepath.Join(dir, "liqonet-agent")}, []string{"/liqonet-agent"}))(t)
	return dir
}

// sameImage gives nodes the agents' image by another name, too, and returns that.
func sameImage(t *testing.T, ctx context.Context, clusters ...*cluster) string {
	t.Helper()
	name, archive := agentImage("the-same"), filepath.Join(t.TempDir(), "agent.tar")
	must(image.Build(archive, name, map[string]string{"/liqonet-agent": program("liqonet-agent")}, []string{"/liqonet-agent"}))(t)
	for _, c := range clusters {
		loadImage(t, ctx, c, archive)
	}
	return name
}

// agentImage is the published one of a version.
func agentImage(version string) string { return "ghcr.io/liqonet/liqonet-agent:" + version }

// loadImage gives an image to all nodes of a cluster.
func loadImage(t *testing.T, ctx context.Context, c *cluster, archive string) {
	t.Helper()
	for _, n := range c.nodes {
		f := must(os.Open(archive))(t)
		cmd := n.Node.Command(ctx, "/lab/bin/ctr", "--namespace", "k8s.io", "images", "import", "-")
		cmd.Stdin = f
		out, err := cmd.CombinedOutput()
		f.Close()
		require(t, err == nil, "node %s: %v: %s", n.Node.Name, err, out)
	}
}
