package tunnel

import (
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/tun"
)

// window bounds how many packets are on their way through wireguard-go in one direction. Without it,
// wireguard-go reads as fast as it can, and keeps each packet in a buffer of 64 KiB until a worker has time for
// it. Thousands of buffers cost hundreds of MiB, and time, since they do not fit into the processor's caches.
//
// Packets leave in the order in which they came, in the same buffers. So when one leaves, those before it have
// left as well, or were dropped. wireguard-go tells nobody of what it drops.
type window struct {
	limit int
	left  chan struct{}

	mu sync.Mutex
	// on are the buffers of the packets on their way.
	on []*byte
	// leaving is how many calls are about to have packets leave.
	leaving int
	// most is how many there were at once since peak was called.
	most int
}

const (
	// perThread is for how many packets there is room, for each thread that runs Go code. Packets are read, up to 128
	// at once, while there are fewer. A bundle has 46 of 1,400 bytes. So there is one for each thread, and one more.
	perThread = 64
	// dropStep and dropSteps are for how long nothing leaves until all that is on its way counts as dropped. It is
	// counted in steps, since a process that does not get the processor finds any time over, while its workers
	// have not run.
	dropStep  = time.Millisecond
	dropSteps = 3
)

func newWindow() *window {
	return &window{limit: perThread * runtime.GOMAXPROCS(0), left: make(chan struct{}, 1)}
}

// wait returns when there is room.
func (w *window) wait() {
	for step := 0; w.full(step >= dropSteps); step++ {
		select {
		case <-w.left:
			step = -1
		case <-time.After(dropStep):
		}
	}
}

func (w *window) full(dropped bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if dropped && w.leaving == 0 && len(w.left) == 0 { // nothing has left just now
		w.on = w.on[:0]
	}
	return len(w.on) >= w.limit
}

// enter leaves out packets that are nil.
func (w *window) enter(packets []*byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range packets {
		if p != nil {
			w.on = append(w.on, p)
		}
	}
	w.most = max(w.most, len(w.on))
}

// leave has packets leave together by a function.
func (w *window) leave(packets [][]byte, leave func() error) error {
	last := &packets[len(packets)-1][0] // before the function exchanges buffers
	w.mu.Lock()
	w.leaving++
	w.mu.Unlock()
	defer w.hasLeft(last)
	return leave()
}

func (w *window) hasLeft(last *byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leaving--
	i := slices.Index(w.on, last)
	if i < 0 {
		return // a message of WireGuard's own
	}
	w.on = slices.Delete(w.on, 0, i+1)
	select {
	case w.left <- struct{}{}:
	default:
	}
}

func (w *window) drop(packets []*byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on = slices.DeleteFunc(w.on, func(p *byte) bool { return slices.Contains(packets, p) })
}

// peak returns how many packets were on their way at once since the last call.
func (w *window) peak() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	most := w.most
	w.most = len(w.on)
	return most
}

// reader reads packets into a window.
type reader struct {
	window *window
	// last are the packets that were read last.
	last []*byte
}

// read reads packets by a function, when there is room for them. Only those count that are data.
func (r *reader) read(buffers [][]byte, data func(packet []byte) bool, read func() (int, error)) (int, error) {
	// A packet that is dropped at once leaves its buffer where it was. That has to be noticed here: anybody can send
	// packets that are dropped, and they must not make others wait.
	var dropped []*byte
	for i, p := range r.last {
		if p != nil && p == &buffers[i][0] {
			dropped = append(dropped, p)
		}
	}
	if dropped != nil {
		r.window.drop(dropped)
	}
	r.window.wait()
	n, err := read()
	r.last = r.last[:0]
	for _, b := range buffers[:n] {
		var p *byte
		if data(b) {
			p = &b[0]
		}
		r.last = append(r.last, p)
	}
	r.window.enter(r.last)
	return n, err
}

// boundedTUN is a TUN device that gives out as many packets as there is room for.
type boundedTUN struct {
	tun.Device
	out reader
	in  *window
}

// Read implements tun.Device.
func (t *boundedTUN) Read(buffers [][]byte, sizes []int, offset int) (int, error) {
	return t.out.read(buffers, func([]byte) bool { return true }, func() (int, error) {
		return t.Device.Read(buffers, sizes, offset)
	})
}

// Write implements tun.Device.
func (t *boundedTUN) Write(buffers [][]byte, offset int) (n int, err error) {
	err = t.in.leave(buffers, func() error {
		n, err = t.Device.Write(buffers, offset)
		return err
	})
	return n, err
}

const (
	// idleInterval is how often is looked whether a load has ended.
	idleInterval = 5 * time.Second
	// idlePeak is how many packets are on their way at once, at most, without load.
	idlePeak = 16
)

// releaseAfterLoad gives the memory back that a load or the start has left, until done. Go's runtime would keep it for
// minutes, and a part of it for ever.
func releaseAfterLoad(done <-chan struct{}, windows ...*window) {
	ticker := time.NewTicker(idleInterval)
	defer ticker.Stop()
	l := loads{loaded: true} // an agent has used memory to start
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
		}
		most := 0
		for _, w := range windows {
			most = max(most, w.peak())
		}
		if l.ended(most) {
			// What is in pools is garbage from the second collection on.
			runtime.GC()
			debug.FreeOSMemory()
		}
	}
}

// loads notices the end of loads.
type loads struct{ loaded bool }

// ended is told how many packets were on their way at once, since it was called last.
func (l *loads) ended(most int) bool {
	before := l.loaded
	l.loaded = most > idlePeak
	return before && !l.loaded
}
