package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/liqonet/liqonet/test/kit"
)

// contentOf are the files of an archive.
func contentOf(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	content := map[string][]byte{}
	for tr := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return content
		}
		if err != nil {
			t.Fatal(err)
		}
		content[h.Name] = kit.Must(io.ReadAll(tr))(t)
	}
}

func TestBuild(t *testing.T) {
	const ref = "example.org/program:1"
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	kit.NoError(t, os.WriteFile(program, []byte("#!/bin/true\n"), 0o755))
	out := filepath.Join(dir, "image.tar")
	files := map[string]string{"/usr/bin/program": program}
	digest := kit.Must(Build(out, ref, files, []string{"/usr/bin/program"}))(t)
	first := kit.Must(os.ReadFile(out))(t)

	content := contentOf(t, first)
	// Everything is what its name says.
	for name, body := range content {
		sum := sha256.Sum256(body)
		if hash, ok := strings.CutPrefix(name, "blobs/sha256/"); ok && hash != hex.EncodeToString(sum[:]) {
			t.Errorf("%s has the hash %x", name, sum)
		}
	}
	decode := func(name string, into any) {
		t.Helper()
		kit.NoError(t, json.Unmarshal(content[name], into), name)
	}
	var index v1.IndexManifest
	decode("index.json", &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Digest.String() != digest || index.Manifests[0].Annotations[named] != ref {
		t.Fatalf("want %s of digest %s, got %+v", ref, digest, index)
	}
	var manifest v1.Manifest
	decode(blobPath(index.Manifests[0]), &manifest)
	for _, d := range append(manifest.Layers, manifest.Config) {
		if int64(len(content[blobPath(d)])) != d.Size {
			t.Errorf("%s is %d bytes long", d.Digest, len(content[blobPath(d)]))
		}
	}
	// The same for those who do not know that layout.
	var images []manifestEntry
	decode("manifest.json", &images)
	if len(images) != 1 || images[0].RepoTags[0] != ref || images[0].Config != blobPath(manifest.Config) || images[0].Layers[0] != blobPath(manifest.Layers[0]) {
		t.Errorf("manifest.json: got %+v", images)
	}

	kit.Must(Build(out, ref, files, []string{"/usr/bin/program"}))(t)
	second := kit.Must(os.ReadFile(out))(t)
	if !bytes.Equal(first, second) {
		t.Error("two builds of the same input differ")
	}
}
