// Package gateway is the agent in a gateway pod: one end of one tunnel to one peer. It watches its Peering and the
// nodes' reports, computes the desired state of its network namespace (desire, which is pure), and applies the
// difference. It reports its measurements in the Peering's status.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/heartbeat"
	"github.com/liqonet/liqonet/agent/logs"
	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/exchange"
	"github.com/liqonet/liqonet/pkg/firewall"
	"github.com/liqonet/liqonet/pkg/liveness"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/version"
)

// Config is the configuration that the pod gives to its agent.
type Config struct {
	// Peering is the Peering's name, and Plane the plane's index.
	Peering string
	Plane   int
	// KeyDir contains a file with the private key (pkg/manifests).
	KeyDir string
	// PresharedKey is a file with the tunnel's pre-shared key, empty if it has none.
	PresharedKey string
	// OverlayKeys is a directory with the gateway's keys for its links to nodes.
	OverlayKeys string
	// PodIPs, PodName and NodeName identify where the agent runs. A pod has one address of each family that its cluster
	// has.
	PodIPs            []netip.Addr
	PodName, NodeName string
	// clusterID is the ID of the gateway's cluster.
	clusterID string
	Log       *slog.Logger
	// Level is the level of Log.
	Level *logs.Level
}

// Run runs the agent. It returns when ctx ends, or with an error that a restart may fix.
func Run(ctx context.Context, cfg Config) error {
	cfg.Log.Info("this gateway starts", "version", version.String(), "peering", cfg.Peering, "plane", cfg.Plane, "node", cfg.NodeName, "pod", cfg.PodName)
	resolveOverTCP(net.DefaultResolver)
	own, localErr := readLocal(cfg)
	c, rest, clientErr := watch.Client()
	if err := cmp.Or(localErr, clientErr); err != nil {
		return err
	}
	health := &loop.Health{}
	go loop.Serve(ctx, cfg.Log, "serve health checks", netip.AddrPortFrom(cfg.PodIPs[0], v1alpha1.HealthPort), health)
	meter := metrics.New(metrics.Gateway, version.String())
	go loop.Serve(ctx, cfg.Log, "serve metrics", netip.AddrPortFrom(metricsIP(cfg.PodIPs), v1alpha1.MetricsPort), meter.Handler())
	view, err := startView(ctx, &cfg, c, rest)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	kernel, err := overlay.New()
	if err != nil {
		return err
	}
	defer kernel.Close()
	if own.underlay, own.underlayMTU, err = kernel.LinkByAddress(cfg.PodIPs[0]); err != nil {
		return err
	}
	a := &agent{
		cfg: cfg, view: view, kernel: kernel, local: own, dialer: dialer{endpoints: newEndpoints()}, shown: published{metrics: meter},
		livenessServer: newLivenessServer(cfg.Log), recorder: newRecorder(cfg, c), services: servicesFeed{rest: rest},
		conditions: conditions{started: time.Now(), others: heartbeat.Observer{Client: c, Peering: cfg.Peering, Own: int32(cfg.Plane)}},
		lease: loop.Lease{
			Client: c, Name: v1alpha1.GatewayName(cfg.Peering, int32(cfg.Plane)), Holder: cfg.PodName, Manager: v1alpha1.GatewayManager(cfg.Plane),
		},
	}
	a.services.shown = &a.shown.services
	meter.SetSource(func() (metrics.Snapshot, error) { return a.shown.read(kernel) })
	defer meter.SetSource(nil)
	// Forward packets until nothing is sent through this gateway.
	signalled := ctx
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	defer a.recorder.record.Start(ctx)()
	defer end()
	defer context.AfterFunc(signalled, func() {
		a.livenessServer.drain()
		end()
	})()
	go a.livenessServer.run(ctx)
	w := writer{client: c, peering: cfg.Peering, plane: cfg.Plane, podIPs: cfg.PodIPs, leaving: a.livenessServer.isLeaving}
	err = a.loop(ctx, health, w)
	if signalled.Err() != nil {
		a.recorder.leave()
	}
	a.device.close(cfg.Log)
	return errors.Join(err, a.reportDrained(w))
}

