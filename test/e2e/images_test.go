package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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

// repository is where nodes look for images of the test's registry.
const repository = registryName + "/liqonet-agent"

const registryName = "registry.lab"

// startRegistry runs a registry beside the nodes of clusters until the end of the test. They
// know it by a name that no name server has, as they would know a mirror.
func startRegistry(t *testing.T, ctx context.Context, clusters ...*cluster) http.Handler {
	t.Helper()
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	underlay := must(namespace("lab." + *labName + ".underlay"))(t)
	defer underlay.ns.Close()
	var listener net.Listener
	try(t, underlay.do(func() (err error) {
		// An address of the router that all nodes send by.
		listener, err = net.Listen("tcp", net.JoinHostPort(clusters[0].spec.NodeSubnet.Masked().Addr().Next().String(), "0"))
		return err
	}))
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(listener) }() // until it is closed
	t.Cleanup(func() { _ = server.Close() })
	const dir = "/etc/containerd/certs.d/" + registryName
	onNodes := func(ctx context.Context, script string) {
		for _, c := range clusters {
			for _, n := range c.nodes {
				report(t, runs(n.Node.Command(ctx, "sh", "-ec", script)))
			}
		}
	}
	onNodes(ctx, fmt.Sprintf("mkdir -p %[1]s; echo 'server = \"http://%[2]s\"' > %[1]s/hosts.toml", dir, listener.Addr()))
	t.Cleanup(func() { onNodes(context.WithoutCancel(ctx), "rm -r "+dir) })
	return handler
}

// push gives an image, which is an archive, to a registry.
func push(t *testing.T, to http.Handler, archive, tag string) {
	t.Helper()
	files := must(filesIn(archive))(t)
	send := func(method, path, kind string, body []byte) {
		t.Helper()
		request := httptest.NewRequest(method, "/v2/liqonet-agent/"+path, bytes.NewReader(body))
		request.Header.Set("Content-Type", kind)
		answer := httptest.NewRecorder()
		if to.ServeHTTP(answer, request); answer.Code != http.StatusCreated {
			t.Fatalf("%s %s: %d %s", method, path, answer.Code, answer.Body)
		}
	}
	for name, body := range files {
		if hash, ok := strings.CutPrefix(name, "blobs/sha256/"); ok {
			send(http.MethodPost, "blobs/uploads/?digest=sha256:"+hash, "application/octet-stream", body)
		}
	}
	var index v1.IndexManifest
	err := json.Unmarshal(files["index.json"], &index)
	require(t, err == nil && len(index.Manifests) == 1, "%s: %v\n%s", archive, err, files["index.json"])
	m := index.Manifests[0]
	send(http.MethodPut, "manifests/"+tag, string(m.MediaType), files["blobs/sha256/"+m.Digest.Hex])
}

// Agents come from a registry by the digest of their image, whatever its tags say, and
// status tells which one runs.
func TestImageByDigest(t *testing.T) {
	ctx := begin(t)
	a, b := fx.alpha, fx.beta
	mirror := startRegistry(t, ctx, a, b)
	// One that no node has yet.
	dir := t.TempDir()
	archive := filepath.Join(dir, "image.tar")
	digest := must(image.Build(archive, repository+":v1", map[string]string{
		"/liqonet-agent": program("liqonet-agent"), "/made": writeFile(t, filepath.Join(dir, "made"), fmt.Sprint("by the test ", dir)),
	}, []string{"/liqonet-agent"}))(t)
	push(t, mirror, archive, "v1")
	// Somebody has moved the tag to another image, with which no agent would start.
	other := filepath.Join(dir, "other.tar")
	must(image.Build(other, repository+":v1", map[string]string{"/liqonet-agent": filepath.Join(dir, "made")}, []string{"/liqonet-agent"}))(t)
	push(t, mirror, other, "v1")

	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--agent-image="+repository+":v1@"+digest)
	checkPair(t, ctx, a, b)
	for pair, v := range status(t, ctx, 0, a, b) {
		none(t, cmp.Diff([]string{repository + "@" + digest}, v.Images), "%v runs", pair)
	}
	mustLiqonet(t, ctx, "peer", a.Name, b.Name).says(t, "nothing was changed")
	unpeered(t, ctx, a, b)
}

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

// shiftTimeout is for building agents all packages of which are compiled again, as all
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
