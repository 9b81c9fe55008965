package probe

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/socket"
	"github.com/prometheus/procfs"
	"github.com/samber/lo"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/firewall"
	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/udp"
	"github.com/liqonet/liqonet/pkg/wire"
)

const (
	// answerTimeout is how long the agent may take to answer.
	answerTimeout = 3 * time.Second
	// packetTries is how often a packet is sent, and packetPause the time between tries.
	packetTries, packetPause = 4, 400 * time.Millisecond
	// tunDevice exists if /dev/net/tun can be created: a pod does not see the devices of its host.
	tunDevice = "/sys/class/misc/tun"
)

// readKernel reads a node's kernel from a pod on the host's network. It changes nothing. It names what it cannot
// read, and still returns the rest.
func readKernel(ctx context.Context, task probe.KernelTask) *probe.Kernel {
	r := &kernelReader{task: task, out: &probe.Kernel{Links: []probe.Link{}}}
	k, err := overlay.New()
	if err != nil {
		r.addFailure("rtnetlink", err)
		return r.out
	}
	defer k.Close()
	r.readFeatures(k)
	uplinks, err := k.Uplinks()
	links, linksErr := k.Links()
	r.addFailure("uplinks", cmp.Or(err, linksErr))
	watching, stop := context.WithTimeout(ctx, task.Duration)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { r.watchRoutes(watching, k) })
	wg.Go(func() { r.watchConnections(watching) })
	wg.Go(func() { r.watchDrops(watching) })
	wg.Go(func() { r.ping(ctx, k) })
	wg.Go(func() { r.measureLosses(ctx) })
	wg.Go(func() { r.findDuplicates(ctx, lo.PickByKeys(links, uplinks)) })
	wg.Go(func() { r.checkAgentHealth(ctx) })
	wg.Wait()
	in, err := k.Inspect() // pings create neighbor entries
	r.addFailure("interfaces, neighbors, routes and rules", err)
	r.readLinks(in, uplinks)
	r.out.Others.EarlierRules, err = k.EarlierRules(task.Remote)
	r.addFailure("rules before ours", err)
	r.out.Others.PartialDrops, err = firewall.PartialDrops(task.Remote, overlay.Port)
	r.addFailure("rules of firewalls", err)
	return r.out
}

// kernelReader fills a Kernel. Each of its methods writes its own fields, except for failures.
type kernelReader struct {
	task probe.KernelTask
	out  *probe.Kernel
	mu   sync.Mutex
}

// addFailure records why something could not be read, if there is an error.
func (r *kernelReader) addFailure(what string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.out.Errors = append(r.out.Errors, fmt.Sprintf("%s: %v", what, err))
	}
}

func (r *kernelReader) readFeatures(k *overlay.Kernel) {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	r.out.Release = strings.TrimSpace(string(release))
	if _, err := (&nftables.Conn{}).ListTables(); err != nil {
		r.out.Nftables = err.Error()
	}
	for what, to := range map[overlay.Kind]*bool{
		overlay.VXLAN: &r.out.VXLAN, overlay.Geneve: &r.out.Geneve, tunnel.LinkKind: &r.out.WireGuard,
	} {
		can, err := k.Supports(what)
		*to = can
		r.addFailure(string(what), err)
	}
	_, err := os.Stat(tunDevice)
	r.out.TUN = err == nil
	r.out.Blocked, err = firewall.Blocked(overlay.Port)
	r.addFailure("firewalls", err)
}

