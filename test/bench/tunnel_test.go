package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/load"
	"github.com/liqonet/liqonet/test/netns"
)

var (
	loadFor = flag.Duration("load", time.Minute, "for how long the tunnel is loaded before its memory is read")
	idleFor = flag.Duration("idle", 15*time.Second, "for how long it is left alone then")
)

// Goals of memory, in MiB.
const (
	goalPeak = 80
	goalIdle = 40
)

// streams are numbers of TCP connections.
var streams = []int{1, 4, 16}

// settling is how much longer many streams are measured, which take a second to share the way.
const settling = 4

func lasting(streams int) time.Duration {
	if streams > 4 {
		return *duration * settling
	}
	return *duration
}

// BenchmarkTunnel compares a tunnel of package tunnel with wireguard-go as it is, each between two namespaces: by
// throughput, time of the processors and latency, and by the memory of their processes.
func BenchmarkTunnel(b *testing.B) {
	b.Run("speed", func(b *testing.B) { compareTunnels(b, compareSpeed) })
	b.Run("one-processor", func(b *testing.B) {
		onProcessors(b, 1)
		compareTunnels(b, compareSpeed)
	})
	b.Run("memory", func(b *testing.B) { compareTunnels(b, compareMemory) })
}

// asGateways is the environment that has a process use as many threads as a gateway does, and collect garbage as often.
func asGateways(b *testing.B) []string {
	b.Helper()
	usable := processors(b)
	return []string{"GOMAXPROCS=" + strconv.Itoa(max(1, usable.Count()/2)), "GOGC=25"}
}

func compareTunnels(b *testing.B, compare func(*testing.B, context.Context, []*pair)) {
	ctx, cancel := context.WithTimeout(b.Context(), timeout)
	defer cancel()
	ours := asGateways(b)
	tunnels := []*pair{
		newPair(b, "ours", tunnel.Userspace, ours...),
		newPair(b, "upstream", dataplane.Upstream),
		newPair(b, "upstream, half of the threads", dataplane.Upstream, ours[0]),
	}
	for b.Loop() {
		compare(b, ctx, tunnels)
	}
}

// processors are those that this process may use.
func processors(b *testing.B) (set unix.CPUSet) {
	b.Helper()
	kit.NoError(b, unix.SchedGetaffinity(0, &set))
	return set
}

// onProcessors has this process, and those that it starts, use only so many processors until the benchmark ends.
func onProcessors(b *testing.B, n int) {
	b.Helper()
	all := processors(b)
	var some unix.CPUSet
	for cpu := 0; some.Count() < min(n, all.Count()); cpu++ {
		if all.IsSet(cpu) {
			some.Set(cpu)
		}
	}
	set := func(to unix.CPUSet) {
		for _, thread := range kit.Must(filepath.Glob("/proc/self/task/[0-9]*"))(b) {
			id := kit.Must(strconv.Atoi(filepath.Base(thread)))(b)
			// One that has ended has none. New threads have those of the one that starts them.
			if err := unix.SchedSetaffinity(id, &to); err != nil && !errors.Is(err, unix.ESRCH) {
				b.Fatal(err)
			}
		}
	}
	set(some)
	b.Cleanup(func() { set(all) })
}

