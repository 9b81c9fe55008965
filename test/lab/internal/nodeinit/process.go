package nodeinit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// process is a child of the node's first process.
type process struct {
	name string
	pid  int
	long bool               // it is meant to run as long as the node
	done chan struct{}      // closed when the process is reaped
	exit syscall.WaitStatus // valid then
}

func (p *process) describe() string {
	if p.exit.Signaled() {
		return "was killed by signal " + p.exit.Signal().String()
	}
	return fmt.Sprintf("exited with status %d", p.exit.ExitStatus())
}

// reaper starts processes and reaps everything: the first process of a pid
// namespace also inherits what others leave behind. os/exec cannot be used
// next to it, as both would wait for the same processes.
type reaper struct {
	env []string

	mu       sync.Mutex
	children map[int]*process
	exited   map[string]string // long ones that have ended, and how
}

func newReaper(env []string) *reaper {
	// Memory is cheaper than processors in a lab.
	env = append(slices.Clip(env), "GOGC=400")
	return &reaper{env: env, children: map[int]*process{}, exited: map[string]string{}}
}

// run reaps until the process ends.
func (r *reaper) run() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCHLD)
	for {
		r.reap()
		<-signals
	}
}

func (r *reaper) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		// The lock is held while a process is started, so that one which ends
		// at once is in the map by now.
		r.mu.Lock()
		if p := r.children[pid]; p != nil {
			delete(r.children, pid)
			p.exit = status
			close(p.done)
			if p.long {
				r.exited[p.name] = p.describe()
				r.writeExited()
				fmt.Printf("%s %s %s\n", time.Now().Format(time.RFC3339), p.name, p.describe())
			}
		}
		r.mu.Unlock()
	}
}

// writeExited replaces the file. It is information for people: that it
// cannot be written must not end a node.
func (r *reaper) writeExited() {
	file := filepath.Join(nodeDir, ExitedFile)
	if err := os.WriteFile(file+".tmp", encode(r.exited), 0o644); err == nil {
		_ = os.Rename(file+".tmp", file)
	}
}

// start starts a program whose output is appended to the log of the given name.
func (r *reaper) start(name string, long bool, program string, args ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(logDir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(program, append([]string{program}, args...), &syscall.ProcAttr{
		Dir:   "/",
		Env:   r.env,
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, componentError{name, fmt.Errorf("start %s: %w", program, err)}
	}
	p := &process{name: name, pid: pid, long: long, done: make(chan struct{})}
	r.children[pid] = p
	return p, nil
}

// once runs a program to its end, which must be a good one.
func (r *reaper) once(ctx context.Context, name, program string, args ...string) error {
	p, err := r.start(name, false, program, args...)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
		return componentError{name, fmt.Errorf("%s did not end: %w", program, context.Cause(ctx))}
	}
	if p.exit.ExitStatus() != 0 {
		return componentError{name, fmt.Errorf("%s %s", program, p.describe())}
	}
	return nil
}

// wait asks until the answer is nil, which means that the process is ready.
func (p *process) wait(ctx context.Context, ask func(context.Context) error) error {
	for {
		askCtx, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := ask(askCtx)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return componentError{p.name, errors.New(p.describe())}
		case <-ctx.Done():
			return componentError{p.name, fmt.Errorf("not ready: %w", err)}
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// componentError says which component's log tells more.
type componentError struct {
	component string
	err       error
}

func (e componentError) Error() string { return e.component + ": " + e.err.Error() }
func (e componentError) Unwrap() error { return e.err }