// readLinks fills in interfaces, neighbors, routes and rules.
func (r *kernelReader) readLinks(in overlay.Inspection, uplinks []string) {
	for _, name := range slices.Sorted(maps.Keys(in.Links)) {
		l, isUplink, isForeign := in.Links[name], slices.Contains(uplinks, name), slices.Contains(in.Foreign, name)
		if strings.HasPrefix(l.Kind(), "veth") && !isUplink && !isForeign {
			continue // pods have very many
		}
		r.out.Links = append(r.out.Links, probe.Link{
			Name: name, Kind: l.Kind(), MTU: l.MTU, MAC: l.HardwareAddr.String(), Addresses: l.Addrs,
			IsOwn: strings.HasPrefix(name, wire.LinkPrefix) && !isForeign, Uplink: isUplink, ProxyARP: l.ProxyARP,
			Forwarding: l.Forwarding == 1, RPFilter: int(l.RPFilter),
		})
	}
	r.out.ForeignRules = in.Conflicts
	taken := in.PortUsers
	if !slices.ContainsFunc(r.out.Links, func(l probe.Link) bool { return l.IsOwn }) { // otherwise our own links use the port
		taken = append(taken, socketsOnPort(overlay.Port)...)
	}
	r.out.PortTaken = strings.Join(taken, ", ")
	r.out.Routers = lo.Uniq(lo.Values(lo.PickByKeys(in.Neighbors, in.Routers)))
	ofNodes := lo.PickByKeys(in.Neighbors, r.task.Nodes)
	r.out.Neighbors = lo.MapKeys(ofNodes, func(_ string, node netip.Addr) string { return node.String() })
}

// proc reads tables that some kernels lack. Those count as empty.
var proc, _ = procfs.NewDefaultFS()

// socketsOnPort describes the sockets with a UDP port, of programs or of the kernel's tunnels.
func socketsOnPort(port uint16) (out []string) {
	sockets, _ := proc.NetUDP()
	for _, s := range sockets {
		if s.LocalPort == uint64(port) {
			out = append(out, fmt.Sprintf("a program of user %d", s.UID))
		}
	}
	return out
}

func (r *kernelReader) watchRoutes(ctx context.Context, k *overlay.Kernel) {
	changes, gone, err := k.CountDeletions(ctx)
	r.addFailure("changes of routes", err)
	r.out.RouteChanges, r.out.Changed = changes, slices.Compact(slices.Sorted(slices.Values(gone)))
}

// watchConnections counts connections that do not fit into the connection tracking table, until ctx ends.
func (r *kernelReader) watchConnections(ctx context.Context) {
	before := refusedConnections()
	<-ctx.Done()
	r.out.Conntrack = probe.ConntrackTable{Count: readSysctl("count"), Max: readSysctl("max"), Refused: refusedConnections() - before}
}

// watchDrops counts packets that are dropped because they would have left unencrypted, and those that arrive with a
// wrong checksum, until ctx ends.
func (r *kernelReader) watchDrops(ctx context.Context) {
	read := func() (unencrypted, wrong uint64) {
		drops, err := nat.Drops()
		r.addFailure("counters of drops", err)
		for _, d := range drops {
			unencrypted += lo.Ternary(d.Reason == nat.Unencrypted, d.Packets, 0)
		}
		return unencrypted, udp.WrongChecksums()
	}
	dropped, wrong := read()
	<-ctx.Done()
	droppedNow, wrongNow := read()
	r.out.Others.Unencrypted, r.out.Others.WrongChecksums = max(droppedNow, dropped)-dropped, wrongNow-wrong
}

// readSysctl returns one of connection tracking's sysctls, 0 if it does not exist.
func readSysctl(name string) int {
	numbers, _ := proc.SysctlInts("net.netfilter.nf_conntrack_" + name)
	return lo.FirstOrEmpty(numbers)
}

// refusedConnections returns how many connections did not fit, summed over all processors.
func refusedConnections() uint64 {
	processors, _ := proc.ConntrackStat()
	return lo.SumBy(processors, func(s procfs.ConntrackStatEntry) uint64 { return s.Drop + s.EarlyDrop })
}

