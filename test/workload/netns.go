package workload

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// NetworkNamespace returns the file of a test pod's network namespace. The pod's
// process is found by its lab and by the pod's name, which is unique in a lab:
// the random part of a DaemonSet's is.
func (p Pod) NetworkNamespace(labName string) (string, error) {
	proc, err := FindProcess(labName, "", func(program, argument string, environ []string) bool {
		return program == "tester" && argument == "serve" && slices.Contains(environ, "HOSTNAME="+p.Name)
	})
	if err != nil {
		return "", fmt.Errorf("%s: %w", p, err)
	}
	return filepath.Join(proc, "ns", "net"), nil
}

// FindProcess returns the directory in /proc of a process on the nodes of a lab whose names begin so, by its program,
// its first argument and its environment.
func FindProcess(labName, node string, is func(program, argument string, environ []string) bool) (string, error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return "", err
	}
	for _, proc := range processes {
		read := func(name string) []string {
			raw, _ := os.ReadFile(filepath.Join(proc, name)) // a process that has ended is not one that is looked for
			return strings.Split(string(raw), "\x00")
		}
		args := read("cmdline")
		if strings.Contains(read("cgroup")[0], "/liqonet-lab."+labName+"/"+node) && len(args) > 1 && is(filepath.Base(args[0]), args[1], read("environ")) {
			return proc, nil
		}
	}
	return "", fmt.Errorf("no such process runs on nodes %s* of lab %s", node, labName)
}
