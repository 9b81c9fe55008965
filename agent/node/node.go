// Package node is the agent on every node. It creates the overlay links from the node to the gateways, and the routes
// to peers. Its nftables table preserves source addresses, and lets in only what pods may receive. The agent watches
// the Peerings, computes the desired state of the kernel (desire, which is pure), and applies the difference. It
// reports in its NodeNetwork.
//
// When it ends it leaves the kernel unchanged, so that packets flow during an upgrade. Its configuration is removed
// with the Peering, or when all agents are uninstalled (cleanupIfUninstalled).
package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/heartbeat"
	"github.com/liqonet/liqonet/agent/history"
	"github.com/liqonet/liqonet/agent/logs"
	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/firewall"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/pkg/version"
	"github.com/liqonet/liqonet/pkg/wire"
)

// Config is the configuration that the pod gives to its agent.
type Config struct {
	// NodeName and PodName identify the node and the pod in which the agent runs.
	NodeName, PodName string
	// OverlayKeys is a directory with the keys of the cluster's overlay.
	OverlayKeys string
	// MetricsAddress is the node's address at which metrics are served.
	MetricsAddress netip.Addr
	Log            *slog.Logger
	// Level is the level of Log.
	Level *logs.Level

	metrics *metrics.Agent
}

// historyInterval is the minimum time between two writes of the history. All nodes may change their plane repeatedly
// at the same time.
const historyInterval = 10 * time.Second

// Run runs the agent. It returns when ctx ends, or with an error that a restart may fix.
func Run(ctx context.Context, cfg Config) error {
	cfg.Log.Info("this node's agent starts", "version", version.String(), "node", cfg.NodeName, "pod", cfg.PodName)
	keys, keysErr := overlay.ReadKeys(cfg.OverlayKeys)
	c, rest, err := watch.Client()
	if err := cmp.Or(keysErr, err); err != nil {
		return err
	}
	health := &loop.Health{}
	go loop.Serve(ctx, cfg.Log, "serve health checks", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), v1alpha1.HealthPort), health)
	cfg.metrics = metrics.New(metrics.Node, version.String())
	go loop.Serve(ctx, cfg.Log, "serve metrics", netip.AddrPortFrom(cfg.MetricsAddress, v1alpha1.MetricsPort), cfg.metrics.Handler())
	return run(ctx, cfg, keys, c, rest, health)
}

// run runs the agent with its keys and its client.
func run(ctx context.Context, cfg Config, keys overlay.Keys, c client.Client, cfgRest *rest.Config, health *loop.Health) error {
	var last lastView
	defer func() { cleanupIfUninstalled(c, last, cfg.Log) }()
	return loop.Retry(ctx, cfg.Log, func(ctx context.Context) error {
		err := runWithAddress(ctx, cfg, keys, c, cfgRest, health, &last)
		if apierrors.IsNotFound(err) {
			// Our definitions may be gone. The agent does not end: during a restart nothing could clean the kernel.
			cleanupIfUninstalled(c, last, cfg.Log)
		}
		return err
	})
}

