package node

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync/atomic"

	"github.com/samber/lo"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/heartbeat"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/notify"
)

// unheardTimeout is how long a node hears nothing of a gateway before it looks whether others do. If the gateway does
// not renew its Lease either, for the time between two looks, it counts as lost.
const unheardTimeout = heartbeat.Timeout

// lostGateways finds gateways that nobody hears. Another pod may get a lost gateway's address, and would get the
// packets to the peer, which are not encrypted yet. So nodes stop sending there.
type lostGateways struct {
	client client.Client
	log    *slog.Logger
	// changed signals that other gateways are lost.
	changed notify.Signal
	// unheard are the planes whose gateway this node does not hear, and lost those of them whose Lease is not renewed.
	unheard atomic.Pointer[[]planeKey]
	lost    atomic.Pointer[map[planeKey]bool]
}

// update sets what this node does not hear, and returns which of that is lost. It does not wait for an API server.
func (l *lostGateways) update(unheard []planeKey) map[planeKey]bool {
	l.unheard.Store(&unheard)
	return lo.PickByKeys(ptr.Deref(l.lost.Load(), nil), unheard)
}

// run looks at the Leases until ctx ends. Nodes do not do so at the same time.
func (l *lostGateways) run(ctx context.Context) {
	before := map[planeKey]string{}
	for pause := rand.N(heartbeat.Timeout); failure.Pause(ctx, pause); pause = heartbeat.Timeout {
		before = l.check(ctx, before)
	}
}

// check returns when the Leases were renewed. If one cannot be read, what was known of the gateway stays.
func (l *lostGateways) check(ctx context.Context, before map[planeKey]string) map[planeKey]string {
	ctx, cancel := context.WithTimeout(ctx, heartbeat.Timeout)
	defer cancel()
	known, lost, now := ptr.Deref(l.lost.Load(), nil), map[planeKey]bool{}, map[planeKey]string{}
	for _, key := range ptr.Deref(l.unheard.Load(), nil) {
		var lease coordinationv1.Lease
		err := l.client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: v1alpha1.GatewayName(key.peering, key.plane)}, &lease)
		renewed, wasRead := before[key]
		switch {
		case client.IgnoreNotFound(err) != nil:
			if known[key] {
				lost[key] = true
			}
			if wasRead {
				now[key] = renewed
			}
			continue
		case wasRead && renewed == heartbeat.Renewal(&lease):
			lost[key] = true
		}
		now[key] = heartbeat.Renewal(&lease)
	}
	if !maps.Equal(known, lost) {
		for key := range lost {
			if !known[key] {
				l.log.Warn("nothing is heard of a gateway: packets to the peer are not sent to it", "peering", key.peering, "plane", key.plane)
			}
		}
		l.lost.Store(&lost)
		l.changed.Send()
	}
	return now
}
