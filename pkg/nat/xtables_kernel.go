package nat

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/notify"
)

const (
	// Socket options of level IPPROTO_IP (linux/netfilter_ipv4/ip_tables.h).
	xtSetReplace     = 64
	xtSetAddCounters = 65
	xtGetInfo        = 64
	xtGetEntries     = 65

	xtTableName = "filter"
	// xtNames lists the tables that there are in the network namespace; there is no
	// such file where the kernel's module is not loaded. Only what is listed may be
	// asked for: asking makes a table, and loads the module.
	xtNames = "/proc/thread-self/net/ip_tables_names"
	// xtLockFile is locked by iptables-legacy from reading a table until writing it.
	xtLockFile = "/run/xtables.lock"
	// xtLockTimeout is how long others may have it; they take milliseconds.
	xtLockTimeout = 5 * time.Second
	xtLockPause   = 10 * time.Millisecond
	// xtAttempts bounds reading a table that changes meanwhile.
	xtAttempts = 10
)

// passLegacy puts what has to pass into the chains of iptables-legacy, where that
// is in use.
func passLegacy(ctx context.Context, passes []pass) (changed bool, err error) {
	x, err := openXT()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	for _, h := range passHooks() {
		one, err := x.passChain(ctx, h, passes)
		changed = changed || one
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// passChain puts what has to pass into the chain of one hook.
func (x *xtables) passChain(ctx context.Context, h hook, passes []pass) (changed bool, err error) {
	_, edit, err := x.plan(h, passes)
	if err != nil || edit == nil {
		return false, err
	}
	unlock, err := lockXT(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	for range xtAttempts {
		// Once more, now that nobody else writes.
		t, edit, err := x.plan(h, passes)
		if err != nil || edit == nil {
			return false, err
		}
		r, err := t.apply(edit)
		if err != nil {
			return false, err
		}
		// The kernel refuses it if somebody without a lock has changed the number of rules.
		if err = x.replace(r, len(t.entries)); !errors.Is(err, unix.EAGAIN) {
			return err == nil, err
		}
	}
	return false, fmt.Errorf("change iptables-legacy's chain %s: %w", h.name(), unix.EAGAIN)
}

// xtables is the kernel's iptables-legacy in one network namespace.
type xtables struct {
	// socket is any of IPv4: it needs CAP_NET_ADMIN only.
	socket int
	names  *os.File
}

// openXT opens that of the calling thread's namespace.
func openXT() (*xtables, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket for iptables-legacy: %w", err)
	}
	x := &xtables{socket: socket}
	x.openNames()
	return x, nil
}

// openNames is also called later, where the kernel loads the module later: by then,
// from any thread, so the namespace has to be the process's own.
func (x *xtables) openNames() {
	if f, err := os.Open(xtNames); err == nil {
		x.names = f
	}
}

func (x *xtables) close() error {
	var err error
	if x.names != nil {
		err = x.names.Close()
	}
	return errors.Join(err, unix.Close(x.socket))
}

// inUse says whether there is a table filter.
func (x *xtables) inUse() (bool, error) {
	if x.names == nil {
		if x.openNames(); x.names == nil {
			return false, nil
		}
	}
	names, err := io.ReadAll(io.NewSectionReader(x.names, 0, 1<<12))
	if err != nil {
		return false, fmt.Errorf("list the tables of iptables-legacy: %w", err)
	}
	return slices.Contains(strings.Fields(string(names)), xtTableName), nil
}

// plan reads the table and says what has to change; nil if nothing has.
func (x *xtables) plan(h hook, passes []pass) (*xtTable, *xtEdit, error) {
	if used, err := x.inUse(); err != nil || !used {
		return nil, nil, err
	}
	t, err := x.read()
	if err != nil {
		return nil, nil, err
	}
	edit, err := t.plan(h, passes)
	return t, edit, err
}

// xtInfo is struct ipt_getinfo.
type xtInfo struct {
	Name          [xtNameLen]byte
	Hooks         uint32
	First, Policy [xtHooks]uint32
	Count, Size   uint32
}

func (x *xtables) info() (xtInfo, error) {
	if bits.UintSize != 64 {
		return xtInfo{}, errors.New("read the rules of iptables-legacy: only on machines with 64 bits")
	}
	b := make([]byte, binary.Size(xtInfo{}))
	copy(b, xtTableName)
	var info xtInfo
	if err := x.get(xtGetInfo, b); err != nil {
		return info, fmt.Errorf("ask iptables-legacy for its table %s: %w", xtTableName, err)
	}
	_, err := binary.Decode(b, binary.NativeEndian, &info)
	return info, err
}

func (x *xtables) read() (*xtTable, error) {
	for range xtAttempts {
		info, err := x.info()
		if err != nil {
			return nil, err
		}
		// struct ipt_get_entries
		const header = xtNameLen + 8
		b := make([]byte, header+int(info.Size))
		copy(b, xtTableName)
		binary.NativeEndian.PutUint32(b[xtNameLen:], info.Size)
		if err := x.get(xtGetEntries, b); errors.Is(err, unix.EAGAIN) {
			continue // it has changed meanwhile
		} else if err != nil {
			return nil, fmt.Errorf("read the table %s of iptables-legacy: %w", xtTableName, err)
		}
		return decodeXT(info.Hooks, info.First, info.Policy, b[header:])
	}
	return nil, fmt.Errorf("read the table %s of iptables-legacy: %w", xtTableName, unix.EAGAIN)
}

// replace writes a table in place of one of count entries, and adds what those
// have counted to what the new ones count.
func (x *xtables) replace(r *replacement, count int) error {
	counters := make([]byte, count*xtCountersLen)
	var pin runtime.Pinner
	pin.Pin(&counters[0])
	defer pin.Unpin()
	// struct ipt_replace
	b := make([]byte, xtNameLen, xtNameLen+64+len(r.blob))
	copy(b, xtTableName)
	put := func(v uint32) { b = binary.NativeEndian.AppendUint32(b, v) }
	put(r.hooks)
	put(uint32(r.count))
	put(uint32(len(r.blob)))
	for _, v := range slices.Concat(r.first[:], r.policy[:]) {
		put(v)
	}
	put(uint32(count))
	b = binary.NativeEndian.AppendUint64(b, uint64(uintptr(unsafe.Pointer(&counters[0]))))
	b = append(b, r.blob...)
	switch err := unix.SetsockoptString(x.socket, unix.IPPROTO_IP, xtSetReplace, string(b)); {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("change iptables-legacy's chain FORWARD: the kernel has no xt_comment or xt_udp: %w", err)
	case err != nil:
		return fmt.Errorf("change iptables-legacy's chain FORWARD: %w", err)
	}
	// struct xt_counters_info
	b = make([]byte, xtNameLen, xtNameLen+8+r.count*xtCountersLen)
	copy(b, xtTableName)
	put(uint32(r.count))
	put(0)
	for _, from := range r.from {
		if from < 0 {
			b = append(b, make([]byte, xtCountersLen)...)
		} else {
			b = append(b, counters[from*xtCountersLen:(from+1)*xtCountersLen]...)
		}
	}
	if err := unix.SetsockoptString(x.socket, unix.IPPROTO_IP, xtSetAddCounters, string(b)); err != nil {
		return fmt.Errorf("restore the counters of iptables-legacy: %w", err)
	}
	return nil
}

// get is getsockopt with a value that is read and written.
func (x *xtables) get(option uintptr, value []byte) error {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(x.socket), unix.IPPROTO_IP, option,
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	if int(size) != len(value) {
		return fmt.Errorf("%w: %d bytes instead of %d", errXT, size, len(value))
	}
	return nil
}

// lockXT waits for the lock of iptables.
func lockXT(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(xtLockFile, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("change iptables-legacy: its lock: %w", err)
	}
	for deadline := time.Now().Add(xtLockTimeout); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) || ctx.Err() != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", xtLockFile, err), ctx.Err(), f.Close())
		}
		time.Sleep(xtLockPause)
	}
}