// runWithAddress runs the agent while the node keeps its address. It stores the agent's view in last.
func runWithAddress(ctx context.Context, cfg Config, keys overlay.Keys, c client.Client, cfgRest *rest.Config, health *loop.Health, last *lastView) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	node := &corev1.Node{}
	if err := c.Get(ctx, client.ObjectKey{Name: cfg.NodeName}, node); err != nil {
		return fmt.Errorf("read node %s: %w", cfg.NodeName, err)
	}
	id, err := watch.ClusterID(ctx, c)
	if err != nil {
		return err
	}
	lease := loop.Lease{Client: c, Holder: cfg.NodeName, Pod: cfg.PodName, Manager: manager(node)}
	own, renewed, err := acquireAddress(ctx, node, &lease, func(ctx context.Context) error { return Purge(ctx, cfg.Log.Info) })
	if err != nil {
		return errors.Join(err, blockWithoutAddress(ctx, c, local{clusterID: id, nodeIPs: nodes.Addresses(node, corev1.NodeInternalIP)}))
	}
	address := own.Status.Address.Addr
	cfg.Log.Info("this node has an address in the overlay", "address", address)
	kernel, err := overlay.New()
	if err != nil {
		return err
	}
	defer kernel.Close()
	a := &agent{
		Config: cfg, kernel: kernel, manager: lease.Manager, view: &watch.View{Client: c}, objects: objects{own: own, node: node},
		applied: applied{kept: own.Status.Gateways}, machine: machine{resolvers: readResolvers(resolvConf), paths: map[pathKey]pathInfo{}, recent: recent{health: health}, lost: lostGateways{client: c, log: cfg.Log}},
		local: local{clusterID: id, name: cfg.NodeName, address: address, keys: keys}, probers: map[planeKey]*prober{},
		wake: notify.NewSignal(), silence: heartbeat.Silence{Client: c, Log: cfg.Log},
	}
	a.machine.lost.changed = a.wake
	a.local.restorePlanes(own.Status.Gateways)
	cfg.metrics.SetSource(a.readMetrics)
	defer cfg.metrics.SetSource(nil)
	if err := a.readKernel(); err != nil {
		return err
	}
	// Commands wait for the kernel's abilities, so they are reported first.
	status, _ := a.Status("")
	if err := a.writeStatus(ctx, status); err != nil {
		return err
	}
	if a.view, err = startView(ctx, cfg, c, cfgRest); err != nil {
		return err
	}
	*last = lastView{a.view.Reader, own.Name, cfg.PodName}
	a.history = history.New(&history.Record{
		Client: c, Log: cfg.Log, Name: v1alpha1.NodeHistoryName(cfg.NodeName), Manager: a.manager, Interval: historyInterval,
		Owner: &metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
	})
	defer a.history.Start(ctx)()
	go lease.DelayMonitor.Watch(ctx)
	go a.silence.Run(ctx)
	go a.machine.lost.run(ctx)
	return a.loop(ctx, &lease, renewed)
}

// blockWithoutAddress blocks the peers of a node that has no address in the overlay.
func blockWithoutAddress(ctx context.Context, c client.Client, l local) error {
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return err
	}
	kernel, err := overlay.New()
	if err != nil {
		return err
	}
	defer kernel.Close()
	l.address = netip.IPv4Unspecified()
	want, _ := desire(l, peerings.Items) // no plane can be served
	return blockPeers(ctx, kernel, want.overlay)
}

// blockPeers makes peers unreachable from a node that cannot send to them: packets must not leave unencrypted by the
// default route. If there are links, the previous configuration does the same.
func blockPeers(ctx context.Context, kernel *overlay.Kernel, want overlay.State) error {
	links, err := kernel.Links()
	if err != nil || lo.SomeBy(lo.Keys(links), func(name string) bool { return strings.HasPrefix(name, wire.LinkPrefix) }) {
		return err
	}
	want.Links, want.Routes = nil, lo.Filter(want.Routes, func(r overlay.Route, _ int) bool { return r.Unreachable })
	_, err = kernel.Apply(ctx, want)
	return err
}

// startView starts to watch the objects on which the node's state depends.
func startView(ctx context.Context, cfg Config, c client.Client, cfgRest *rest.Config) (*watch.View, error) {
	set, namespace := agents()
	return watch.Start(ctx, c, cfgRest, map[client.Object]cache.ByObject{
		&v1alpha1.Peering{}: {}, &v1alpha1.NodeNetwork{}: {Field: watch.ByName(cfg.NodeName)},
		&corev1.Node{}: {Field: watch.ByName(cfg.NodeName)}, &corev1.Pod{}: {Field: fields.OneTermEqualSelector("spec.nodeName", cfg.NodeName)},
		set: {Field: watch.ByName(set.Name)}, namespace: {Field: watch.ByName(namespace.Name)},
	}, strip)
}

// loop runs the agent's loop. renewed is when the Lease was created, zero if it already existed.
func (a *agent) loop(ctx context.Context, lease *loop.Lease, renewed time.Time) error {
	changes := notify.NewSignal()
	err := a.kernel.Monitor(ctx, changes, a.machine.underlay)
	if err := cmp.Or(err, nat.Monitor(ctx, changes), firewall.Monitor(ctx, changes)); err != nil {
		return fmt.Errorf("watch the kernel: %w", err)
	}
	l := loop.Loop[v1alpha1.NodeNetworkStatus]{
		Agent: a, Log: a.Log, Objects: a.view.Changed, Kernel: changes, Measure: a.wake, Health: a.machine.recent.health, Reconciled: a.metrics.Reconciled,
		Report: loop.Reporter[v1alpha1.NodeNetworkStatus]{
			Interval: v1alpha1.NodeReportInterval, Compare: compareStatus, Write: a.writeStatus, Renewed: renewed,
			Renew: func(ctx context.Context) error {
				err := lease.Renew(ctx)
				if apierrors.IsConflict(err) || apierrors.IsInvalid(err) { // an object's UID cannot be changed
					return errAddressLost
				}
				return err
			},
		},
	}
	return l.Run(ctx)
}

