package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/history"
	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	form "github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/nodes"
)

// player does what the node agents of the crowd would write: each claims an address, reports, notes that it reaches its peers, and
// renews its Lease. It does so while kwok says that the agent's pod runs. What agents read is not played: each of them
// watches the Peerings, its Node and its pods.
type player struct {
	api client.WithWatch
	// turn bounds how many requests are under way.
	turn  chan struct{}
	stop  context.CancelFunc
	ended sync.WaitGroup

	mu       sync.Mutex
	internal netip.Prefix
	peerings map[string]*v1alpha1.Peering
	// changed is closed, and replaced, when Peerings change.
	changed chan struct{}
	// agents are by the names of their nodes, and so is in which pod each runs.
	agents map[string]*agent
	pods   map[string]string
	// pending are pods of agents that kwok has not begun with, by name.
	pending map[string]*corev1.Pod
	// failed is the last error that was not expected.
	failed error
}

// agent is that of one node.
type agent struct {
	index int
	node  *corev1.Node
	// wake says that it runs in another pod, or in none any more.
	wake chan struct{}

	// reported is when it has reported first.
	reported atomic.Pointer[time.Time]

	// own is nil until it has an address, which lease holds. written is what it has reported since, and renewed when it renewed its Lease for pod.
	own     *v1alpha1.NodeNetwork
	lease   loop.Lease
	written []v1alpha1.NodeGateway
	pod     string
	renewed time.Time
	history *history.Record
}

func newPlayer(api client.WithWatch) *player {
	return &player{api: api, turn: make(chan struct{}, atOnce), agents: map[string]*agent{}, pods: map[string]string{}, pending: map[string]*corev1.Pod{}, peerings: map[string]*v1alpha1.Peering{}, changed: make(chan struct{})}
}

// start plays the agents of nodes until end is called.
func (p *player) start(ctx context.Context, nodes []*corev1.Node) {
	ctx, p.stop = context.WithCancel(ctx)
	for i, n := range nodes {
		p.add(ctx, i, n)
	}
	p.ended.Go(func() { follow(ctx, p.api, &corev1.PodList{}, p.notePod, client.InNamespace(v1alpha1.Namespace)) })
	p.ended.Go(func() { follow(ctx, p.api, &v1alpha1.PeeringList{}, p.notePeering) })
	p.ended.Go(func() {
		for failure.Pause(ctx, patience) {
			p.mu.Lock()
			pending := maps.Clone(p.pending)
			p.mu.Unlock()
			for _, pod := range pending {
				if time.Since(pod.CreationTimestamp.Time) > patience {
					_ = nudge(ctx, p.api, pod) // the next time, otherwise
				}
			}
		}
	})
}

// add plays one more node's agent.
func (p *player) add(ctx context.Context, index int, n *corev1.Node) *agent {
	a := &agent{index: index, node: n, wake: make(chan struct{}, 1)}
	p.mu.Lock()
	p.agents[n.Name] = a
	p.mu.Unlock()
	p.ended.Go(func() { p.play(ctx, a) })
	return a
}

// end returns the last error that was not expected.
func (p *player) end() error {
	p.stop()
	p.ended.Wait()
	return p.failed
}

// follow tells of each object of a kind, and of each change, until ctx ends. An object that is gone is nil. There may be no such kind.
func follow(ctx context.Context, c client.WithWatch, list client.ObjectList, note func(name string, obj client.Object), opts ...client.ListOption) {
	for known := map[string]bool{}; ctx.Err() == nil; {
		w, err := c.Watch(ctx, list, opts...) // from anywhere: it tells first of all there is
		if err != nil {
			failure.Pause(ctx, 200*time.Millisecond)
			continue
		}
		for event := range w.ResultChan() {
			obj, ok := event.Object.(client.Object)
			switch {
			case !ok:
				w.Stop()
			case event.Type == watch.Deleted:
				delete(known, obj.GetName())
				note(obj.GetName(), nil)
			default:
				known[obj.GetName()] = true
				note(obj.GetName(), obj)
			}
		}
		for name := range known {
			note(name, nil)
		}
		clear(known)
	}
}

