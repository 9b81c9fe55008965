// Package gateway is the agent in a gateway pod: one end of one tunnel to one
// peer. It watches its Peering and the nodes' reports, computes what its network
// namespace should hold (desire, pure), and changes the difference. It reports
// what it measures in the Peering's status.
package gateway

import (
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
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

const (
	// resync is how often everything is compared without a reason, retryApply the
	// same after a failure.
	resync, retryApply = 30 * time.Second, time.Second
	// tick is how often measurements are looked at; the faster one is for a
	// tunnel that does not work.
	tick, fastTick = time.Second, 50 * time.Millisecond
	// probeInterval is the time between probes; the faster one is for a tunnel
	// that does not work.
	probeInterval, fastProbeInterval = 1500 * time.Millisecond, 100 * time.Millisecond
	// silence is the time without an answer after which the tunnel is broken.
	silence = 3500 * time.Millisecond
	// retryFirst and retryLater are the times without an answer after which a
	// client starts the handshake anew, while it was never answered and later.
	// WireGuard itself waits 5 s, and 15 s if the server forgot the session. They
	// grow to retryMost, see due.
	retryFirst, retryLater, retryMost = 300 * time.Millisecond, time.Second, 2 * time.Second
	// retryUnanswered is how many probes have to be unanswered before it does so
	// later: a session that works is lost by that, with all packets on their way,
	// and on a bad link or a busy machine one of them may well be missing.
	retryUnanswered = 5
	// deaf is the time without an answer after which it does so even though packets
	// come from the peer: then they may pass one way only.
	deaf = 6 * time.Second
)

// Config is what the pod tells its agent.
type Config struct {
	// Peering is the Peering's name, Plane the plane's index.
	Peering string
	Plane   int
	// KeyDir has the private key in a file (pkg/manifests).
	KeyDir string
	// OverlayKey is a file with the key of the cluster's overlay.
	OverlayKey string
	// PodIPs and NodeName say where it runs. A pod has an address of each family
	// that its cluster has.
	PodIPs   []netip.Addr
	NodeName string
	Log      *slog.Logger
}

// Run is the agent. It returns when ctx ends, or with an error that starting
// anew may mend.
func Run(ctx context.Context, cfg Config) error {
	key, err := readKey(filepath.Join(cfg.KeyDir, v1alpha1.KeyFilePrivate))
	if err != nil {
		return err
	}
	overlayKey, err := overlay.ReadKey(cfg.OverlayKey)
	if err != nil {
		return err
	}
	c, rest, err := watch.Client(ctx, cfg.Log)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	view, err := watch.Start(ctx, c, rest, map[client.Object]fields.Selector{
		&v1alpha1.Peering{}: watch.Named(cfg.Peering), &v1alpha1.NodeNetwork{}: watch.All(),
	})
	if err != nil {
		return err
	}
	kernel, err := overlay.New()
	if err != nil {
		return err
	}
	defer kernel.Close()
	underlay, mtu, err := kernel.LinkWith(cfg.PodIPs[0])
	if err != nil {
		return err
	}
	a := &agent{
		Config: cfg, view: view, kernel: kernel,
		machine: machine{plane: int32(cfg.Plane), key: key, overlayKey: overlayKey, node: cfg.NodeName, underlay: underlay, underlayMTU: mtu},
		status:  reporter{Report: watch.NewReport(cfg.Log)},
	}
	defer a.close()
	return a.run(ctx)
}

type agent struct {
	Config
	view    *watch.View
	kernel  *overlay.Kernel
	machine machine
	device  tunnel.Device
	backend v1alpha1.WireGuardBackend

	// peering is the one that was read last, applied the generation that is in
	// the kernel, desired what follows from it; sound that nothing has failed or
	// changed since.
	peering *v1alpha1.Peering
	applied int64
	desired desired
	sound   bool

	// podIP is where nodes send the overlay's packets, invalid while that is not
	// known.
	podIP netip.Addr

	// capacity is the desired one, for the goroutine that answers probes.
	capacity atomic.Uint32

	prober     *tunnel.Prober
	stopProber context.CancelFunc
	echo       bool
	endpoints  endpoints
	// brokenSince is zero while the tunnel works, reset when the handshake was last
	// started anew, received what has come by the tunnel, and heard when there was
	// last more of it.
	brokenSince time.Time
	reset       time.Time
	received    int64
	heard       time.Time
	status      reporter
}

func (a *agent) run(ctx context.Context) error {
	links, err := a.kernel.Monitor(ctx, tunnel.InterfaceName, tunnel.EntryInterface, tunnel.ReceiveInterface, a.machine.underlay)
	if err != nil {
		return fmt.Errorf("watch the kernel's links and routes: %w", err)
	}
	rules, err := nat.Monitor(ctx)
	if err != nil {
		return fmt.Errorf("watch the kernel's nftables: %w", err)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var lastApply time.Time
	dirty, again := true, resync
	for {
		if time.Since(lastApply) >= again {
			dirty, a.sound = true, false
		}
		if dirty {
			if !a.sound {
				lastApply, again = time.Now(), resync
			}
			err := a.reconcile(ctx)
			if err != nil && !a.sound {
				again = retryApply
			}
			a.status.failed = watch.Tell(a.Log, err, a.status.failed, !a.sound)
			dirty = false
		}
		a.watchTunnel(ctx)
		if a.measure() {
			dirty = true
			continue
		}
		if err := a.repairTunnel(ctx); err != nil {
			a.Log.Error("cannot repair the tunnel", "error", err)
		}
		if err := a.report(ctx); err != nil {
			return err
		}
		timer.Reset(a.nextTick())
		select {
		case <-ctx.Done():
			return nil
		case <-a.view.Changed:
			dirty = true
		case <-links:
			dirty, a.sound = true, false
		case <-rules:
			dirty, a.sound = true, false
		case err := <-a.status.Written:
			a.reported(err)
		case <-timer.C:
		}
	}
}

func (a *agent) nextTick() time.Duration {
	// One probe is on its way; more of them are late.
	if a.connected() && a.prober.Snapshot().Unanswered < 2 {
		return tick
	}
	return fastTick
}

// reconcile makes the kernel hold what the objects say. Where they say the same
// as before, and the kernel has told of no change, it is not asked either:
// objects change every few seconds by what is measured. The error may be of
// some nodes only; sound tells.
func (a *agent) reconcile(ctx context.Context) error {
	p := &v1alpha1.Peering{}
	if err := a.view.Get(ctx, types.NamespacedName{Name: a.Peering}, p); client.IgnoreNotFound(err) != nil {
		return err
	} else if err != nil || !p.DeletionTimestamp.IsZero() {
		a.peering = nil
		return nil // not yet, or not any more
	}
	a.peering = p
	var err error
	if a.podIP, err = podIP(a.PodIPs, p); err != nil {
		return err
	}
	var nodes v1alpha1.NodeNetworkList
	if err := a.view.List(ctx, &nodes); err != nil {
		return err
	}
	plane := p.Plane(a.machine.plane)
	if plane == nil {
		return fmt.Errorf("peering %s has no plane %d", p.Name, a.machine.plane)
	}
	if err := a.open(ctx, plane.WireGuard); err != nil {
		return err
	}
	a.endpoints.set(plane.Endpoints)
	if plane.Role == v1alpha1.Client {
		endpoint, err := a.endpoints.current(ctx)
		if err != nil {
			// The others may be better; until then it is the one before.
			a.Log.Error("cannot use an endpoint", "error", err)
			a.endpoints.next()
		} else {
			a.machine.endpoint = endpoint
		}
	}
	if a.machine.underlayMTU, err = a.kernel.EgressMTU(a.machine.underlay); err != nil {
		return err
	}
	want, err := desire(a.machine, p, nodes.Items)
	if err != nil {
		return err
	}
	if a.sound && reflect.DeepEqual(want, a.desired) {
		a.applied = p.Generation
		return want.leftOut
	}
	a.sound = false
	a.capacity.Store(uint32(want.capacity))
	// First what closes, then what opens.
	if _, err := nat.ApplyGateway(ctx, want.nat); err != nil {
		return err
	}
	if _, err := a.device.Configure(ctx, want.tunnel); err != nil {
		return err
	}
	a.receive(ctx, want)
	changes, err := a.kernel.Apply(ctx, want.overlay)
	for _, c := range changes {
		a.Log.Info(c.String())
	}
	// One node's link that the kernel refuses is no reason not to serve the others.
	var partial *overlay.PartialError
	if err != nil && (!errors.As(err, &partial) || slices.Contains(partial.Links, tunnel.InterfaceName)) {
		return errors.Join(want.leftOut, err)
	}
	a.probe(ctx, want)
	a.applied, a.desired, a.sound = p.Generation, want, err == nil
	return errors.Join(want.leftOut, err)
}

// receive leads packets to where they are aggregated. Where the kernel cannot,
// everything works all the same, and slower.
func (a *agent) receive(ctx context.Context, want desired) {
	ports := []uint16{overlay.Port}
	if tunnel.Backend(a.backend) == tunnel.Userspace {
		ports = append(ports, want.tunnel.ListenPort) // the kernel's WireGuard takes no bundles
	}
	_, err := nat.ApplyReceive(ctx, nat.Receive{
		Underlay: want.tunnel.Underlay, Entry: tunnel.EntryInterface, Ports: ports,
	})
	if err != nil {
		a.Log.Warn("packets are not aggregated", "error", err)
	}
}

// open opens the tunnel's device, once.
func (a *agent) open(ctx context.Context, backend v1alpha1.WireGuardBackend) error {
	if a.device != nil && a.backend == backend {
		return nil
	}
	if a.device != nil {
		if err := errors.Join(a.device.Close(), tunnel.Remove(ctx, tunnel.InterfaceName)); err != nil {
			return err
		}
		a.device = nil
	}
	device, err := tunnel.Open(ctx, tunnel.Backend(backend), tunnel.InterfaceName, tunnel.WithErrors(func(err error) {
		a.Log.Warn("wireguard", "error", err)
	}))
	if err != nil {
		return err
	}
	a.device, a.backend = device, backend
	return nil
}

// probe answers and sends probes.
func (a *agent) probe(ctx context.Context, want desired) {
	if !a.echo {
		a.echo = true
		go a.answer(ctx)
	}
	if a.prober != nil && a.desired.remote == want.remote && a.desired.address == want.address {
		return
	}
	if a.stopProber != nil {
		a.stopProber()
	}
	prober, err := tunnel.NewProber(want.address, netip.AddrPortFrom(want.remote, tunnel.ProbePort), fastProbeInterval)
	if err != nil {
		a.Log.Error("cannot probe", "error", err)
		return
	}
	ctx, a.stopProber = context.WithCancel(ctx)
	a.prober = prober
	go func() { _ = prober.Run(ctx) }() // it ends with ctx
}

// answer answers probes until ctx ends, whatever happens to its socket.
func (a *agent) answer(ctx context.Context) {
	for {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{Port: int(tunnel.ProbePort)})
		if err == nil {
			err = tunnel.ServeEcho(ctx, conn, func() uint16 { return uint16(a.capacity.Load()) })
		}
		if ctx.Err() != nil {
			return
		}
		a.Log.Error("cannot answer probes; trying again", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryApply):
		}
	}
}

