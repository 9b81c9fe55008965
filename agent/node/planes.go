package node

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/samber/lo"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/history"
	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failover"
	"github.com/liqonet/liqonet/pkg/failure"
	form "github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/notify"
)

const (
	// useInterval is how often the kernel is asked whether packets leave through a link. usageTimeout is how long after
	// the last packet the plane still counts as in use.
	useInterval, usageTimeout = 160 * time.Millisecond, 2 * time.Second
	// idleIntervalFactor is the factor for the time between requests while a plane is not in use.
	idleIntervalFactor = 10
	// downInterval is how often a node looks for another plane while one in use is down.
	downInterval = 50 * time.Millisecond
)

// choosePlanes replaces planes in use that do not work. down reports whether a plane in use is down.
func (a *agent) choosePlanes() (changed, down bool) {
	peerings := lo.KeyBy(a.applied.gateways, func(g gateway) string { return g.peering })
	for peering, g := range peerings {
		if g.isOnlyPlane {
			// If planes are added later, packets continue to use this one.
			a.local.planesInUse[peering] = planesInUse{primary: g.plane, all: []int32{g.plane}}
			continue
		}
		c, d := a.choosePlane(peering)
		changed, down = changed || c, down || d
	}
	for peering := range a.local.planesInUse {
		if _, stays := peerings[peering]; !stays {
			a.metrics.DeleteSwitchCounters(peering)
			delete(a.local.planesInUse, peering)
		}
	}
	for _, p := range a.probers {
		if now := a.local.usesPlane(p.gateway.peering, p.gateway.plane); !p.active.Swap(now) && now {
			p.activated.Send()
		}
	}
	return changed, down
}

// choosePlane does the same for one peering.
func (a *agent) choosePlane(peering string) (changed, down bool) {
	gateways := a.applied.want.planesOf(peering)
	if len(gateways) == 0 {
		return false, false
	}
	planes := lo.Map(gateways, func(g gateway, _ int) failover.Plane {
		s := a.probers[g.key()].state()
		return failover.Plane{Index: g.plane, Up: s.Up, Leaving: s.Leaving, Down: s.Down, LossFree: s.LossFree}
	})
	before, known := a.local.planesInUse[peering]
	now := planesInUse{choice: before.choice}
	if now.choice == nil {
		now.choice = &failover.Choice{}
		if known {
			now.choice.SetCurrent(a.local.currentPlanes(peering, gateways).primary)
		}
		a.metrics.StartSwitchCounters(peering)
	}
	if _, spread := a.applied.want.spread[peering]; spread {
		now.primary, now.all = now.choice.NextAll(time.Now(), planes, before.all)
		slices.Sort(now.all)
	} else {
		now.primary = now.choice.Next(time.Now(), planes)
		now.all = []int32{now.primary}
	}
	a.local.planesInUse[peering] = now
	down = slices.ContainsFunc(planes, func(p failover.Plane) bool { return !p.Up && slices.Contains(now.all, p.Index) })
	same := slices.Equal(now.all, before.all)
	if same && now.primary == before.primary {
		return false, down
	}
	if err := a.kernel.ReplaceRoutes(a.applied.want.activeRoutes(peering, now)); err != nil {
		a.Log.Error("cannot change the plane", "peering", peering, "planes", now.all, "error", err)
	} else if known && before.primary != noPlane && !same {
		a.recordSwitch(peering, before.all, now.all, planes)
	}
	return true, down
}

// recordSwitch records a change of the planes in use.
func (a *agent) recordSwitch(peering string, before, now []int32, planes []failover.Plane) {
	reason, why := metrics.Preferred, "packets are sent through all working planes"
	if left := lo.Without(before, now...); len(left) > 0 {
		reason, why = switchReason(left[len(left)-1], planes)
	}
	e := form.Entry{Peering: peering, Subject: "plane in use", From: formatPlanes(before), To: formatPlanes(now)}
	switch {
	case len(now) == 1 && len(before) == 1:
		e.Plane = &now[0]
	case len(now) == 1 && reason == metrics.Preferred:
		why = "packets are sent through one plane"
	}
	e.Reason = why
	a.metrics.Switched(peering, reason)
	a.history.Add(history.Change{Entry: e})
}

// formatPlanes returns a text for people.
func formatPlanes(planes []int32) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(planes), " ", ", "), "[]")
}

// switchReason returns why a plane is no longer used: as a label of a metric, and as a text.
func switchReason(left int32, planes []failover.Plane) (reason, why string) {
	p, known := lo.Find(planes, func(p failover.Plane) bool { return p.Index == left })
	switch {
	case known && !p.Up:
		return metrics.Down, fmt.Sprintf("plane %d is down: no answer for %.1f s", left, p.Down.Seconds())
	case p.Leaving:
		return metrics.Leaving, fmt.Sprintf("the gateway of plane %d is leaving", left)
	}
	return metrics.Preferred, "this plane is preferred, and works again"
}