const (
	// legacyPoll is the time between two looks at iptables-legacy, which notifies
	// nobody.
	legacyPoll = 500 * time.Millisecond
	// legacyShare bounds the part of a core that reading the whole table takes, as
	// its inverse. Whether its size has changed is seen at every look.
	legacyShare = 500
	// legacyLongest is the longest time until a change of the same size is seen.
	legacyLongest = 10 * time.Second
)

// MonitorLegacy looks now and then at the chains of iptables-legacy in the
// calling thread's network namespace, and signals after a change by which rules
// of EnsurePasses may be missing or not be needed any more. Where iptables-legacy
// is not in use, that costs next to nothing, and leaves it so. It ends with ctx.
func MonitorLegacy(ctx context.Context) (<-chan struct{}, error) {
	x, err := openXT()
	if err != nil {
		return nil, err
	}
	w := legacyWatch{xtables: x}
	_ = w.changed() // what there is now is where it begins
	signal := notify.NewSignal()
	go func() {
		defer func() { _ = x.close() }()
		tick := time.NewTicker(legacyPoll)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if w.changed() {
					signal.Send()
				}
			}
		}
	}()
	return signal, nil
}

// legacyWatch remembers what was there the last time.
type legacyWatch struct {
	*xtables
	info  xtInfo
	state string
	next  time.Time
}

// changed looks whether the chains have changed. What cannot be read counts as
// unchanged: who reads it in earnest reports why.
func (w *legacyWatch) changed() bool {
	if used, err := w.inUse(); err != nil || !used {
		return false
	}
	info, err := w.xtables.info()
	if err != nil || info == w.info && time.Now().Before(w.next) {
		return false
	}
	state, took, err := w.readState()
	if err != nil {
		return false
	}
	w.next = time.Now().Add(min(legacyShare*took, legacyLongest))
	w.info = info
	before := w.state
	w.state = state
	return state != before
}

// readState also says how much of a core's time it took.
func (w *legacyWatch) readState() (state string, took time.Duration, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := threadTime()
	if err != nil {
		return "", 0, err
	}
	t, err := w.read()
	if err != nil {
		return "", 0, err
	}
	if state, err = t.state(); err != nil {
		return "", 0, err
	}
	after, err := threadTime()
	return state, after - before, err
}

func threadTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}
