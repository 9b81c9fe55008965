package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/workload"
)

// followTimeout is within what the MTU follows a change of links, ten times what
// it takes.
const followTimeout = 20 * time.Second

// streamTimeout is within what a TCP connection goes on after packets were lost.
const streamTimeout = time.Minute

// The MTU follows from the links of both sides: 9000 bytes on one and 1400 on the
// other, 9000 on both, a narrow link beside the nodes, and
// one of a node that is changed while it is used. TCP connections go on over all
// that, of whatever segment size; packets that may not be fragmented pass up to
// the MTU and not beyond; and nothing that fits is fragmented by anybody.
// What guards every change is a part of it: other links, and a narrow one between the clusters.
func TestMTU(t *testing.T) {
	ctx := begin(t)
	a, b := fx.gamma, fx.delta
	mustLiqonet(t, ctx, "peer", a.Name, b.Name)
	w := watchMTU(t, ctx, a, b)

	w.expect("links of 9000 and 1400 bytes", 1400-tunnel.OverheadIPv4)
	restore := w.setLinks(b, 9000)
	w.expect("links of 9000 bytes", 9000-tunnel.OverheadIPv4)
	restore()
	w.expect("links of 9000 and 1400 bytes again", 1400-tunnel.OverheadIPv4)
	if whole() {
		w.narrowNode(b)
	}
	w.stop()
	w.narrowUnderlay(b, 1300, func() {
		w.expect("a narrow link between the clusters", 1300-tunnel.OverheadIPv4)
	})

	unpeered(t, ctx, a, b)
}

// narrowNode changes the link of a gateway's node while it is used.
func (w *mtuWatch) narrowNode(b *cluster) {
	w.t.Helper()
	gateway := w.gatewayNode(b)
	w.try(gateway.do(func() error { return setLinkMTU("eth0", 1300) }))
	w.expect("a node's link of 1300 bytes", 1300-tunnel.OverheadIPv4)
	w.try(gateway.do(func() error { return setLinkMTU("eth0", 1400) }))
	// A packet may have been too large for the narrow link: what the node has said of
	// that, the gateways' kernels believe for ten minutes.
	for _, g := range w.gateways {
		w.try(forgetPaths(g))
	}
	w.expect("that node's link of 1400 bytes again", 1400-tunnel.OverheadIPv4)
}

// mtuWatch has what TestMTU needs at each step.
type mtuWatch struct {
	t        testing.TB
	ctx      context.Context
	pair     [2]*cluster
	gateways [2]*vantage
	underlay *vantage
	// nodes are those of both clusters, address tells pods' addresses for the
	// other cluster.
	nodes   []*vantage
	address map[string]netip.Addr
	streams []*bulkStream
	// steps counts what was expected.
	steps int
	// nudge is called while the MTU is not yet what it should be.
	nudge func()
}

func watchMTU(t testing.TB, ctx context.Context, a, b *cluster) *mtuWatch {
	t.Helper()
	w := &mtuWatch{t: t, ctx: ctx, pair: [2]*cluster{a, b}, address: map[string]netip.Addr{}, nudge: func() {}}
	ns, err := os.Open(filepath.Join("/run/netns", "lab."+*labName+".underlay"))
	w.try(err)
	t.Cleanup(func() { _ = ns.Close() })
	w.underlay = &vantage{name: "the underlay", ns: ns}
	views := status(t, ctx, 0, a, b)
	for i, c := range w.pair {
		other := w.pair[1-i]
		v := viewOf(t, views, c, other)
		pods, err := c.Run(ctx, "", "get", "pods", "-n", "liqonet-system", "-l", "app.kubernetes.io/component=gateway", "-o", "jsonpath={.items[*].metadata.name}")
		w.try(err)
		w.gateways[i], err = processVantage(*labName, strings.TrimSpace(pods))
		w.try(err)
		t.Cleanup(func() { _ = w.gateways[i].ns.Close() })
		for _, n := range c.nodes {
			w.nodes = append(w.nodes, n.vantage)
		}
		for _, p := range c.pods {
			w.address[p.Pod.Name] = v.seenAs(t, p.IP)
		}
	}
	return w
}

// try ends the test if something failed without which the rest says nothing.
func (w *mtuWatch) try(err error) {
	w.t.Helper()
	try(w.t, err)
}

