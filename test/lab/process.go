package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// A node's first process is not remembered but found: it is the one that is
// number 1 of a pid namespace of its own and is in the node's network
// namespace, which bears the lab's name. So it is found by any process, after
// whatever happened to the lab's files, and a process number that was used
// again is not mistaken for it.

// netnsID identifies a network namespace.
type netnsID struct{ dev, inode uint64 }

func netnsOf(path string) (netnsID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return netnsID{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return netnsID{uint64(st.Dev), st.Ino}, nil //nolint:unconvert // Dev has another type on some architectures
}

// nodeProcesses returns the first processes of the nodes, by the names of the
// nodes' network namespaces.
func nodeProcesses(names []string) (map[string][]int, error) {
	byID := map[netnsID]string{}
	for _, name := range names {
		id, err := netnsOf(filepath.Join(netnsDir, name))
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, err
		}
		byID[id] = name
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	found := map[string][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		id, err := netnsOf(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			continue // has ended, or a zombie
		}
		if name, ok := byID[id]; ok && isFirst(pid) {
			found[name] = append(found[name], pid)
		}
	}
	return found, nil
}

// isFirst reports whether a process is number 1 of a pid namespace below this
// one. See "NSpid" in proc(5).
func isFirst(pid int) bool {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	status, err := process.NewStatus()
	return err == nil && len(status.NSpids) == 2 && status.NSpids[1] == 1
}

// kill kills a node's first process, and with it everything in its pid
// namespace, and waits until all of that is gone. still tells whether the
// process number is the right process's.
func kill(ctx context.Context, pid int, still func(int) bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	// From here on the descriptor means one process; was it the right one?
	if !still(pid) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	// A first process counts as ended only when its namespace is empty.
	for {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 100)
		if n > 0 {
			waitReaped(fd)
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for process %d: %w", pid, err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("process %d does not end: %w", pid, context.Cause(ctx))
		}
	}
}

// waitReaped gives the parent a moment to take note of the end, so that no
// zombie is seen after Down. The parent is the process that started the node
// or, if that has ended, the machine's own first process; how quick that one is
// does not matter to anything else.
func waitReaped(fd int) {
	for range 100 {
		if err := unix.PidfdSendSignal(fd, 0, nil, 0); errors.Is(err, unix.ESRCH) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// tail returns the last lines of a file, for an error message.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "(" + err.Error() + ")"
	}
	return lastLines(string(b), lines)
}

func lastLines(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// lockDir takes the lock of a directory, which is the directory itself, so that
// no lock file is left. The lock is released by closing the file.
func lockDir(ctx context.Context, dir string) (*os.File, error) {
	for {
		f, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			// It may have been removed, and made again, before it was locked.
			have, err1 := f.Stat()
			want, err2 := os.Stat(dir)
			if err1 == nil && err2 == nil && os.SameFile(have, want) {
				return f, nil
			}
			f.Close()
			if err2 != nil {
				return nil, err2
			}
			continue
		}
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the other process that is changing %s: %w", dir, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
