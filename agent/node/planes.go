package node

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/agent/history"
	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failover"
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
	var sent sentPackets
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
		now, err := a.kernel.Traffic(link)
		if err != nil {
			continue // the link will be back
		}
		if sent.others(now.SentPackets, session.RequestsSent()+p.probes.RequestsSent()+p.sentTCP.Load()) {
			last = time.Now()
		}
	}
}

// sentPackets are the packets sent through a link at the last look: all of them, and those of the agent itself.
type sentPackets struct{ all, own uint64 }

// others reports whether others than the agent have sent packets since the last look.
func (s *sentPackets) others(all, own uint64) bool {
	before := *s
	s.all, s.own = all, own
	return before.all > 0 && all > before.all && all-before.all > own-before.own
}

// recordReachability records whether this node reaches its peers, through any plane. It tells their gateways through
// which ones, except for those of which it does not know that yet.
func (a *agent) recordReachability() {
	reached, isNew := map[string]uint8{}, map[string]bool{}
	for _, g := range a.applied.want.gateways {
		reached[g.peering] = 0 // a gateway that has not reported its address or MTU has no prober
	}
	for _, p := range a.probers {
		of := p.gateway.peering
		reached[of] |= lo.Ternary[uint8](p.ready, 1<<p.gateway.plane, 0)
		isNew[of] = isNew[of] || !p.ready && time.Since(p.started) < replyTimeout
	}
	for _, p := range a.probers {
		if of := p.gateway.peering; p.session != nil && !isNew[of] {
			p.session.SetReached(liveness.ReachKnown | reached[of])
		}
	}
	for peering, planes := range reached {
		now := planes != 0
		if now == (a.reachable[peering] != 0) {
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
	// replyTimeout is the time without an answer after which a peer counts as not reached. A gateway that ends leaves
	// sooner.
	replyTimeout = probeInterval + 2*time.Second
	// onlyPlaneIntervalFactor is like idleIntervalFactor if there is no other plane. Then requests only tell the gateway
	// that this node is alive, and whether it reaches the peer.
	onlyPlaneIntervalFactor = 100
)

// prober probes one gateway of a peer. It also asks the cluster's own gateway whether the plane works, frequently if
// the peering has several planes.
type prober struct {
	probes  *liveness.Prober
	started time.Time
	// session lasts until endSession. isOnlyPlane is set if it began while there was no other plane.
	session     *liveness.Session
	endSession  context.CancelFunc
	isOnlyPlane bool
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
	// heardAt is when something was last heard of the cluster's own gateway, and received the number of packets from it at
	// the last look by receivedPackets.
	heardAt         time.Time
	received        uint64
	receivedPackets func() (uint64, error)
	// stats and ready are from the last look. usableAt is when the session last found that packets of all sizes pass and
	// the plane is not about to end.
	stats    liveness.ProbeStats
	ready    bool
	usableAt time.Time
	// failedTCP is the number of attempts by TCP in a row that failed, and sentTCP the number of packets of all attempts.
	failedTCP atomic.Int32
	sentTCP   atomic.Uint64
}

// state returns whether packets pass through the gateway, and the zero value for a nil prober.
func (p *prober) state() (s liveness.State) {
	switch {
	case p == nil:
	case p.session != nil && !p.isOnlyPlane:
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
		if s := p.state(); p.session == nil || p.isOnlyPlane || s.Up && !s.Leaving {
			p.usableAt = time.Now()
		}
		p.ready = time.Since(p.stats.LastReply) < replyTimeout && time.Since(p.usableAt) < replyTimeout
		if p.ready != before {
			clear(a.machine.paths) // the kernel does not report a route that leads nowhere
			p.failedTCP.Store(0)
		}
		next = min(next, p.stats.Pause*2/3)
	}
	a.recordReachability()
	a.machine.recent.publish()
	isLost := a.updateLost()
	var peerings v1alpha1.PeeringList
	if err := a.view.List(ctx, &peerings, watch.Shared); err == nil { // otherwise Reconcile reports the error
		a.silence.Update(peerings.Items, a.reachable)
	}
	changed, down := a.choosePlanes()
	if down {
		next = min(next, downInterval)
	}
	return changed || isLost, next
}

// updateLost finds out which gateways are lost, and reports whether that has changed.
func (a *agent) updateLost() (changed bool) {
	var unheard []planeKey
	for key, p := range a.probers {
		if p.ready || p.state().Up {
			p.heardAt = time.Now()
		}
		if p.receivedPackets == nil || time.Since(p.heardAt) <= unheardTimeout {
			continue
		}
		// Others may still be answered.
		if received, err := p.receivedPackets(); err == nil && received != p.received {
			p.received, p.heardAt = received, time.Now()
			continue
		}
		unheard = append(unheard, key)
	}
	lost := a.machine.lost.update(unheard)
	if maps.Equal(lost, a.local.lost) {
		return false
	}
	a.local.lost = lost
	return true
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
			p = &prober{activated: notify.NewSignal(), started: time.Now(), usableAt: time.Now(), heardAt: time.Now()}
			p.receivedPackets = func() (uint64, error) { return a.kernel.Received(g.link) }
			p.probes = liveness.NewProber(a.local.address, netip.AddrPortFrom(g.remote, liveness.Port), probeInterval)
			p.probing, p.cancel = context.WithCancel(ctx)
			a.probers[key] = p
			p.probes.Answered, p.probes.Lost = a.metrics.Probes(g.peering, g.plane)
			go p.probes.Run(p.probing)
			go p.tryTCP(p.probing, a.local.address, g.address)
		}
		if p.session != nil && p.isOnlyPlane != g.isOnlyPlane {
			p.endSession()
			p.session = nil
		}
		if p.session == nil {
			a.startSession(p, g)
		}
		p.mtu.Store(int64(g.mtu))
		if p.gateway != g {
			if p.gateway.pod != g.pod {
				p.heardAt = time.Now() // another pod
			}
			p.gateway = g
			p.probes.ExpectReply()
		}
	}
}

// startSession makes a node ask its own gateway whether a plane works.
func (a *agent) startSession(p *prober, g gateway) {
	var ctx context.Context
	ctx, p.endSession = context.WithCancel(p.probing)
	p.isOnlyPlane = g.isOnlyPlane
	factor := lo.Ternary(g.isOnlyPlane, onlyPlaneIntervalFactor, idleIntervalFactor)
	p.session = liveness.New(a.local.address, netip.AddrPortFrom(g.address, liveness.Port), factor, a.wake)
	p.session.Assumed = p.ready
	if !g.isOnlyPlane {
		p.session.Received = func() (uint64, error) { return a.kernel.Received(g.link) }
		go a.trackUsage(ctx, p, p.session, g.link)
	}
	go p.session.Run(ctx)
}