func (p *player) notePod(name string, obj client.Object) {
	pod, ok := obj.(*corev1.Pod)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pending, name)
	if !ok {
		for node, running := range p.pods {
			if running == name {
				p.runs(node, "")
			}
		}
		return
	}
	if !strings.HasPrefix(name, v1alpha1.NodeAgentName+"-") {
		return
	}
	if pod.DeletionTimestamp.IsZero() && pod.Status.Phase == corev1.PodPending && p.agents[pod.Spec.NodeName] != nil {
		p.pending[name] = pod
	}
	if pod.DeletionTimestamp.IsZero() && pod.Status.Phase == corev1.PodRunning {
		p.runs(pod.Spec.NodeName, name)
	} else if p.pods[pod.Spec.NodeName] == name {
		p.runs(pod.Spec.NodeName, "")
	}
}

// runs notes in which pod a node's agent runs, which may not be played yet.
func (p *player) runs(node, pod string) {
	if p.pods[node] == pod {
		return
	}
	p.pods[node] = pod
	if a := p.agents[node]; a != nil {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
}

func (p *player) notePeering(name string, obj client.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.peerings, name)
	if obj != nil && obj.GetDeletionTimestamp().IsZero() {
		p.peerings[name] = obj.(*v1alpha1.Peering)
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// retryAfter is how long an agent waits when the API server has refused something.
const retryAfter = time.Second

// play is an agent's life.
func (p *player) play(ctx context.Context, a *agent) {
	for ctx.Err() == nil {
		p.mu.Lock()
		pod, changed, gateways := p.pods[a.node.Name], p.changed, gatewaysOf(a.node, p.peerings)
		p.mu.Unlock()
		pause := v1alpha1.NodeReportInterval
		if pod != "" {
			err := p.report(ctx, a, pod, gateways)
			if pause = time.Until(a.renewed.Add(v1alpha1.NodeReportInterval)); err != nil {
				pause = retryAfter
			}
			if apierrors.IsNotFound(err) {
				a.own, a.written = nil, nil // the definitions are gone, or not there yet
			} else if err != nil && ctx.Err() == nil {
				p.mu.Lock()
				p.failed = fmt.Errorf("play the agent of %s: %w", a.node.Name, err)
				p.mu.Unlock()
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-a.wake:
		case <-time.After(pause):
		}
	}
}

// report writes what is news, and the Lease if it is time.
func (p *player) report(ctx context.Context, a *agent, pod string, gateways []v1alpha1.NodeGateway) error {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	if a.own == nil {
		if err := p.claim(ctx, a, pod); err != nil {
			return err
		}
	}
	if a.written == nil || !slices.Equal(a.written, gateways) {
		a.reported.CompareAndSwap(nil, new(time.Now()))
		own := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: a.own.Name, UID: a.own.UID}}
		if err := loop.ApplyStatus(ctx, p.api, "NodeNetwork", own, status(a, gateways), manager(a)); err != nil {
			return err
		}
		a.note(gateways)
		a.written = gateways
	}
	if a.pod == pod && time.Since(a.renewed) < v1alpha1.NodeReportInterval {
		return nil
	}
	a.lease.Pod = pod
	err := a.lease.Renew(ctx)
	if err == nil {
		a.pod, a.renewed = pod, time.Now()
	}
	return err
}

func manager(a *agent) string { return "liqonet-node-" + string(a.node.UID) }

// claim takes an address of the overlay for the agent's node, as a node's agent does.
func (p *player) claim(ctx context.Context, a *agent, pod string) error {
	p.mu.Lock()
	internal := p.internal
	p.mu.Unlock()
	if !internal.IsValid() {
		cn := &v1alpha1.ClusterNetwork{}
		if err := p.api.Get(ctx, types.NamespacedName{Name: v1alpha1.ClusterNetworkName}, cn); err != nil {
			return err
		}
		p.mu.Lock()
		internal, p.internal = cn.Spec.InternalCIDR.Prefix, cn.Spec.InternalCIDR.Prefix
		p.mu.Unlock()
	}
	own := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: a.node.Name}}
	if err := p.api.Get(ctx, client.ObjectKeyFromObject(own), own); client.IgnoreNotFound(err) != nil {
		return err
	}
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: a.node.Name, UID: a.node.UID}
	raw, err := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeNetwork", "metadata": map[string]any{
		"name": a.node.Name, "labels": map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}, "ownerReferences": []metav1.OwnerReference{owner},
	}})
	if err != nil {
		return err
	}
	if err := p.api.Patch(ctx, own, client.RawPatch(types.ApplyPatchType, raw), client.FieldOwner(manager(a))); err != nil {
		return err
	}
	a.lease = loop.Lease{
		Client: p.api, Holder: a.node.Name, Pod: pod, Manager: manager(a),
		Owner: applymeta.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("NodeNetwork").WithName(own.Name).WithUID(own.UID),
	}
	for i := range ipam.MaxNode {
		addr, err := ipam.NodeAddr(internal, ipam.NodeCandidate(a.node.Name, i))
		if err != nil {
			return err
		}
		a.lease.Name = v1alpha1.NodeLeaseName(addr)
		if a.lease.UID, err = a.lease.Claim(ctx); apierrors.IsConflict(err) {
			continue // of another node
		}
		if err != nil {
			return err
		}
		own.Status.Address = v1alpha1.IP{Addr: addr}
		a.own, a.written, a.pod, a.renewed = own, nil, pod, time.Now()
		a.history = history.New(&history.Record{
			Client: p.api, Log: slog.New(slog.DiscardHandler), Name: v1alpha1.NodeHistoryName(a.node.Name), Manager: manager(a), Interval: 10 * time.Second, Owner: &owner,
		})
		a.history.Start(ctx)
		return nil
	}
	return errors.New("no address is free")
}