// expect waits until the MTU is what it should be, then checks it with packets of
// a pod and a node on either side, in turn.
func (w *mtuWatch) expect(what string, mtu int) {
	w.t.Helper()
	start := time.Now()
	eventually(w.t, w.ctx, followTimeout, what, func() string {
		w.nudge()
		r := liqonet(w.t, w.ctx, "", "status", "-o", "json", w.pair[0].Name, w.pair[1].Name)
		views := parseStatus(w.t, r.stdout)
		for i, c := range w.pair {
			v, ok := views[[2]string{c.Name, w.pair[1-i].Name}]
			if !ok || v.State != "Connected" || v.MTU != mtu {
				return fmt.Sprintf("%s says %s, MTU %d, want %d", c.Name, v.State, v.MTU, mtu)
			}
		}
		for _, n := range w.nodes {
			if err := n.do(func() error { return routesHave(mtu) }); err != nil {
				return fmt.Sprintf("%s: %v", n, err)
			}
		}
		return ""
	})
	w.t.Logf("%s: MTU %d after %.1f s", what, mtu, time.Since(start).Seconds())
	if w.t.Failed() {
		w.t.FailNow()
	}
	// What kernels have learned of paths before is right for ten minutes.
	for _, c := range w.pair {
		for i := range c.pods {
			w.try(errors.Join(forgetPaths(c.pods[i].vantage), forgetPaths(c.nodes[i].vantage)))
		}
	}
	for _, s := range w.streams {
		s.wait(w.t)
	}
	before := w.fragments()
	for i, c := range w.pair {
		for j, p := range c.pods {
			if w.steps%2 != j {
				continue // it is the other one's turn
			}
			target := w.pair[1-i].pods[(i+j)%2]
			address := w.address[target.Pod.Name]
			err := checkSegments(p.vantage, target.vantage, address, mtu)
			expect(w.t, err == nil, "%s: %s calls %s: %v", what, p.vantage, target.vantage, err)
			if err := p.do(func() error { return bulk(address, 1<<20) }); err != nil {
				w.t.Errorf("%s: %s sends TCP to %s: %v", what, p.vantage, target.vantage, err)
			}
			checkLimit(w.t, p.vantage, target.vantage, address, mtu)
			checkLimit(w.t, c.nodes[j].vantage, target.vantage, address, mtu)
		}
	}
	after := w.fragments()
	expect(w.t, after == before, "%s: somebody has made fragments:\nbefore %s\nafter  %s", what, before, after)
	// Some go on, each with another segment size.
	if w.steps < 3 {
		from, to := w.pair[0].pods[w.steps%2], w.pair[1].pods[w.steps/2]
		w.streams = append(w.streams, startBulk(from.vantage, w.address[to.Pod.Name]))
		w.streams[w.steps].wait(w.t)
	}
	w.steps++
}

// stop ends the connections, none of which may have broken.
func (w *mtuWatch) stop() {
	w.t.Helper()
	for i, s := range w.streams {
		s.wait(w.t)
		err := s.stop()
		expect(w.t, err == nil, "TCP connection %d: %v", i+1, err)
	}
	w.streams = nil
}

// fragments are what nodes, gateways and the underlay have made fragments of.
func (w *mtuWatch) fragments() string {
	w.t.Helper()
	var out []string
	for _, v := range append([]*vantage{w.gateways[0], w.gateways[1], w.underlay}, w.nodes...) {
		w.try(v.do(func() error {
			n, err := counters("FragCreates", "Ip6FragCreates")
			out = append(out, fmt.Sprintf("%s %v", v, n))
			return err
		}))
	}
	return strings.Join(out, ", ")
}

// counters reads /proc/net/snmp and snmp6 of the thread's namespace.
func counters(names ...string) (values []string, err error) {
	const dir = "/proc/thread-self/net/"
	v4, err := os.ReadFile(dir + "snmp")
	if err != nil {
		return nil, err
	}
	v6, err := os.ReadFile(dir + "snmp6")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	found := map[string]string{}
	header, line, _ := bytes.Cut(v4, []byte("\n")) // "Ip: names", "Ip: numbers"
	line, _, _ = bytes.Cut(line, []byte("\n"))
	keys, numbers := strings.Fields(string(header)), strings.Fields(string(line))
	for i := range min(len(keys), len(numbers)) {
		found[keys[i]] = numbers[i]
	}
	for line := range strings.Lines(string(v6)) {
		if f := strings.Fields(line); len(f) == 2 {
			found[f[0]] = f[1]
		}
	}
	for _, name := range names {
		values = append(values, found[name])
	}
	return values, nil
}

