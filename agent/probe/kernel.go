package probe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"

	"github.com/liqonet/liqonet/pkg/firewall"
	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/wire"
)

const (
	// answerTimeout is how long the agent may take to answer.
	answerTimeout = 3 * time.Second

	// tunDevice is there where /dev/net/tun can be made: a pod sees no devices of its host.
	tunDevice     = "/sys/class/misc/tun"
	trackedFiles  = "/proc/sys/net/netfilter/nf_conntrack_"
	trackedCounts = "/proc/net/stat/nf_conntrack"
	udpSockets    = "/proc/net/udp"
)

// readKernel reads a node's kernel from a pod on the host's network. It changes nothing. What cannot be read is named, and
// hides nothing of the rest.
func readKernel(ctx context.Context, task probe.KernelTask) *probe.Kernel {
	r := &kernelReader{task: task, out: &probe.Kernel{Time: time.Now(), Links: []probe.Link{}}}
	k, err := overlay.New()
	if err != nil {
		r.failed("rtnetlink", err)
		return r.out
	}
	defer k.Close()
	r.readAbilities(ctx, k)
	uplinks := r.readLinks(k)
	watching, stop := context.WithTimeout(ctx, task.For)
	defer stop()
	var wg sync.WaitGroup
	for _, do := range []func(){
		func() { r.watchRoutes(watching, k) },
		func() { r.watchCounters(watching) },
		func() { r.ping(ctx) },
		func() { r.findDuplicates(ctx, uplinks) },
		func() { r.askAgent(ctx) },
	} {
		wg.Go(do)
	}
	wg.Wait()
	r.readNeighbors(k) // after pings have made them
	return r.out
}

// kernelReader fills a Kernel. Each of its methods writes fields of its own, but for failures.
type kernelReader struct {
	task probe.KernelTask
	out  *probe.Kernel
	mu   sync.Mutex
}

func (r *kernelReader) failed(what string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.Failed = append(r.out.Failed, fmt.Sprintf("%s: %v", what, err))
}

func (r *kernelReader) readAbilities(ctx context.Context, k *overlay.Kernel) {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	r.out.Release = strings.TrimSpace(string(release))
	if _, err := (&nftables.Conn{}).ListTables(); err != nil {
		r.out.Nftables = err.Error()
	}
	for what, to := range map[overlay.Kind]*bool{
		overlay.VXLAN: &r.out.VXLAN, overlay.Geneve: &r.out.Geneve, tunnel.LinkKind: &r.out.WireGuard,
	} {
		can, err := k.Supports(what)
		if *to = can; err != nil {
			r.failed(string(what), err)
		}
	}
	_, err := os.Stat(tunDevice)
	r.out.TUN = err == nil
	if r.out.Blocked, err = firewall.Blocked(ctx, overlay.Port); err != nil {
		r.failed("firewalls", err)
	}
}

// readLinks returns the uplinks.
func (r *kernelReader) readLinks(k *overlay.Kernel) (out []*link.State) {
	in, err := k.Inspect()
	if err != nil {
		r.failed("interfaces, routes and rules", err)
	}
	uplinks, err := k.Uplinks()
	if err != nil {
		r.failed("uplinks", err)
	}
	for _, name := range slices.Sorted(maps.Keys(in.Links)) {
		l := in.Links[name]
		if strings.HasPrefix(l.Kind(), "veth") && !slices.Contains(uplinks, name) {
			continue // those of pods are many
		}
		isUplink := slices.Contains(uplinks, name)
		r.out.Links = append(r.out.Links, probe.Link{
			Name: name, Kind: l.Kind(), MTU: l.MTU, MAC: l.HardwareAddr.String(), Addresses: l.Addrs,
			Ours: strings.HasPrefix(name, wire.LinkPrefix) && !slices.Contains(in.Foreign, name), Uplink: isUplink, ProxyARP: l.ProxyARP,
			Forwarding: l.Forwarding == 1, RPFilter: int(l.RPFilter),
		})
		if isUplink {
			out = append(out, l)
		}
	}
	for _, name := range in.Foreign { // whatever its kind
		if !slices.ContainsFunc(r.out.Links, func(l probe.Link) bool { return l.Name == name }) {
			r.out.Links = append(r.out.Links, probe.Link{Name: name, Kind: in.Links[name].Kind(), MTU: in.Links[name].MTU})
		}
	}
	r.out.Routes, r.out.ForeignRules = in.Routes, in.InTheWay
	taken := in.PortOf
	if !slices.ContainsFunc(r.out.Links, func(l probe.Link) bool { return l.Ours }) { // or it is our links that have it
		taken = append(taken, programsWith(overlay.Port)...)
	}
	r.out.PortTaken = strings.Join(taken, ", ")
	return out
}

