// Package node is the agent on every node. It makes the overlay links from the node to the
// gateways, and the routes to peers. Its nftables table keeps sources, and lets nothing in
// but what pods may get. It watches the Peerings, computes
// what the kernel should hold (desire, pure), and changes the difference. It
// reports in its NodeNetwork.
//
// When it ends it leaves the kernel as it is, so that packets flow while it is
// upgraded. What it put there goes when the Peering goes, or when the agents are
// removed as a whole (cleanupIfUninstalled).
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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/firewall"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
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
	c, rest, err := watch.Client()
	if err != nil {
		return err
	}
	health := loop.NewHealth()
	go health.Serve(ctx, cfg.Log, fmt.Sprintf("127.0.0.1:%d", v1alpha1.HealthPort))
	var last lastView
	defer func() { cleanupIfUninstalled(c, last, cfg.Log) }()
	return loop.Retry(ctx, cfg.Log, func(ctx context.Context) error {
		err := runWithAddress(ctx, cfg, key, c, rest, health, &last)
		if ctx.Err() == nil && err != nil && !errors.Is(err, errAddressLost) && definitionsGone(ctx, c) {
			// It does not end: nobody could clean the kernel while it is started anew.
			cleanupIfUninstalled(c, last, cfg.Log)
			return loop.Stop{Reason: fmt.Errorf("the definitions of our objects are gone: %w", err)}
		}
		return err
	})
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

// runWithAddress is the agent while the node has one address. What it sees stays in last.
func runWithAddress(ctx context.Context, cfg Config, key overlay.Key, c client.Client, cfgRest *rest.Config, health *loop.Health, last *lastView) error {
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
	a := &agent{
		Config: cfg, kernel: kernel, own: own, node: node, view: &watch.View{Client: c},
		local: local{name: cfg.NodeName, address: address, key: key}, probers: map[probeKey]*prober{}, paths: map[pathKey]pathInfo{},
	}
	if err := a.askKernel(ctx); err != nil {
		return err
	}
	if err := a.readRoutes(); err != nil {
		return err
	}
	lease := loop.Lease{
		Client: c, Name: "node-" + own.Name, Holder: cfg.PodName, Manager: manager(node),
		Owner: applymeta.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("NodeNetwork").WithName(own.Name).WithUID(own.UID),
	}
	report := loop.NewReporter(v1alpha1.NodeReportInterval, compareStatus, a.writeStatus, lease.Renew)
	// What the kernel knows is waited for: it is told before anything else.
	status, _ := a.Status("")
	if err := report.WriteFirst(ctx, status); err != nil {
		return err
	}
	a.view, err = watch.Start(ctx, c, cfgRest, map[client.Object]fields.Selector{
		&v1alpha1.Peering{}: watch.All(), &v1alpha1.NodeNetwork{}: watch.Named(own.Name),
		&corev1.Node{}: watch.Named(cfg.NodeName), &corev1.Pod{}: watch.OnNode(cfg.NodeName),
		metadata(watch.DaemonSet): watch.Named(v1alpha1.NodeAgentName), metadata(watch.Namespace): watch.Named(v1alpha1.Namespace),
	})
	if err != nil {
		return err
	}
	*last = lastView{a.view.Reader, own.Name, cfg.PodName}
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
	l := loop.Loop[v1alpha1.NodeNetworkStatus]{
		Agent: a, Log: cfg.Log, Objects: []<-chan struct{}{a.view.Changed}, Kernel: []<-chan struct{}{links, tables, chains}, Health: health, Report: report,
	}
	return l.Run(ctx)
}

type agent struct {
	Config
	view   *watch.View
	kernel *overlay.Kernel
	local  local
	// facts are what the kernel can do, asked at factsAt.
	facts   v1alpha1.KernelFacts
	factsAt time.Time
	// own is the node's NodeNetwork, with the status of the last look.
	own *v1alpha1.NodeNetwork
	// node and pods are as they were read last. They are the cache's: not to be changed.
	node *corev1.Node
	pods []corev1.Pod
	// routes are those of others on this node, and its other addresses. omittedRoutes is
	// how many more there are.
	routes        []v1alpha1.CIDR
	omittedRoutes int
	// underlay is the interface with the node's own address. It may become another
	// one. Some clouds' nodes do not bear that address; then it is empty, and nothing
	// is known of their link.
	underlay    string
	underlayMTU int
	// applied is what is in the kernel, once it was reconciled, but for gateways that
	// have failed. attempt is the last one to change that.
	applied    desired
	reconciled bool
	attempt    attempt
	probers    map[probeKey]*prober
	// paths are how packets get to gateways, asked of the kernel when it has changed.
	paths map[pathKey]pathInfo
}

// attempt is the last one to make the kernel hold what is wanted, and what came of it.
type attempt struct {
	want desired
	// inSync says that the kernel holds all of it, clean that it holds no more.
	inSync, clean bool
	err           error
}

var errAddressLost error = loop.Stop{Reason: errors.New("this node's NodeNetwork is gone: it needs a new overlay address")}

