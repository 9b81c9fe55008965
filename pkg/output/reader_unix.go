//go:build unix

package output

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// HasReader reports whether somebody may still read what is written to w. A pipe whose reader has ended otherwise shows that only when
// something is written.
func HasReader(w io.Writer) bool {
	if page, is := w.(Page); is {
		w = page.terminal
	}
	file, is := w.(*os.File)
	if !is {
		return true
	}
	fds := []unix.PollFd{{Fd: int32(file.Fd())}}
	_, err := unix.Poll(fds, 0)
	return err != nil || fds[0].Revents&unix.POLLERR == 0
}
