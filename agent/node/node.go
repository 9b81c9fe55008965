// Package node is the agent on every node: the overlay links from the node to
// the gateways, the routes to peers, and the nftables table that keeps sources
// and lets nothing in but what pods may get. It watches the Peerings, computes
// what the kernel should hold (desire, pure), and changes the difference. It
// reports in its NodeNetwork.
//
// When it ends it leaves the kernel as it is, so that packets flow while it is
// upgraded. What it put there goes when the Peering goes, or when the agents are
// removed as a whole (leave).
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/firewall"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

const (
	// resync is how often everything is compared without a reason, retryApply the
	// same after a failure.
	resync, retryApply = 30 * time.Second, time.Second
	// tick is how often measurements are looked at; the faster one is for a peer
	// that is not reached.
	tick, fastTick = time.Second, 50 * time.Millisecond
	// probeInterval is the time between probes to a peer's gateway; the faster
	// one is for one that does not answer. Gateways probe each other more often; every
	// node's probes pass both of them, which costs these most of what they use when idle.
	probeInterval, fastProbeInterval = 5 * time.Second, 100 * time.Millisecond
	// silence is the time without an answer after which a peer is not reached.
	silence = probeInterval + 2*time.Second
)

// Config is what the pod tells its agent.
type Config struct {
	// NodeName and PodName say where it runs, and as what.
	NodeName, PodName string
	// OverlayKey is a file with the key of the cluster's overlay.
	OverlayKey string
	Log        *slog.Logger
}

// Run is the agent. It returns when ctx ends, or with an error that starting
// anew may mend.
func Run(ctx context.Context, cfg Config) error {
	key, err := overlay.ReadKey(cfg.OverlayKey)
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
	var last seen
	defer func() { leave(c, last, cfg.Log) }()
	for {
		err := attend(ctx, cfg, key, c, rest, &last)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errAddressLost):
			cfg.Log.Warn(err.Error())
		case definitionsGone(ctx, c):
			// It does not end: nobody could clean the kernel while it is started anew.
			cfg.Log.Error("the definitions of our objects are gone", "error", err)
			leave(c, last, cfg.Log)
			select {
			case <-ctx.Done():
			case <-time.After(retryApply):
			}
		default:
			return err
		}
	}
}

// definitionsGone says that the API server does not serve all of our kinds, or is
// about to stop.
func definitionsGone(ctx context.Context, c client.Client) bool {
	for _, list := range []client.ObjectList{&v1alpha1.ClusterNetworkList{}, &v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{}} {
		if err := c.List(ctx, list, client.Limit(1)); apierrors.IsNotFound(err) {
			return true
		}
	}
	return false
}

// attend is the agent while the node has one address. What it sees stays in last.
func attend(ctx context.Context, cfg Config, key overlay.Key, c client.Client, cfgRest *rest.Config, last *seen) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	node := &corev1.Node{}
	if err := c.Get(ctx, types.NamespacedName{Name: cfg.NodeName}, node); err != nil {
		return fmt.Errorf("read node %s: %w", cfg.NodeName, err)
	}
	own, err := claim(ctx, c, node, func(ctx context.Context) error {
		return Purge(ctx, func(what string) { cfg.Log.Info(what) })
	})
	if err != nil {
		return err
	}
	address, err := netip.ParseAddr(own.Name)
	if err != nil {
		return err
	}
	kernel, err := overlay.New()
	if err != nil {
		return err
	}
	defer kernel.Close()
	facts, err := kernelFacts(ctx, kernel)
	if err != nil {
		return err
	}
	a := &agent{
		Config: cfg, kernel: kernel, facts: facts, own: own,
		machine: machine{name: cfg.NodeName, address: address, key: key},
		probers: map[probeKey]*prober{}, reports: reporter{Report: watch.NewReport(cfg.Log)},
	}
	// What the kernel knows is waited for: it is told before anything else.
	a.view = &watch.View{Client: c}
	if err := a.readRoutes(node); err != nil {
		return err
	}
	a.report(ctx, node, nil)
	if err := <-a.reports.Written; err != nil {
		return err
	}
	a.reported(nil)
	a.view, err = watch.Start(ctx, c, cfgRest, map[client.Object]fields.Selector{
		&v1alpha1.Peering{}: watch.All(), &v1alpha1.NodeNetwork{}: watch.Named(own.Name),
		&corev1.Node{}: watch.Named(cfg.NodeName), &corev1.Pod{}: watch.OnNode(cfg.NodeName),
		metadata(watch.DaemonSet): watch.Named(v1alpha1.NodeAgentName), metadata(watch.Namespace): watch.Named(v1alpha1.Namespace),
	})
	if err != nil {
		return err
	}
	*last = seen{a.view.Reader, own.Name, cfg.PodName}
	return a.run(ctx)
}

