package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// watching counts packets of this node, and what its rules drop.
type watching struct {
	watcher *nat.Watcher
	before  map[string]uint64
}

func watch(ctx context.Context, w probe.Watch) (*watching, error) {
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
	return &watching{watcher, before}, err
}

// end is what was counted.
func (w *watching) end() (*probe.Watched, error) {
	counted, err := w.watcher.Read()
	// The context has ended, by which the probe was told to.
	after, dropErr := dropped(context.Background())
	out := probe.Watched{
		Plain: counted.Plain, ToPeer: counted.ToPeer, FromPeer: counted.FromPeer, TunnelOut: counted.TunnelOut, TunnelIn: counted.TunnelIn,
	}
	out.Dropped = more(w.before, after)
	return &out, errors.Join(err, dropErr, w.watcher.Close())
}

// more is by how much counters have grown.
func more(before, after map[string]uint64) map[string]uint64 {
	out := map[string]uint64{}
	for name, n := range after {
		if n > before[name] {
			out[name] = n - before[name]
		}
	}
	return out
}

// dropped are the counters of what this node's rules drop, by their names.
func dropped(ctx context.Context) (map[string]uint64, error) {
	drops, err := nat.Drops(ctx)
	out := map[string]uint64{}
	for _, d := range drops {
		out[strings.TrimSuffix(strings.Join([]string{d.Hook, d.Reason, d.Link}, "/"), "/")] = d.Packets
	}
	return out, err
}

// interfacesOf are the names of the interfaces that have the addresses.
func interfacesOf(addrs []netip.Addr) (out []string, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, i := range all {
		of, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", i.Name, err)
		}
		if slices.ContainsFunc(of, func(a net.Addr) bool {
			p, err := netip.ParsePrefix(a.String())
			return err == nil && slices.Contains(addrs, p.Addr())
		}) {
			out = append(out, i.Name)
		}
	}
	return out, nil
}