// strip removes a Peering's messages and measurements, which only people read.
func strip(obj client.Object) {
	if p, ok := obj.(*v1alpha1.Peering); ok {
		for i := range p.Status.Conditions {
			p.Status.Conditions[i].Message = ""
		}
		for i := range p.Status.Planes {
			s := &p.Status.Planes[i]
			s.Message, s.OtherCaller, s.RTTMicroseconds, s.LossPercent, s.LastHandshake = "", "", 0, 0, nil
		}
	}
}

type agent struct {
	Config
	view    *watch.View
	kernel  *overlay.Kernel
	local   local
	machine machine
	objects objects
	// manager is the field manager of the node's NodeNetwork.
	manager string
	applied applied
	probers map[planeKey]*prober
	// wake signals that a plane has come up or gone down.
	wake notify.Signal
	// history is the record of changes. reachable holds by which planes this node reached its peers at the last look, a
	// bit for each.
	history   *history.Record
	reachable map[string]uint8
	silence   heartbeat.Silence
	// metricsPlanes is the last state for metrics.
	metricsPlanes atomic.Pointer[[]metrics.Plane]
}

// machine is what this node's kernel and configuration say about it.
type machine struct {
	// facts are the abilities of the kernel, read at factsAt.
	facts   v1alpha1.KernelFacts
	factsAt time.Time
	// routes are the node's other routes and addresses. omittedRoutes is how many more there are.
	routes        []v1alpha1.CIDR
	omittedRoutes int
	// resolvers are the node's name servers.
	resolvers []v1alpha1.IP
	// underlay is the interface with the node's own address. It may change. In some clouds, no interface of the node has
	// that address: then it is empty, and nothing is known about the link.
	underlay    string
	underlayMTU int
	// recent is what others have recently done to the kernel.
	recent recent
	// lost finds gateways that nobody hears.
	lost lostGateways
	// paths caches the paths to gateways. It is cleared when the kernel has changed.
	paths map[pathKey]pathInfo
}

// objects are the latest objects about this node. Except for own, they belong to the cache and must not be changed.
type objects struct {
	// own is the node's NodeNetwork with the latest status.
	own  *v1alpha1.NodeNetwork
	node *corev1.Node
	pods []corev1.Pod
}

// applied is what the kernel holds.
type applied struct {
	// want is the last desired state. inSync is set if the kernel matches it, otherwise err is the reason.
	want   desired
	inSync bool
	err    error
	// gateways are those that have a link, or will have one. kept are entries of other gateways that are still reported.
	// At first they are those of the previous agent, since the kernel still holds them. reconciled is set once the
	// kernel has been read.
	gateways   []gateway
	kept       []v1alpha1.NodeGateway
	reconciled bool
}

var errAddressLost error = loop.Stop{Reason: errors.New("this node's NodeNetwork, or the Lease that holds its overlay address, is gone: it needs another address")}

// Reconcile makes the kernel match the objects. If these ask for the same as at the last attempt, it reads the kernel
// only if compare is set: objects often change only in measured values.
func (a *agent) Reconcile(ctx context.Context, compare bool) (inSync bool, err error) {
	own := &v1alpha1.NodeNetwork{}
	if err := a.view.Get(ctx, client.ObjectKey{Name: a.objects.own.Name}, own); client.IgnoreNotFound(err) != nil {
		return false, err
	}
	var peerings v1alpha1.PeeringList
	if err := a.view.List(ctx, &peerings, watch.Shared); err != nil {
		return false, err
	}
	if own.UID != a.objects.own.UID {
		if len(peerings.Items) == 0 {
			if err := Purge(ctx, a.Log.Info); err != nil {
				return false, err
			}
		}
		return false, errAddressLost
	}
	if err := a.readObjects(ctx); err != nil {
		return false, err
	}
	if compare {
		if err := a.readKernel(); err != nil {
			return false, err
		}
	}
	a.history.RetainPeerings(lo.Map(peerings.Items, func(p v1alpha1.Peering, _ int) string { return p.Name }))
	want, bad := desire(a.local, peerings.Items)
	isSame := reflect.DeepEqual(want, a.applied.want)
	if compare || !isSame {
		clear(a.machine.paths)
		wasInSync := a.applied.inSync
		a.applied.want = want
		var changes []string
		changes, a.applied.inSync, a.applied.err = a.apply(ctx, want)
		if isSame && wasInSync {
			a.machine.recent.addRepair(changes)
		}
	}
	return a.applied.inSync, errors.Join(bad, a.applied.err)
}