// startView starts to watch the objects on which the gateway's state depends, and reads the cluster's ID.
func startView(ctx context.Context, cfg *Config, c client.Client, cfgRest *rest.Config) (*watch.View, error) {
	service := watch.ByName(v1alpha1.GatewayServiceName(cfg.Peering))
	view, err := watch.Start(ctx, c, cfgRest, map[client.Object]cache.ByObject{
		&v1alpha1.Peering{}: {Field: watch.ByName(cfg.Peering)}, &v1alpha1.NodeNetwork{}: {},
		// Only that one Service may be read.
		&corev1.Service{}: {Field: service, Namespaces: map[string]cache.Config{v1alpha1.Namespace: {}}},
	}, cfg.strip)
	if err != nil {
		return nil, err
	}
	return view, loop.Retry(ctx, cfg.Log, func(ctx context.Context) (err error) {
		cfg.clusterID, err = watch.ClusterID(ctx, c)
		return err
	})
}

// loop runs the agent's loop until ctx ends.
func (a *agent) loop(ctx context.Context, health *loop.Health, w writer) error {
	changes := notify.NewSignal()
	err := a.kernel.Monitor(ctx, changes, tunnel.InterfaceName, tunnel.EntryInterface, tunnel.ReceiveInterface, a.local.underlay)
	if err := cmp.Or(err, nat.Monitor(ctx, changes), firewall.Monitor(ctx, changes)); err != nil {
		return fmt.Errorf("watch the kernel: %w", err)
	}
	go a.lease.DelayMonitor.Watch(ctx)
	go a.conditions.others.Run(ctx)
	l := loop.Loop[status]{
		Agent: a, Log: a.cfg.Log, Objects: a.view.Changed, Kernel: changes, Measure: a.livenessServer.measured, Health: health,
		Reconciled: a.shown.metrics.Reconciled,
		Report: loop.Reporter[status]{
			Interval: v1alpha1.ReportInterval, Compare: compareStatus, Write: w.write,
			Renew: func(ctx context.Context) error {
				if w.leaving() {
					return nil // the next gateway is about to take over the Lease
				}
				return a.lease.Renew(ctx)
			},
		},
	}
	return l.Run(ctx)
}

// strip keeps the part of a node's report that this gateway needs.
func (c Config) strip(obj client.Object) {
	n, ok := obj.(*v1alpha1.NodeNetwork)
	if !ok {
		return
	}
	var own []v1alpha1.NodeGateway
	for _, g := range n.Status.Gateways {
		if g.PeeringName == c.Peering {
			g.RTTMicroseconds, g.LossPercent = 0, 0 // they change all the time, and nothing depends on them
			own = append(own, g)
		}
	}
	s := &n.Status
	s.Gateways, s.Kernel, s.Routes, s.Conditions = own, nil, nil, nil
}

// agent is run by the loop. Its parts share only values that do not change, and channels. scripts/lint checks what they
// hold, and the race detector what they pass to each other.
type agent struct {
	cfg    Config
	view   *watch.View
	kernel *overlay.Kernel
	local  local
	// peering is the last one read, and copied is it if it was made for another cluster. At least one of them is nil.
	peering, copied *v1alpha1.Peering
	// podIP is the address to which nodes send the overlay's packets, invalid while it is not known.
	podIP    netip.Addr
	disputes disputes

	device         device
	applied        applied
	livenessServer livenessServer
	peer           connection
	announcements  announcements
	dialer         dialer
	measurements   measurements
	conditions     conditions
	recorder       recorder
	services       servicesFeed
	shown          published
	lease          loop.Lease
}

// disputes are about addresses that several nodes report.
type disputes struct {
	// holders maps Leases to their nodes.
	holders map[string]string
	// renewals are those of the nodes that have disputed pods, by overlay address.
	renewals map[netip.Addr]renewal
}

// applied is what the kernel holds.
type applied struct {
	// generation is that of the Peering in the kernel, and desired the state that follows from it.
	generation int64
	desired    desired
	// want is the last desired state. datapathReady is set if the kernel matches it except for single nodes' links. err
	// is what is missing.
	want          desired
	datapathReady bool
	err           error
}