// routesHave looks at the overlay links and the routes by them of a node.
func routesHave(mtu int) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	checked := 0
	for _, l := range links {
		if !strings.HasPrefix(l.Attrs().Name, "loq") {
			continue
		}
		if l.Attrs().MTU != mtu {
			return fmt.Errorf("%s has an MTU of %d, want %d", l.Attrs().Name, l.Attrs().MTU, mtu)
		}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: l.Attrs().Index, Table: unix.RT_TABLE_UNSPEC},
			netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for _, r := range routes {
			if r.Gw == nil {
				continue
			}
			if checked++; r.MTU != mtu {
				return fmt.Errorf("the route to %s has an MTU of %d, want %d", r.Dst, r.MTU, mtu)
			}
		}
	}
	if checked == 0 {
		return errors.New("there is no route to the peer")
	}
	return nil
}

// checkSegments opens a connection to a pod and looks at the sizes of segments
// that each end has been told to send: neither has learned more than that.
func checkSegments(from, at *vantage, address netip.Addr, mtu int) error {
	var listener net.Listener
	if err := at.do(func() (err error) {
		listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", sinkPort))
		return err
	}); err != nil {
		return err
	}
	defer listener.Close()
	var client net.Conn
	if err := from.do(func() (err error) {
		client, err = net.DialTimeout("tcp", netip.AddrPortFrom(address, sinkPort).String(), callTimeout)
		return err
	}); err != nil {
		return err
	}
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		return err
	}
	defer server.Close()
	for _, c := range []net.Conn{client, server} {
		// IP and TCP headers, and the time stamps that Linux sends.
		const headers, timestamps = 40, 12
		if got, err := segmentSize(c); err != nil || got != mtu-headers-timestamps {
			return fmt.Errorf("%s sends segments of %d bytes, want %d: %w", c.LocalAddr(), got, mtu-headers-timestamps, err)
		}
	}
	return nil
}

func segmentSize(c net.Conn) (int, error) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var info *unix.TCPInfo
	var infoErr error
	err = raw.Control(func(fd uintptr) { info, infoErr = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO) })
	if err := errors.Join(err, infoErr); err != nil {
		return 0, err
	}
	return int(info.Snd_mss), nil
}

// gatewayNode is the node that a cluster's gateway runs on.
func (w *mtuWatch) gatewayNode(c *cluster) *vantage {
	w.t.Helper()
	name, err := c.Run(w.ctx, "", "get", "pods", "-n", "liqonet-system", "-l", "app.kubernetes.io/component=gateway", "-o", "jsonpath={.items[*].spec.nodeName}")
	w.try(err)
	for _, n := range c.nodes {
		if n.Node.Name == strings.TrimSpace(name) {
			return n.vantage
		}
	}
	w.t.Fatalf("the gateway of %s is on %q", c.Name, name)
	return nil
}

// setLinks changes all links of a cluster: between its nodes, and of its pods. It
// returns what undoes that, which happens in the end anyway.
func (w *mtuWatch) setLinks(c *cluster, mtu int) (restore func()) {
	w.t.Helper()
	set := func(mtu int) error {
		errs := []error{w.underlay.do(func() error { return setBridgeMTU(func(l netlink.Link) bool { return l.Attrs().Alias == c.Name }, mtu) })}
		controlPlane, err := fx.lab.Node(c.Name + "-cp")
		if err != nil {
			return err
		}
		cp, err := nodeVantage(controlPlane)
		if err != nil {
			return err
		}
		defer cp.ns.Close()
		errs = append(errs, cp.do(func() error { return setLinkMTU("eth0", mtu) }))
		for i := range c.nodes {
			errs = append(errs, c.nodes[i].do(func() error {
				return errors.Join(setLinkMTU("eth0", mtu), setBridgeMTU(func(l netlink.Link) bool { return l.Attrs().Name == "cni0" }, mtu))
			}), c.pods[i].do(func() error { return setLinkMTU("eth0", mtu) }))
		}
		for i := range w.pair {
			if w.pair[i] == c {
				errs = append(errs, w.gateways[i].do(func() error { return setLinkMTU("eth0", mtu) }))
			}
		}
		return errors.Join(errs...)
	}
	done := false
	restore = func() {
		if !done {
			done = true
			report(w.t, set(c.spec.MTU))
		}
	}
	w.t.Cleanup(restore)
	w.try(set(mtu))
	return restore
}

