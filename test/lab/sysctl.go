package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// hostLimits are limits of the whole machine that a few nodes use up, and what
// they are raised to while there is a lab: a worker takes some 25 inotify
// instances, and 128 is the kernel's default.
var hostLimits = map[string]int{
	"fs/inotify/max_user_instances": 8192,
	"fs/inotify/max_user_watches":   524288,
}

// raised is a limit that was raised.
type raised struct{ From, To int }

// limits are the limits of a machine, and the file that remembers what they
// were while a lab of the state directory exists.
type limits struct {
	root string // /proc/sys
	file string
}

func (l *Lab) limits() limits {
	return limits{root: "/proc/sys", file: filepath.Join(l.stateDir, "limits.json")}
}

func (s limits) get(name string) (int, error) {
	b, err := os.ReadFile(filepath.Join(s.root, name))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

func (s limits) set(name string, value int) error {
	return os.WriteFile(filepath.Join(s.root, name), []byte(strconv.Itoa(value)), 0o644)
}

// raise raises what is too low. The directory of the file has to be locked.
func (s limits) raise() error {
	before := map[string]raised{}
	if err := readJSON(s.file, &before); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for name, want := range hostLimits {
		have, err := s.get(name)
		if err != nil {
			return fmt.Errorf("read limit: %w", err)
		}
		if have >= want {
			continue
		}
		if _, ok := before[name]; !ok {
			before[name] = raised{From: have, To: want}
			// First, so that it is put back whatever happens next.
			if err := writeJSON(s.file, before); err != nil {
				return err
			}
		}
		if err := s.set(name, want); err != nil {
			return fmt.Errorf("raise limit: %w", err)
		}
	}
	return nil
}

// restore undoes raise, but for limits that somebody else has changed since.
func (s limits) restore() error {
	before := map[string]raised{}
	err := readJSON(s.file, &before)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for name, r := range before {
		if have, err := s.get(name); err == nil && have == r.To {
			if err := s.set(name, r.From); err != nil {
				return fmt.Errorf("restore limit: %w", err)
			}
		}
	}
	return os.Remove(s.file)
}

// raiseLimits raises the machine's limits for the labs of the state directory.
func (l *Lab) raiseLimits(ctx context.Context) error {
	lock, err := lockDir(ctx, l.stateDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	return l.limits().raise()
}

// leaveStateDir puts the machine's limits back and removes the state directory,
// unless it holds another lab.
func (l *Lab) leaveStateDir(ctx context.Context) error {
	lock, err := lockDir(ctx, l.stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	entries, err := os.ReadDir(l.stateDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			return nil
		}
	}
	if err := l.limits().restore(); err != nil {
		return err
	}
	_ = os.Remove(l.stateDir) // whatever else is in it is not the lab's
	return nil
}