// apply applies the desired state to the kernel. changes are those of links, routes, rules and our table.
func (a *agent) apply(ctx context.Context, want desired) (changes []string, inSync bool, err error) {
	// Restrict traffic first, then allow it. When everything is removed, the order is reversed.
	var ruleErr error
	var tables []string
	if want.nat != nil {
		changed, err := nat.ApplyNode(ctx, *want.nat)
		if changed {
			tables = []string{"changed nftables table " + nat.TableName}
		}
		if err != nil {
			return nil, false, errors.Join(err, blockPeers(ctx, a.kernel, want.overlay))
		}
		// A chain that belongs to others and cannot be changed must not prevent the rest.
		_, ruleErr = firewall.EnsureAcceptRules(*want.nat)
	}
	changes, err = a.kernel.Apply(ctx, want.overlay)
	loop.LogChanges(a.Log, changes)
	changes = append(changes, tables...)
	var partial *overlay.PartialError
	if err != nil && !errors.As(err, &partial) {
		return changes, false, errors.Join(ruleErr, err)
	}
	if want.nat == nil && (partial == nil || !partial.RemovalFailed) {
		if err := purge(a.Log.Info); err != nil {
			return changes, false, err
		}
	}
	a.applied.gateways, a.applied.kept, a.applied.reconciled = want.gateways, nil, true
	if partial != nil {
		a.applied.gateways, a.applied.kept = afterPartialApply(partial, want.gateways, a.objects.own)
	}
	a.updateProbers(ctx, a.applied.gateways)
	// Do not retry what only others can change: the kernel reports it when they do.
	return changes, err == nil && (ruleErr == nil || errors.As(ruleErr, new(*firewall.BlockedError))), errors.Join(ruleErr, err)
}

// afterPartialApply returns which gateways have a link after an Apply that failed in part. The entries of the others
// are kept as last reported. After a failure a link may still work, or work again: the gateway keeps its end until
// then. Links that could not be removed still exist.
func afterPartialApply(p *overlay.PartialError, want []gateway, own *v1alpha1.NodeNetwork) (linked []gateway, kept []v1alpha1.NodeGateway) {
	linked, failed := lo.FilterReject(want, func(g gateway, _ int) bool { return !slices.Contains(p.Links, g.link) })
	for _, g := range failed {
		kept = append(kept, *cmp.Or(own.Gateway(g.peering, g.plane), &v1alpha1.NodeGateway{PeeringName: g.peering, Plane: g.plane}))
	}
	if p.RemovalFailed {
		kept = append(kept, lo.Reject(own.Status.Gateways, func(r v1alpha1.NodeGateway, _ int) bool {
			return slices.ContainsFunc(want, func(g gateway) bool { return g.peering == r.PeeringName && g.plane == r.Plane })
		})...)
	}
	return linked, kept
}

// readObjects reads the Node and its own pods.
func (a *agent) readObjects(ctx context.Context) error {
	node := &corev1.Node{}
	if err := a.view.Get(ctx, client.ObjectKey{Name: a.NodeName}, node); err != nil {
		return fmt.Errorf("read node %s: %w", a.NodeName, err)
	}
	var pods corev1.PodList
	if err := a.view.List(ctx, &pods, watch.Shared); err != nil {
		return fmt.Errorf("list the pods of node %s: %w", a.NodeName, err)
	}
	a.objects.node, a.objects.pods = node, pods.Items
	_, namespace := agents()
	if err := a.view.Get(ctx, client.ObjectKeyFromObject(namespace), namespace); err == nil { // it may be gone
		a.Level.UpdateFrom(a.Log, namespace.GetAnnotations())
	}
	a.local.nodeIPs = nodes.Addresses(node, corev1.NodeInternalIP)
	ranges := podCIDRs(node)
	a.local.pods = v1alpha1.Prefixes(ranges)
	for _, ip := range podsOutsideCIDRs(a.objects.pods, ranges, a.local.address) {
		a.local.pods = append(a.local.pods, netip.PrefixFrom(ip.Addr, ip.BitLen()))
	}
	return nil
}