// Reconcile makes the kernel hold what the objects say. Where they say the same as at
// the last attempt, the kernel is only asked if compare is set: objects change often by
// what is measured.
func (a *agent) Reconcile(ctx context.Context, compare bool) (inSync bool, err error) {
	own := &v1alpha1.NodeNetwork{}
	if err := a.view.Get(ctx, types.NamespacedName{Name: a.own.Name}, own); client.IgnoreNotFound(err) != nil {
		return false, err
	}
	lost := own.UID != a.own.UID
	var peerings v1alpha1.PeeringList
	if err := a.view.List(ctx, &peerings, watch.Shared); err != nil {
		return false, err
	}
	// Without peerings the kernel is cleaned first.
	if lost && len(peerings.Items) > 0 {
		return false, errAddressLost
	}
	if err := a.readObjects(ctx); err != nil {
		return false, err
	}
	if compare {
		if err := a.readKernel(ctx); err != nil {
			return false, err
		}
	}
	want, bad := desire(a.local, peerings.Items)
	if compare || lost || !reflect.DeepEqual(want, a.attempt.want) {
		clear(a.paths)
		a.attempt = a.apply(ctx, want)
	}
	if lost && a.attempt.clean {
		return false, errAddressLost
	}
	return a.attempt.inSync, errors.Join(bad, a.attempt.err)
}

// apply makes the kernel hold what is wanted.
func (a *agent) apply(ctx context.Context, want desired) attempt {
	failed := func(errs ...error) attempt { return attempt{want: want, err: errors.Join(errs...)} }
	// First what closes, then what opens; when all goes, the other way round.
	var blocked error
	if want.nat != nil {
		if _, err := nat.ApplyNode(ctx, *want.nat); err != nil {
			return failed(err)
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
		return failed(blocked, err)
	}
	clean := partial == nil || !partial.RemovalFailed
	if want.nat == nil && clean {
		if err := purge(ctx, func(what string) { a.Log.Info(what) }); err != nil {
			return failed(err)
		}
	}
	a.applied, a.reconciled = want, true
	if partial != nil {
		a.applied.gateways = gatewaysAfterPartialApply(partial, want.gateways, a.own.Status.Gateways)
	}
	a.probe(ctx, a.applied.gateways)
	// What only others can change is not tried again and again: they tell, by the
	// kernel, when they do.
	var byOthers *firewall.BlockedError
	return attempt{
		want: want, inSync: err == nil && (blocked == nil || errors.As(blocked, &byOthers)), clean: clean, err: errors.Join(blocked, err),
	}
}

// gatewaysAfterPartialApply are the gateways to report after an Apply that could not do
// everything: those that are wanted, and, where something could not be removed, those
// that were reported before.
func gatewaysAfterPartialApply(p *overlay.PartialError, wanted []gateway, reported []v1alpha1.NodeGateway) []gateway {
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

// readObjects looks at the node's Node and its own pods.
func (a *agent) readObjects(ctx context.Context) error {
	node := &corev1.Node{}
	if err := a.view.Get(ctx, types.NamespacedName{Name: a.NodeName}, node); err != nil {
		return fmt.Errorf("read node %s: %w", a.NodeName, err)
	}
	var pods corev1.PodList
	if err := a.view.List(ctx, &pods, watch.Shared); err != nil {
		return fmt.Errorf("list the pods of node %s: %w", a.NodeName, err)
	}
	a.node, a.pods = node, pods.Items
	ranges := podCIDRs(node)
	a.local.pods = v1alpha1.Prefixes(ranges)
	for _, ip := range outside(a.pods, ranges, a.local.address) {
		a.local.pods = append(a.local.pods, netip.PrefixFrom(ip.Addr, ip.BitLen()))
	}
	return nil
}

// readKernel looks at what others have on this node, and at what the kernel can do.
func (a *agent) readKernel(ctx context.Context) (err error) {
	if a.local.uplinks, err = a.kernel.Uplinks(); err != nil {
		return err
	}
	if err := a.askKernel(ctx); err != nil {
		return err
	}
	return a.readRoutes()
}

// askKernel asks the kernel what it can do, and later for what it could not: somebody
// may have loaded a module since.
func (a *agent) askKernel(ctx context.Context) (err error) {
	f := &a.facts
	if f.Release != "" && (time.Since(a.factsAt) < loop.Resync || f.Geneve && f.VXLAN && f.WireGuard) {
		return nil
	}
	if *f, err = kernelFacts(ctx, a.kernel, *f); err == nil {
		a.factsAt = time.Now()
	}
	return err
}

// readRoutes looks at routes and addresses, which say what ranges are in use,
// and at the MTU of the node's own link.
func (a *agent) readRoutes() error {
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
	prefixes, a.omittedRoutes = summary(prefixes)
	a.routes = v1alpha1.NewCIDRs(prefixes...)
	a.underlay, a.underlayMTU = "", 0
	if ip, err := internalIP(a.node); err == nil {
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

// kernelFacts asks the kernel for what it could not do when it was asked before.
func kernelFacts(ctx context.Context, kernel *overlay.Kernel, f v1alpha1.KernelFacts) (_ v1alpha1.KernelFacts, err error) {
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
		if *ask.set {
			continue
		}
		if *ask.set, err = ask.can(); err != nil {
			return f, fmt.Errorf("ask the kernel for %s: %w", ask.what, err)
		}
	}
	return f, nil
}
