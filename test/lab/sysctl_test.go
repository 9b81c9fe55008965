package lab

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLimits(t *testing.T) {
	const low, high = "fs/inotify/max_user_instances", "fs/inotify/max_user_watches"
	dir := t.TempDir()
	s := limits{root: dir, file: filepath.Join(dir, "limits.json")}
	if err := os.MkdirAll(filepath.Join(dir, "fs/inotify"), 0o755); err != nil {
		t.Fatal(err)
	}
	set := func(name string, value int) {
		t.Helper()
		if err := s.set(name, value); err != nil {
			t.Fatal(err)
		}
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
		if err := s.raise(); err != nil {
			t.Fatal(err)
		}
		check(low, 8192)
		check(high, 1<<20)
	}
	for range 2 {
		if err := s.restore(); err != nil {
			t.Fatal(err)
		}
		check(low, 128)
		check(high, 1<<20)
	}
	if err := s.raise(); err != nil {
		t.Fatal(err)
	}
	set(low, 9999) // by somebody else
	if err := s.restore(); err != nil {
		t.Fatal(err)
	}
	check(low, 9999)
}
