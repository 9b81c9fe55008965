package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/workload"
)

// cgroups is where control groups are mounted.
const cgroups = "/sys/fs/cgroup"

// share puts a process into the CPU group of the gateway on a node, so that the
// tunnel by hand gets as much of the CPU as the product's.
func share(b *testing.B, n *lab.Node, pid int) {
	b.Helper()
	gateway := kit.Must(gatewayProcess(n))(b)
	group := kit.Must(cpuGroup(gateway))(b)
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		b.Fatalf("give the tunnel by hand the gateway's share of the CPU: %v", err)
	}
}

// gatewayProcess returns the directory of the process of the gateway on a node.
func gatewayProcess(n *lab.Node) (string, error) {
	return workload.FindProcess(*labName, n.Name+"/", func(program, argument string, _ []string) bool {
		return program == "liqonet-agent" && argument == "gateway"
	})
}

func gatewayPID(b *testing.B, n *lab.Node) int {
	b.Helper()
	proc := kit.Must(gatewayProcess(n))(b)
	return kit.Must(strconv.Atoi(filepath.Base(proc)))(b)
}

// busy is the time that all processors have worked since they started, see proc_stat(5).
func busy() (time.Duration, error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	var user, nice, system, idle, wait, hard, soft int64 // in ticks of 10 ms
	if _, err := fmt.Sscanf(string(raw), "cpu %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &wait, &hard, &soft); err != nil {
		return 0, fmt.Errorf("read /proc/stat: %w", err)
	}
	return time.Duration(user+nice+system+hard+soft) * 10 * time.Millisecond, nil
}

// cpuGroup returns the directory of a process's CPU group, in version 1 or 2 of
// control groups (see cgroups(7)).
func cpuGroup(proc string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(proc, "cgroup"))
	if err != nil {
		return "", err
	}
	unified := ""
	for line := range strings.Lines(string(raw)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			if controller == "cpu" {
				return filepath.Join(cgroups, parts[1], parts[2]), nil
			}
		}
		if parts[1] == "" {
			unified = filepath.Join(cgroups, parts[2])
		}
	}
	if unified == "" {
		return "", fmt.Errorf("%s has no CPU group: %s", proc, raw)
	}
	return unified, nil
}