// connected says that probes are answered, and at least one could be measured.
func (a *agent) connected() bool {
	if a.prober == nil {
		return false
	}
	stats := a.prober.Snapshot()
	return stats.Window > 0 && time.Since(stats.LastReply) < silence
}

// watchTunnel starts the handshake anew where there is no answer. Only a client
// does: a server waits.
func (a *agent) watchTunnel(ctx context.Context) {
	if a.prober == nil || a.peering == nil || a.device == nil {
		return
	}
	plane := a.peering.Plane(a.machine.plane)
	if plane == nil {
		return
	}
	stats, now := a.prober.Snapshot(), time.Now()
	isBroken := broken(stats, a.heard, now)
	switch {
	case !isBroken:
		a.brokenSince = time.Time{}
	case a.brokenSince.IsZero():
		a.brokenSince = now
	}
	interval := probeInterval
	if isBroken || stats.Window < tunnel.ProbeWindow {
		interval = fastProbeInterval
	}
	a.prober.SetInterval(interval)
	if !isBroken || plane.Role != v1alpha1.Client || !due(stats.LastReply.IsZero(), a.brokenSince, a.reset, a.heard, now) {
		return
	}
	if !stats.LastReply.IsZero() {
		a.Log.Info("probes are not answered: starting the handshake anew",
			"for", time.Since(stats.LastReply).Round(time.Millisecond), "probes", stats.Unanswered)
	}
	// The first time there is nothing to start anew.
	if !a.reset.IsZero() {
		a.endpoints.next()
		if endpoint, err := a.endpoints.current(ctx); err == nil && endpoint != a.machine.endpoint {
			a.machine.endpoint = endpoint
			a.desired.tunnel.Peer.Endpoint = endpoint
			if _, err := a.device.Configure(ctx, a.desired.tunnel); err != nil {
				a.Log.Error("cannot change the endpoint", "error", err)
			}
		}
		if err := a.device.Reset(ctx); err != nil {
			a.Log.Error("cannot start the handshake anew", "error", err)
		}
	}
	a.reset = now
}

