package gateway

import (
	"context"
	"net/netip"
	"sync/atomic"

	"k8s.io/client-go/rest"

	"github.com/liqonet/liqonet/agent/feed"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/metrics"
)

// servicesFeed exchanges services with the peer, if the Peering says so.
type servicesFeed struct {
	rest *rest.Config
	feed *feed.Feed
	// context is that of the connection to the peer for which the feed was started.
	context context.Context
	// shown is what metrics read.
	shown *atomic.Pointer[feed.Feed]
}

// update starts the exchange, tells it what has changed, or ends it.
func (s *servicesFeed) update(a *agent, p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork) {
	if p.Spec.Services == nil || a.peer.context == nil {
		s.stop(p.Spec.Services == nil)
		return
	}
	state := feed.State{Peering: p, Nodes: map[netip.Addr]bool{}, Records: a.conditions.writes}
	for _, n := range nodes {
		for _, ip := range n.Status.NodeIPs {
			state.Nodes[ip.Addr] = true
		}
	}
	if s.context != a.peer.context {
		s.stop(false)
	}
	if s.feed != nil {
		s.feed.Set(state)
		return
	}
	s.context = a.peer.context
	s.feed = feed.Start(s.context, feed.Config{
		Client: a.view.Client, Rest: s.rest, Log: a.cfg.Log, Peering: a.cfg.Peering,
		Local: a.applied.desired.address, Remote: a.applied.desired.remote, IsInitiator: a.applied.desired.isInitiator,
	}, state)
	s.shown.Store(s.feed)
}

// stop ends the exchange. If leaves is set, the peer learns that this cluster has no services any more.
func (s *servicesFeed) stop(leaves bool) {
	if s.feed != nil {
		s.feed.Stop(leaves)
		s.feed, s.context = nil, nil
		s.shown.Store(nil)
	}
}

// servicesShown returns what metrics show of an exchange, nil without one.
func servicesShown(f *feed.Feed) *metrics.Services {
	if f == nil {
		return nil
	}
	s := f.Stats()
	return &metrics.Services{Told: s.Told, Received: s.Received, Synced: s.Synced, Refused: s.Refused}
}
