package e2e

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"
)

// Between clusters on two sides of the world an answer takes half a second. The
// tunnel comes up all the same, and the client, which is in a hurry where clusters
// are near, waits for the answers to what it sends.
func TestFarAway(t *testing.T) {
	ctx := begin(t)
	a, b := fx.gamma, fx.delta
	const nodePort = "30998"
	way := fx.beta.machine(t)
	slow := delay(t, way, 250*time.Millisecond, netip.MustParseAddrPort(net.JoinHostPort(b.nodes[0].addr.String(), nodePort)))
	for _, n := range labNodes(b) {
		closeToPeers(t, ctx, n, way.addr)
	}
	start := time.Now()
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--server", b.Name,
		"--service-type", b.Name+"=NodePort:"+nodePort, "--endpoint", b.Name+"="+slow.String())
	t.Logf("peered after %s", time.Since(start).Round(100*time.Millisecond))
	views := status(t, ctx, 0, a, b)
	for _, v := range []view{viewOf(t, views, a, b), viewOf(t, views, b, a)} {
		if v.RTTMilliseconds == nil || *v.RTTMilliseconds < 500 {
			t.Errorf("%s says that an answer from %s takes %v ms", v.Cluster, v.Peer, v.RTTMilliseconds)
		}
	}
	checkOnePacket(t, ctx, a, b)
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
}

// delay passes UDP packets on and back, each after some time, until the test ends.
// It returns where they have to be sent, in the vantage's network.
func delay(t *testing.T, v *vantage, each time.Duration, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	var in *net.UDPConn
	err := v.do(func() (err error) {
		in, err = net.ListenUDP("udp4", &net.UDPAddr{IP: v.addr.AsSlice()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	go func() {
		callers := map[netip.AddrPort]*net.UDPConn{}
		defer func() {
			for _, out := range callers {
				out.Close()
			}
		}()
		for {
			packet, from, err := receive(in)
			if err != nil {
				return // the test has ended
			}
			out := callers[from]
			if out == nil {
				err := v.do(func() (err error) {
					out, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
					return err
				})
				if err != nil {
					t.Errorf("call %s: %v", to, err)
					return
				}
				callers[from] = out
				go answers(in, from, out, each)
			}
			time.AfterFunc(each, func() { _, _ = out.Write(packet) })
		}
	}()
	return in.LocalAddr().(*net.UDPAddr).AddrPort()
}

// answers passes back what comes, until the connection is closed.
func answers(in *net.UDPConn, caller netip.AddrPort, out *net.UDPConn, each time.Duration) {
	for {
		packet, _, err := receive(out)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // refused: the server is not there yet
		}
		time.AfterFunc(each, func() { _, _ = in.WriteToUDPAddrPort(packet, caller) })
	}
}

func receive(c *net.UDPConn) (packet []byte, from netip.AddrPort, err error) {
	packet = make([]byte, 1<<16)
	n, from, err := c.ReadFromUDPAddrPort(packet)
	return packet[:n], from, err
}