// Reconcile makes the kernel match the objects. If these ask for the same as at the last attempt, it reads the kernel
// only if compare is set: objects often change only in measured values.
func (a *agent) Reconcile(ctx context.Context, compare bool) (inSync bool, err error) {
	p, err := readPeering(ctx, a)
	if p == nil {
		return err == nil, err
	}
	a.cfg.Level.UpdateFrom(a.cfg.Log, p.Annotations)
	if a.device.Device == nil && a.mustWaitForPredecessor(p.PlaneStatus(a.local.plane)) {
		return false, nil
	}
	a.peering = p
	if p.Spec.Services == nil {
		a.services.stop(true)
	}
	if err := p.Validate(); err != nil {
		return false, err
	}
	a.podIP, err = podIP(a.cfg.PodIPs, p)
	nodes, listErr := a.listNodes(ctx)
	if err := cmp.Or(err, listErr); err != nil {
		return false, err
	}
	defer a.services.update(a, p, nodes) // after an error, too: the peer must not learn what it may not anymore
	if a.isAdopted(nodes) {
		a.livenessServer.markAdopted()
	}
	a.readReports(p, nodes)
	plane := p.Plane(a.local.plane)
	if plane == nil {
		return false, fmt.Errorf("peering %s has no plane %d", p.Name, a.local.plane)
	}
	isNew, err := a.device.open(a.cfg.Log, plane.WireGuard)
	if isNew {
		a.applied.want = desired{}
	}
	if err != nil {
		return false, err
	}
	a.exchange(ctx, p, plane, nodes)
	if a.local.underlayMTU, err = a.kernel.EgressMTU(a.local.underlay); err != nil {
		return false, err
	}
	want, err := a.desire(ctx, p, nodes)
	if err != nil {
		return false, err
	}
	a.measurements.findForeign(a.cfg.Log, compare)
	if compare || !reflect.DeepEqual(want, a.applied.want) {
		a.measurements.pathRead = time.Time{}
		a.applied.want = want
		a.applied.datapathReady, a.applied.err = a.apply(ctx, want)
	}
	a.livenessServer.setWorks(a.applied.datapathReady)
	if a.applied.datapathReady {
		a.applied.generation = p.Generation
	}
	return a.applied.err == nil, errors.Join(want.omittedNodes, want.disputed, a.applied.err)
}

// readPeering reads the Peering. It returns nil if nothing is to be applied: the Peering is gone, not ready yet, or a copy.
func readPeering(ctx context.Context, a *agent) (*v1alpha1.Peering, error) {
	p := &v1alpha1.Peering{}
	err := a.view.Get(ctx, client.ObjectKey{Name: a.cfg.Peering}, p)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return nil, err
	case err != nil || !p.DeletionTimestamp.IsZero():
		a.services.stop(true)
		a.peering, a.copied = nil, nil
		return nil, nil
	case p.Incomplete() && p.Validate() == nil:
		a.peering, a.copied = nil, nil
		if a.device.Device == nil {
			return nil, nil
		}
		return nil, a.withdraw(ctx) // a command has failed and disabled it
	case v1alpha1.CopiedFrom(p.Spec.Local.ClusterID, a.cfg.clusterID) != "":
		a.peering, a.copied = nil, p
		return nil, a.withdraw(ctx) // the other cluster's gateway has the same key
	}
	a.copied = nil
	return p, nil
}

// withdraw removes everything from the kernel.
func (a *agent) withdraw(ctx context.Context) error {
	a.applied = applied{}
	a.services.stop(false)
	if a.peer.cancel != nil {
		a.peer.cancel()
		a.peer = connection{}
	}
	a.device.close(a.cfg.Log)
	changes, err := a.kernel.Apply(ctx, overlay.State{})
	loop.LogChanges(a.cfg.Log, changes)
	return errors.Join(err, tunnel.Remove(tunnel.InterfaceName))
}

// desire returns the desired state by what is known of the nodes.
func (a *agent) desire(ctx context.Context, p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork) (desired, error) {
	a.readRenewals(ctx)
	a.local.held = a.applied.want.heldPods()
	a.local.gone = map[netip.Addr]bool{}
	for node := range overlayNodes(p, nodes) {
		if _, _, gone := a.livenessServer.nodes.reach(node); gone || a.disputes.renewals[node].isOld() {
			a.local.gone[node] = true
		}
	}
	want, err := desire(a.local, p, nodes)
	if want.disputed != nil {
		a.conditions.degraded = strings.TrimPrefix(a.conditions.degraded+"; "+want.disputed.Error(), "; ")
	}
	a.measurements.reportedMTU, want.nodesMTU = want.nodesMTU, 0 // it counts only after damping
	return want, err
}

// readReports extracts from the nodes' reports who may ask this gateway, and what the Peering's status depends on.
func (a *agent) readReports(p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork) {
	var known []netip.Addr
	for addr := range overlayNodes(p, nodes) {
		known = append(known, addr)
	}
	a.livenessServer.nodes.setKnown(known...)
	a.conditions.read(p, nodes)
}

