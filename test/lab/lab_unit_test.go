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

// What is not the first process of a node must never be taken for one.
func TestIsFirst(t *testing.T) {
	for _, pid := range []int{1, os.Getpid(), unix.Getppid(), 1 << 22} {
		if isFirst(pid) {
			t.Errorf("process %d is taken for a node", pid)
		}
	}
}
