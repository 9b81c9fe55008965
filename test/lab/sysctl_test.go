package lab

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

func TestLimits(t *testing.T) {
	const low, high = "fs/inotify/max_user_instances", "fs/inotify/max_user_watches"
	dir := t.TempDir()
	s := limits{root: dir, file: filepath.Join(dir, "limits.json")}
	kit.NoError(t, os.MkdirAll(filepath.Join(dir, "fs/inotify"), 0o755))
	set := func(name string, value int) {
		t.Helper()
		kit.NoError(t, s.set(name, value))
	}
	check := func(name string, want int) {
		t.Helper()
		if got, err := s.get(name); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", name, got, err, want)
		}
	}
	set(low, 128)
	set(high, 1<<20)
	for range 2 { // two labs
		kit.NoError(t, s.raise())
		check(low, 8192)
		check(high, 1<<20)
	}
	for range 2 {
		kit.NoError(t, s.restore())
		check(low, 128)
		check(high, 1<<20)
	}
	kit.NoError(t, s.raise())
	set(low, 9999) // by somebody else
	kit.NoError(t, s.restore())
	check(low, 9999)
}