// trackUsage tells the session of a plane whether packets leave through it, until ctx ends.
func (a *agent) trackUsage(ctx context.Context, p *prober, session *liveness.Session, link string) {
	tick := time.Tick(useInterval)
	var sent, own uint64
	var last time.Time
	for {
		next, size := tick, 0
		switch {
		case !p.active.Load():
			next = nil
		case time.Since(last) < usageTimeout:
			size = int(p.mtu.Load())
		}
		session.SetUsage(size)
		select {
		case <-ctx.Done():
			return
		case <-p.activated:
			continue
		case <-next:
		}
		// The agent's own packets through the link do not count.
		ownBefore, sentBefore := own, sent
		now, err := a.kernel.Traffic(link)
		if err != nil {
			continue // the link will be back
		}
		sent, own = now.SentPackets, session.RequestsSent()+p.probes.RequestsSent()
		if sent-sentBefore > own-ownBefore && sent > sentBefore && sentBefore > 0 {
			last = time.Now()
		}
	}
}

// recordReachability records whether this node reaches its peers, through any plane.
func (a *agent) recordReachability() {
	reached := map[string]bool{}
	for _, p := range a.probers {
		reached[p.gateway.peering] = reached[p.gateway.peering] || p.ready
	}
	for peering, now := range reached {
		if now == a.reachable[peering] {
			continue
		}
		c := history.Change{IsDegradation: !now, Entry: form.Entry{
			Peering: peering, Subject: "peer", From: "not reached", To: "reached", Reason: "probes are answered by the peer's gateway",
		}}
		if !now {
			c.From, c.To, c.Reason = c.To, c.From, fmt.Sprintf("no answer from the peer's gateways for %s", replyTimeout)
		}
		a.history.Add(c)
	}
	a.reachable = reached
}

const (
	// probeInterval is the time between probes to a peer's gateway. Gateways probe each other more often. The probes of
	// every node pass both gateways, and are most of the load of idle gateways.
	probeInterval = 5 * time.Second
	// replyTimeout is the time without an answer after which a peer counts as not reached.
	replyTimeout = probeInterval + 2*time.Second
)

// prober probes one gateway of a peer. If the peering has several planes, it also asks the cluster's own gateway
// frequently whether the plane works.
type prober struct {
	probes *liveness.Prober
	// session lasts until endSession. It is nil if there is no other plane.
	session    *liveness.Session
	endSession context.CancelFunc
	// active is set while the plane is in use, and activated signals that it is in use again. mtu is the maximum size of
	// its packets, in bytes.
	active    atomic.Bool
	activated notify.Signal
	mtu       atomic.Int64
	// probing lasts until cancel.
	probing context.Context
	cancel  context.CancelFunc
	// gateway is the last known state: when it changes, an answer is likely.
	gateway gateway
	// stats and ready are from the last look.
	stats liveness.ProbeStats
	ready bool
}

// state returns whether packets pass through the gateway, and the zero value for a nil prober.
func (p *prober) state() (s liveness.State) {
	switch {
	case p == nil:
	case p.session != nil:
		s = p.session.State()
	default:
		s.Up = p.ready
	}
	return s
}

// Measure reads the measurements. Its interval is shorter than that of probes to a peer that does not answer.
func (a *agent) Measure(ctx context.Context) (changed bool, next time.Duration) {
	next = loop.MeasureInterval
	for _, p := range a.probers {
		before := p.ready
		p.stats = p.probes.Snapshot()
		if p.ready = time.Since(p.stats.LastReply) < replyTimeout; p.ready != before {
			clear(a.machine.paths) // the kernel does not report a route that leads nowhere
		}
		next = min(next, p.stats.Pause*2/3)
	}
	a.recordReachability()
	var peerings v1alpha1.PeeringList
	if err := a.view.List(ctx, &peerings, watch.Shared); err == nil { // otherwise Reconcile reports the error
		a.silent.update(peerings.Items, a.reachable)
	}
	changed, down := a.choosePlanes()
	if down {
		next = min(next, downInterval)
	}
	return changed, next
}

