package vm

import (
	"fmt"
	"io"
	"strings"
)

// Modes of entries, see inode(7).
const (
	modeDir  = 0o040755
	modeFile = 0o100755
)

// archive writes a cpio archive in the format "newc", which the kernel unpacks
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w     io.Writer
	inode int
	err   error
}

func (a *archive) dir(name string)               { a.entry(name, modeDir, nil) }
func (a *archive) file(name string, data []byte) { a.entry(name, modeFile, data) }

// close ends the archive, and returns the first error.
func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, nil)
	return a.err
}

func (a *archive) entry(name string, mode int, data []byte) {
	const headerLength = 110
	if a.err != nil {
		return
	}
	a.inode++
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	head := header + name + "\x00"
	if len(header) != headerLength {
		a.err = fmt.Errorf("header of %s has %d bytes", name, len(header))
		return
	}
	for _, part := range []string{head + padding(len(head)), string(data), padding(len(data))} {
		if _, a.err = io.WriteString(a.w, part); a.err != nil {
			return
		}
	}
}

func padding(length int) string {
	return strings.Repeat("\x00", (4-length%4)%4)
}
