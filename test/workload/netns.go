package workload

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Inside runs a function in a network namespace, on a thread of its own. Sockets that it opens stay there;
// goroutines that it starts are not in it.
func Inside(namespace *os.File, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the runtime ends the thread, and no other goroutine
		// ever runs in the namespace by accident.
		runtime.LockOSThread()
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network namespace %s: %w", namespace.Name(), err)
			return
		}
		done <- f()
	}()
	return <-done
}

// NetworkNamespace returns the file of a test pod's network namespace. The pod's
// process is found by its lab and by the pod's name, which is unique in a lab:
// the random part of a DaemonSet's is.
func (p Pod) NetworkNamespace(labName string) (string, error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return "", err
	}
	for _, proc := range processes {
		// A process that ends meanwhile is none that is looked for.
		cmdline, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
		cgroup, _ := os.ReadFile(filepath.Join(proc, "cgroup"))
		environ, _ := os.ReadFile(filepath.Join(proc, "environ"))
		if bytes.HasPrefix(cmdline, []byte("/tester\x00serve")) && bytes.Contains(cgroup, []byte("/liqonet-lab."+labName+"/")) &&
			bytes.Contains(append([]byte{0}, environ...), []byte("\x00HOSTNAME="+p.Name+"\x00")) {
			return filepath.Join(proc, "ns", "net"), nil
		}
	}
	return "", fmt.Errorf("found no process of %s", p)
}