// updateProbers starts one prober for each gateway that has a link, and stops the others.
func (a *agent) updateProbers(ctx context.Context, gateways []gateway) {
	linked := lo.Filter(gateways, func(g gateway, _ int) bool { return g.pod.IsValid() })
	wanted := lo.KeyBy(linked, gateway.key)
	for key, p := range a.probers {
		switch g, stays := wanted[key]; {
		case !stays:
			a.metrics.DeleteProbes(key.peering, key.plane)
			fallthrough
		case g.remote != p.gateway.remote:
			p.cancel()
			delete(a.probers, key)
		}
	}
	for key, g := range wanted {
		p := a.probers[key]
		if p == nil {
			p = &prober{activated: notify.NewSignal()}
			p.probes = liveness.NewProber(a.local.address, netip.AddrPortFrom(g.remote, liveness.Port), probeInterval)
			p.probing, p.cancel = context.WithCancel(ctx)
			a.probers[key] = p
			p.probes.Answered, p.probes.Lost = a.metrics.Probes(g.peering, g.plane)
			go p.probes.Run(p.probing)
		}
		switch {
		case g.isOnlyPlane && p.session != nil: // the peering has lost its other planes
			p.endSession()
			p.session = nil
		case !g.isOnlyPlane && p.session == nil:
			a.startSession(p, g)
		}
		p.mtu.Store(int64(g.mtu))
		if p.gateway != g {
			p.gateway = g
			p.probes.ExpectReply()
		}
	}
}

// startSession makes a node ask its own gateway frequently whether a plane works.
func (a *agent) startSession(p *prober, g gateway) {
	var ctx context.Context
	ctx, p.endSession = context.WithCancel(p.probing)
	p.session = liveness.New(a.local.address, netip.AddrPortFrom(g.address, liveness.Port), idleIntervalFactor, a.wake)
	p.session.Assumed = p.ready
	p.session.Received = func() (uint64, error) { return a.kernel.Received(g.link) }
	go p.session.Run(ctx)
	go a.trackUsage(ctx, p, p.session, g.link)
}

// gatewaySilence is how long a gateway may not renew its Lease before it counts as dead. Each node waits a random
// time of up to that long before its first check. The first node that finds dead gateways reports them for all.
const gatewaySilence = 3 * v1alpha1.ReportInterval

// silentGateways sets a Peering's conditions to Unknown if all of its gateways are dead. Dead gateways cannot do so
// themselves, and clients that wait would trust their last report.
type silentGateways struct {
	client client.Client
	log    *slog.Logger
	// suspects are the peerings that this node does not reach although their condition is Connected.
	suspects atomic.Pointer[[]v1alpha1.Peering]
}

// update sets the suspects. reached contains the peerings that this node reaches. It does not wait for an API
// server.
func (s *silentGateways) update(peerings []v1alpha1.Peering, reached map[string]bool) {
	s.suspects.Store(new(lo.Filter(peerings, func(p v1alpha1.Peering, _ int) bool {
		isReached, known := reached[p.Name]
		return known && !isReached && meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionConnected)
	})))
}

// run checks the suspects until ctx ends.
func (s *silentGateways) run(ctx context.Context) {
	var before map[string][]string
	for pause := rand.N(gatewaySilence); failure.Pause(ctx, pause); pause = gatewaySilence {
		before = s.check(ctx, before)
	}
}

// check returns the resource versions of the Leases of all suspects' gateways, by peering. If none of a peering has
// changed since the last check, it marks the peering. Later checks retry failures.
func (s *silentGateways) check(ctx context.Context, before map[string][]string) map[string][]string {
	ctx, cancel := context.WithTimeout(ctx, gatewaySilence)
	defer cancel()
	now := map[string][]string{}
	for _, p := range ptr.Deref(s.suspects.Load(), nil) {
		leases, err := s.readLeases(ctx, p)
		if err == nil {
			now[p.Name] = leases
			if before[p.Name] != nil && slices.Equal(before[p.Name], leases) { // otherwise a gateway is alive, and writes them itself
				err = s.markUnknown(ctx, p.DeepCopy())
			}
		}
		if err != nil {
			s.log.Debug("cannot find out whether gateways are dead", "peering", p.Name, "error", err)
		}
	}
	return now
}

// readLeases returns the resource versions of the Leases of a Peering's gateways, empty for missing ones.
func (s *silentGateways) readLeases(ctx context.Context, p v1alpha1.Peering) ([]string, error) {
	return lo.MapErr(p.Spec.Planes, func(plane v1alpha1.Plane, _ int) (string, error) {
		var l coordinationv1.Lease
		err := s.client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: v1alpha1.GatewayName(p.Name, plane.Index)}, &l)
		return l.ResourceVersion, client.IgnoreNotFound(err)
	})
}

// markUnknown writes the conditions unless the Peering has changed since it was read. The agents' admission policy
// allows only these texts, each only once, by a field manager that all node agents share.
func (s *silentGateways) markUnknown(ctx context.Context, p *v1alpha1.Peering) error {
	patch := client.MergeFromWithOptions(p.DeepCopy(), client.MergeFromWithOptimisticLock{})
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		if c.Status == metav1.ConditionUnknown && c.Reason == v1alpha1.ReasonGatewaysSilent {
			continue
		}
		c.Status, c.LastTransitionTime = metav1.ConditionUnknown, metav1.Now()
		c.Reason, c.Message = v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageGatewaysSilent
	}
	return s.client.Status().Patch(ctx, p, patch, client.FieldOwner(v1alpha1.NodeAgentName))
}