// leaveTimeout is less than the pod's grace period.
const leaveTimeout = 3 * time.Second

// leave cleans the kernel if the agents are being removed from the cluster, by
// somebody who deletes their namespace, their DaemonSet or our definitions
// without unpeering: nobody comes after this agent. If that is not certain it
// leaves the kernel as it is.
func leave(c client.Reader, last seen, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	why := removed(ctx, c, last)
	if why == "" {
		return
	}
	log.Info("the agents are being removed: cleaning this node", "because", why)
	if err := Purge(ctx, func(what string) { log.Info(what) }); err != nil {
		log.Error("cannot clean this node; what is left can be removed by: liqonet-agent purge", "error", err)
	}
}

// seen is what an agent knows of its cluster when the API server tells it nothing
// more: the state of its cache.
type seen struct {
	// Reader is nil as long as nothing was seen.
	client.Reader
	// own and pod are the names of the NodeNetwork and of the agent's pod.
	own, pod string
}

// removed says by what one can see that the agents are being removed; empty if
// they are not, or if that cannot be told.
//
// An API server that refuses to answer is no sign by itself: a pod's token ends with
// its pod, be it that somebody deletes it by force, and one that has just started does
// not know yet who may do what. Then what was seen before counts.
func removed(ctx context.Context, c client.Reader, last seen) string {
	why, err := goes(ctx, c, agents()...)
	if unauthorized := apierrors.IsUnauthorized(err); unauthorized || apierrors.IsForbidden(err) {
		if last.Reader == nil {
			return ""
		}
		// Who takes away the NodeNetwork as well as the account or its permissions does
		// not only restart an agent.
		own := &v1alpha1.NodeNetwork{TypeMeta: metav1.TypeMeta{Kind: "NodeNetwork"}, ObjectMeta: metav1.ObjectMeta{Name: last.own}}
		why, err := goes(ctx, last, append(agents(), own)...)
		if why == "" && err == nil && unauthorized {
			// The token ended, and its pod was not seen to go: the account is gone, or the
			// node was cut off for long, most likely during the last unpeer. If the agent was
			// replaced meanwhile, the next one makes all of it anew within seconds; if not,
			// nobody else would ever clean this node.
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: last.pod}}
			if ends, err := goes(ctx, last, pod); ends == "" && err == nil {
				return "this agent's account is gone, or its pod, while it saw nothing of its cluster"
			}
		}
		return why
	}
	if why != "" {
		return why
	}
	if err := c.List(ctx, &v1alpha1.PeeringList{}, client.Limit(1)); apierrors.IsNotFound(err) {
		return "the kind Peering is gone"
	}
	return ""
}

// agents are what all node agents go with. The DaemonSet's pods may be deleted
// before it is.
func agents() []client.Object {
	set, namespace := metadata(watch.DaemonSet), metadata(watch.Namespace)
	set.Namespace, set.Name, namespace.Name = v1alpha1.Namespace, v1alpha1.NodeAgentName, v1alpha1.Namespace
	return []client.Object{set, namespace}
}

// metadata is an object of that kind of which no more is read.
func metadata(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	obj := &metav1.PartialObjectMetadata{}
	obj.SetGroupVersionKind(kind)
	return obj
}

