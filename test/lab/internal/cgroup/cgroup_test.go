package cgroup

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	kit.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	kit.NoError(t, os.WriteFile(path, []byte(content), 0o644))
}

func TestHierarchies(t *testing.T) {
	v1 := t.TempDir()
	for _, name := range []string{"cpu,cpuacct", "memory", "unified"} {
		write(t, filepath.Join(v1, name, "cgroup.procs"), "")
	}
	kit.NoError(t, os.Symlink("cpu,cpuacct", filepath.Join(v1, "cpu")))
	got := kit.Must(NewHost(v1).Hierarchies())(t)
	want := []string{filepath.Join(v1, "cpu,cpuacct"), filepath.Join(v1, "memory"), filepath.Join(v1, "unified")}
	if !slices.Equal(got, want) {
		t.Errorf("v1: got %v, want %v", got, want)
	}

	v2 := t.TempDir()
	write(t, filepath.Join(v2, "cgroup.controllers"), "cpu memory\n")
	host := NewHost(v2)
	if got, err := host.Hierarchies(); err != nil || !slices.Equal(got, []string{v2}) || !host.V2() {
		t.Errorf("v2: got %v, %v", got, err)
	}

	if _, err := NewHost(t.TempDir()).Hierarchies(); err == nil {
		t.Error("nothing mounted: no error")
	}
}

func TestCreateAndRemove(t *testing.T) {
	root := t.TempDir()
	cpuset := filepath.Join(root, "cpuset")
	write(t, filepath.Join(cpuset, "cgroup.procs"), "")
	write(t, filepath.Join(cpuset, "cpuset.cpus"), "0-1\n")
	host := NewHost(root)
	// The kernel makes the files of a new cgroup; here they are made before.
	write(t, filepath.Join(cpuset, "lab", "cpuset.cpus"), "\n")
	write(t, filepath.Join(cpuset, "lab", "node", "cpuset.cpus"), "\n")
	for range 2 {
		kit.NoError(t, host.Create("/lab/node"))
	}
	if b, err := os.ReadFile(filepath.Join(cpuset, "lab", "node", "cpuset.cpus")); err != nil || string(b) != "0-1\n" {
		t.Errorf("cpuset.cpus: got %q, %v", b, err)
	}

	// Files of a real cgroup do not keep it from being removed; these do.
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if err := host.Remove(ctx, "/lab"); err == nil {
		t.Error("removed a busy cgroup")
	}
	for _, f := range []string{"lab/cpuset.cpus", "lab/node/cpuset.cpus"} {
		kit.NoError(t, os.Remove(filepath.Join(cpuset, f)))
	}
	for range 2 {
		kit.NoError(t, host.Remove(context.Background(), "/lab"))
	}
}

func TestWeigh(t *testing.T) {
	v1, v2 := t.TempDir(), t.TempDir()
	write(t, filepath.Join(v1, "cpu", "cgroup.procs"), "")
	write(t, filepath.Join(v1, "memory", "cgroup.procs"), "")
	write(t, filepath.Join(v1, "cpu", "lab", "cpu.shares"), "1024\n")
	write(t, filepath.Join(v1, "memory", "lab", "cgroup.procs"), "")
	write(t, filepath.Join(v2, "cgroup.controllers"), "cpu memory\n")
	write(t, filepath.Join(v2, "lab", "cpu.weight"), "100\n")
	for file, want := range map[string]string{filepath.Join(v1, "cpu/lab/cpu.shares"): "16384", filepath.Join(v2, "lab/cpu.weight"): "1600"} {
		root := v1
		if strings.HasPrefix(file, v2) {
			root = v2
		}
		kit.NoError(t, NewHost(root).Weigh("/lab", 16))
		if b, err := os.ReadFile(file); err != nil || string(b) != want {
			t.Errorf("%s: got %q, %v, want %s", file, b, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(v1, "memory/lab/cpu.shares")); err == nil {
		t.Error("another hierarchy got a file")
	}
}
