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
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/liqonet/liqonet/test/lab/image"
)

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