// readKernel reads the node's other configuration and the kernel's abilities.
func (a *agent) readKernel() (err error) {
	a.local.uplinks, err = a.kernel.Uplinks()
	return cmp.Or(err, a.readKernelFeatures(), a.readRoutes())
}

// readKernelFeatures reads the kernel's abilities. It repeats that later while some are missing: a module may have been
// loaded since.
func (a *agent) readKernelFeatures() error {
	f := a.machine.facts
	if f.Release != "" && (time.Since(a.machine.factsAt) < loop.Resync || f.Geneve && f.VXLAN && f.WireGuard) {
		return nil
	}
	var name unix.Utsname
	errs := [4]error{unix.Uname(&name)}
	f.Release = unix.ByteSliceToString(name.Release[:])
	f.Geneve, errs[1] = a.kernel.Supports(overlay.Geneve)
	f.VXLAN, errs[2] = a.kernel.Supports(overlay.VXLAN)
	f.WireGuard, errs[3] = a.kernel.Supports(tunnel.LinkKind)
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("ask the kernel what it can do: %w", err)
	}
	a.machine.facts, a.machine.factsAt = f, time.Now()
	return nil
}

// readRoutes reads routes and addresses, which show which ranges are in use, and the MTU of the node's own link.
func (a *agent) readRoutes() error {
	prefixes, routesErr := a.kernel.Routes()
	addrs, err := a.kernel.Addresses()
	if err := errors.Join(routesErr, err); err != nil {
		return err
	}
	prefixes = append(prefixes, lo.Map(addrs, func(a netip.Addr, _ int) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) })...)
	prefixes, a.machine.omittedRoutes = summarizeRoutes(prefixes)
	a.machine.routes = v1alpha1.NewCIDRs(prefixes...)
	a.machine.underlay, a.machine.underlayMTU = "", 0
	for _, ip := range nodes.Addresses(a.objects.node, corev1.NodeInternalIP) {
		if name, mtu, err := a.kernel.LinkByAddress(ip); err == nil {
			a.machine.underlay, a.machine.underlayMTU = name, mtu
			break
		}
	}
	return nil
}

// cleanupTimeout is shorter than the pod's grace period.
const cleanupTimeout = 3 * time.Second

// podEndTimeout is how long an agent that has to end waits for its watch to report the end of its pod: both have the
// same cause.
const podEndTimeout = time.Second

// cleanupIfUninstalled cleans the kernel if no agent will follow this one: somebody deletes the agents' namespace,
// their DaemonSet or our definitions without unpeering. If that is not certain, it leaves the kernel unchanged.
func cleanupIfUninstalled(c client.Reader, last lastView, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	why := removalReason(ctx, c, last)
	if why == "" {
		return
	}
	log.Info("the agents are being removed: cleaning this node", "because", why)
	if err := Purge(ctx, log.Info); err != nil {
		log.Error("cannot clean this node; run liqonet-agent purge to remove the rest", "error", err)
	}
}

// lastView is an agent's last knowledge of its cluster, which is the state of its cache. It counts when the API
// server stops answering.
type lastView struct {
	// Reader is nil until the cache is filled.
	client.Reader
	// own and pod are the names of the NodeNetwork and of the agent's pod.
	own, pod string
}

// removalReason returns why the agents are being removed. It returns "" if they are not, or if it cannot tell.
//
// An API server that rejects requests is no proof by itself. A pod's token ends with its pod, even if somebody
// force-deletes the pod. An API server that has just started does not know the permissions yet. Then the last view
// counts.
func removalReason(ctx context.Context, c client.Reader, last lastView) string {
	set, namespace := agents()
	why, err := firstDeleted(ctx, c, set, namespace)
	unauthorized := apierrors.IsUnauthorized(err)
	switch {
	case unauthorized || apierrors.IsForbidden(err):
		return last.removed(ctx, unauthorized)
	case why == "" && apierrors.IsNotFound(c.List(ctx, &v1alpha1.PeeringList{}, client.Limit(1))):
		return "the kind Peering is gone"
	}
	return why
}

