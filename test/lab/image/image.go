// Package image builds container images without a container engine.
//
// An image is one layer of files from this machine and an entrypoint, written
// as a docker-archive (the format of `docker save`), which `ctr images import`,
// `docker load` and `kind load image-archive` read. The same input gives the
// same bytes. Building from a base image, and pushing to a registry, are out of
// scope.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Build writes to the file out an image named ref (repository:tag) with the
// given files (path in the image to path on this machine) and entrypoint.
// A file is executable in the image if it is executable here. The file out
// appears only when it is complete.
func Build(out, ref string, files map[string]string, entrypoint []string) error {
	if err := build(out, ref, files, entrypoint); err != nil {
		return fmt.Errorf("build image %s: %w", ref, err)
	}
	return nil
}

func build(out, ref string, files map[string]string, entrypoint []string) error {
	layer, diffID, err := buildLayer(files)
	if err != nil {
		return err
	}
	config, err := json.Marshal(imageConfig{
		Architecture: runtime.GOARCH,
		OS:           "linux",
		Created:      time.Unix(0, 0).UTC().Format(time.RFC3339),
		Config: runConfig{
			Entrypoint: entrypoint,
			Env:        []string{"PATH=/usr/local/bin:/usr/bin:/bin:/"},
			WorkingDir: "/",
		},
		RootFS: rootFS{Type: "layers", DiffIDs: []string{"sha256:" + diffID}},
	})
	if err != nil {
		return fmt.Errorf("encode configuration: %w", err)
	}
	configName := digest(config) + ".json"
	layerName := digest(layer) + ".tar.gz"
	manifest, err := json.Marshal([]manifestEntry{{
		Config: configName, RepoTags: []string{ref}, Layers: []string{layerName},
	}})
	if err != nil {
		return fmt.Errorf("encode manifest: %w", err)
	}

	tmp, err := os.CreateTemp(filepath.Dir(out), filepath.Base(out)+".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails after the rename, as it should
	defer tmp.Close()
	tw := tar.NewWriter(tmp)
	for _, e := range []struct {
		name string
		body []byte
	}{{configName, config}, {layerName, layer}, {"manifest.json", manifest}} {
		if err := writeFile(tw, e.name, 0o644, int64(len(e.body)), bytes.NewReader(e.body)); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return fmt.Errorf("write %s: %w", out, err)
	}
	if err := tmp.Chmod(0o644); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return fmt.Errorf("write %s: %w", out, err)
	}
	return os.Rename(tmp.Name(), out)
}

// buildLayer returns the compressed layer and the digest of the layer before
// compression, which is its identity in the image's configuration.
func buildLayer(files map[string]string) (layer []byte, diffID string, err error) {
	var buf bytes.Buffer
	// The level trades a few percent of size for most of the time: images are
	// imported on this machine, not sent anywhere.
	zw, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if err != nil {
		return nil, "", err
	}
	sum := sha256.New()
	tw := tar.NewWriter(io.MultiWriter(zw, sum))

	sources := map[string]string{}
	// Programs expect a /tmp, whatever else is in the image.
	dirs := map[string]int64{"tmp": 0o1777}
	for name, source := range files {
		name = strings.TrimPrefix(path.Clean("/"+name), "/")
		if name == "" {
			return nil, "", fmt.Errorf("file %s has no name in the image", source)
		}
		sources[name] = source
		for d := path.Dir(name); d != "."; d = path.Dir(d) {
			if _, ok := dirs[d]; !ok {
				dirs[d] = 0o755
			}
		}
	}
	for _, d := range slices.Sorted(maps.Keys(dirs)) {
		err := tw.WriteHeader(&tar.Header{
			Typeflag: tar.TypeDir, Name: d + "/", Mode: dirs[d], ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
		})
		if err != nil {
			return nil, "", fmt.Errorf("write directory %s: %w", d, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if err := addFile(tw, name, sources[name]); err != nil {
			return nil, "", err
		}
	}
	if err := tw.Close(); err != nil {
		return nil, "", fmt.Errorf("close layer: %w", err)
	}
	if err := zw.Close(); err != nil {
		return nil, "", fmt.Errorf("compress layer: %w", err)
	}
	return buf.Bytes(), hex.EncodeToString(sum.Sum(nil)), nil
}

func addFile(tw *tar.Writer, name, source string) error {
	f, err := os.Open(source)
	if err != nil {
		return fmt.Errorf("add /%s: %w", name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("add /%s: %w", name, err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("add /%s: %s is not a regular file", name, source)
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	return writeFile(tw, name, mode, info.Size(), f)
}

func writeFile(tw *tar.Writer, name string, mode, size int64, body io.Reader) error {
	err := tw.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size, ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if _, err := io.Copy(tw, body); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// The types below are the parts used here of the image specification,
// https://github.com/opencontainers/image-spec/blob/main/config.md, and of
// docker-archive's manifest.json.

type imageConfig struct {
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Created      string    `json:"created"`
	Config       runConfig `json:"config"`
	RootFS       rootFS    `json:"rootfs"`
}

type runConfig struct {
	Entrypoint []string `json:"Entrypoint"`
	Env        []string `json:"Env"`
	WorkingDir string   `json:"WorkingDir"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type manifestEntry struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}