// note notes what peers the agent reaches now, as a node's agent does.
func (a *agent) note(gateways []v1alpha1.NodeGateway) {
	reached := func(in []v1alpha1.NodeGateway) map[string]bool {
		out := map[string]bool{}
		for _, g := range in {
			out[g.PeeringName] = out[g.PeeringName] || g.Ready
		}
		return out
	}
	before, now := reached(a.written), reached(gateways)
	a.history.RetainPeerings(slices.Collect(maps.Keys(now)))
	for peering, ready := range now {
		if ready && !before[peering] {
			a.history.Add(history.Change{Entry: form.Entry{
				Peering: peering, Subject: "peer", From: "not reached", To: "reached", Reason: "probes are answered by the peer's gateway",
			}})
		}
	}
}

// gatewaysOf is what a node says of all gateways that have reported where they are. Probes are answered when the gateway's own are.
func gatewaysOf(n *corev1.Node, peerings map[string]*v1alpha1.Peering) []v1alpha1.NodeGateway {
	out := []v1alpha1.NodeGateway{}
	for _, name := range slices.Sorted(maps.Keys(peerings)) {
		p := peerings[name]
		for _, plane := range p.Spec.Planes {
			g := v1alpha1.NodeGateway{PeeringName: name, Plane: plane.Index, ObservedGeneration: p.Generation}
			if s := p.PlaneStatus(plane.Index); s != nil && s.PodIP.IsValid() {
				g.GatewayIP, g.Source, g.MTU = s.PodIP, v1alpha1.IP{Addr: addressOf(n)}, 1450
				if g.Ready = s.Connected && s.ObservedGeneration == p.Generation; g.Ready {
					g.Active, g.RTTMicroseconds = true, 800
				}
			}
			out = append(out, g)
		}
	}
	return out
}

func addressOf(n *corev1.Node) netip.Addr {
	return slices.Concat(nodes.Addresses(n, corev1.NodeInternalIP), []netip.Addr{{}})[0]
}

func status(a *agent, gateways []v1alpha1.NodeGateway) v1alpha1.NodeNetworkStatus {
	return v1alpha1.NodeNetworkStatus{
		Address: a.own.Status.Address, Kernel: &v1alpha1.KernelFacts{Release: "6.1", VXLAN: true}, UnderlayMTU: 1500, NodeIPs: []v1alpha1.IP{{Addr: addressOf(a.node)}},
		PodIPs: podIPs(a.index), Gateways: gateways,
		Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonApplied, Message: "the kernel matches the Peerings",
			LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second)),
		}},
	}
}
