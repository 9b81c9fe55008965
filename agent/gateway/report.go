package gateway

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// status is this gateway's part of the Peering's status.
type status struct {
	// peering is the object's UID: a recreated one has no status yet.
	peering types.UID
	plane   v1alpha1.PlaneStatus
	// disputed is set if the condition Connected was overwritten by others.
	disputed bool
	// conditions are empty if another plane's gateway writes them, or if stay is set, which keeps them unchanged.
	conditions []metav1.Condition
	stay       bool
}

func (a *agent) writeStatus(ctx context.Context, s status) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		p := &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: a.Peering, UID: s.peering}}
		if a.leaving.Load() {
			now, err := a.read(ctx)
			if now == nil || err != nil || a.replaced(now) {
				return err
			}
			p.ResourceVersion = now.ResourceVersion
		}
		apply := func(conditions []metav1.Condition) error {
			out := v1alpha1.PeeringStatus{Planes: []v1alpha1.PlaneStatus{s.plane}, Conditions: conditions}
			if len(conditions) > 0 {
				out.ObservedGeneration = conditions[0].ObservedGeneration
			}
			return loop.ApplyStatus(ctx, a.view.Client, "Peering", p, out, v1alpha1.GatewayManager(a.Plane))
		}
		if !s.stay {
			if err := apply(s.conditions); len(s.conditions) > 0 || !apierrors.IsInvalid(err) {
				return err
			}
		}
		// This gateway has written conditions, and the next writer has not yet. The API server removes what this gateway
		// stops applying, except values that the other writer has also set: part of a condition would remain. So the
		// conditions stay unchanged.
		now, readErr := a.read(ctx)
		if now == nil || readErr != nil {
			return readErr
		}
		p.ResourceVersion = now.ResourceVersion
		return apply(now.Status.Conditions)
	})
	return client.IgnoreNotFound(err)
}

// read returns the current Peering, nil if it is gone.
func (a *agent) read(ctx context.Context) (*v1alpha1.Peering, error) {
	var list v1alpha1.PeeringList // by name, since no other list is permitted
	if err := a.view.Client.List(ctx, &list, client.MatchingFields{"metadata.name": a.Peering}); err != nil || len(list.Items) == 0 {
		return nil, err
	}
	return &list.Items[0], nil
}

// replaced reports whether the next gateway of this plane has already reported: nodes follow the last write. That
// gateway waits until this one has left, but only for some seconds.
func (a *agent) replaced(now *v1alpha1.Peering) bool {
	s := now.PlaneStatus(a.local.plane)
	return s != nil && s.PodIP.IsValid() && !slices.Contains(a.PodIPs, s.PodIP.Addr)
}

// Status returns the status to report.
func (a *agent) Status(problem string) (status, bool) {
	if a.peering == nil {
		a.shown.Store(nil)
		return status{}, false
	}
	s := status{peering: a.peering.UID, plane: a.planeStatus(problem)}
	state, why := a.planeState(s.plane)
	if a.device != nil {
		a.recorder.update(s.peering, s.plane, state, why)
	}
	plane := ptr.Deref(a.peering.Plane(a.local.plane), v1alpha1.Plane{})
	a.shown.Store(&metrics.Plane{
		Peering: a.Peering, Index: s.plane.Index, State: state, MTU: int(s.plane.MTU), Handshake: a.tunnel.LastHandshake, Nodes: a.nodes,
		// The mounted file does not tell its age: the kubelet writes it for each pod. A version that did not record the
		// time may have made the key.
		Key: ptr.Deref(plane.KeyTime, metav1.Time{}).Time,
	})
	a.lease.Measured.Store(&v1alpha1.Measured{
		JitterMicroseconds: a.probes.Jitter.Microseconds(), SentBytes: a.tunnel.TxBytes, ReceivedBytes: a.tunnel.RxBytes,
		RTTMicroseconds: s.plane.RTTMicroseconds, LossPercent: &s.plane.LossPercent, LastHandshake: s.plane.LastHandshake,
	})
	alive := a.planesAlive(s.plane)
	if s.stay = a.isUnsure(alive); !s.stay && a.isWriter(alive) {
		s.conditions = a.currentConditions(s.plane, alive)
		s.disputed = a.disputes(alive, meta.FindStatusCondition(s.conditions, v1alpha1.ConditionConnected))
	} else {
		a.conditions = nil // another gateway writes them now
	}
	return s, true
}

