package nat_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// watchingEnv makes this test program run a watcher until it is killed, instead of tests.
const watchingEnv = "LIQONET_TEST_WATCHING"

func watched() nat.Watch {
	return nat.Watch{
		Watch: probe.Watch{
			Run: "test", Remote: []netip.Prefix{prefix("10.63.0.0/16"), prefix("10.64.0.0/17")}, Gateways: []netip.Addr{addr("10.245.0.7")},
		},
		Uplinks: []string{"eth0"}, OverlayGroup: 27761, TunnelPort: 51840,
	}
}

// Packets of the peer's ranges are counted, separately on the overlay and unencrypted. Purge leaves the table of a running
// watcher.
func TestWatcherCounts(t *testing.T) {
	node, others := netns.New(t, "node"), netns.New(t, "others")
	for i, name := range []string{"eth0", "loq0-0"} {
		netns.Veth(t, node, name, others, "to-"+name)
		node.Addr(t, name, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, byte(i), 1}), 24))
		others.Addr(t, "to-"+name, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, byte(i), 2}), 24))
	}
	node.Output(t, "ip", "link", "set", "loq0-0", "group", "27761")
	send := func(to, by string) {
		node.Output(t, "ip", "route", "replace", to, "via", "10.9."+map[string]string{"eth0": "0", "loq0-0": "1"}[by]+".2")
		conn := netns.In(t, node, func() (net.Conn, error) { return net.Dial("udp4", to+":9") })
		defer conn.Close()
		kit.NoError(t, kit.Err(conn.Write([]byte("x"))))
	}
	w := netns.In(t, node, func() (*nat.Watcher, error) { return nat.NewWatcher(watched()) })
	count := func() probe.Counters { return kit.Must(w.Read())(t) }
	steps := []struct {
		to, by string
		want   probe.Counters
	}{
		{"192.0.2.1", "eth0", probe.Counters{}},
		{"10.64.128.1", "eth0", probe.Counters{}}, // outside the ranges
		{"10.63.0.1", "loq0-0", probe.Counters{ToPeer: 1}},
		{"10.63.0.1", "eth0", probe.Counters{ToPeer: 1, Unencrypted: 1}},
		{"10.64.127.255", "eth0", probe.Counters{ToPeer: 1, Unencrypted: 2}},
	}
	for _, s := range steps {
		send(s.to, s.by)
		kit.Check(t, fmt.Sprintf("to %s by %s", s.to, s.by), count(), s.want)
	}
	// Only the watcher's socket can remove its table.
	netns.Expect(t, node, false, "purge", nat.Purge)
	count()
	kit.CheckNoError(t, w.Close())
	if left := node.Output(t, "nft", "list", "tables"); left != "" {
		t.Errorf("tables that are left: %s", left)
	}
}

// The kernel removes the table of a process that was killed.
func TestWatcherThatIsKilled(t *testing.T) {
	if os.Getenv(watchingEnv) != "" {
		w := kit.Must(nat.NewWatcher(watched()))(t)
		<-time.After(time.Minute)
		runtime.KeepAlive(w)
		return
	}
	ns := netns.New(t, "node")
	cmd := exec.Command(os.Args[0], "-test.run=^TestWatcherThatIsKilled$")
	cmd.Env = append(os.Environ(), watchingEnv+"=1")
	kit.NoError(t, ns.Start(cmd))
	awaitTables := func(is func(string) bool) {
		t.Helper()
		kit.Within(t, 10*time.Second, "tables", func() string {
			if tables := ns.Output(t, "nft", "list", "tables"); !is(tables) {
				return "they are " + strconv.Quote(tables)
			}
			return ""
		})
	}
	awaitTables(func(tables string) bool { return strings.Contains(tables, "liqonet-watch-test") })
	kit.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	awaitTables(func(tables string) bool { return tables == "" })
}

// Purge removes a watcher's table that the kernel does not remove, and leaves the tables of others alone.
func TestPurgeOfWatchers(t *testing.T) {
	ns := netns.New(t, "node")
	ns.Output(t, "nft", "add table ip liqonet-watch-old; add table ip liqonet-watched")
	ns.Do(t, func() error { _, err := nat.Purge(); return err })
	if got := ns.Output(t, "nft", "list", "tables"); strings.TrimSpace(got) != "table ip liqonet-watched" {
		t.Errorf("tables that are left: %s", got)
	}
}