// checkAgentHealth checks the node's agent as the kubelet does.
func (r *kernelReader) checkAgentHealth(ctx context.Context) {
	if !r.task.Health.IsValid() {
		return
	}
	page, err := get(ctx, answerTimeout, "http://"+r.task.Health.String()+"/healthz")
	_ = json.Unmarshal(page, &r.out.Others.Recent) // an agent that has just started has nothing to report
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		r.out.Unhealthy = fmt.Sprintf("no answer within %s", answerTimeout)
	case err != nil:
		r.out.Unhealthy = errorText(err)
	}
}

// ping sends echo requests of each size, which must not be fragmented, until all are answered or the tries are used
// up. No size exceeds what the node itself can send: gateways report the sizes.
func (r *kernelReader) ping(ctx context.Context, k *overlay.Kernel) {
	if len(r.task.Ping) == 0 {
		return
	}
	options := udp.Options(unix.IPPROTO_IP, map[int]int{unix.IP_MTU_DISCOVER: unix.IP_PMTUDISC_PROBE})
	conn, err := (&net.ListenConfig{Control: options}).ListenPacket(ctx, "ip4:icmp", "0.0.0.0")
	if err != nil {
		r.addFailure("pings", err)
		return
	}
	defer func() { _ = conn.Close() }()
	r.out.Pings = slices.Clone(r.task.Ping)
	id, missing := os.Getpid()&0xffff, map[int]echo{}
	for i, p := range r.out.Pings {
		if _, mtu, err := k.SourceTo(p.To); err == nil {
			r.out.Pings[i].Sizes = lo.Uniq(lo.Map(p.Sizes, func(size, _ int) int { return min(size, mtu) }))
		}
		for _, size := range r.out.Pings[i].Sizes {
			missing[len(missing)] = echo{&r.out.Pings[i], size}
		}
	}
	for try := 0; try < packetTries && len(missing) > 0 && ctx.Err() == nil; try++ {
		for sequence, e := range missing {
			_, _ = conn.WriteTo(echoRequest(id, sequence, e.size), &net.IPAddr{IP: e.of.To.AsSlice()}) // too large a packet counts as lost
		}
		receivePings(conn, id, missing, packetPause)
	}
}

// echo is a request of one size.
type echo struct {
	of   *probe.Ping
	size int
}

// receivePings receives answers to the missing requests, and removes these by their sequence numbers.
func receivePings(conn net.PacketConn, id int, missing map[int]echo, timeout time.Duration) {
	_ = conn.SetReadDeadline(time.Now().Add(timeout))
	buf := make([]byte, maxPacket)
	for len(missing) > 0 {
		n, _, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		m, err := icmp.ParseMessage(unix.IPPROTO_ICMP, buf[:n])
		if err != nil || m.Type != ipv4.ICMPTypeEchoReply {
			continue
		}
		reply := m.Body.(*icmp.Echo)
		if e, isMissing := missing[reply.Seq]; isMissing && reply.ID == id {
			e.of.Answered = append(e.of.Answered, e.size)
			slices.Sort(e.of.Answered)
			delete(missing, reply.Seq)
		}
	}
}

// lossTimeout is the time after which an unanswered ping counts as lost.
const lossTimeout = time.Second

// measureLosses sends pings as long as the probe watches the kernel, equally distributed, and counts those that are lost.
func (r *kernelReader) measureLosses(ctx context.Context) {
	total := lo.SumBy(r.task.Losses, func(l probe.Loss) int { return l.Sent })
	if total == 0 {
		return
	}
	conn, err := (&net.ListenConfig{}).ListenPacket(ctx, "ip4:icmp", "0.0.0.0")
	if err != nil {
		r.addFailure("pings", err)
		return
	}
	defer func() { _ = conn.Close() }()
	id, missing, sent := os.Getpid()&0xffff^0x8000, map[int]echo{}, make(chan struct{}) // ping has another ID
	losses := slices.Clone(r.task.Losses)
	for i, l := range losses {
		for n := range l.Sent {
			missing[n*len(losses)+i] = echo{of: &probe.Ping{To: l.To}, size: headers}
		}
	}
	sequences := slices.Sorted(maps.Keys(missing))
	go func() {
		defer close(sent)
		began := time.Now()
		for i, sequence := range sequences {
			if !failure.Pause(ctx, time.Until(began.Add(time.Duration(i)*r.task.Duration/time.Duration(total)))) {
				return
			}
			to := losses[sequence%len(losses)].To
			_, _ = conn.WriteTo(echoRequest(id, sequence, headers), &net.IPAddr{IP: to.AsSlice()}) // what cannot be sent counts as lost
		}
	}()
	receivePings(conn, id, missing, r.task.Duration+lossTimeout)
	<-sent
	if ctx.Err() != nil {
		return // not all were sent
	}
	for sequence := range missing {
		losses[sequence%len(losses)].Lost++
	}
	r.out.Others.Losses = losses
}

