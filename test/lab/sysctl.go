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

	"github.com/samber/lo"
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

// limitsFile has the raised limits, while a lab of the state directory exists.
func (l *Lab) limitsFile() string { return filepath.Join(l.stateDir, "limits.json") }

func (l *Lab) raisedLimits() (map[string]raised, error) {
	limits := map[string]raised{}
	if err := readJSON(l.limitsFile(), &limits); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return limits, nil
}

func readLimit(name string) (int, error) {
	b, err := os.ReadFile(filepath.Join("/proc/sys", name))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

func writeLimit(name string, value int) error {
	return os.WriteFile(filepath.Join("/proc/sys", name), []byte(strconv.Itoa(value)), 0o644)
}

// raiseLimits raises what is too low for the labs of the state directory.
func (l *Lab) raiseLimits(ctx context.Context) error {
	lock, err := lockDir(ctx, l.stateDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	before, err := l.raisedLimits()
	if err != nil {
		return err
	}
	for name, want := range hostLimits {
		have, err := readLimit(name)
		if err != nil {
			return fmt.Errorf("read limit: %w", err)
		}
		if have >= want {
			continue
		}
		if _, ok := before[name]; !ok {
			before[name] = raised{From: have, To: want}
			// First, so that it is put back whatever happens next.
			if err := writeJSON(l.limitsFile(), before); err != nil {
				return err
			}
		}
		if err := writeLimit(name, want); err != nil {
			return fmt.Errorf("raise limit: %w", err)
		}
	}
	return nil
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
	if err != nil || lo.SomeBy(entries, os.DirEntry.IsDir) {
		return err
	}
	before, err := l.raisedLimits()
	if err != nil {
		return err
	}
	for name, r := range before {
		// Limits that somebody else has changed since stay.
		if have, err := readLimit(name); err == nil && have == r.To {
			if err := writeLimit(name, r.From); err != nil {
				return fmt.Errorf("restore limit: %w", err)
			}
		}
	}
	if err := os.Remove(l.limitsFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Remove(l.stateDir) // whatever else is in it is not the lab's
	return nil
}
