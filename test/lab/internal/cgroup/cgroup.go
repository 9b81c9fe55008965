// Package cgroup makes and removes the control groups of the lab's nodes, on
// hosts with cgroup v1 (every hierarchy), v2, or both mounted.
package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Host is the cgroup file system of this machine.
type Host struct {
	root string
}

// NewHost returns the cgroups mounted below root, /sys/fs/cgroup on Linux.
func NewHost(root string) Host { return Host{root: root} }

// V2 reports whether the host has only the unified hierarchy.
func (h Host) V2() bool {
	_, err := os.Stat(filepath.Join(h.root, "cgroup.controllers"))
	return err == nil
}

// Hierarchies returns the root directory of each hierarchy.
func (h Host) Hierarchies() ([]string, error) {
	if h.V2() {
		return []string{h.root}, nil
	}
	entries, err := os.ReadDir(h.root)
	if err != nil {
		return nil, fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	var dirs []string
	for _, e := range entries {
		dir := filepath.Join(h.root, e.Name())
		// Symbolic links (cpu -> cpu,cpuacct) lead to what is listed anyway.
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); e.IsDir() && err == nil {
			dirs = append(dirs, dir)
		}
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("no cgroup hierarchy is mounted below %s", h.root)
	}
	return dirs, nil
}

// each does something with the root directory of each hierarchy.
func (h Host) each(do func(dir string) error) error {
	hierarchies, err := h.Hierarchies()
	if err != nil {
		return err
	}
	for _, dir := range hierarchies {
		if err := do(dir); err != nil {
			return err
		}
	}
	return nil
}

// Create makes the cgroup at path (such as /lab/node) in every hierarchy,
// ready to take processes and children.
func (h Host) Create(path string) error {
	return h.each(func(dir string) error {
		for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
			enableControllers(dir)
			parent := dir
			dir = filepath.Join(dir, name)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("create cgroup: %w", err)
			}
			// A new cpuset is empty in v1, and takes no process.
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if err := inherit(parent, dir, file); err != nil {
					return fmt.Errorf("create cgroup: %w", err)
				}
			}
		}
		return nil
	})
}

// enableControllers hands the controllers of a v2 cgroup to its children. What
// cannot be enabled is left: kubelet says which controllers it misses.
func enableControllers(dir string) {
	list, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for name := range strings.FieldsSeq(string(list)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0o644)
	}
}

func inherit(parent, dir, file string) error {
	have, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil || len(bytes.TrimSpace(have)) > 0 {
		return nil // another hierarchy, or set already
	}
	value, err := os.ReadFile(filepath.Join(parent, file))
	if err != nil || len(bytes.TrimSpace(value)) == 0 {
		return nil // v2: empty means inherited
	}
	return os.WriteFile(filepath.Join(dir, file), value, 0o644)
}

// Enter moves a process into the cgroup at path, in every hierarchy.
func (h Host) Enter(path string, pid int) error {
	return h.each(func(dir string) error {
		file := filepath.Join(dir, path, "cgroup.procs")
		if err := os.WriteFile(file, []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return fmt.Errorf("move process %d into cgroup: %w", pid, err)
		}
		return nil
	})
}

// Weigh gives the cgroup at path, while processors are busy, that many times
// the share of them that a cgroup has by default, 100 times at most: cpu.shares
// and cpu.weight of the kernel's cgroup documents.
func (h Host) Weigh(path string, times int) error {
	return h.each(func(dir string) error {
		for file, byDefault := range map[string]int{"cpu.shares": 1024, "cpu.weight": 100} {
			file = filepath.Join(dir, path, file)
			if _, err := os.Stat(file); err != nil {
				continue // another hierarchy, or version
			}
			if err := os.WriteFile(file, []byte(strconv.Itoa(byDefault*times)), 0o644); err != nil {
				return fmt.Errorf("set the share of processors: %w", err)
			}
		}
		return nil
	})
}

// Remove removes the cgroup at path and all below it, in every hierarchy. It
// waits until the context ends for processes that are about to be gone. A
// cgroup that does not exist is no error.
func (h Host) Remove(ctx context.Context, path string) error {
	return h.each(func(dir string) error {
		for {
			err := removeTree(filepath.Join(dir, path))
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("remove cgroup: %w", err)
			case <-time.After(20 * time.Millisecond):
			}
		}
		return nil
	})
}

// removeTree removes directories only: the files of a cgroup go with it.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
