package bench

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

const (
	// floods is how often each set of chains is measured, with so many packets. Short ones in turn have the same
	// neighbours on a shared machine.
	floods        = 100
	floodPackets  = 32_000
	packetsAtOnce = 64
)

// BenchmarkPacket tells how long one processor takes to lead a packet from pod to pod of one cluster, over two nodes: with the
// rules of its node agents, with the same chains without a rule, and without any. Empty chains are the least that a filter of
// each packet costs.
func BenchmarkPacket(b *testing.B) {
	o := dataplane.Options{Overlay: overlay.VXLAN, Tunnel: tunnel.Userspace}
	c := dataplane.New(b, o).A
	from, to := c.Nodes[0].Pod, c.Nodes[1].Pod
	empty := withoutRules(b, c.Nodes[0].Host)
	sink := netns.In(b, to, func() (net.PacketConn, error) {
		return net.ListenPacket("udp4", netip.AddrPortFrom(to.Addr, 0).String())
	})
	b.Cleanup(func() {
		kit.CheckNoError(b, sink.Close())
	})
	drop := func() { dropTables(b, c) }
	states := []struct {
		name       string
		begin, end func()
	}{
		{"all rules", func() { c.Apply(b, o.Overlay) }, drop},
		{"empty chains", func() { nft(b, c, empty) }, func() { nft(b, c, "delete table ip bench") }},
		{"no chain", func() {}, func() {}},
	}
	drop()
	b.Cleanup(func() { c.Apply(b, o.Overlay) })
	for b.Loop() {
		took := make([][]float64, len(states))
		for round := range floods {
			for i := range states {
				if round%2 == 1 {
					i = len(states) - 1 - i
				}
				states[i].begin()
				flood(b, from, sink)
				took[i] = append(took[i], flood(b, from, sink))
				states[i].end()
			}
		}
		t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintf(t, "\nA PACKET INSIDE A CLUSTER, OVER TWO NODES, ns\tMEDIAN OF %d\tMORE\tLEAST\tMORE\n", floods)
		none := took[len(states)-1]
		for i, s := range states {
			b.ReportMetric(median(took[i]), "packet-"+strings.ReplaceAll(s.name, " ", "-")+"-ns")
			fmt.Fprintf(t, "  %s\t%.0f\t%+.0f\t%.0f\t%+.0f\n", s.name, median(took[i]), median(took[i])-median(none), slices.Min(took[i]), slices.Min(took[i])-slices.Min(none))
		}
		kit.CheckNoError(b, t.Flush())
	}
}

// flood sends packets to the sink, and returns how many ns of one processor each has taken. The kernel leads each to its end, over all
// links, before the next one is sent.
func flood(b *testing.B, from dataplane.Host, sink net.PacketConn) (ns float64) {
	b.Helper()
	drain := func(until time.Time) (packets int) {
		kit.NoError(b, sink.SetReadDeadline(until))
		for buffer := make([]byte, packetsAtOnce); ; packets++ {
			if _, _, err := sink.ReadFrom(buffer); err != nil {
				return packets
			}
		}
	}
	drain(time.Now().Add(time.Millisecond)) // of the former flood
	from.Do(b, func() (err error) {
		var one unix.CPUSet
		one.Set(runtime.NumCPU() - 1)
		if err := unix.SchedSetaffinity(0, &one); err != nil { // the thread ends with this function
			return err
		}
		conn, err := net.Dial("udp4", sink.LocalAddr().String())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		batch, sender := make([]ipv4.Message, packetsAtOnce), ipv4.NewPacketConn(conn.(net.PacketConn))
		for i := range batch {
			batch[i].Buffers = [][]byte{make([]byte, packetsAtOnce)}
		}
		start := time.Now()
		for sent := 0; sent < floodPackets; {
			n, err := sender.WriteBatch(batch, 0)
			if err != nil {
				return err
			}
			sent += n
		}
		ns = float64(time.Since(start).Nanoseconds()) / floodPackets
		return nil
	})
	// What does not fit into the sink's buffer is dropped there.
	kit.FatalIf(b, drain(time.Now().Add(time.Millisecond)) == 0, "nothing arrives")
	return ns
}

// withoutRules is a table with the chains that the node's agent has at hooks, but without their rules.
func withoutRules(b *testing.B, node dataplane.Host) string {
	b.Helper()
	ours := node.Output(b, "nft", "list", "table", "ip", "liqonet")
	var table strings.Builder
	for _, chain := range regexp.MustCompile(`chain \S+ \{\n\s*type .*\n`).FindAllString(ours, -1) {
		fmt.Fprintf(&table, "%s}\n", chain)
	}
	kit.FatalIf(b, table.Len() == 0, "no chain is at a hook:\n%s", ours)
	return "table ip bench {\n" + table.String() + "}"
}

func nft(b *testing.B, c *dataplane.Cluster, commands string) {
	b.Helper()
	for _, n := range c.Nodes {
		n.Output(b, "nft", commands)
	}
}