func (a *agent) planeStatus(problem string) v1alpha1.PlaneStatus {
	s := v1alpha1.PlaneStatus{
		Index: a.local.plane, ObservedGeneration: a.applied, PodIP: v1alpha1.IP{Addr: a.podIP}, NodeName: a.NodeName,
		PublicKey: a.local.key.PublicKey().String(), MTU: int32(a.desired.mtu), Connected: a.connected(), Message: loop.Short(problem),
		Leaving:         a.leaving.Load(),
		RTTMicroseconds: a.probes.Median.Microseconds(), LossPercent: int32(a.probes.Loss*100 + 0.5),
		Remote: a.announced,
	}
	if a.tunnel.Endpoint.IsValid() {
		// The zone of a link-local address means nothing outside of this pod.
		s.Endpoint = netip.AddrPortFrom(a.tunnel.Endpoint.Addr().WithZone(""), a.tunnel.Endpoint.Port()).String()
	}
	if !a.tunnel.LastHandshake.IsZero() {
		s.LastHandshake = new(metav1.NewTime(a.tunnel.LastHandshake))
	}
	if !s.Connected && s.Message == "" {
		s.Message = loop.Short(a.whyNot(s, a.probes.LastReply))
	}
	return s
}

// whyNot explains why a tunnel does not work.
func (a *agent) whyNot(s v1alpha1.PlaneStatus, lastReply time.Time) string {
	var why string
	calls := len(a.endpoints.hosts) > 0
	switch {
	case s.LastHandshake == nil && calls:
		why = "no handshake with the peer's gateway: is UDP let through?"
	case s.LastHandshake == nil:
		return "the peer's gateway has not called yet"
	case lastReply.IsZero():
		why = "probes through the tunnel were never answered."
	default:
		why = fmt.Sprintf("probes through the tunnel are not answered since %s.", lastReply.UTC().Format(time.RFC3339))
	}
	if calls && a.endpoints.unknown != nil {
		return fmt.Sprintf("%s: it is called by a name that leads nowhere", a.endpoints.unknown)
	}
	if calls {
		return fmt.Sprintf("%s If the peer's address has changed, run `kubectl liqonet peer`. It is called at %v", why, a.endpoints.hosts)
	}
	return strings.TrimSuffix(why, ".")
}

// currentConditions returns the conditions of the peering if packets pass through the planes in alive.
func (a *agent) currentConditions(own v1alpha1.PlaneStatus, alive map[int32]bool) []metav1.Condition {
	if a.conditions == nil {
		a.conditions = slices.Clone(a.peering.Status.Conditions)
	}
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	planes, problem := len(a.peering.Spec.Planes), a.degraded
	lost := lo.FilterMap(a.peering.Spec.Planes, func(p v1alpha1.Plane, _ int) (string, bool) {
		return fmt.Sprint(p.Index), !alive[p.Index]
	})
	connected := loop.Condition(v1alpha1.ConditionConnected, yes, "ProbesAnswered", "probes through the tunnel are answered")
	if len(lost) == planes {
		connected = loop.Condition(connected.Type, no, "NoAnswer", own.Message)
	}
	degraded := loop.Condition(v1alpha1.ConditionDegraded, no, "AllReached", "all nodes and pods that are known can use the peering")
	redundant := loop.Condition(v1alpha1.ConditionRedundant, yes, "SeveralPlanes", "more than one plane carries packets")
	if len(lost) > 0 && planes > 1 {
		problem = strings.TrimPrefix(problem+"; no packets pass through "+plural("plane", lost), "; ")
	}
	switch {
	case connected.Status == no:
		degraded.Reason, degraded.Message = "NotConnected", "nothing passes at all"
	case problem != "":
		degraded = loop.Condition(degraded.Type, yes, "PartlyReached", loop.Short(problem))
	}
	if planes-len(lost) < 2 {
		message := "no packets pass through " + plural("plane", lost) + ": the next failure ends all connections"
		redundant = loop.Condition(redundant.Type, no, "OnePlaneLeft", message)
	}
	conditions := []metav1.Condition{connected, degraded, redundant}
	if planes < 2 {
		conditions = conditions[:2]
		meta.RemoveStatusCondition(&a.conditions, v1alpha1.ConditionRedundant)
	}
	conditions = append(conditions, keysFresh(a.peering, time.Now()))
	for _, c := range conditions {
		c.ObservedGeneration = a.applied
		a.recorder.noteCondition(meta.FindStatusCondition(a.conditions, c.Type), c)
		meta.SetStatusCondition(&a.conditions, c)
	}
	meta.SetStatusCondition(&a.conditions, v1alpha1.ReadyCondition(a.conditions))
	return slices.Clone(a.conditions)
}

// keysFresh reports the age of the gateways' keys. The API server's clock may be some seconds or minutes off, which
// does not matter for months.
func keysFresh(p *v1alpha1.Peering, now time.Time) metav1.Condition {
	c := loop.Condition(v1alpha1.ConditionKeysFresh, metav1.ConditionTrue, "Young", "no key is older than 90 days")
	var old []string
	for _, plane := range p.Spec.Planes {
		if plane.KeyTime == nil {
			c.Status, c.Reason, c.Message = metav1.ConditionUnknown, "NoTime", "an older version made a key without recording the time"
		} else if now.Sub(plane.KeyTime.Time) > v1alpha1.MaxKeyAge {
			old = append(old, fmt.Sprintf("%d (%s)", plane.Index, plane.KeyTime.UTC().Format(time.DateOnly)))
		}
	}
	if len(old) > 0 {
		c.Status, c.Reason = metav1.ConditionFalse, "Old"
		c.Message = "older than 90 days: the keys of " + plural("plane", old) + "; `kubectl liqonet rotate-keys` makes new ones"
	}
	return c
}