// arp is an ARP packet about IPv4 over Ethernet (RFC 826).
type arp struct {
	Hardware, Protocol             uint16
	HardwareLength, ProtocolLength uint8
	Operation                      uint16
	SenderMAC                      [6]byte
	SenderIP                       [4]byte
	TargetMAC                      [6]byte
	TargetIP                       [4]byte
}

const arpRequest, arpReply = 1, 2

// findDuplicates asks on each uplink who has this node's own addresses, as a host does before it uses an address (RFC
// 5227). Only another machine answers.
func (r *kernelReader) findDuplicates(ctx context.Context, uplinks map[string]*link.State) {
	r.out.Duplicates = map[string]string{}
	for name, uplink := range uplinks {
		r.addFailure("duplicate addresses on "+name, r.sendARPRequests(ctx, uplink))
	}
}

func (r *kernelReader) sendARPRequests(ctx context.Context, uplink *link.State) error {
	if len(uplink.HardwareAddr) != 6 {
		return nil
	}
	own := slices.DeleteFunc(addressesOf(uplink), netip.Addr.Is6)
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP))
	conn, err := socket.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, int(protocol), "arp", nil)
	if err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	everybody := &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: uplink.Index, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	if err := conn.Bind(everybody); err != nil {
		return fmt.Errorf("bind a packet socket: %w", err)
	}
	request := arp{Hardware: unix.ARPHRD_ETHER, Protocol: unix.ETH_P_IP, HardwareLength: 6, ProtocolLength: 4, Operation: arpRequest}
	request.SenderMAC = [6]byte(uplink.HardwareAddr)
	for try, found := 0, false; try < packetTries && !found; try++ {
		for _, addr := range own {
			request.TargetIP = addr.As4()
			raw, _ := binary.Append(nil, binary.BigEndian, request) // fails only for types without a fixed size
			if err := conn.Sendto(ctx, raw, 0, everybody); err != nil {
				return fmt.Errorf("send: %w", err)
			}
		}
		found = r.receiveDuplicates(ctx, conn, own, request.SenderMAC)
	}
	return nil
}

// receiveDuplicates records other machines' answers for this node's own addresses, and reports whether there are any.
func (r *kernelReader) receiveDuplicates(ctx context.Context, conn *socket.Conn, own []netip.Addr, ownMAC [6]byte) (found bool) {
	ctx, cancel := context.WithTimeout(ctx, packetPause)
	defer cancel()
	buf := make([]byte, 64)
	for {
		n, _, err := conn.Recvfrom(ctx, buf, 0)
		if err != nil {
			return found // the time is over
		}
		var reply arp
		if _, err := binary.Decode(buf[:n], binary.BigEndian, &reply); err != nil || reply.Operation != arpReply {
			continue
		}
		if sender := netip.AddrFrom4(reply.SenderIP); slices.Contains(own, sender) && reply.SenderMAC != ownMAC {
			found = true
			r.out.Duplicates[sender.String()] = net.HardwareAddr(reply.SenderMAC[:]).String()
		}
	}
}

