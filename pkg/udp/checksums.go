package udp

import (
	"os"

	"github.com/prometheus/procfs"
	"github.com/samber/lo"
	"golang.org/x/sys/unix"
)

// WrongChecksums returns how many packets to the calling thread's network namespace had a wrong checksum, by TCP, UDP and
// ICMP. It returns 0 if the kernel does not count them.
func WrongChecksums() uint64 {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0
	}
	thread, err := proc.Thread(os.Getpid(), unix.Gettid())
	if err != nil {
		return 0
	}
	snmp, _ := thread.Snmp()
	return uint64(lo.FromPtr(snmp.Tcp.InCsumErrors) + lo.FromPtr(snmp.Udp.InCsumErrors) + lo.FromPtr(snmp.Icmp.InCsumErrors))
}