// plural names several things of a kind.
func plural(what string, names []string) string {
	if len(names) > 1 {
		what += "s"
	}
	return what + " " + strings.Join(names, ", ")
}

// maxNamed is how many nodes a message names.
const maxNamed = 3

// degraded returns why packets do not pass from all nodes or for all pods; "" if they do.
func degraded(p *v1alpha1.Peering, nodes []v1alpha1.NodeNetwork) string {
	var unreached []string
	for _, n := range members(p, nodes) {
		if !slices.ContainsFunc(p.Spec.Planes, func(plane v1alpha1.Plane) bool {
			return ptr.Deref(n.Gateway(p.Name, plane.Index), v1alpha1.NodeGateway{}).Ready
		}) {
			unreached = append(unreached, n.Name)
		}
	}
	var out []string
	if len(unreached) > 0 {
		out = append(out, "the peer is not reached from "+someNodes(unreached))
	}
	if outside := p.PodOutside(nodes); outside != "" {
		out = append(out, outside)
	}
	return strings.Join(out, "; ")
}

// someNodes names the first nodes in alphabetical order, and how many there are.
func someNodes(names []string) string {
	if len(names) == 1 {
		return "node " + names[0]
	}
	slices.Sort(names)
	more := lo.Ternary(len(names) > maxNamed, " and others", "")
	return fmt.Sprintf("%d nodes (%s%s)", len(names), strings.Join(names[:min(len(names), maxNamed)], ", "), more)
}

// compareStatus returns how urgently a status has to be written. Latency and loss do not count, except the first ones, since each
// write is sent to all nodes. The Lease contains them.
func compareStatus(now, written status) loop.Change {
	a, b := now.plane, written.plane
	if now.peering != written.peering || a.ObservedGeneration != b.ObservedGeneration || a.PodIP != b.PodIP || a.NodeName != b.NodeName ||
		a.PublicKey != b.PublicKey || a.MTU != b.MTU || a.Connected != b.Connected || a.Leaving != b.Leaving ||
		len(now.conditions) != len(written.conditions) ||
		(a.Connected && (a.Message != b.Message || a.Endpoint != b.Endpoint)) || (a.RTTMicroseconds > 0) != (b.RTTMicroseconds > 0) {
		return loop.Changed
	}
	for i, c := range now.conditions {
		if w := written.conditions[i]; c.Type != w.Type || c.Status != w.Status || c.Reason != w.Reason || c.ObservedGeneration != w.ObservedGeneration {
			return loop.Changed
		} else if c.Message != w.Message {
			return loop.Measured
		}
	}
	if now.disputed || a.Message != b.Message || a.Endpoint != b.Endpoint || !a.LastHandshake.Equal(b.LastHandshake) || !reflect.DeepEqual(a.Remote, b.Remote) {
		return loop.Measured
	}
	return loop.Same
}

// metricsIP returns the pod's address at which metrics are served. It prefers IPv4, which is what the nftables table
// lets in (nat.Gateway.Pods).
func metricsIP(addrs []netip.Addr) netip.Addr {
	return addrs[max(0, slices.IndexFunc(addrs, netip.Addr.Is4))]
}

// countNodes counts nodes by what they do with the gateway of a plane. Nodes that are gone do nothing, whatever they
// last reported.
func countNodes(p *v1alpha1.Peering, plane int32, nodes []v1alpha1.NodeNetwork, askers *askers) map[string]int {
	out := map[string]int{metrics.NodesKnown: 0, metrics.NodesReady: 0, metrics.NodesActive: 0}
	for addr, n := range members(p, nodes) {
		out[metrics.NodesKnown]++
		_, gone := askers.look(addr)
		g := ptr.Deref(n.Gateway(p.Name, plane), v1alpha1.NodeGateway{})
		if g.Ready && !gone {
			out[metrics.NodesReady]++
		}
		if g.Active && !gone {
			out[metrics.NodesActive]++
		}
	}
	return out
}

// readMetrics returns the last state, with the kernel's current counters.
func (a *agent) readMetrics() (s metrics.Snapshot, err error) {
	plane := a.shown.Load()
	if plane == nil {
		return s, nil
	}
	p := *plane
	if t, err := a.kernel.Traffic(tunnel.InterfaceName); err == nil { // otherwise there is no interface now
		p.Traffic = (*metrics.Traffic)(&t)
	}
	s.Planes = []metrics.Plane{p}
	drops, err := nat.Drops(context.Background())
	for _, d := range drops {
		s.Drops = append(s.Drops, metrics.Drop{Peering: p.Peering, Plane: fmt.Sprint(p.Index), Hook: d.Hook, Reason: d.Reason, Packets: d.Packets})
	}
	return s, err
}