// exchange sends the announcement of this cluster to the peer, and follows the peer's.
func (a *agent) exchange(ctx context.Context, p *v1alpha1.Peering, plane *v1alpha1.Plane, nodes []v1alpha1.NodeNetwork) {
	// The first endpoint is on the node of the peer's gateway, if the peer has announced it. Packets pass through no
	// other node, so a plane depends on that node only, and no node's failure ends all planes.
	called := a.announcements.endpoints(p, plane, nodes, a.cfg.PodIPs)
	a.dialer.endpoints.set(called, a.announcements.announced != nil)
	if a.announcements.channel != nil {
		svc := &corev1.Service{}
		if plane.Role == v1alpha1.Server {
			// A missing Service has no port.
			_ = a.view.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: plane.ServiceName}, svc)
		}
		a.announcements.channel.Announce(announcement(a.cfg.NodeName, nodes, svc, plane.Index))
	}
	if plane.Role != v1alpha1.Client {
		return
	}
	if endpoint, err := a.dialer.endpoints.current(ctx); err == nil {
		a.local.endpoint = endpoint
	} else {
		// Another endpoint may be better. Until then the previous one stays.
		a.cfg.Log.Error("cannot use an endpoint", "error", err)
		a.dialer.endpoints.next()
	}
}

// mustWaitForPredecessor reports whether another pod of this plane is about to end. Two pods with the same key would
// take each other's packets. A killed pod never reports that it has left, so the wait is limited.
func (a *agent) mustWaitForPredecessor(last *v1alpha1.PlaneStatus) bool {
	return last != nil && last.Leaving && !slices.Contains(a.cfg.PodIPs, last.PodIP.Addr) &&
		time.Since(a.livenessServer.started) < drainTimeout+minDrainTime
}

// isAdopted reports whether all nodes that have a link to this gateway's plane have it to this pod.
func (a *agent) isAdopted(nodes []v1alpha1.NodeNetwork) bool {
	return !slices.ContainsFunc(nodes, func(n v1alpha1.NodeNetwork) bool {
		return ptr.Deref(n.Gateway(a.cfg.Peering, a.local.plane), v1alpha1.NodeGateway{}).GatewayIP.Addr != a.podIP
	})
}

// listNodes returns the reports of all nodes, by name. The cache is not sorted, and another order would look like a
// change to the peer and in messages.
func (a *agent) listNodes(ctx context.Context) ([]v1alpha1.NodeNetwork, error) {
	var list v1alpha1.NodeNetworkList
	err := a.view.List(ctx, &list, watch.Shared)
	slices.SortFunc(list.Items, func(a, b v1alpha1.NodeNetwork) int { return strings.Compare(a.Name, b.Name) })
	return a.withoutImpostors(ctx, list.Items), err
}

// withoutImpostors removes nodes that report an address held by another node. Our agents claim an address before they
// report it. So it reads the Leases, which name the holders, only if several nodes report the same address. If a read
// fails, the last answer counts.
func (a *agent) withoutImpostors(ctx context.Context, nodes []v1alpha1.NodeNetwork) []v1alpha1.NodeNetwork {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	count, holders := map[string]int{}, map[string]string{}
	for i := range nodes {
		lease := nodes[i].LeaseName()
		if count[lease]++; lease == "" || count[lease] != 2 {
			continue
		}
		var held coordinationv1.Lease
		holders[lease] = a.disputes.holders[lease]
		if err := a.view.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: lease}, &held); client.IgnoreNotFound(err) == nil {
			holders[lease] = ptr.Deref(held.Spec.HolderIdentity, "")
		}
	}
	a.disputes.holders = holders
	return slices.DeleteFunc(nodes, func(n v1alpha1.NodeNetwork) bool {
		holder, asked := holders[n.LeaseName()]
		return asked && holder != n.Name
	})
}

// renewal is the version of a node's Lease, with the time since when it is known, and when it was last read.
type renewal struct {
	version     string
	since, read time.Time
}

// isOld reports whether the node has not renewed its Lease for a while, or has none.
func (r renewal) isOld() bool {
	return !r.read.IsZero() && (r.version == "" || r.read.Sub(r.since) > 3*v1alpha1.NodeReportInterval)
}

// maxRenewals is how many nodes with disputed pods are watched.
const maxRenewals = 16

// readRenewals reads the Leases of nodes that have pods which others report too. Such a node may be gone, while its
// report remains.
func (a *agent) readRenewals(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	before, holders := a.disputes.renewals, a.applied.want.holders
	a.disputes.renewals = map[netip.Addr]renewal{}
	for _, node := range holders[:min(len(holders), maxRenewals)] {
		r := before[node]
		if time.Since(r.read) >= v1alpha1.NodeReportInterval {
			var l coordinationv1.Lease
			err := a.view.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeLeaseName(node)}, &l)
			if client.IgnoreNotFound(err) == nil {
				r = renewal{l.ResourceVersion, lo.Ternary(r.version == l.ResourceVersion && !r.since.IsZero(), r.since, time.Now()), time.Now()}
			}
		}
		a.disputes.renewals[node] = r
	}
}