// programsWith are the sockets with a UDP port, of programs or of the kernel's tunnels. There are none where the kernel has no such file.
func programsWith(port uint16) (out []string) {
	raw, _ := os.ReadFile(udpSockets)
	for line := range strings.Lines(string(raw)) {
		words := strings.Fields(line)
		if len(words) > 7 && strings.HasSuffix(words[1], fmt.Sprintf(":%04X", port)) {
			out = append(out, "a program of user "+words[7])
		}
	}
	return out
}

func (r *kernelReader) watchRoutes(ctx context.Context, k *overlay.Kernel) {
	changes, gone, err := k.CountRoutes(ctx)
	if err != nil {
		r.failed("changes of routes", err)
	}
	r.out.RouteChanges, r.out.Changed = changes, slices.Compact(slices.Sorted(slices.Values(gone)))
}

// watchCounters sees what grows meanwhile.
func (r *kernelReader) watchCounters(ctx context.Context) {
	drops, refused := r.drops(), refusedConnections()
	<-ctx.Done()
	r.out.Tracked = probe.Tracked{Count: number("count"), Max: number("max"), Refused: refusedConnections() - refused}
	r.out.Drops = more(drops, r.drops())
}

func (r *kernelReader) drops() map[string]uint64 {
	out, err := dropped(context.Background())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.failed("counters", err)
	}
	return out
}

// number is one of connection tracking's sysctls, 0 if there is none.
func number(name string) int {
	raw, _ := os.ReadFile(trackedFiles + name)
	n, _ := strconv.Atoi(strings.TrimSpace(string(raw)))
	return n
}

// refusedConnections sums what found no room, over all processors: the columns drop and early_drop. Numbers are hexadecimal.
// Without connection tracking there is no such file, and nothing is refused.
func refusedConnections() (sum uint64) {
	raw, _ := os.ReadFile(trackedCounts)
	head, processors, _ := strings.Cut(string(raw), "\n")
	columns := strings.Fields(head)
	for line := range strings.Lines(processors) {
		for i, word := range strings.Fields(line) {
			if i < len(columns) && (columns[i] == "drop" || columns[i] == "early_drop") {
				n, _ := strconv.ParseUint(word, 16, 64)
				sum += n
			}
		}
	}
	return sum
}

func (r *kernelReader) readNeighbors(k *overlay.Kernel) {
	in, err := k.Inspect()
	if err != nil {
		r.failed("neighbours", err)
		return
	}
	r.out.Neighbors = map[string]string{}
	for _, n := range r.task.Nodes {
		if mac := in.Neighbors[n]; mac != "" {
			r.out.Neighbors[n.String()] = mac
		}
	}
}

// askAgent asks the node's agent as the kubelet does.
func (r *kernelReader) askAgent(ctx context.Context) {
	if !r.task.Health.IsValid() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.task.Health.String()+"/healthz", nil)
	if err != nil {
		r.failed("health", err)
		return
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.out.Unhealthy = plain(err)
		return
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		r.out.Unhealthy = resp.Status
	}
}

// plain is an error without what was being done.
func plain(err error) string {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Sprintf("no answer within %s", answerTimeout)
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err.Error()
}

// addressesOf are those of IPv4 of an interface.
func addressesOf(l *link.State) (out []netip.Addr) {
	for _, a := range l.Addrs {
		if a.Addr().Is4() {
			out = append(out, a.Addr())
		}
	}
	return out
}
