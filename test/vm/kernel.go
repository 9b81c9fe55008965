package vm

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// metaPackage depends on the newest kernel of the distribution.
const metaPackage = "linux-image-amd64"

// kernel is an unpacked kernel package.
type kernel struct {
	image string
	// modules are the files of modules by name.
	modules map[string]string
	builtin map[string]bool
}

// findKernel returns the kernel to boot. If necessary, it downloads it into the user's cache directory.
func findKernel(ctx context.Context) (*kernel, error) {
	root, err := download(ctx)
	if err != nil {
		return nil, fmt.Errorf("get a kernel: %w", err)
	}
	images, err := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*"))
	if err != nil || len(images) == 0 {
		return nil, fmt.Errorf("no kernel in %s", filepath.Join(root, "boot"))
	}
	slices.Sort(images)
	k := &kernel{image: images[len(images)-1], modules: map[string]string{}, builtin: map[string]bool{}}
	version := strings.TrimPrefix(filepath.Base(k.image), "vmlinuz-")
	dir := filepath.Join(root, "lib", "modules", version)
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if name, ok := moduleName(path); ok {
			k.modules[name] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list modules: %w", err)
	}
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(builtin)) {
		if name, ok := moduleName(strings.TrimSpace(line)); ok {
			k.builtin[name] = true
		}
	}
	return k, nil
}

// moduleName returns the name by which modules depend on each other.
func moduleName(path string) (string, bool) {
	name, ext, _ := strings.Cut(filepath.Base(path), ".")
	return strings.ReplaceAll(name, "-", "_"), ext == "ko" || strings.HasPrefix(ext, "ko.")
}

// download unpacks the distribution's kernel package into a cache directory that is named after it.
func download(ctx context.Context) (string, error) {
	out, err := output(ctx, "", "apt-cache", "depends", "--important", metaPackage)
	if err != nil {
		return "", err
	}
	_, name, ok := strings.Cut(string(out), "Depends: ")
	if !ok {
		return "", fmt.Errorf("package %s is unknown: run apt-get update", metaPackage)
	}
	name, _, _ = strings.Cut(name, "\n")
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	parent := filepath.Join(cache, "liqonet", "vm")
	dir := filepath.Join(parent, strings.TrimSpace(name))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(parent, "unpack-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	if _, err := output(ctx, temp, "apt-get", "download", "-qq", strings.TrimSpace(name)); err != nil {
		return "", err
	}
	debs, _ := filepath.Glob(filepath.Join(temp, "*.deb"))
	if len(debs) != 1 {
		return "", fmt.Errorf("apt-get download made %d files", len(debs))
	}
	if _, err := output(ctx, temp, "dpkg-deb", "-x", debs[0], "root"); err != nil {
		return "", err
	}
	// Another process may have been faster. Its result is the same.
	if err := os.Rename(filepath.Join(temp, "root"), dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, nil
}

func output(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, stderr.String())
	}
	return out, nil
}

// module is an uncompressed module.
type module struct {
	name string
	data []byte
}

// load returns modules and their dependencies, each after its dependencies.
func (k *kernel) load(ctx context.Context, names ...string) ([]module, error) {
	var out []module
	done := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if done[name] || k.builtin[name] {
			return nil
		}
		done[name] = true
		path, ok := k.modules[name]
		if !ok {
			return fmt.Errorf("kernel %s has no module %s", filepath.Base(k.image), name)
		}
		data, err := read(ctx, path)
		if err != nil {
			return err
		}
		depends, err := dependencies(data)
		if err != nil {
			return fmt.Errorf("read module %s: %w", path, err)
		}
		for _, d := range depends {
			if err := add(d); err != nil {
				return fmt.Errorf("%s needs %s: %w", name, d, err)
			}
		}
		out = append(out, module{name: name, data: data})
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func read(ctx context.Context, path string) ([]byte, error) {
	if strings.HasSuffix(path, ".xz") {
		return output(ctx, "", "xz", "-dc", path)
	}
	return os.ReadFile(path)
}

// dependencies reads the line "depends=a,b" of a module's information.
func dependencies(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New("section .modinfo is missing")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Split(string(info), "\x00") {
		if list, ok := strings.CutPrefix(line, "depends="); ok && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ","), nil
		}
	}
	return nil, nil
}