// due says whether a client starts the handshake anew, which throws away what is on
// its way. It is in a hurry: a server may begin to answer at any moment. But from far
// away an answer takes longer than that hurry, so it waits for a third of the time
// that it has tried already. And where the peer has sent something since the last
// attempt, the handshake goes on: after its own answer come those to the probes.
func due(never bool, brokenSince, reset, heard, now time.Time) bool {
	if heard.After(reset) && now.Sub(heard) < retryMost && now.Sub(reset) < deaf {
		return false
	}
	least := retryLater
	if never {
		least = retryFirst
	}
	return now.Sub(reset) >= min(max(now.Sub(brokenSince)/3, least), retryMost)
}

// repairTunnel brings back what others took from WireGuard, of which the kernel
// notifies nobody.
func (a *agent) repairTunnel(ctx context.Context) error {
	if a.device == nil || a.applied == 0 || a.peering == nil {
		return nil
	}
	stats, err := a.device.Stats()
	if err == nil && stats.RxBytes > a.received {
		a.heard = time.Now()
	}
	a.received = stats.RxBytes // a new handshake begins to count anew
	if err == nil && stats.AsConfigured {
		return nil
	}
	changed, err := a.device.Configure(ctx, a.desired.tunnel)
	if changed {
		a.Log.Info("repaired the tunnel")
	}
	return err
}

// broken says that the tunnel's session does not work, by what probes say and when
// something last came by the tunnel. Where that comes, answers are late on a busy
// machine, or packets pass one way only.
func broken(s tunnel.ProbeStats, heard, now time.Time) bool {
	if s.LastReply.IsZero() {
		return true
	}
	silent := now.Sub(s.LastReply)
	return silent > probeInterval+retryLater && s.Unanswered >= retryUnanswered && (now.Sub(heard) >= retryLater || silent >= deaf)
}

func (a *agent) close() {
	if a.device != nil {
		if err := a.device.Close(); err != nil {
			a.Log.Error("cannot close the tunnel", "error", err)
		}
	}
}

func readKey(file string) (wgtypes.Key, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("read the private key: %w", err)
	}
	key, err := wgtypes.NewKey(raw)
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("file %s is not a WireGuard key", file)
	}
	return key, nil
}
