package diagnose

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/verify"
)

// benchTime is the duration of each measurement in milliseconds.
const benchTime = 1500

// speeds measures both directions one after the other, each from pod to pod, and from node to node without the tunnel.
func speeds(ctx context.Context, a, b *verified) (out []verify.Speed, err error) {
	for i, pair := range [][2]*verified{{a, b}, {b, a}} {
		from, to := pair[0], pair[1]
		source, target := from.benchNode(), to.benchNode()
		if source == nil || target == nil {
			from.Notes = append(from.Notes, "the speed is not measured, as a pod for it is missing")
			continue
		}
		known, _ := to.Known.Translate(target.Pod)
		tunnel, err := from.measure(ctx, fmt.Sprintf("bench-pod-%d", i), source.Name, false, netip.AddrPortFrom(known, verify.PodPort))
		if err != nil {
			return nil, err
		}
		var bare *probe.Speed
		if at := to.bareAddress(target, from); at.IsValid() {
			if bare, err = from.measure(ctx, fmt.Sprintf("bench-node-%d", i), source.Name, true, at); err != nil {
				return nil, err
			}
		}
		out = append(out, verify.Speeds(source.Name, target.Name, tunnel, bare)...)
	}
	return out, nil
}

// benchNode returns the last of a side's nodes with an answering pod, nil if there is none. It prefers a node without a gateway, as these
// are last.
func (s *verified) benchNode() *verify.Node {
	n, _, _ := lo.FindLastIndexOf(kube.Pointers(s.Nodes), func(n *verify.Node) bool { return n.Pod.IsValid() })
	return n
}

// bareAddress returns the address at which a node answers without the tunnel, invalid if there is none.
func (s *verified) bareAddress(n *verify.Node, from *verified) netip.AddrPort {
	addr, _ := lo.Find(n.Addresses, func(a netip.Addr) bool { return n.HostError == nil && !from.RoutesToPeer(a) })
	return netip.AddrPortFrom(addr, verify.NodePort)
}

// measure runs one probe that measures the speed, and returns nil if the probe fails.
func (s *verified) measure(ctx context.Context, name, node string, host bool, to netip.AddrPort) (*probe.Speed, error) {
	p := &Probe{Name: name, Node: node, Host: host, Task: probe.Task{Token: s.token, Bench: &probe.Bench{To: to, Milliseconds: benchTime}}}
	if err := s.probes.toEnd(ctx, p); err != nil {
		return nil, err
	}
	if p.Err != nil {
		s.Notes = append(s.Notes, fmt.Sprintf("%s: the speed from node %s to %s is not measured: %v", s.Cluster, node, to, p.Err))
	}
	return p.Result.Speed, nil
}
