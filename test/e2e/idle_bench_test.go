package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	// goalIdle is the part of a core that an agent may use with nothing to do.
	goalIdle = 0.005
	// idleFor contains a time at which agents compare everything.
	idleFor = 40 * time.Second
	// ticksPerSecond is the unit of times in proc(5): USER_HZ, 100 everywhere.
	ticksPerSecond = 100
)

// BenchmarkIdle measures what the agents of a peering use of a core while
// nothing is to be done, and reports the one that uses most of each kind.
func BenchmarkIdle(b *testing.B) {
	ctx := begin(b)
	x, y := fx.alpha, fx.beta
	mustLiqonet(b, ctx, "peer", x.Name, y.Name)
	checkOnePacket(b, ctx, x, y)
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
			if share > goalIdle {
				b.Logf("the goal of %.1f %% is missed", 100*goalIdle)
			}
		}
	}
	mustLiqonet(b, ctx, "unpeer", x.Name, y.Name)
	checkNothingLeft(b, ctx)
}

// cpuTime is what a process has used since its start.
func cpuTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	// After the name, which is in brackets, the 12th and 13th fields are the
	// times in user and kernel mode.
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	fields := strings.Fields(string(rest))
	ticks := 0
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond
}
