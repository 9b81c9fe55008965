package dataplane

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/failover"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

const (
	// lookInterval is the maximum interval at which a choosing node checks its planes.
	lookInterval = 50 * time.Millisecond
	// idleQuestions is the factor by which the interval of questions is longer while a plane is not in use.
	idleQuestions = 5
)

// watched is a tunnel whose gateway sends questions to the peer's gateway.
type watched struct {
	Local, Peer netip.Addr
	MTU         int
}

// run starts to send questions and answers, until the process ends.
func (w watched) run() error {
	kernel, err := overlay.New()
	if err != nil {
		return err
	}
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: liveness.Port})
	if err != nil {
		return err
	}
	news := notify.NewSignal()
	session := liveness.New(w.Local, netip.AddrPortFrom(w.Peer, liveness.Port), idleQuestions, news)
	session.Received = func() (uint64, error) { return kernel.Received(tunnel.InterfaceName) }
	responder := &liveness.Responder{
		State: func(to netip.Addr) liveness.Answer {
			if to == w.Peer {
				return liveness.Answer{State: liveness.State{Up: true, LossFree: time.Hour}}
			}
			return liveness.Answer{State: session.State()}
		},
		OnRequest: func(by netip.Addr, q liveness.Request) (known bool) {
			if by == w.Peer {
				session.HandleReport(q)
			} else if q.InUse {
				session.SetUsage(true, w.MTU)
			}
			return true
		},
		MTU: func() uint16 { return uint16(w.MTU) },
	}
	go session.Run(context.Background())
	go func() {
		for range news {
			responder.Push()
		}
	}()
	go func() { fmt.Fprintln(os.Stderr, responder.Serve(context.Background(), conn)) }()
	return nil
}

// Chooser is a process on a node that chooses one of several planes for packets.
type Chooser struct{ *child }

// path is a node's path to the gateway of a plane.
type path struct {
	Local, Gateway netip.Addr
	Routes         []overlay.Route
	MTU            int
}

// Choice is the choice of a node: the plane in use, and which planes work.
type Choice struct {
	Active int32
	Up     []bool
}

// chooser is the state of the process.
type chooser struct {
	paths    []path
	sessions []*liveness.Session
	active   atomic.Int32
}

func serveChooser() error {
	c := &chooser{}
	return serve(func(paths []path) (out Choice) {
		if c.sessions == nil {
			c.run(paths)
		}
		out.Active = c.active.Load()
		for _, s := range c.sessions {
			out.Up = append(out.Up, s.State().Up)
		}
		return out
	})
}

// run starts to send questions, and to choose.
func (c *chooser) run(paths []path) {
	kernel, err := overlay.New()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	wake := notify.NewSignal()
	c.paths = paths
	for _, w := range paths {
		s := liveness.New(w.Local, netip.AddrPortFrom(w.Gateway, liveness.Port), idleQuestions, wake)
		s.Received = func() (uint64, error) { return kernel.Received(w.Routes[0].Dev) }
		c.sessions = append(c.sessions, s)
		go s.Run(context.Background())
	}
	go func() {
		var choice failover.Choice
		for ; ; c.choose(kernel, &choice) {
			select {
			case <-wake:
			case <-time.After(lookInterval):
			}
		}
	}()
}

func (c *chooser) choose(kernel *overlay.Kernel, choice *failover.Choice) {
	var planes []failover.Plane
	for i, session := range c.sessions {
		s := session.State()
		planes = append(planes, failover.Plane{Index: int32(i), Up: s.Up, Leaving: s.Leaving, Down: s.Down, LossFree: s.LossFree})
	}
	active := choice.Next(time.Now(), planes)
	for i, session := range c.sessions {
		if int32(i) == active {
			session.SetUsage(true, c.paths[i].MTU)
		} else {
			session.SetUsage(false, 0)
		}
	}
	if active == c.active.Load() {
		return
	}
	if err := kernel.ReplaceRoutes(c.paths[active].Routes); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	c.active.Store(active)
}

// StartChoosers makes the first nodes of A and B use a plane that works. It needs Options.SecondPlane.
func (n *Topology) StartChoosers(t testing.TB) (out map[*Cluster]*Chooser) {
	t.Helper()
	out = map[*Cluster]*Chooser{}
	for _, c := range []*Cluster{n.A, n.B} {
		local, mtu := c.Nodes[0].Overlay.Addr, c.options.MTU()
		var paths []path
		for _, s := range c.Sides() {
			s.Tunnel.watch(t, s.Overlay.Addr, s.peerGateway, mtu)
			w := path{Local: local, Gateway: s.Overlay.Addr, MTU: mtu}
			for _, p := range s.Remote() {
				w.Routes = append(w.Routes, overlay.Route{Table: overlay.Table, Dst: p, Dev: s.Link(), Via: s.Overlay.Addr, Src: local, MTU: mtu})
			}
			paths = append(paths, w)
		}
		out[c] = &Chooser{startChild(t, c.Nodes[0].NS, "chooser")}
		out[c].call(t, paths, &Choice{})
	}
	return out
}

// Ask returns the current choice of the node.
func (c *Chooser) Ask(t testing.TB) (out Choice) {
	t.Helper()
	c.call(t, []path{}, &out)
	return out
}
