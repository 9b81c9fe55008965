// Package feed is the part of a gateway that exchanges services with the peer's gateway, through the tunnel. It tells the
// services that the controller has exported, translated to the addresses by which the peer reaches their endpoints, and
// records what the peer tells as ReceivedServices.
//
// It is the only part that reads the peer's bytes, and it writes nothing but ReceivedServices of its own Peering. The
// controller (agent/services) turns these into Services.
package feed

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"github.com/samber/lo"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/exchange"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/services/feed"
	"github.com/liqonet/liqonet/pkg/wire"
)

// Config is what does not change while a Feed runs.
type Config struct {
	Client client.Client
	Rest   *rest.Config
	Log    *slog.Logger
	// Peering is the Peering's name.
	Peering string
	// Local is this gateway's overlay address, and Remote the address by which this cluster knows the peer's gateway. If
	// IsInitiator is set, this side opens the connection.
	Local, Remote netip.Addr
	IsInitiator   bool
}

// State is what a gateway knows, and what the exchange depends on.
type State struct {
	Peering *v1alpha1.Peering
	// Nodes are the addresses of this cluster's nodes, which no peer learns.
	Nodes map[netip.Addr]bool
	// Records is set if this gateway records what the peer tells. One gateway of a peering does.
	Records bool
}

// Stats are numbers of services.
type Stats struct {
	// Told are the services that the peer may learn, and Received those that it has told.
	Told, Received int
	// Refused are services and endpoints of the peer that are not used, by reason, since the gateway started.
	Refused map[string]int
	// Synced is set if this gateway has everything that the peer tells.
	Synced bool
}

// Feed is one side of the exchange.
type Feed struct {
	cfg  Config
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	state   State
	changed notify.Signal
	told    told
	store   *store
	// session is the connection in use, nil without one. receiver is nil unless this gateway records.
	session  *session
	receiver *feed.Receiver
	left     chan struct{}
}

// byeTimeout is how long a Feed that ends tries to tell the peer.
const byeTimeout = time.Second

// Start starts a Feed, which runs until Stop.
func Start(ctx context.Context, cfg Config, s State) *Feed {
	f := &Feed{cfg: cfg, done: make(chan struct{}), changed: notify.NewSignal(), left: make(chan struct{}), state: s}
	ctx, f.stop = context.WithCancel(ctx)
	go func() {
		defer close(f.done)
		loop.RunForever(ctx, cfg.Log, "exchange services with the peer", f.run)
	}()
	return f
}

// Set says what the gateway knows now.
func (f *Feed) Set(s State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was, is := f.state.Peering, s.Peering
	if was.UID != is.UID || was.Generation != is.Generation || f.state.Records != s.Records || !reflect.DeepEqual(f.state.Nodes, s.Nodes) {
		f.state = s
		f.changed.Send()
	}
}

// Stop ends the exchange. If leaves is set, it tells the peer before that it has no services any more.
func (f *Feed) Stop(leaves bool) {
	if leaves && f.leave() {
		select {
		case <-f.left:
		case <-time.After(byeTimeout):
		}
	}
	f.stop()
	<-f.done
}

// leave makes the present session tell the peer, and reports whether there is one.
func (f *Feed) leave() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.session == nil {
		return false
	}
	f.session.sender.Leave()
	f.session.wake.Send()
	return true
}

// Stats returns the current numbers.
func (f *Feed) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Stats{Told: len(f.told.services)}
	if f.store != nil {
		s.Received, s.Refused = f.store.numbers()
	}
	s.Synced = f.receiver != nil && f.receiver.IsSynced()
	return s
}

// run watches this cluster's objects, and connects to the peer's gateway.
func (f *Feed) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	own := labels.SelectorFromSet(labels.Set{v1alpha1.LabelPeering: f.cfg.Peering})
	view, err := watch.Start(ctx, f.cfg.Client, f.cfg.Rest, map[client.Object]cache.ByObject{
		&v1alpha1.ExportedService{}: {}, &v1alpha1.ReceivedService{}: {Label: own},
	}, func(client.Object) {})
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.told = newTold()
	f.store = newStore(f.cfg)
	f.receiver = nil
	f.mu.Unlock()
	f.refresh(ctx, view)
	go f.store.write(ctx, f.changed)
	go f.follow(ctx, view)
	connection := exchange.Connector{
		Local: f.cfg.Local, Remote: f.cfg.Remote, Port: wire.ServicesPort, IsInitiator: f.cfg.IsInitiator, Use: f.use,
	}
	loop.RunForever(ctx, f.cfg.Log, "connect to the peer's gateway for services", connection.Connect)
	return ctx.Err()
}

// refreshGap is the minimum time between two looks at all objects: changes come in bursts.
const refreshGap = 50 * time.Millisecond

// follow follows this cluster's objects, and what the gateway knows.
func (f *Feed) follow(ctx context.Context, view *watch.View) {
	for {
		var recheck <-chan time.Time
		if f.store.isSettling() {
			recheck = time.After(settle)
		}
		select {
		case <-ctx.Done():
			return
		case <-view.Changed:
		case <-f.changed:
		case <-recheck:
		}
		f.refresh(ctx, view)
		select {
		case <-ctx.Done():
			return
		case <-time.After(refreshGap):
		}
	}
}

// refresh updates what is told, and what is recorded.
func (f *Feed) refresh(ctx context.Context, view *watch.View) {
	var exported v1alpha1.ExportedServiceList
	var received v1alpha1.ReceivedServiceList
	// Lists from the cache fail only if it does not have the kind.
	_ = view.List(ctx, &exported, watch.Shared)
	_ = view.List(ctx, &received, watch.Shared)
	there := byKey(f.cfg.Peering, received.Items)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told.update(f.cfg.Log, exported.Items, f.state) && f.session != nil {
		f.session.sender.Update(f.told.services)
		f.session.wake.Send()
	}
	switch {
	case !f.state.Records && f.receiver != nil:
		f.receiver = nil
		f.store.clear()
		f.ask(&feed.Message{Type: feed.TypeStop})
	case f.state.Records && f.receiver == nil:
		f.store.begin(f.state.Peering, there)
		f.receiver = feed.NewReceiver(lo.MapValues(there, func(r *v1alpha1.ReceivedService, _ string) string { return r.Spec.Hash }))
		f.ask(f.receiver.Have(time.Now())...)
	}
	if f.receiver == nil {
		return
	}
	f.store.setPeering(f.state.Peering)
	for _, lost := range f.store.compare(there, f.receiver.Held(), f.receiver.IsSynced()) {
		f.receiver.Forget(lost)
	}
}

// ask sends messages to the peer, if there is a session.
func (f *Feed) ask(messages ...*feed.Message) {
	if f.session != nil {
		f.session.queue = append(f.session.queue, messages...)
		f.session.wake.Send()
	}
}

// use uses a connection until it ends.
func (f *Feed) use(ctx context.Context, conn net.Conn) error {
	f.mu.Lock()
	s := &session{conn: conn, wake: notify.NewSignal(), sender: feed.NewSender(f.told.services)}
	f.session = s
	s.queue = []*feed.Message{{Type: feed.TypeHello, Versions: []int{1}}}
	if f.receiver != nil {
		s.queue = append(s.queue, f.receiver.Have(time.Now())...)
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.session == s {
			f.session = nil
		}
	}()
	return s.run(ctx, f)
}