// watch counts packets of this node and the drops of its rules, until the caller calls end.
func watch(w probe.Watch) (end func() (*probe.Counters, error), err error) {
	uplinks, linksErr := interfacesOf(w.Addresses)
	before, err := readDrops()
	if err := cmp.Or(linksErr, err); err != nil {
		return nil, err
	}
	watcher, err := nat.NewWatcher(nat.Watch{Watch: w, Uplinks: uplinks, OverlayGroup: overlay.Group, TunnelPort: tunnel.ListenPort})
	return func() (*probe.Counters, error) {
		counted, err := watcher.Read()
		after, dropErr := readDrops()
		counted.Dropped = increases(before, after)
		return &counted, errors.Join(err, dropErr, watcher.Close())
	}, err
}

// increases returns by how much counters have increased.
func increases(before, after map[string]uint64) map[string]uint64 {
	grown := lo.PickBy(after, func(name string, n uint64) bool { return n > before[name] })
	return lo.MapValues(grown, func(n uint64, name string) uint64 { return n - before[name] })
}

// readDrops returns the drop counters of this node's rules, by their names.
func readDrops() (map[string]uint64, error) {
	drops, err := nat.Drops()
	return lo.Associate(drops, func(d nat.Drop) (string, uint64) {
		return strings.TrimSuffix(strings.Join([]string{d.Hook, d.Reason, d.Link}, "/"), "/"), d.Packets
	}), err
}

// interfacesOf returns the names of the interfaces that have any of the addresses.
func interfacesOf(addrs []netip.Addr) ([]string, error) {
	k, err := overlay.New()
	if err != nil {
		return nil, err
	}
	defer k.Close()
	links, err := k.Links()
	return lo.Keys(lo.PickBy(links, func(_ string, l *link.State) bool { return lo.Some(addressesOf(l), addrs) })), err
}

// addressesOf returns the addresses of an interface.
func addressesOf(l *link.State) []netip.Addr {
	return lo.Map(l.Addrs, func(p netip.Prefix, _ int) netip.Addr { return p.Addr() })
}

const (
	// scrapeTimeout is how long a gateway may take to serve its metrics.
	scrapeTimeout = 2 * time.Second
	// pageSize limits how much of an HTTP response is read, in bytes.
	pageSize = 1 << 20
)

// drop matches a line of a gateway's metrics, see docs/monitoring.md.
var drop = regexp.MustCompile(`(?m)^liqonet_gateway_drops_total\{.*hook="([^"]*)".*reason="([^"]*)".*\} ([0-9.e+]+)$`)

// gatewayDrops reads the gateways' drop counters. If they cannot be read, it returns the reason.
func gatewayDrops(ctx context.Context, gateways []netip.AddrPort) []probe.Gateway {
	return lo.Map(gateways, func(at netip.AddrPort, _ int) probe.Gateway {
		page, err := get(ctx, scrapeTimeout, fmt.Sprintf("http://%s/metrics", at))
		if err != nil {
			return probe.Gateway{Error: "its metrics: " + errorText(err)}
		}
		out := map[string]uint64{}
		for _, m := range drop.FindAllSubmatch(page, -1) {
			n, _ := strconv.ParseFloat(string(m[3]), 64) // an invalid number counts as 0
			out[fmt.Sprintf("%s/%s", m[1], m[2])] += uint64(n)
		}
		return probe.Gateway{Dropped: out}
	})
}

// get sends an HTTP request. It returns an error if the response is late, or is not 200 OK.
func get(ctx context.Context, timeout time.Duration, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Timeout: timeout}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, pageSize))
}

// gatewayIncreases returns by how much the gateways' counters have increased.
func gatewayIncreases(before, after []probe.Gateway) []probe.Gateway {
	return lo.ZipBy2(before, after, func(b, a probe.Gateway) probe.Gateway {
		if failed := cmp.Or(a.Error, b.Error); failed != "" {
			return probe.Gateway{Error: failed}
		}
		return probe.Gateway{Dropped: increases(b.Dropped, a.Dropped)}
	})
}
