// Package probe does the task of one probe pod (see pkg/probe), and says on standard
// output what it has found out. It needs neither an API server nor files.
//
// Out of scope: what it means (pkg/peering).
package probe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"
	lop "github.com/samber/lo/parallel"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// Run does a task. One that serves ends with the context.
func Run(ctx context.Context, task probe.Task, out io.Writer) error {
	lines := json.NewEncoder(out)
	say := func(l probe.Line) { _ = lines.Encode(l) } // nobody else could be told
	if err := run(ctx, task, say); err != nil {
		say(probe.Line{Error: err.Error()})
		return err
	}
	return nil
}

func run(ctx context.Context, task probe.Task, say func(probe.Line)) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if task.Watch != nil {
		end, watchErr := watch(ctx, *task.Watch)
		if watchErr != nil {
			return watchErr
		}
		defer func() {
			watched, endErr := end()
			say(probe.Line{Result: &probe.Result{Watched: watched}})
			err = errors.Join(err, endErr)
		}()
	}
	if task.Serve != nil {
		if err := serve(ctx, task.Token, *task.Serve); err != nil {
			return err
		}
	}
	say(probe.Line{Ready: true})
	if len(task.Calls) > 0 {
		before := gatewayDrops(ctx, task.Gateways)
		answers := lop.Map(task.Calls, func(c probe.Call, _ int) probe.Answer { return call(ctx, task.Token, c) })
		after := gatewayDrops(ctx, task.Gateways)
		say(probe.Line{Result: &probe.Result{Answers: answers, Gateways: grown(before, after)}})
	}
	if task.Bench != nil {
		speed, err := bench(ctx, task.Token, *task.Bench)
		if err != nil {
			return err
		}
		say(probe.Line{Result: &probe.Result{Speed: speed}})
	}
	if task.Kernel != nil {
		say(probe.Line{Result: &probe.Result{Kernel: readKernel(ctx, *task.Kernel)}})
	}
	if task.Serve != nil || task.Watch != nil {
		<-ctx.Done()
	}
	return nil
}

// watch counts packets of this node, and what its rules drop, until what is returned is called.
func watch(ctx context.Context, w probe.Watch) (end func() (*probe.Watched, error), err error) {
	uplinks, err := interfacesOf(w.Addresses)
	if err != nil {
		return nil, err
	}
	before, err := dropped(ctx)
	if err != nil {
		return nil, err
	}
	watcher, err := nat.NewWatcher(nat.Watch{
		Run: w.Run, Remote: w.Remote, Gateways: w.Gateways, Uplinks: uplinks, OverlayGroup: overlay.Group, TunnelPort: tunnel.ListenPort,
	})
	return func() (*probe.Watched, error) {
		counted, err := watcher.Read()
		// The context has ended, by which the probe was told to.
		after, dropErr := dropped(context.WithoutCancel(ctx))
		return &probe.Watched{
			Plain: counted.Plain, ToPeer: counted.ToPeer, FromPeer: counted.FromPeer,
			TunnelOut: counted.TunnelOut, TunnelIn: counted.TunnelIn, Dropped: more(before, after),
		}, errors.Join(err, dropErr, watcher.Close())
	}, err
}

// more is by how much counters have grown.
func more(before, after map[string]uint64) map[string]uint64 {
	grown := lo.PickBy(after, func(name string, n uint64) bool { return n > before[name] })
	return lo.MapValues(grown, func(n uint64, name string) uint64 { return n - before[name] })
}

// dropped are the counters of what this node's rules drop, by their names.
func dropped(ctx context.Context) (map[string]uint64, error) {
	drops, err := nat.Drops(ctx)
	return lo.Associate(drops, func(d nat.Drop) (string, uint64) {
		return strings.TrimSuffix(strings.Join([]string{d.Hook, d.Reason, d.Link}, "/"), "/"), d.Packets
	}), err
}

// interfacesOf are the names of the interfaces that have the addresses.
func interfacesOf(addrs []netip.Addr) (out []string, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, i := range all {
		of, err := addressesOf(i)
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", i.Name, err)
		}
		if lo.Some(of, addrs) {
			out = append(out, i.Name)
		}
	}
	return out, nil
}

// addressesOf are the addresses of an interface.
func addressesOf(i net.Interface) ([]netip.Addr, error) {
	of, err := i.Addrs()
	return lo.FilterMap(of, func(a net.Addr, _ int) (netip.Addr, bool) {
		p, err := netip.ParsePrefix(a.String())
		return p.Addr(), err == nil
	}), err
}

const (
	// scrapeTimeout is how long a gateway may take to show its metrics.
	scrapeTimeout = 2 * time.Second
	// pageSize is how much of an answer by HTTP is read, in bytes.
	pageSize = 1 << 20
)

// drop is a line of a gateway's metrics, see docs/monitoring.md.
var drop = regexp.MustCompile(`(?m)^liqonet_gateway_drops_total\{.*hook="([^"]*)".*reason="([^"]*)".*\} ([0-9.e+]+)$`)

// gatewayDrops reads what gateways say that they have dropped, or why that is not known.
func gatewayDrops(ctx context.Context, gateways []netip.AddrPort) []probe.Gateway {
	return lo.Map(gateways, func(at netip.AddrPort, _ int) probe.Gateway {
		page, err := get(ctx, scrapeTimeout, fmt.Sprintf("http://%s/metrics", at))
		if err != nil {
			return probe.Gateway{Error: "its metrics: " + plainly(err)}
		}
		out := map[string]uint64{}
		for _, m := range drop.FindAllSubmatch(page, -1) {
			n, _ := strconv.ParseFloat(string(m[3]), 64) // what is not a number is none
			out[fmt.Sprintf("%s/%s", m[1], m[2])] += uint64(n)
		}
		return probe.Gateway{Dropped: out}
	})
}

// get asks by HTTP. An answer that does not come within the timeout, or is not 200 OK, is an error.
func get(ctx context.Context, timeout time.Duration, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, pageSize))
}

// grown is by how much the counters have grown.
func grown(before, after []probe.Gateway) []probe.Gateway {
	return lo.ZipBy2(before, after, func(b, a probe.Gateway) probe.Gateway {
		if failed := cmp.Or(a.Error, b.Error); failed != "" {
			return probe.Gateway{Error: failed}
		}
		return probe.Gateway{Dropped: more(b.Dropped, a.Dropped)}
	})
}