// removed does the same from the last view.
func (l lastView) removed(ctx context.Context, unauthorized bool) string {
	if l.Reader == nil {
		return ""
	}
	set, namespace := agents()
	// Somebody who removes the NodeNetwork and also the account or its permissions is not just restarting an agent.
	own := &v1alpha1.NodeNetwork{TypeMeta: metav1.TypeMeta{Kind: "NodeNetwork"}, ObjectMeta: metav1.ObjectMeta{Name: l.own}}
	why, err := firstDeleted(ctx, l, set, namespace, own)
	if why != "" || err != nil || !unauthorized {
		return why
	}
	// The token is invalid, but the watch did not report the end of the pod. Either the account is gone, or the node was
	// cut off for a long time, most likely during the last unpeer. If the agent was replaced since, its successor
	// restores everything within seconds. If not, nothing else would ever clean this node.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: l.pod}}
	err = wait.PollUntilContextTimeout(ctx, podEndTimeout/10, podEndTimeout, true, func(ctx context.Context) (bool, error) {
		ends, err := firstDeleted(ctx, l, pod)
		return ends != "", err
	})
	if wait.Interrupted(err) {
		return "this agent's account is gone, or its pod ended while it was cut off from its cluster"
	}
	return ""
}

// agents returns the objects with which all node agents are removed. Only their metadata is read. The DaemonSet's
// pods may be deleted before the DaemonSet.
func agents() (set, namespace *metav1.PartialObjectMetadata) {
	set = &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}}
	set.Namespace, set.Name = v1alpha1.Namespace, v1alpha1.NodeAgentName
	namespace = &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
	namespace.Name = v1alpha1.Namespace
	return set, namespace
}

// firstDeleted describes the first of the objects that is gone or being deleted. The error covers those that cannot be
// read.
func firstDeleted(ctx context.Context, c client.Reader, objs ...client.Object) (string, error) {
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

// purge removes and reports everything of ours in nftables.
func purge(report func(string, ...any)) error {
	removed, err := firewall.RemoveAcceptRules()
	if removed {
		report("removed rules from chains of others")
	}
	table, tableErr := nat.Purge()
	if table {
		report("removed nftables table " + nat.TableName)
	}
	return errors.Join(err, tableErr)
}

// Purge removes and reports everything of ours in the kernel, whichever agent left it there.
func Purge(ctx context.Context, report func(string, ...any)) error {
	kernel, err := overlay.New()
	if err != nil {
		return err
	}
	defer kernel.Close()
	changes, err := kernel.Apply(ctx, overlay.State{})
	for _, change := range changes {
		report(change)
	}
	return errors.Join(err, purge(report))
}

// acquireAddress gives the node its NodeNetwork and an address in the overlay. A Lease holds the address: it is named
// after the address and held by the node. Names are unique, so no two nodes hold the same address. The order of
// attempts depends only on the node's name, so that a node gets the same address again if possible. The Lease is
// deleted with the NodeNetwork, and the NodeNetwork with the Node.
//
// acquireAddress completes the lease. created is when it was created, zero if it already existed.
//
// If nothing of ours is left in the cluster, nothing should be left in the kernel either. Then acquireAddress calls
// purge, and continues to wait for the ClusterNetwork.
func acquireAddress(ctx context.Context, node *corev1.Node, lease *loop.Lease, purge func(context.Context) error) (own *v1alpha1.NodeNetwork, created time.Time, err error) {
	c := lease.Client
	internal, err := internalCIDR(ctx, c, purge)
	if err != nil {
		return nil, created, err
	}
	if own, err = ensureNodeNetwork(ctx, c, node, internal); err != nil {
		return nil, created, err
	}
	lease.Owner = applymeta.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("NodeNetwork").WithName(own.Name).WithUID(own.UID)
	if lease.Name = own.LeaseName(); lease.Name != "" {
		var held coordinationv1.Lease
		err := c.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: lease.Name}, &held)
		if client.IgnoreNotFound(err) != nil {
			return nil, created, fmt.Errorf("read who holds this node's overlay address: %w", err)
		}
		if err == nil && ptr.Deref(held.Spec.HolderIdentity, "") == lease.Holder {
			lease.UID = held.UID
			return own, created, nil
		}
	}
	taken := map[netip.Addr]bool{}
	for i := range ipam.MaxNode {
		if i == maxUnverifiedTries {
			var list v1alpha1.NodeNetworkList
			if err := c.List(ctx, &list); err != nil {
				return nil, created, fmt.Errorf("list the addresses that are taken: %w", err)
			}
			for _, n := range list.Items {
				taken[n.Status.Address.Addr] = n.Name != node.Name
			}
		}
		addr, err := ipam.NodeAddr(internal, ipam.NodeCandidate(node.Name, i))
		if err != nil {
			return nil, created, err
		}
		if taken[addr] {
			continue
		}
		lease.Name = v1alpha1.NodeLeaseName(addr)
		switch lease.UID, err = lease.Claim(ctx); {
		case err == nil:
			own.Status.Address = v1alpha1.IP{Addr: addr}
			return own, time.Now(), nil
		case !apierrors.IsConflict(err) && !heldByAnother(ctx, lease):
			return nil, created, fmt.Errorf("claim overlay address %s: %w", addr, err)
		}
	}
	return nil, created, fmt.Errorf("all %d addresses of %s are taken; kubectl liqonet doctor names nodes that hold more than one", ipam.MaxNode, internal)
}

