package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/test/kit"
)

func TestNewRefusesNames(t *testing.T) {
	for _, name := range []string{"a.b", "A", "-a", "a/b", strings.Repeat("a", 21)} {
		if _, err := New(Options{Name: name}); err == nil {
			t.Errorf("name %q: no error", name)
		}
	}
}

func TestStatusOfNothing(t *testing.T) {
	l := kit.Must(New(Options{StateDir: t.TempDir(), Name: "nothing"}))(t)
	s := kit.Must(l.Status())(t)
	if s.Up || s.Healthy() || len(s.Clusters) != 0 {
		t.Errorf("got %+v", s)
	}
	if _, err := l.Kubectl(); !errors.Is(err, ErrNotUp) {
		t.Errorf("got error %v, want ErrNotUp", err)
	}
}

func TestModules(t *testing.T) {
	l := kit.Must(New(Options{}))(t)
	dirs := map[string]bool{}
	for _, of := range suites() {
		for _, m := range of.modules {
			version, err := moduleVersion(filepath.Join("modules", m.name, "go.mod"), m.versions)
			if err != nil || !strings.HasPrefix(version, "v") {
				t.Errorf("%s: version %q, %v", m.name, version, err)
			}
		}
		first := kit.Must(l.binDirFor(".", of))(t)
		second, err := l.binDirFor(".", of)
		if err != nil || first != second {
			t.Errorf("got %s, then %s, %v", first, second, err)
		}
		dirs[first] = true
	}
	if len(dirs) != len(suites()) {
		t.Errorf("%d directories of %d suites: %v", len(dirs), len(suites()), dirs)
	}
}

func TestLockDir(t *testing.T) {
	dir := t.TempDir()
	lock := kit.Must(lockDir(context.Background(), dir))(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := lockDir(ctx, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("locked twice: %v", err)
	}
	kit.NoError(t, lock.Close())
	again := kit.Must(lockDir(context.Background(), dir))(t)
	again.Close()
	if _, err := lockDir(context.Background(), filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestTail(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	kit.NoError(t, os.WriteFile(file, []byte("1\n2\n3\n"), 0o644))
	kit.Check(t, "the last two lines", tail(file, 2), "2\n3")
	if got := tail(file+"x", 2); !strings.Contains(got, "no such file") {
		t.Errorf("got %q", got)
	}
}

// What is not the first process of a node must never be taken for one.
func TestIsFirst(t *testing.T) {
	for _, pid := range []int{1, os.Getpid(), unix.Getppid(), 1 << 22} {
		if isFirst(pid) {
			t.Errorf("process %d is taken for a node", pid)
		}
	}
}
