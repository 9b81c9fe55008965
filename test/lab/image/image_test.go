package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBuild(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/true\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "image.tar")
	files := map[string]string{"/usr/bin/program": program}
	if err := Build(out, "example.org/program:1", files, []string{"/usr/bin/program"}); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}

	content := map[string][]byte{}
	for tr := tar.NewReader(bytes.NewReader(first)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if content[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
	var manifest []manifestEntry
	if err := json.Unmarshal(content["manifest.json"], &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 1 || len(manifest[0].Layers) != 1 || manifest[0].RepoTags[0] != "example.org/program:1" {
		t.Errorf("manifest: got %+v", manifest)
	}
	layer := manifest[0].Layers[0]
	if want := digest(content[layer]) + ".tar.gz"; layer != want {
		t.Errorf("layer is named %s, want %s", layer, want)
	}

	if err := Build(out, "example.org/program:1", files, []string{"/usr/bin/program"}); err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("two builds of the same input differ")
	}
}

func TestBuildLeavesNothingOnFailure(t *testing.T) {
	dir := t.TempDir()
	err := Build(filepath.Join(dir, "image.tar"), "x:1", map[string]string{"/a": filepath.Join(dir, "missing")}, nil)
	if err == nil || !strings.Contains(err.Error(), "x:1") {
		t.Errorf("got error %v, want one that names the image", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 0 {
		t.Errorf("left over: %v", entries)
	}
}