func compareSpeed(b *testing.B, ctx context.Context, tunnels []*pair) {
	ours := tunnels[0].name
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nMEDIANS OF %d ROUNDS\tOURS\tTO 1 STREAM\tMUST\tCPU s/Gbit", *rounds)
	for _, p := range tunnels[1:] {
		fmt.Fprintf(t, "\t%s\tRATIO\tCPU", strings.ToUpper(p.name))
	}
	fmt.Fprintln(t)
	for _, segmentation := range []bool{true, false} {
		prefix := map[bool]string{true: "default", false: "single"}[segmentation]
		fmt.Fprintln(t, map[bool]string{true: "links as they are", false: "links without segmentation offload"}[segmentation])
		for _, p := range tunnels {
			for _, e := range p.ends {
				dataplane.SetSegmentation(b, e.ns, segmentation)
			}
		}
		speed, cpu, rtt := results{}, results{}, results{}
		for round := range *rounds {
			turn := slices.Clone(tunnels)
			if round%2 == 1 {
				slices.Reverse(turn)
			}
			for _, n := range streams {
				for _, p := range turn {
					had, received := p.cpu(b), p.received(b)
					bits, err := load.Throughput(ctx, p.path(), n, lasting(n))
					kit.NoError(b, err, "%s", p.name)
					speed.add(fmt.Sprint(n), p.name, bits/1e9)
					cpu.add(fmt.Sprint(n), p.name, (p.cpu(b)-had).Seconds()/(float64(p.received(b)-received)*8/1e9))
				}
			}
			for _, p := range turn {
				answers, err := load.Requests(ctx, p.path(), 1, *duration)
				kit.NoError(b, err, "%s", p.name)
				rtt.add("", p.name, answers.Median.Seconds()*1000)
			}
		}
		for _, n := range streams {
			key := fmt.Sprint(n)
			of := median(ratios(speed[key][ours], speed["1"][ours]))
			b.ReportMetric(of, prefix+"-"+key+"-to-1")
			fmt.Fprintf(t, "  TCP, %d streams, Gbit/s\t%.2f\t%.2f\t%s\t%.2f", n, median(speed[key][ours]), of, verdict("must", requiredOfStreams, of >= requiredOfStreams), median(cpu[key][ours]))
			for _, p := range tunnels[1:] {
				ratio := median(ratios(speed[key][ours], speed[key][p.name]))
				b.ReportMetric(ratio, prefix+"-"+key+"-to-"+strings.NewReplacer(" ", "-", ",", "").Replace(p.name))
				fmt.Fprintf(t, "\t%.2f\t%.2f\t%.2f", median(speed[key][p.name]), ratio, median(cpu[key][p.name]))
			}
			fmt.Fprintln(t)
		}
		fmt.Fprintf(t, "  round trip, ms\t%.2f\t\t\t", median(rtt[""][ours]))
		for _, p := range tunnels[1:] {
			fmt.Fprintf(t, "\t%.2f\t%.2f\t", median(rtt[""][p.name]), median(ratios(rtt[""][ours], rtt[""][p.name])))
		}
		fmt.Fprintln(t)
	}
	kit.CheckNoError(b, t.Flush())
}

func compareMemory(b *testing.B, ctx context.Context, tunnels []*pair) {
	var lines []loaded
	for _, p := range tunnels {
		l := loaded{name: p.name, path: p.path()}
		for _, e := range p.ends {
			l.processes = append(l.processes, e.tunnel.PID())
		}
		lines = append(lines, l)
	}
	printMemory(b, ctx, lines)
}

// loaded are processes whose memory is measured under a load by a path.
type loaded struct {
	name      string
	path      load.Path
	processes []int
}

// printMemory has the goals for the first of them.
func printMemory(b *testing.B, ctx context.Context, all []loaded) {
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nMiB, %s OF %d STREAMS\tBEFORE\tPEAK\tGOAL\t%s LATER\tGOAL\tGbit/s\n", *loadFor, slices.Max(streams), *idleFor)
	for i, l := range all {
		before := l.memory(b, "VmRSS")
		bits, err := load.Throughput(ctx, l.path, slices.Max(streams), *loadFor)
		kit.NoError(b, err, "%s", l.name)
		peak := l.memory(b, "VmHWM")
		select {
		case <-ctx.Done():
		case <-time.After(*idleFor):
		}
		idle := l.memory(b, "VmRSS")
		goals := []string{"-", "-"}
		if i == 0 {
			goals = []string{verdict("goal", goalPeak, peak <= goalPeak), verdict("goal", goalIdle, idle <= goalIdle)}
			b.ReportMetric(peak, "MiB-peak")
			b.ReportMetric(idle, "MiB-idle")
		}
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%s\t%.0f\t%s\t%.2f\n", l.name, before, peak, goals[0], idle, goals[1], bits/1e9)
	}
	kit.CheckNoError(b, t.Flush())
}

// memory is that of the process that has the most, in MiB.
func (l loaded) memory(b *testing.B, field string) (most float64) {
	b.Helper()
	for _, pid := range l.processes {
		most = max(most, float64(dataplane.Memory(b, pid, field))/1024)
	}
	return most
}

