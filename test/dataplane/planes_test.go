package dataplane_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/flow"
	"github.com/liqonet/liqonet/test/kit"
)

const (
	// settleTimeout is how long both planes may take until they work, or one after a fault: the virtual machine is
	// slow.
	settleTimeout = 2 * time.Minute
	// settledFor is longer than the time during which nodes avoid a plane that has lost packets.
	settledFor = 3 * time.Second
	// largeSize is larger than large, with all headers, and smaller than the MTU of the path.
	largeSize, large = 1200, 1100
)

// fault disrupts a gateway in one way. size is the size of the packets that are sent during the fault.
type fault struct {
	name string
	size int
	do   func(*testing.T, *dataplane.Side) (repair func())
}

// faults returns all faults in make test-long, otherwise one.
func faults() []fault {
	drop := func(in, out bool, above uint32) func(*testing.T, *dataplane.Side) func() {
		return func(t *testing.T, s *dataplane.Side) func() {
			t.Helper()
			return s.Gateway.Drop(t, "eth0", in, out, above)
		}
	}
	all := []fault{
		{"link cut", 8, drop(true, true, 0)},
		{"cut in one direction, out", 8, drop(false, true, 0)},
		{"cut in one direction, in", 8, drop(true, false, 0)},
		{"large packets dropped", largeSize, drop(true, true, large)},
		{"SIGSTOP", 8, func(t *testing.T, s *dataplane.Side) func() {
			t.Helper()
			signal(t, s, syscall.SIGSTOP)
			return func() { signal(t, s, syscall.SIGCONT) }
		}},
	}
	if os.Getenv("LIQONET_TEST_BACKENDS") != "all" && !kit.Full() {
		all = all[rand.IntN(len(all)):][:1]
	}
	return all
}

// Whatever happens to a gateway, packets soon use the other plane, with any backends.
func TestPlanes(t *testing.T) {
	each(t, func(t *testing.T, o dataplane.Options) {
		if backends := os.Getenv("LIQONET_TEST_BACKENDS"); backends == "kernel" || backends == "all" && o.Tunnel == tunnel.Userspace {
			t.Skip("an emulated processor is too slow for it during other tests, and with wireguard-go: make test-long-vm runs it with WireGuard in the kernel")
		}
		o.SecondPlane = true
		n := dataplane.New(t, o)
		choosers := n.StartChoosers(t)
		dataplane.ServeUDP(t, n.B.Nodes[0].Pod.NS, echoPort)
		for side, c := range []*dataplane.Cluster{n.A, n.B} {
			for _, f := range faults() {
				t.Run(fmt.Sprintf("%s at the %s", f.name, []string{"client", "server"}[side]), func(t *testing.T) {
					f.try(t, n, choosers, c)
				})
			}
		}
	})
}

// try causes the fault at the gateway that a cluster's first node uses.
func (f fault) try(t *testing.T, n *dataplane.Topology, choosers map[*dataplane.Cluster]*dataplane.Chooser, c *dataplane.Cluster) {
	t.Helper()
	settled(t, choosers)
	// Packets use one plane, and replies use the one that the other cluster chose.
	packets := dataplane.Send(t, n.A.Nodes[0].Pod.NS, n.B.Nodes[0].Pod.Mapped, echoPort, "a to b", f.size)
	begun := time.Now()
	kit.Within(t, settleTimeout, "packets pass", func() string { return packets.NoneSince(begun) })
	repair := f.do(t, c.Sides()[choosers[c].Ask(t).Active])
	defer repair()
	moved := time.Now().Add(time.Second)
	kit.Within(t, settleTimeout, "packets pass by the other plane", func() string { return packets.NoneSince(moved) })
	r := flow.End(packets)[0]
	t.Logf("%s; packets were sent %s late", r, r.Late.Round(time.Millisecond))
}

// settled waits until both planes work for all nodes.
func settled(t *testing.T, choosers map[*dataplane.Cluster]*dataplane.Chooser) {
	t.Helper()
	kit.WithinFor(t, settleTimeout, settledFor, "both planes work", func() string {
		for c, chooser := range choosers {
			if choice := chooser.Ask(t); slices.Contains(choice.Up, false) {
				return fmt.Sprintf("%s: %+v", c.Name, choice)
			}
		}
		return ""
	})
}

func signal(t *testing.T, s *dataplane.Side, sig syscall.Signal) {
	t.Helper()
	kit.NoError(t, syscall.Kill(s.Tunnel.PID(), sig))
}
