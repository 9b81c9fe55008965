package probe

import (
	"cmp"
	"context"
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

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// watch counts packets of this node and the drops of its rules, until the caller calls end.
func watch(w probe.Watch) (end func() (*probe.Watched, error), err error) {
	uplinks, linksErr := interfacesOf(w.Addresses)
	before, err := dropped()
	if err := cmp.Or(linksErr, err); err != nil {
		return nil, err
	}
	watcher, err := nat.NewWatcher(nat.Watch{
		Run: w.Run, Remote: w.Remote, Gateways: w.Gateways, Uplinks: uplinks, OverlayGroup: overlay.Group, TunnelPort: tunnel.ListenPort,
	})
	return func() (*probe.Watched, error) {
		counted, err := watcher.Read()
		after, dropErr := dropped()
		return &probe.Watched{
			Plain: counted.Plain, ToPeer: counted.ToPeer, FromPeer: counted.FromPeer,
			TunnelOut: counted.TunnelOut, TunnelIn: counted.TunnelIn, Dropped: increases(before, after),
		}, errors.Join(err, dropErr, watcher.Close())
	}, err
}

// increases returns by how much counters have increased.
func increases(before, after map[string]uint64) map[string]uint64 {
	grown := lo.PickBy(after, func(name string, n uint64) bool { return n > before[name] })
	return lo.MapValues(grown, func(n uint64, name string) uint64 { return n - before[name] })
}

// dropped returns the drop counters of this node's rules, by their names.
func dropped() (map[string]uint64, error) {
	drops, err := nat.Drops()
	return lo.Associate(drops, func(d nat.Drop) (string, uint64) {
		return strings.TrimSuffix(strings.Join([]string{d.Hook, d.Reason, d.Link}, "/"), "/"), d.Packets
	}), err
}

// interfacesOf returns the names of the interfaces that have any of the addresses.
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

// addressesOf returns the addresses of an interface.
func addressesOf(i net.Interface) ([]netip.Addr, error) {
	of, err := i.Addrs()
	return lo.FilterMap(of, func(a net.Addr, _ int) (netip.Addr, bool) {
		p, err := netip.ParsePrefix(a.String())
		return p.Addr(), err == nil
	}), err
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

// gatewayIncreases returns by how much the gateways' counters have increased.
func gatewayIncreases(before, after []probe.Gateway) []probe.Gateway {
	return lo.ZipBy2(before, after, func(b, a probe.Gateway) probe.Gateway {
		if failed := cmp.Or(a.Error, b.Error); failed != "" {
			return probe.Gateway{Error: failed}
		}
		return probe.Gateway{Dropped: increases(b.Dropped, a.Dropped)}
	})
}