// apply applies the desired state to the kernel. It returns false if more than single nodes' links is missing.
func (a *agent) apply(ctx context.Context, want desired) (passable bool, err error) {
	a.livenessServer.serve(want)
	// Restrict traffic first, then allow it.
	if _, err := nat.ApplyGateway(ctx, want.nat); err != nil {
		return false, err
	}
	if _, err := a.device.Configure(want.tunnel); err != nil {
		return false, err
	}
	a.receive(ctx, want)
	changes, err := a.kernel.Apply(ctx, want.overlay)
	loop.LogChanges(a.cfg.Log, changes)
	// If the kernel refuses one node's link, the other nodes are still served.
	var partial *overlay.PartialError
	if err != nil && (!errors.As(err, &partial) || slices.Contains(partial.Links, tunnel.InterfaceName)) {
		return false, err
	}
	a.connectPeer(ctx, want)
	a.applied.desired = want
	return true, err
}

// connection is what asks the peer's gateway. It lasts until cancel, and the session until endSession, which is nil
// without a session.
type connection struct {
	prober     *liveness.Prober
	context    context.Context
	cancel     context.CancelFunc
	endSession context.CancelFunc
}

// connectPeer starts probing the peer's gateway, and opens a channel to it, once the tunnel has its address.
func (a *agent) connectPeer(ctx context.Context, want desired) {
	was, responder := a.applied.desired, netip.AddrPortFrom(want.remote, liveness.Port)
	begins := a.peer.cancel == nil || was.remote != want.remote || was.address != want.address || was.isInitiator != want.isInitiator
	if begins {
		if a.peer.cancel != nil {
			a.peer.cancel()
		}
		ctx, a.peer.cancel = context.WithCancel(ctx)
		a.peer.endSession = nil
		a.measurements.usableAt = time.Now()
		a.livenessServer.peerGateway.setKnown(want.remote)
		a.peer.prober = liveness.NewProber(want.address, responder, probeInterval)
		a.peer.prober.Answered, a.peer.prober.Lost = a.shown.metrics.Probes(a.cfg.Peering, int32(a.cfg.Plane))
		go a.peer.prober.Run(ctx)
		a.announcements.channel = exchange.New(want.address, want.remote, want.isInitiator, a.view.Changed)
		go loop.RunForever(ctx, a.cfg.Log, "connect to the peer's gateway", a.announcements.channel.Connect)
		a.peer.context = ctx
	}
	// The peering may gain or lose other planes while packets pass through this one.
	switch {
	case want.isOnlyPlane && a.peer.endSession != nil:
		a.peer.endSession()
		a.peer.endSession = nil
	case !want.isOnlyPlane && a.peer.endSession == nil:
		session := liveness.New(want.address, responder, idleIntervalFactor, a.livenessServer.stateChanged)
		kernel := a.kernel
		session.Received = func() (uint64, error) { return kernel.Received(tunnel.InterfaceName) }
		session.Assumed = !begins && a.tunnelHealth().connected
		asking, end := context.WithCancel(a.peer.context)
		a.peer.endSession = end
		a.livenessServer.follow(session)
		go session.Run(asking)
	}
	if want.isOnlyPlane {
		a.livenessServer.follow(nil)
	}
}

// readLocal reads the keys of the gateway's own part of the desired state.
func readLocal(cfg Config) (l local, err error) {
	key, keyErr := readKey(filepath.Join(cfg.KeyDir, v1alpha1.PrivateKeyFile))
	preshared, presharedErr := readKey(cfg.PresharedKey)
	overlayKeys, overlayErr := overlay.ReadKeys(cfg.OverlayKeys)
	return local{
		plane: int32(cfg.Plane), key: key, preshared: preshared, overlayKeys: overlayKeys, node: cfg.NodeName,
	}, cmp.Or(keyErr, presharedErr, overlayErr)
}

// readKey reads a key from a file. It returns the zero value if file is empty.
func readKey(file string) (wgtypes.Key, error) {
	if file == "" {
		return wgtypes.Key{}, nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("read a key: %w", err)
	}
	key, err := wgtypes.NewKey(raw)
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("file %s is not a WireGuard key", file)
	}
	return key, nil
}
