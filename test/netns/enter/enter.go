// Package enter runs functions in network namespaces, for tests and for their tools.
package enter

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Thread runs a function on a thread of its own, which ends with it.
func Thread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked, so that the runtime ends the thread and no other
		// goroutine ever runs in the namespace by accident.
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// Do runs a function in a network namespace, on a thread of its own. Goroutines
// that it starts are not in the namespace, but sockets opened by it are.
func Do(namespace *os.File, f func() error) error {
	return Thread(func() error {
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", namespace.Name(), err)
		}
		return f()
	})
}

// Path is Do for the file of a namespace, such as /run/netns/NAME or /proc/PID/ns/net.
func Path(path string, f func() error) error {
	namespace, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer namespace.Close()
	return Do(namespace, f)
}
