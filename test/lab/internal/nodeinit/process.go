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
// beside it, as both would wait for the same processes.
type reaper struct {
	env []string

	mu       sync.Mutex
	children map[int]*process
	status   map[string]ComponentStatus
}

func newReaper(env []string) *reaper {
	// Memory is cheaper than processors in a lab.
	env = append(slices.Clip(env), "GOGC=400")
	return &reaper{env: env, children: map[int]*process{}, status: map[string]ComponentStatus{}}
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
			if s, ok := r.status[p.name]; ok {
				s.Exited, s.Since = p.describe(), time.Now()
				r.status[p.name] = s
				r.writeStatus()
				fmt.Printf("%s %s %s\n", time.Now().Format(time.RFC3339), p.name, p.describe())
			}
		}
		r.mu.Unlock()
	}
}

// writeStatus replaces the status file. It is information for people: that it
// cannot be written must not end a node.
func (r *reaper) writeStatus() {
	file := filepath.Join(nodeDir, StatusFile)
	if err := os.WriteFile(file+".tmp", encode(r.status), 0o644); err == nil {
		_ = os.Rename(file+".tmp", file)
	}
}

// start starts a program whose output is appended to the log of the given name.
func (r *reaper) start(name, program string, args ...string) (*process, error) {
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
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	p := &process{name: name, pid: pid, done: make(chan struct{})}
	r.children[pid] = p
	return p, nil
}

// component starts a program that is meant to run as long as the node.
func (r *reaper) component(name, program string, args ...string) (*process, error) {
	p, err := r.start(name, program, args...)
	if err != nil {
		return nil, componentError{name, err}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := ComponentStatus{PID: p.pid, Since: time.Now()}
	select {
	case <-p.done:
		s.Exited = p.describe()
	default:
	}
	r.status[name] = s
	r.writeStatus()
	return p, nil
}

// once runs a program to its end, which must be a good one.
func (r *reaper) once(ctx context.Context, name, program string, args ...string) error {
	p, err := r.start(name, program, args...)
	if err != nil {
		return componentError{name, err}
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