// narrowUnderlay has the underlay let only smaller packets through to a cluster
// while f runs. The gateway of the other one learns it from ICMP errors.
func (w *mtuWatch) narrowUnderlay(c *cluster, mtu int, f func()) {
	w.t.Helper()
	set := func(mtu int) error {
		return w.underlay.do(func() error {
			subnet := c.spec.NodeSubnet
			routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: &net.IPNet{
				IP: subnet.Addr().AsSlice(), Mask: net.CIDRMask(subnet.Bits(), 32),
			}}, netlink.RT_FILTER_DST)
			if err != nil || len(routes) != 1 {
				return fmt.Errorf("%d routes to %s: %w", len(routes), subnet, err)
			}
			routes[0].MTU = mtu
			return netlink.RouteReplace(&routes[0])
		})
	}
	w.try(set(mtu))
	// Something has to be too large for it.
	from, to := w.pair[0], w.pair[1]
	if c == from {
		from, to = to, from
	}
	conn, err := dialUDP(from.pods[0].vantage, netip.AddrPortFrom(w.address[to.pods[0].Pod.Name], closedPort))
	w.try(err)
	defer conn.Close()
	w.try(setOption(conn, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE))
	w.nudge = func() { _, _ = conn.Write(pattern(mtu - udpHeaders)) } // less than that fits
	f()
	w.nudge = func() {}
	w.try(set(0))
}

// setBridgeMTU changes a bridge and its ports.
func setBridgeMTU(is func(netlink.Link) bool, mtu int) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	var errs []error
	for _, bridge := range links {
		if bridge.Type() != "bridge" || !is(bridge) {
			continue
		}
		for _, port := range links {
			if port.Attrs().MasterIndex == bridge.Attrs().Index {
				errs = append(errs, netlink.LinkSetMTU(port, mtu))
			}
		}
		return errors.Join(append(errs, netlink.LinkSetMTU(bridge, mtu))...)
	}
	return errors.New("there is no such bridge")
}

// processVantage is the namespace of the gateway that runs in a pod.
func processVantage(labName, podName string) (*vantage, error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, proc := range processes {
		// A process that ends meanwhile is none that is looked for.
		cgroup, _ := os.ReadFile(filepath.Join(proc, "cgroup"))
		environ, _ := os.ReadFile(filepath.Join(proc, "environ"))
		if !bytes.Contains(cgroup, []byte("/liqonet-lab."+labName+"/")) || !bytes.Contains(append([]byte{0}, environ...), []byte("\x00HOSTNAME="+podName+"\x00")) {
			continue
		}
		ns, err := os.Open(filepath.Join(proc, "ns", "net"))
		if err != nil {
			return nil, err
		}
		return &vantage{name: "gateway " + podName, ns: ns}, nil
	}
	return nil, fmt.Errorf("pod %q has no process", podName)
}

// bulkStream is one TCP connection that never rests.
type bulkStream struct {
	rounds atomic.Int64
	ending atomic.Bool
	failed chan error
}

// startBulk sends to a test pod, which echoes, until it is stopped.
func startBulk(from *vantage, to netip.Addr) *bulkStream {
	s := &bulkStream{failed: make(chan error, 1)}
	go func() {
		s.failed <- from.do(func() error {
			conn, err := net.DialTimeout("tcp", workload.Target("tcp", to), callTimeout)
			if err != nil {
				return err
			}
			defer conn.Close()
			c, err := greet(conn)
			if err != nil {
				return err
			}
			for sent := pattern(128 << 10); !s.ending.Load(); s.rounds.Add(1) {
				// The kernel sends again after 0.2 s, 0.4 s and so on.
				if err := conn.SetDeadline(time.Now().Add(streamTimeout)); err != nil {
					return err
				}
				if err := c.exchange(sent); err != nil {
					return err
				}
				time.Sleep(probePause)
			}
			return nil
		})
	}()
	return s
}

// wait waits until something more has come back.
func (s *bulkStream) wait(t testing.TB) {
	t.Helper()
	before := s.rounds.Load()
	for deadline := time.Now().Add(streamTimeout); s.rounds.Load() < before+2; time.Sleep(10 * time.Millisecond) {
		select {
		case err := <-s.failed:
			s.failed <- err
			t.Fatalf("the TCP connection has ended: %v", err)
		default:
		}
		require(t, !time.Now().After(deadline), "nothing has come back by a TCP connection for %s", streamTimeout)
	}
}

func (s *bulkStream) stop() error {
	s.ending.Store(true)
	return <-s.failed
}
