package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liqonet/liqonet/test/lab/image"
)

// A new peering that fails, here for an image that the registry does not have, changes
// nothing for the other peerings of its clusters: their agents keep their image, and
// packets pass.
func TestFailedPeerLeavesOtherPeerings(t *testing.T) {
	ctx := begin(t)
	a, b, c := fx.alpha, fx.beta, fx.gamma
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	before, pods := texts(t, ctx, enduring, unrolled, a, b), a.agents(t, "node")
	flows := startFlows(t, ctx, a, b, 0, 0)
	startRegistry(t, ctx, a, c)
	missing := repository + "@sha256:" + strings.Repeat("0", 64)
	r := liqonet(t, ctx, "", "peer", a.Name, c.Name, "--agent-image="+missing, "--timeout=60s")
	r.refused(t, exitNotReady)
	checkMessage(t, r, missing, "not found")
	none(t, fx.ours(ctx, c), "left in %s", c.Name)
	flows.lossless(t, "another peering failed")
	none(t, cmp.Diff(before, texts(t, ctx, enduring, unrolled, a, b)), "objects changed")
	if image := jsonPath(t, ctx, a, "{.spec.template.spec.containers[0].image}", "-n", "liqonet-system", "get", "daemonset", "liqonet-node"); strings.Contains(image, missing) {
		t.Errorf("node agents have the image %s", image)
	}
	eventually(t, ctx, podTimeout, "node agents", func() string {
		now := a.agents(t, "node")
		return unless(len(now) == len(pods), "they were %v, now %v", pods, now)
	})
	checkMended(t, ctx, a, b)
	unpeered(t, ctx, a, b)
}

// enduring are the objects of ours without those that Kubernetes makes of them.
func enduring(u *unstructured.Unstructured) bool {
	return managed(u) && u.GetKind() != "Pod" && u.GetKind() != "ControllerRevision"
}

// unrolled is what is fixed of an object, without how often its pods were replaced.
func unrolled(u *unstructured.Unstructured) string {
	u = u.DeepCopy()
	unstructured.RemoveNestedField(u.Object, "metadata", "annotations", "deprecated.daemonset.template.generation")
	return unwritten(u)
}

// shiftTimeout is for building agents of which every package is compiled anew, as all
// know the time. The next run finds them in Go's cache.
const shiftTimeout = 15 * time.Minute

// shiftedClock is added to package time, and what the linker sets.
const shiftedClock = `
var e2eShift string

var e2eSeconds = func() int64 {
	n, _ := atoi(e2eShift)
	return int64(n)
}()
`

// shiftedAgents builds an image of the agents to which it is always later, or earlier,
// than it is.
func shiftedAgents(t *testing.T, shift time.Duration, ref string) (archive string) {
	ctx, cancel := context.WithTimeout(t.Context(), shiftTimeout)
	defer cancel()
	goCommand := func(args ...string) string {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		require(t, err == nil, "go %v: %v: %s", args, err, errs.String())
		return strings.TrimSpace(string(out))
	}
	dir := t.TempDir()
	source := filepath.Join(goCommand("env", "GOROOT"), "src", "time", "time.go")
	text := must(os.ReadFile(source))(t)
	// What Now reads of the clock; the monotonic time stays as it is.
	const reads = "sec, nsec, mono := runtimeNow()"
	changed := strings.Replace(string(text), reads, reads+"\n\tsec += e2eSeconds", 1) + shiftedClock
	require(t, strings.Contains(changed, "sec += e2eSeconds"), "%s does not read the clock by %q", source, reads)
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{source: writeFile(t, filepath.Join(dir, "time.go"), changed)}})
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "liqonet-agent")
	goCommand("build", "-trimpath", "-overlay", writeFile(t, filepath.Join(dir, "overlay.json"), string(overlay)),
		"-ldflags", fmt.Sprintf("-s -w -X time.e2eShift=%d", int64(shift.Seconds())), "-o", binary, "../../agent")
	archive = filepath.Join(dir, "shifted.tar")
	must(image.Build(archive, ref, map[string]string{"/liqonet-agent": binary}, []string{"/liqonet-agent"}))(t)
	return archive
}

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
