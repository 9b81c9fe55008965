// Package image builds container images without a container engine.
//
// An image is one layer of files from this machine and an entrypoint. It is written
// as an OCI layout with the manifest.json of a docker-archive next to it, as `docker
// save` does. So `ctr images import`, `docker load`, `kind load image-archive` and
// skopeo read it. The same input gives the same bytes, and the same digest. Building
// from a base image, and pushing to a registry, are out of scope.
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

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// named is the annotation by which containerd finds an image's name in an archive.
const named = "io.containerd.image.name"

// Build writes to the file out an image named ref (repository:tag) with the
// given files (path in the image to path on this machine) and entrypoint.
// A file is executable in the image if it is executable here. The file out
// appears only when it is complete. It returns the image's digest, by which
// registries know it: sha256, a colon, and 64 hexadecimal digits.
func Build(out, ref string, files map[string]string, entrypoint []string) (digest string, err error) {
	if digest, err = build(out, ref, files, entrypoint); err != nil {
		return "", fmt.Errorf("build image %s: %w", ref, err)
	}
	return digest, nil
}

func build(out, ref string, files map[string]string, entrypoint []string) (string, error) {
	layer, diffID, err := buildLayer(files)
	if err != nil {
		return "", err
	}
	a := archive{files: map[string][]byte{}}
	config := a.blob(types.OCIConfigJSON, encode(v1.ConfigFile{
		Architecture: runtime.GOARCH,
		OS:           "linux",
		Created:      v1.Time{Time: time.Unix(0, 0).UTC()},
		Config: v1.Config{
			Entrypoint: entrypoint,
			Env:        []string{"PATH=/usr/local/bin:/usr/bin:/bin:/"},
			WorkingDir: "/",
		},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{diffID}},
	}))
	layers := []v1.Descriptor{a.blob(types.OCILayer, layer)}
	manifest := a.blob(types.OCIManifestSchema1, encode(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: config, Layers: layers,
	}))
	index := manifest
	index.Annotations, index.Platform = map[string]string{named: ref}, &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	a.files["index.json"] = encode(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{index}})
	a.files["oci-layout"] = encode(map[string]string{"imageLayoutVersion": "1.0.0"})
	a.files["manifest.json"] = encode([]manifestEntry{{Config: blobPath(config), RepoTags: []string{ref}, Layers: []string{blobPath(layers[0])}}})
	return manifest.Digest.String(), a.write(out)
}

// archive is what becomes a tar file.
type archive struct{ files map[string][]byte }

// blob adds a blob, and describes it.
func (a archive) blob(kind types.MediaType, content []byte) v1.Descriptor {
	sum := sha256.Sum256(content)
	d := v1.Descriptor{MediaType: kind, Size: int64(len(content)), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}
	a.files[blobPath(d)] = content
	return d
}

func blobPath(d v1.Descriptor) string { return path.Join("blobs", d.Digest.Algorithm, d.Digest.Hex) }

// encode is JSON of values that have one.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func (a archive) write(out string) error {
	tmp, err := os.CreateTemp(filepath.Dir(out), filepath.Base(out)+".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails after the rename, as it should
	defer tmp.Close()
	tw := tar.NewWriter(tmp)
	for _, name := range slices.Sorted(maps.Keys(a.files)) {
		if err := writeFile(tw, name, 0o644, int64(len(a.files[name])), bytes.NewReader(a.files[name])); err != nil {
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
func buildLayer(files map[string]string) (layer []byte, diffID v1.Hash, err error) {
	var buf bytes.Buffer
	// The level trades a few percent of size for most of the time: images are
	// imported on this machine, not sent anywhere.
	zw, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if err != nil {
		return nil, v1.Hash{}, err
	}
	sum := sha256.New()
	tw := tar.NewWriter(io.MultiWriter(zw, sum))

	sources := map[string]string{}
	// Programs expect a /tmp, whatever else is in the image.
	dirs := map[string]int64{"tmp": 0o1777}
	for name, source := range files {
		name = strings.TrimPrefix(path.Clean("/"+name), "/")
		if name == "" {
			return nil, v1.Hash{}, fmt.Errorf("file %s has no name in the image", source)
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
			return nil, v1.Hash{}, fmt.Errorf("write directory %s: %w", d, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if err := addFile(tw, name, sources[name]); err != nil {
			return nil, v1.Hash{}, err
		}
	}
	if err := tw.Close(); err != nil {
		return nil, v1.Hash{}, fmt.Errorf("close layer: %w", err)
	}
	if err := zw.Close(); err != nil {
		return nil, v1.Hash{}, fmt.Errorf("compress layer: %w", err)
	}
	return buf.Bytes(), v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}, nil
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

// manifestEntry is one image of docker-archive's manifest.json.
type manifestEntry struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}
