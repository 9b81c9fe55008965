// Package flow sends packets all the time, and says for how long none was answered.
package flow

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Interval is the time between the packets of a flow.
	Interval = 10 * time.Millisecond
	// Patience is how long an answer may take.
	Patience = 2 * time.Second
	// leastPackets is how many packets a flow has at least.
	leastPackets = 100
)

// Flow is a stream of numbered UDP packets to a test pod, which answers each.
type Flow struct {
	Name string
	stop context.CancelFunc
	done sync.WaitGroup

	mu       sync.Mutex
	sent     []time.Time // by number
	answered []bool
}

// Start sends packets with so many bytes, 8 or more, by a connection until End, or until ctx ends. Then the
// connection is closed by whoever has made it.
func Start(ctx context.Context, conn *net.UDPConn, name string, size int) (*Flow, error) {
	// A stall of this process is no loss.
	if err := conn.SetReadBuffer(4 << 20); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	ctx, stop := context.WithCancel(ctx)
	f := &Flow{Name: name, stop: stop}
	f.done.Go(func() { f.send(ctx, conn, size) })
	go f.receive(conn)
	return f, nil
}

// send has a thread with real-time priority: an instrument that waits for a processor measures how busy the machine is.
func (f *Flow) send(ctx context.Context, conn net.Conn, size int) {
	runtime.LockOSThread() // for ever: the thread ends with the goroutine
	// A thread that sleeps in a system call keeps its P, without which no other goroutine runs, for up to 10 ms.
	addProcessors(1)
	defer addProcessors(-1)
	// Without the permission, packets may be late: see Result.
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	for next := time.Now(); ctx.Err() == nil; {
		f.mu.Lock()
		number := len(f.sent)
		f.sent, f.answered = append(f.sent, time.Now()), append(f.answered, false)
		f.mu.Unlock()
		// What cannot be sent has no answer.
		packet := binary.BigEndian.AppendUint64(nil, uint64(number))
		_, _ = conn.Write(append(packet, make([]byte, size-len(packet))...))
		// As with a ticker, packets that are overdue are not sent in a burst. Timers of the runtime fire in other threads.
		next = next.Add(Interval)
		if left := time.Until(next); left > 0 {
			rest := unix.NsecToTimespec(left.Nanoseconds())
			_ = unix.Nanosleep(&rest, nil) // a signal only makes a packet early
		} else {
			next = time.Now()
		}
	}
}

var processors sync.Mutex

func addProcessors(n int) {
	processors.Lock()
	defer processors.Unlock()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
}

// receive takes answers until the connection is closed: the server's line, and
// what was sent.
func (f *Flow) receive(conn net.Conn) {
	buf := make([]byte, 1<<12)
	for {
		n, err := conn.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		_, echo, found := bytes.Cut(buf[:n], []byte("\n"))
		if err != nil || !found || len(echo) < 8 {
			continue // an ICMP error
		}
		f.mu.Lock()
		if number := binary.BigEndian.Uint64(echo); number < uint64(len(f.answered)) {
			f.answered[number] = true
		}
		f.mu.Unlock()
	}
}

// Result is what became of a flow.
type Result struct {
	Name       string
	Sent, Lost int
	// Gap is the longest time between two packets that were answered, while others between them
	// were not, or from the first packet to the first one that was. Since is when it began.
	Gap   time.Duration
	Since time.Time
	// Late is how late a packet was sent shortly before the gap, in it, or after it.
	Late time.Duration
}

func (r Result) String() string {
	out := fmt.Sprintf("%s: %d of %d lost, longest gap %s", r.Name, r.Lost, r.Sent, r.Gap.Round(time.Millisecond))
	if r.Gap > 0 {
		out += " from " + r.Since.UTC().Format("15:04:05.000") // as the agents' logs have it
	}
	return out
}

// Count says what became of the flow so far.
func (f *Flow) Count() Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := Result{Name: f.Name, Sent: len(f.sent)}
	last := -1
	gap := func(from, to int) {
		if d := f.sent[to].Sub(f.sent[from]); d > r.Gap {
			r.Gap, r.Since = d, f.sent[from]
		}
	}
	for i, ok := range f.answered {
		if !ok {
			r.Lost++
			continue
		}
		if last < i-1 {
			gap(max(last, 0), i)
		}
		last = i
	}
	if last < len(f.sent)-1 && last >= 0 {
		gap(last, len(f.sent)-1)
	}
	const shortly = 100 * time.Millisecond
	for i, at := range f.sent {
		if i > 0 && r.Gap > 0 && at.After(r.Since.Add(-shortly)) && at.Before(r.Since.Add(r.Gap+shortly)) {
			r.Late = max(r.Late, at.Sub(f.sent[i-1])-Interval)
		}
	}
	return r
}

// NoneSince says what is missing until a packet is answered that was sent after a time.
func (f *Flow) NoneSince(at time.Time) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := len(f.answered) - 1; i >= 0 && f.sent[i].After(at); i-- {
		if f.answered[i] {
			return ""
		}
	}
	return fmt.Sprintf("of %d packets, none that was sent after %s has an answer", len(f.answered), at.UTC().Format("15:04:05.000"))
}

// Unanswered says what is missing until so many packets in a row are answered, the newest ones. An answer may
// be on its way for as long as late.
func (f *Flow) Unanswered(enough int, late time.Duration) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	run := 0
	for i := len(f.answered) - 1; i >= 0 && run < enough; i-- {
		switch {
		case f.answered[i]:
			run++
		case time.Since(f.sent[i]) > late:
			return fmt.Sprintf("packet %d of %d has no answer", i, len(f.answered))
		}
	}
	if run < enough {
		return fmt.Sprintf("%d answers to %d packets", run, len(f.answered))
	}
	return ""
}

// End stops flows, each after some packets at least, waits for late answers, and counts.
func End(flows ...*Flow) []Result {
	for _, f := range flows {
		for f.Count().Sent < leastPackets {
			time.Sleep(Interval)
		}
	}
	for _, f := range flows {
		f.stop()
		f.done.Wait()
	}
	out := make([]Result, len(flows))
	for deadline := time.Now().Add(Patience); ; time.Sleep(Interval) {
		lost := 0
		for i, f := range flows {
			out[i] = f.Count()
			lost += out[i].Lost
		}
		if lost == 0 || time.Now().After(deadline) {
			return out
		}
	}
}

// Conversation is something that is asked and answered all the time, as by a TCP connection.
type Conversation struct {
	cancel context.CancelFunc
	ended  chan struct{}
	stall  time.Duration
	err    error
}

// Converse asks until End, or until ctx ends, or asking fails.
func Converse(ctx context.Context, ask func() error) *Conversation {
	ctx, cancel := context.WithCancel(ctx)
	c := &Conversation{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		for last := time.Now(); ctx.Err() == nil && c.err == nil; time.Sleep(Interval) {
			c.err = ask()
			c.stall, last = max(c.stall, time.Since(last)), time.Now()
		}
	}()
	return c
}

// End returns how long nothing was answered at most, and how asking has failed.
func (c *Conversation) End() (stall time.Duration, err error) {
	c.cancel()
	<-c.ended
	return c.stall, c.err
}