// pair is a tunnel between two namespaces.
type pair struct {
	name string
	link string
	port uint16
	ends [2]*tunnelEnd
}

type tunnelEnd struct {
	ns           *netns.NS
	tunnel       *dataplane.Tunnel
	outer, inner netip.Addr
}

// newPair makes a tunnel between two namespaces of its own.
func newPair(b *testing.B, name string, backend tunnel.Backend, env ...string) *pair {
	b.Helper()
	p := &pair{name: name, link: tunnel.InterfaceName, port: tunnel.ListenPort}
	for i := range p.ends {
		p.ends[i] = &tunnelEnd{ns: netns.New(b, name), outer: v4(192, 0, 2, i+1), inner: v4(10, 80, 31, i+1)}
	}
	netns.Veth(b, p.ends[0].ns, "eth0", p.ends[1].ns, "eth0")
	for _, e := range p.ends {
		e.ns.Addr(b, "eth0", netip.PrefixFrom(e.outer, 24))
	}
	p.start(b, backend, env...)
	return p
}

// start starts the tunnel.
func (p *pair) start(b *testing.B, backend tunnel.Backend, env ...string) {
	b.Helper()
	var keys [2]wgtypes.Key
	for i := range keys {
		keys[i] = kit.Must(wgtypes.GeneratePrivateKey())(b)
	}
	for i, e := range p.ends {
		c := tunnel.Config{
			PrivateKey: keys[i], ListenPort: p.port, MTU: dataplane.MTU, Address: e.inner, Underlay: "eth0",
			Peer: tunnel.Peer{
				PublicKey: keys[1-i].PublicKey(), AllowedIPs: []netip.Prefix{netip.PrefixFrom(p.ends[1-i].inner, 32)},
				Endpoint: netip.AddrPortFrom(p.ends[1-i].outer, p.port),
			},
		}
		e.tunnel = dataplane.StartTunnel(b, e.ns, backend, p.link, env...)
		e.tunnel.Configure(b, c)
		if backend == dataplane.Upstream {
			e.ns.MTU(b, p.link, c.MTU)
			e.ns.Addr(b, p.link, netip.PrefixFrom(e.inner, 32))
			e.ns.Up(b, p.link)
		} else {
			e.ns.Do(b, func() error {
				_, err := nat.ApplyReceive(b.Context(), nat.Receive{Underlay: "eth0", Entry: tunnel.EntryInterface, Ports: []uint16{c.ListenPort}})
				return err
			})
		}
		e.ns.WithLink(b, p.link, func(l netlink.Link) error {
			return netlink.RouteAdd(&netlink.Route{
				LinkIndex: l.Attrs().Index, Dst: netlink.NewIPNet(p.ends[1-i].inner.AsSlice()), Scope: netlink.SCOPE_LINK, Src: e.inner.AsSlice(),
			})
		})
	}
}

func (p *pair) path() load.Path {
	from, to := p.ends[0], p.ends[1]
	return load.Path{From: from.ns.Run, To: to.ns.Run, Listen: to.inner, Address: to.inner}
}

// cpu is the time of processors that both ends' processes have had.
func (p *pair) cpu(b *testing.B) (total time.Duration) {
	b.Helper()
	for _, e := range p.ends {
		for _, file := range kit.Must(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", e.tunnel.PID())))(b) {
			stat := kit.Must(os.ReadFile(file))(b)
			var nanoseconds int64 // see sched-stats in the kernel's documents
			kit.NoError(b, kit.Err(fmt.Sscan(string(stat), &nanoseconds)), "read %s", file)
			total += time.Duration(nanoseconds)
		}
	}
	return total
}

// received is the number of bytes that have come through the tunnel.
func (p *pair) received(b *testing.B) (bytes uint64) {
	b.Helper()
	p.ends[1].ns.Do(b, func() error {
		l, err := netlink.LinkByName(p.link)
		if err == nil {
			bytes = l.Attrs().Statistics.RxBytes
		}
		return err
	})
	return bytes
}
