package kit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"
)

var highWater = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// PeakMemory is how much memory a process has had at most without the kernel's, in bytes: VmHWM of proc(5). It fails if
// the process has ended.
func PeakMemory(pid int) (int64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	found := highWater.FindSubmatch(raw)
	if found == nil {
		return 0, fmt.Errorf("process %d has no memory any more", pid)
	}
	kB, err := strconv.ParseInt(string(found[1]), 10, 64)
	return kB << 10, err
}

// CPUTime is how long a process has used one since its start, in user and kernel mode.
func CPUTime(pid int) (time.Duration, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')'):]) // proc(5), from field 2
	user, userErr := strconv.Atoi(string(fields[12]))
	system, systemErr := strconv.Atoi(string(fields[13]))
	const perSecond = 100 // USER_HZ
	return time.Duration(user+system) * time.Second / perSecond, errors.Join(userErr, systemErr)
}
