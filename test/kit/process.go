package kit

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// PeakMemory is how much memory a process has had at most without the kernel's, in bytes: VmHWM of proc(5). It fails if
// the process has ended.
func PeakMemory(pid int) (int64, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	status, err := process.NewStatus()
	if err == nil && status.VmHWM == 0 {
		err = fmt.Errorf("process %d has no memory any more", pid)
	}
	return int64(status.VmHWM), err
}

// CPUTime is how long a process has used one since its start, in user and kernel mode.
func CPUTime(pid int) (time.Duration, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := process.Stat()
	return time.Duration(stat.CPUTime() * float64(time.Second)), err
}
