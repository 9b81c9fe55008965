package link

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offload is what an interface, or the kernel for it, does with many packets at
// once. Its value is ethtool's request to read it; the one to set it follows.
type Offload uint32

const (
	// TSO takes TCP segments of up to 64 KiB to send: all of what ethtool
	// calls tcp-segmentation-offload.
	TSO Offload = unix.ETHTOOL_GTSO
	// GRO is generic-receive-offload.
	GRO Offload = unix.ETHTOOL_GGRO
)

func (o Offload) String() string {
	return map[Offload]string{TSO: "tso", GRO: "gro"}[o]
}

// ensureOffload switches an offload unless it is as wanted. It takes no more
// than CAP_NET_ADMIN in the interface's namespace.
func (c *Conn) ensureOffload(name string, o Offload, on bool) (changed bool, err error) {
	want := uint32(0)
	if on {
		want = 1
	}
	have, err := c.ethtool(name, uint32(o), 0)
	if err != nil {
		return false, fmt.Errorf("read %s of interface %q: %w", o, name, err)
	}
	if have == want {
		return false, nil
	}
	if _, err := c.ethtool(name, uint32(o)+1, want); err != nil {
		return false, fmt.Errorf("switch %s of interface %q: %w", o, name, err)
	}
	return true, nil
}

// ethtool sends a request with one value, which the kernel may replace (struct
// ethtool_value and struct ifreq; see netdevice(7)). Any socket of the namespace will do.
func (c *Conn) ethtool(name string, request, value uint32) (uint32, error) {
	arg := struct{ request, value uint32 }{request, value}
	ifreq := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // the rest of the union
	}{data: unsafe.Pointer(&arg)}
	copy(ifreq.name[:unix.IFNAMSIZ-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.socket.Socket.GetFd()), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifreq)))
	runtime.KeepAlive(&arg)
	if errno != 0 {
		return 0, errno
	}
	return arg.value, nil
}
