package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	kit.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	kit.NoError(t, os.WriteFile(path, []byte(content), 0o644))
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
