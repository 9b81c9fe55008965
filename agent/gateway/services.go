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
	// state is what the feed knows.
	state feed.State
	// context is that of the connection to the peer for which the feed was started.
	context context.Context
	// shown is what metrics read.
	shown *atomic.Pointer[feed.Feed]
}

// update starts the exchange, tells it what has changed, or ends it.
func (s *servicesFeed) update(a *agent, p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork) {
	if p.Spec.Services == nil || a.peer.context == nil {
		s.stop(false)
		return
	}
	s.state = feed.State{Peering: p, Nodes: map[netip.Addr]bool{}, Records: a.conditions.writes}
	for _, n := range nodes {
		for _, ip := range n.Status.NodeIPs {
			s.state.Nodes[ip.Addr] = true
		}
	}
	if s.context != a.peer.context {
		s.stop(false)
	}
	if s.feed != nil {
		s.feed.Set(s.state)
		return
	}
	if !a.applied.desired.remote.IsValid() {
		return
	}
	s.context = a.peer.context
	s.feed = feed.Start(s.context, feed.Config{
		Client: a.view.Client, Rest: s.rest, Log: a.cfg.Log, Peering: a.cfg.Peering,
		Local: a.applied.desired.address, Remote: a.applied.desired.remote, IsInitiator: a.applied.desired.isInitiator,
	}, s.state)
	s.shown.Store(s.feed)
}

// record says whether this gateway records what the peer tells.
func (s *servicesFeed) record(records bool) {
	if s.feed != nil && s.state.Records != records {
		s.state.Records = records
		s.feed.Set(s.state)
	}
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