// goes names the first of the objects that is gone or being deleted. The error is
// of those that cannot be read.
func goes(ctx context.Context, c client.Reader, objs ...client.Object) (string, error) {
	var errs []error
	for _, obj := range objs {
		kind, name := obj.GetObjectKind().GroupVersionKind().Kind, obj.GetName()
		err := c.Get(ctx, client.ObjectKeyFromObject(obj), obj)
		switch {
		case apierrors.IsNotFound(err):
			return kind + " " + name + " is gone", nil
		case err == nil && !obj.GetDeletionTimestamp().IsZero():
			return kind + " " + name + " is being deleted", nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

type agent struct {
	Config
	view    *watch.View
	kernel  *overlay.Kernel
	machine machine
	facts   v1alpha1.KernelFacts
	own     *v1alpha1.NodeNetwork
	// routes are those of others on this node, and its other addresses.
	routes []v1alpha1.CIDR
	// underlay is the interface with the node's own address. It may become another
	// one. Some clouds' nodes do not bear that address; then it is empty, and nothing
	// is known of their link.
	underlay    string
	underlayMTU int
	// applied is what is in the kernel, once it was reconciled, but for gateways that
	// have failed; sound that nothing has failed or changed since.
	applied           desired
	reconciled, sound bool
	probers           map[probeKey]*prober
	// blocked names the chains of others that drop packets of peers, as long as it is sound.
	blocked error
	// message is why the last reconcile failed.
	message string
	reports reporter
}

type probeKey struct {
	remote netip.Addr
	plane  int32
}

type prober struct {
	*tunnel.Prober
	stop context.CancelFunc
}

func (p *prober) ready() bool { return time.Since(p.Snapshot().LastReply) < silence }

var errAddressLost = errors.New("this node's NodeNetwork is gone: it needs a new overlay address")

func (a *agent) run(ctx context.Context) error {
	links, err := a.kernel.Monitor(ctx, a.underlay)
	if err != nil {
		return fmt.Errorf("watch the kernel's links and routes: %w", err)
	}
	tables, err := nat.Monitor(ctx)
	if err != nil {
		return fmt.Errorf("watch our nftables tables: %w", err)
	}
	chains, err := firewall.Monitor(ctx)
	if err != nil {
		return fmt.Errorf("watch the chains of others: %w", err)
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
			if errors.Is(err, errAddressLost) {
				return err
			}
			if !a.sound {
				again = retryApply
			}
			a.message = watch.Tell(a.Log, err, a.message, !a.sound)
			dirty = false
		}
		node, pods, err := a.objects(ctx)
		if err != nil {
			return err
		}
		a.report(ctx, node, pods)
		timer.Reset(a.nextTick())
		select {
		case <-ctx.Done():
			return nil
		case <-a.view.Changed:
			dirty = true
		case <-links:
			dirty, a.sound = true, false
		case <-tables:
			dirty, a.sound = true, false
		case <-chains:
			dirty, a.sound = true, false
		case err := <-a.reports.Written:
			if apierrors.IsNotFound(err) {
				// What watches says so later, or never, if the definition is gone.
				return errAddressLost
			}
			a.reported(err)
		case <-timer.C:
		}
	}
}

// nextTick also sets the speed of the probes.
func (a *agent) nextTick() time.Duration {
	next := tick
	for _, p := range a.probers {
		interval := probeInterval
		if !p.ready() {
			next = fastTick
		}
		if !p.ready() || p.Snapshot().Window < tunnel.ProbeWindow {
			interval = fastProbeInterval
		}
		p.SetInterval(interval)
	}
	return next
}

// reconcile makes the kernel hold what the objects say. Where they say the same
// as before, and the kernel has told of no change, it is not asked either:
// objects change every few seconds by what is measured. The error may be of
// some peerings only; sound tells.
func (a *agent) reconcile(ctx context.Context) error {
	own := &v1alpha1.NodeNetwork{}
	if err := a.view.Get(ctx, types.NamespacedName{Name: a.own.Name}, own); client.IgnoreNotFound(err) != nil {
		return err
	}
	lost := own.UID != a.own.UID
	var peerings v1alpha1.PeeringList
	if err := a.view.List(ctx, &peerings); err != nil {
		return err
	}
	// Without peerings the kernel is cleaned first.
	if lost && len(peerings.Items) > 0 {
		return errAddressLost
	}
	if err := a.readFacts(ctx); err != nil {
		return err
	}
	want, bad := desire(a.machine, peerings.Items)
	if a.sound && !lost && reflect.DeepEqual(want, a.applied) {
		return errors.Join(bad, a.blocked)
	}
	a.sound = false
	// First what closes, then what opens; when all goes, the other way round.
	var blocked error
	if want.nat != nil {
		if _, err := nat.ApplyNode(ctx, *want.nat); err != nil {
			return err
		}
		// A chain of others that cannot be changed is no reason not to do the rest.
		_, blocked = firewall.EnsureAcceptRules(ctx, firewallConfig(*want.nat))
	}
	changes, err := a.kernel.Apply(ctx, want.overlay)
	for _, c := range changes {
		a.Log.Info(c.String())
	}
	var partial *overlay.PartialError
	if err != nil && !errors.As(err, &partial) {
		return errors.Join(bad, blocked, err)
	}
	left := partial != nil && partial.RemovalFailed
	if want.nat == nil && !left {
		if err := purge(ctx, func(what string) { a.Log.Info(what) }); err != nil {
			return err
		}
	}
	a.applied, a.reconciled = want, true
	if partial != nil {
		a.applied.gateways = despite(partial, want.gateways, a.own.Status.Gateways)
	}
	if lost && !left {
		return errAddressLost
	}
	a.probe(ctx, a.applied.gateways)
	if err != nil {
		return errors.Join(bad, blocked, err)
	}
	// What only others can change is not tried again and again: they tell, by the
	// kernel, when they do.
	var byOthers *firewall.BlockedError
	a.sound = blocked == nil || errors.As(blocked, &byOthers)
	a.blocked = blocked
	return errors.Join(bad, blocked)
}

// despite are the gateways to report after an Apply that could not do everything:
// those that are wanted, and, where something could not be removed, those that
// were reported before.
func despite(p *overlay.PartialError, wanted []gateway, reported []v1alpha1.NodeGateway) []gateway {
	out := slices.Clone(wanted)
	for i := range out {
		out[i].failed = slices.Contains(p.Links, out[i].link)
	}
	for _, r := range reported {
		known := slices.ContainsFunc(out, func(g gateway) bool { return g.peering == r.Peering && g.plane == r.Plane })
		if p.RemovalFailed && !known {
			out = append(out, gateway{peering: r.Peering, plane: r.Plane, failed: true})
		}
	}
	return out
}

// purge removes what is in nftables, and tells what.
func purge(ctx context.Context, tell func(string)) error {
	removed, err := firewall.RemoveAcceptRules(ctx)
	if removed {
		tell("removed rules from chains of others")
	}
	table, tableErr := nat.Purge(ctx)
	if table {
		tell("removed nftables table " + nat.TableName)
	}
	return errors.Join(err, tableErr)
}

// Purge removes everything of ours from a kernel, whoever left it there, and
// tells what.
func Purge(ctx context.Context, tell func(string)) error {
	kernel, err := overlay.New()
	if err != nil {
		return err
	}
	defer kernel.Close()
	changes, err := kernel.Purge(ctx)
	for _, c := range changes {
		tell(c.String())
	}
	return errors.Join(err, purge(ctx, tell))
}

// readFacts looks at the node's own pods, and, unless the kernel has told of no
// change, at what others have on this node.
func (a *agent) readFacts(ctx context.Context) error {
	node, pods, err := a.objects(ctx)
	if err != nil {
		return err
	}
	ranges := podCIDRs(node)
	a.machine.pods = v1alpha1.Prefixes(ranges)
	for _, ip := range outside(pods, ranges, a.machine.address) {
		a.machine.pods = append(a.machine.pods, netip.PrefixFrom(ip.Addr, ip.BitLen()))
	}
	if a.sound {
		return nil
	}
	if a.machine.uplinks, err = a.kernel.Uplinks(); err != nil {
		return err
	}
	return a.readRoutes(node)
}

// objects are the node's Node and the pods on it.
func (a *agent) objects(ctx context.Context) (*corev1.Node, []corev1.Pod, error) {
	node := &corev1.Node{}
	if err := a.view.Get(ctx, types.NamespacedName{Name: a.NodeName}, node); err != nil {
		return nil, nil, fmt.Errorf("read node %s: %w", a.NodeName, err)
	}
	var pods corev1.PodList
	if err := a.view.List(ctx, &pods); err != nil {
		return nil, nil, fmt.Errorf("list the pods of node %s: %w", a.NodeName, err)
	}
	return node, pods.Items, nil
}

// readRoutes looks at routes and addresses, which say what ranges are in use,
// and at the MTU of the node's own link.
func (a *agent) readRoutes(node *corev1.Node) error {
	prefixes, err := a.kernel.Routes()
	if err != nil {
		return err
	}
	addrs, err := a.kernel.Addresses()
	if err != nil {
		return err
	}
	for _, addr := range addrs {
		prefixes = append(prefixes, netip.PrefixFrom(addr, addr.BitLen()))
	}
	a.routes = v1alpha1.NewCIDRs(summary(prefixes)...)
	a.underlay, a.underlayMTU = "", 0
	if ip, err := internalIP(node); err == nil {
		if name, mtu, err := a.kernel.LinkWith(ip); err == nil {
			a.underlay, a.underlayMTU = name, mtu
		}
	}
	return nil
}

// internalIP is the node's own address.
func internalIP(node *corev1.Node) (netip.Addr, error) {
	for _, a := range node.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("node %s has no InternalIP", node.Name)
}

// probe has one prober for each gateway that there is a link to. Where the link has
// failed there may still be the one of before.
func (a *agent) probe(ctx context.Context, gateways []gateway) {
	wanted := map[probeKey]bool{}
	for _, g := range gateways {
		key := probeKey{g.remote, g.plane}
		if !g.pod.IsValid() {
			continue
		}
		wanted[key] = true
		if a.probers[key] != nil || g.failed {
			continue
		}
		p, err := tunnel.NewProber(a.machine.address, netip.AddrPortFrom(g.remote, tunnel.ProbePort), fastProbeInterval)
		if err != nil {
			a.Log.Error("cannot probe", "peering", g.peering, "error", err)
			continue
		}
		probing, stop := context.WithCancel(ctx)
		go func() { _ = p.Run(probing) }() // it ends with its context
		a.probers[key] = &prober{Prober: p, stop: stop}
	}
	for key, p := range a.probers {
		if !wanted[key] {
			p.stop()
			delete(a.probers, key)
		}
	}
}

// kernelFacts asks the kernel what it can do.
func kernelFacts(ctx context.Context, kernel *overlay.Kernel) (f v1alpha1.KernelFacts, err error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return f, fmt.Errorf("uname: %w", err)
	}
	f.Release = unix.ByteSliceToString(name.Release[:])
	for _, ask := range []struct {
		what string
		set  *bool
		can  func() (bool, error)
	}{
		{"Geneve", &f.Geneve, func() (bool, error) { return kernel.Supports(overlay.Geneve) }},
		{"VXLAN", &f.VXLAN, func() (bool, error) { return kernel.Supports(overlay.VXLAN) }},
		{"WireGuard", &f.WireGuard, func() (bool, error) { return tunnel.Supports(ctx) }},
	} {
		if *ask.set, err = ask.can(); err != nil {
			return f, fmt.Errorf("ask the kernel for %s: %w", ask.what, err)
		}
	}
	return f, nil
}