// heldByAnother reports whether another node holds the Lease. Its agent may have written anything into it, so that a
// claim fails otherwise than with a conflict.
func heldByAnother(ctx context.Context, lease *loop.Lease) bool {
	var l coordinationv1.Lease
	err := lease.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: lease.Name}, &l)
	return err == nil && ptr.Deref(l.Spec.HolderIdentity, lease.Holder) != lease.Holder
}

// maxUnverifiedTries is how many addresses a node tries before it lists those that are taken. All nodes of a large
// cluster may start at once, and all its NodeNetworks are many megabytes. Of 5,000 nodes, three in four need one or two
// tries.
const maxUnverifiedTries = 16

// ensureNodeNetwork returns the node's NodeNetwork, and creates it if it does not exist. It applies the object instead
// of creating it: for two seconds after a custom resource definition is established, the API server delays every create
// request.
func ensureNodeNetwork(ctx context.Context, c client.Client, node *corev1.Node, internal netip.Prefix) (*v1alpha1.NodeNetwork, error) {
	n := &v1alpha1.NodeNetwork{}
	usable := func() bool {
		owned := slices.ContainsFunc(n.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == node.UID })
		addr := n.Status.Address
		return owned && n.DeletionTimestamp.IsZero() && (!addr.IsValid() || internal.Contains(addr.Addr))
	}
	err := c.Get(ctx, types.NamespacedName{Name: node.Name}, n)
	if client.IgnoreNotFound(err) != nil || err == nil && usable() {
		return n, err
	}
	if err == nil {
		// It belongs to a deleted node of the same name, or has an address of a range that is no longer used.
		if err := c.Delete(ctx, n, client.Preconditions{UID: &n.UID}); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("delete the outdated NodeNetwork of this node: %w", err)
		}
	}
	raw, _ := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeNetwork", "metadata": map[string]any{
		"name": node.Name, "labels": map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager},
		// It is useless without the node.
		"ownerReferences": []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
	}}) // strings
	n = &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	if err := c.Patch(ctx, n, client.RawPatch(types.ApplyPatchType, raw), client.FieldOwner(manager(node))); err != nil {
		return nil, fmt.Errorf("create this node's NodeNetwork: %w", err)
	}
	if !usable() {
		return nil, fmt.Errorf("NodeNetwork %s still belongs to another Node", n.Name)
	}
	return n, nil
}

// abandonedAfter is how long the ClusterNetwork has to be absent before the agent believes it: an API server that
// starts does not serve it immediately.
const abandonedAfter = 3 * time.Second

// internalCIDR waits for the ClusterNetwork and returns its internal range. Agents may be installed before the API
// server serves the new kind.
func internalCIDR(ctx context.Context, c client.Client, purge func(context.Context) error) (netip.Prefix, error) {
	cn := &v1alpha1.ClusterNetwork{}
	start, purged := time.Now(), false
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, types.NamespacedName{Name: v1alpha1.ClusterNetworkName}, cn)
		if err == nil && cn.DeletionTimestamp.IsZero() || client.IgnoreNotFound(err) != nil {
			return err == nil, err
		}
		if !purged && time.Since(start) > abandonedAfter {
			purged = true
			return false, purge(ctx)
		}
		return false, nil
	})
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("read the cluster's internal range: %w", err)
	}
	return cn.Spec.InternalCIDR.Prefix, nil
}

// manager returns the field manager of a node's agent. Each agent has its own.
func manager(node *corev1.Node) string { return "liqonet-node-" + string(node.UID) }
