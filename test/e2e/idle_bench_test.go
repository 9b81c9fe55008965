package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/test/kit"
)

const (
	// goalIdle is the part of a core that an agent may use with nothing to do, goalGateway that of a gateway where
	// there are two planes.
	goalIdle, goalGateway = 0.005, 0.01
	// settled is how long a new peering is looked at more closely.
	settled = 75 * time.Second
	// idleFor contains a time at which agents compare everything.
	idleFor = 40 * time.Second
)

// BenchmarkIdle measures what the agents of a peering use of a core while
// nothing is to be done, and reports the one that uses most of each kind.
func BenchmarkIdle(b *testing.B) {
	for _, planes := range []string{"1", "2"} {
		b.Run("planes="+planes, func(b *testing.B) { idle(b, planes) })
	}
}

func idle(b *testing.B, planes string) {
	ctx := begin(b)
	x, y := fx.alpha, fx.beta
	mustLiqonet(b, ctx, "peer", x.Name, y.Name, "--planes", planes)
	checkOnePacket(b, ctx, x, y)
	time.Sleep(settled)
	for b.Loop() {
		used := map[agentProcess]time.Duration{}
		var agents []agentProcess
		for _, c := range []*cluster{x, y} {
			agents = append(append(agents, c.agents(b, "node")...), c.agents(b, "gateway")...)
		}
		for _, p := range agents {
			used[p] = cpuTime(b, p.pid)
		}
		start := time.Now()
		time.Sleep(idleFor)
		most := map[string]float64{}
		for _, p := range agents {
			share := float64(cpuTime(b, p.pid)-used[p]) / float64(time.Since(start))
			most[p.kind] = max(most[p.kind], share)
			b.Logf("%s agent on %s: %.2f %% of a core", p.kind, p.node, 100*share)
		}
		for kind, share := range most {
			b.ReportMetric(100*share, "%core/"+kind)
			goal := goalIdle
			if kind == "gateway" && planes != "1" {
				goal = goalGateway
			}
			if share > goal {
				b.Logf("the goal of %.1f %% is missed", 100*goal)
			}
		}
	}
	mustLiqonet(b, ctx, "unpeer", x.Name, y.Name)
	checkNothingLeft(b, ctx)
}

// cpuTime is what a process has used since its start.
func cpuTime(b testing.TB, pid int) time.Duration {
	b.Helper()
	used := must(kit.CPUTime(pid))(b)
	return used
}

// BenchmarkAskers measures what a gateway uses of a core while as many nodes ask it as a cluster may have. They are sockets of
// one program, on a node, which ask as often as they are allowed to.
func BenchmarkAskers(b *testing.B) {
	const askers, measured = 5000, 20 * time.Second
	ctx := begin(b)
	x, y := fx.alpha, fx.beta
	mustLiqonet(b, ctx, "peer", x.Name, y.Name, "--planes", "2")
	question := captureQuestion(b, ctx)
	node := x.nodes[0]
	raw := jsonPath(b, ctx, x, `{.items[?(@.metadata.name=="`+node.Node.Name+`")].status.gateways[0].plane}`, "get", "nodenetworks")
	plane := must(strconv.Atoi(raw))(b)
	var gateway agentProcess
	for _, p := range x.agents(b, "gateway") {
		if p.plane == raw {
			gateway = p
		}
	}
	// The gateway's own address is the one that the link leads to without another one between.
	out := must(node.shell(ctx, fmt.Sprintf("ip -4 route show table 27761 dev loq0-%d | awk '!/via/ {print $1; exit}'", plane)))(b)
	target := net.JoinHostPort(strings.TrimSpace(out), strconv.Itoa(liveness.Port))
	var conns []net.Conn
	try(b, node.do(func() error {
		for range askers {
			c, err := net.Dial("udp", target)
			if err != nil {
				return err
			}
			conns = append(conns, c)
		}
		return nil
	}))
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	var answers atomic.Int64
	for _, c := range conns {
		go func() {
			for buf := make([]byte, 1500); ; {
				if _, err := c.Read(buf); errors.Is(err, net.ErrClosed) {
					return
				} else if err == nil {
					answers.Add(1)
				}
			}
		}()
	}
	for b.Loop() {
		for _, rate := range []int{0, 100, askers} { // questions per second: of nobody, 100 nodes, and all
			answers.Store(0)
			used, start, sent := cpuTime(b, gateway.pid), time.Now(), 0
			for now := start; now.Sub(start) < measured; now = time.Now() {
				for ; sent < int(now.Sub(start).Seconds()*float64(rate)); sent++ {
					_, _ = conns[sent%askers].Write(question) // what is lost is not answered
				}
				time.Sleep(time.Millisecond)
			}
			share := float64(cpuTime(b, gateway.pid)-used) / float64(time.Since(start))
			b.Logf("%d questions per second: %.2f %% of a core, %d answers to %d", rate, 100*share, answers.Load(), sent)
			b.ReportMetric(100*share, fmt.Sprintf("%%core/%d", rate))
			expect(b, answers.Load() >= int64(sent)*9/10, "%d answers to %d questions from %s", answers.Load(), sent, target)
		}
	}
	mustLiqonet(b, ctx, "unpeer", x.Name, y.Name)
	checkNothingLeft(b, ctx)
}

// captureQuestion returns one as nodes send it.
func captureQuestion(b *testing.B, ctx context.Context) []byte {
	conn := must(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(b)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	go liveness.New(netip.MustParseAddr("127.0.0.1"), conn.LocalAddr().(*net.UDPAddr).AddrPort(), 1, notify.NewSignal()).Run(ctx)
	buf := make([]byte, 1500)
	n, _, err := conn.ReadFrom(buf)
	if err != nil {
		b.Fatal(err)
	}
	return buf[:n]
}
