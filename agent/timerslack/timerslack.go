// Package timerslack sets the timer slack of the process that imports it.
package timerslack

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// slack is how late the kernel may wake a thread of this process, see timer_slack_ns in proc(5). The default of
// 0.05 ms is too little for Go's runtime. While an agent does a little work some hundred times a second, the
// runtime's monitor thread wakes up to find nothing. With more slack, an idle agent uses a third less processor time.
const slack = 2 * time.Millisecond

// Err is why the timer slack could not be set, nil if it was.
var Err error

// A thread inherits the slack from the thread that creates it, and Go creates threads before main begins. So the program
// replaces itself, once. It does so here, because Go initializes packages in the order of their paths: the many ones of
// Kubernetes come later, and would be initialized twice.
func init() { Err = set() }

func set() error {
	const replaced = "LIQONET_REPLACED"
	if os.Getenv(replaced) != "" {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	program, err := os.Executable()
	if err == nil {
		err = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0)
	}
	if err == nil {
		err = unix.Exec(program, os.Args, append(os.Environ(), replaced+"=1"))
	}
	return fmt.Errorf("set the timer slack: %w", err)
}
