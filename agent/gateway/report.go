package gateway

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/feed"
	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// status is this gateway's part of the Peering's status.
type status struct {
	// peering is the object's UID: a recreated one has no status yet.
	peering types.UID
	plane   v1alpha1.PlaneStatus
	// disputed is set if the condition Connected was overwritten by others.
	disputed bool
	// conditions are empty if another plane's gateway writes them, or if keepConditions is set, which keeps them
	// unchanged.
	conditions     []metav1.Condition
	keepConditions bool
}

// writer writes the status, on a goroutine of its own.
type writer struct {
	client  client.Client
	peering string
	plane   int
	podIPs  []netip.Addr
	// leaving reports whether this gateway is about to end.
	leaving func() bool
}

func (w writer) write(ctx context.Context, s status) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		p := &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: w.peering, UID: s.peering}}
		if w.leaving() {
			now, err := w.read(ctx)
			if now == nil || err != nil || w.replaced(now) {
				return err
			}
			p.ResourceVersion = now.ResourceVersion
		}
		apply := func(conditions []metav1.Condition) error {
			out := v1alpha1.PeeringStatus{Planes: []v1alpha1.PlaneStatus{s.plane}, Conditions: conditions}
			if len(conditions) > 0 {
				out.ObservedGeneration = conditions[0].ObservedGeneration
			}
			return loop.ApplyStatus(ctx, w.client, "Peering", p, out, v1alpha1.GatewayManager(w.plane))
		}
		if !s.keepConditions {
			if err := apply(s.conditions); len(s.conditions) > 0 || !apierrors.IsInvalid(err) {
				return err
			}
		}
		// This gateway has written conditions, and the next writer has not yet. The API server removes what this gateway
		// stops applying, except values that the other writer has also set: part of a condition would remain. So the
		// conditions stay unchanged.
		now, readErr := w.read(ctx)
		if now == nil || readErr != nil {
			return readErr
		}
		p.ResourceVersion = now.ResourceVersion
		return apply(now.Status.Conditions)
	})
	return client.IgnoreNotFound(err)
}

// read returns the current Peering, nil if it is gone.
func (w writer) read(ctx context.Context) (*v1alpha1.Peering, error) {
	var list v1alpha1.PeeringList // by name, since no other list is permitted
	if err := w.client.List(ctx, &list, client.MatchingFields{"metadata.name": w.peering}); err != nil || len(list.Items) == 0 {
		return nil, err
	}
	return &list.Items[0], nil
}

// replaced reports whether the next gateway of this plane has already reported: nodes follow the last write. That
// gateway waits until this one has left, but only for some seconds.
func (w writer) replaced(now *v1alpha1.Peering) bool {
	s := now.PlaneStatus(int32(w.plane))
	return s != nil && s.PodIP.IsValid() && !slices.Contains(w.podIPs, s.PodIP.Addr)
}

// Status returns the status to report.
func (a *agent) Status(problem string) (status, bool) {
	if a.copied != nil {
		a.shown.show(nil)
		return a.copyStatus(), true
	}
	if a.peering == nil {
		a.shown.show(nil)
		return status{}, false
	}
	v := a.tunnelHealth()
	s := status{peering: a.peering.UID, plane: a.planeStatus(v, problem)}
	state, why := v.publicState(s.plane)
	tunnel, probes := a.measurements.tunnel, a.measurements.probes
	if a.device.Device != nil {
		a.recorder.update(s.peering, s.plane, state, why)
		a.recorder.recordLeftOut(a.announcements.own)
	}
	plane := ptr.Deref(a.peering.Plane(a.local.plane), v1alpha1.Plane{})
	a.shown.show(&metrics.Plane{
		Peering: a.cfg.Peering, Index: s.plane.Index, State: state, MTU: int(s.plane.MTU), Handshake: tunnel.LastHandshake,
		Nodes: a.conditions.countNodes(a.local.plane, &a.livenessServer.nodes),
		// The mounted file does not show its age: the kubelet writes it for each pod. A version that did not record the
		// time may have created the key.
		Key:         ptr.Deref(plane.KeyTime, metav1.Time{}).Time,
		OtherCaller: s.plane.OtherCaller != "",
	})
	a.lease.Measurements.Store(&v1alpha1.Measurements{
		JitterMicroseconds: probes.Jitter.Microseconds(), SentBytes: tunnel.TxBytes, ReceivedBytes: tunnel.RxBytes,
		RTTMicroseconds: s.plane.RTTMicroseconds, LossPercent: &s.plane.LossPercent, LastHandshake: s.plane.LastHandshake,
	})
	a.conditions.report(&s, a.peering, &a.livenessServer.nodes, &a.recorder)
	a.services.record(a.conditions.writes)
	return s, true
}

// copyStatus returns the status of a Peering that was made for another cluster. All gateways write the same conditions.
func (a *agent) copyStatus() status {
	message := v1alpha1.CopyMessage(a.copied.Spec.Local.ClusterID)
	connected := loop.Condition(v1alpha1.ConditionConnected, metav1.ConditionFalse, v1alpha1.ReasonOtherCluster, message)
	connected.ObservedGeneration = a.copied.Generation
	conditions := slices.DeleteFunc(slices.Clone(a.copied.Status.Conditions), func(c metav1.Condition) bool {
		return c.Type != connected.Type && c.Type != v1alpha1.ConditionReady // times of these stay if they do
	})
	meta.SetStatusCondition(&conditions, connected)
	meta.SetStatusCondition(&conditions, v1alpha1.ReadyCondition(conditions))
	return status{
		peering: a.copied.UID, conditions: conditions,
		plane: v1alpha1.PlaneStatus{Index: a.local.plane, ObservedGeneration: a.copied.Generation, NodeName: a.cfg.NodeName, Message: message},
	}
}

func (a *agent) planeStatus(v tunnelHealth, problem string) v1alpha1.PlaneStatus {
	s := v1alpha1.PlaneStatus{
		Index: a.local.plane, ObservedGeneration: a.applied.generation, PodIP: v1alpha1.IP{Addr: a.podIP}, NodeName: a.cfg.NodeName,
		PublicKey: a.local.key.PublicKey().String(), MTU: int32(a.applied.desired.mtu),
		Connected:       a.conditions.isReached(a.local.plane, v.connected, &a.livenessServer.nodes),
		Message:         loop.Truncate(problem),
		Leaving:         v.leaving,
		RTTMicroseconds: a.measurements.probes.Median.Microseconds(), LossPercent: int32(a.measurements.probes.Loss*100 + 0.5),
		Remote: a.announcements.announced,
	}
	if a.measurements.tunnel.Endpoint.IsValid() {
		// The zone of a link-local address means nothing outside of this pod.
		s.Endpoint = netip.AddrPortFrom(a.measurements.tunnel.Endpoint.Addr().WithZone(""), a.measurements.tunnel.Endpoint.Port()).String()
	}
	if !a.measurements.tunnel.LastHandshake.IsZero() {
		s.LastHandshake = new(metav1.NewTime(a.measurements.tunnel.LastHandshake))
	}
	if other := a.livenessServer.callers.other(a.measurements.tunnel.Endpoint, time.Now()); other.IsValid() {
		s.OtherCaller = other.String()
	}
	switch {
	case s.Message != "":
	case s.Connected:
		s.Message = loop.Truncate(strings.Join(a.measurements.problems(a.announcements.channel), "; "))
	default:
		why := append([]string{a.disconnectedReason(s, v)}, a.measurements.problems(nil)...)
		s.Message = loop.Truncate(strings.Join(why, "; "))
	}
	return s
}

// disconnectedReason explains why a tunnel does not work.
func (a *agent) disconnectedReason(s v1alpha1.PlaneStatus, v tunnelHealth) string {
	if s.OtherCaller != "" {
		return callersMessage(s.Endpoint, s.OtherCaller)
	}
	var why string
	calls := len(a.dialer.endpoints.hosts) > 0
	switch lastReply := v.probes.LastReply; {
	case v.connected:
		return "the tunnel works, but no node reaches the peer through this gateway"
	case v.answered && v.session.Leaving:
		return "the peer's nodes do not reach the peer's gateway"
	case v.answered:
		return "small probes are answered, but the path loses large packets, or those of new connections"
	case s.LastHandshake == nil && calls:
		why = "no handshake with the peer's gateway: is UDP blocked?"
	case s.LastHandshake == nil && lastReply.IsZero():
		return "the peer's gateway has not connected yet"
	case lastReply.IsZero():
		why = "probes through the tunnel were never answered."
	default:
		why = fmt.Sprintf("probes through the tunnel are not answered since %s.", lastReply.UTC().Format(time.RFC3339))
	}
	if calls && a.dialer.endpoints.unknown != nil {
		return fmt.Sprintf("%s: the endpoint's name does not resolve", a.dialer.endpoints.unknown)
	}
	if calls {
		return fmt.Sprintf("%s If the peer's address has changed, run `kubectl liqonet peer`. Its endpoints are %v",
			why, a.dialer.endpoints.hosts)
	}
	return strings.TrimSuffix(why, ".")
}

// compareStatus returns how urgently a status has to be written. Latency and loss do not count, except the first ones, since each
// write is sent to all nodes. The Lease contains them.
func compareStatus(now, written status) loop.Change {
	a, b := now.plane, written.plane
	isFirst := (a.RTTMicroseconds > 0) != (b.RTTMicroseconds > 0)
	differs := a.Message != b.Message || a.Endpoint != b.Endpoint
	measured := now.disputed || differs || !a.LastHandshake.Equal(b.LastHandshake) || !reflect.DeepEqual(a.Remote, b.Remote)
	isContested := a.OtherCaller != "" && b.OtherCaller != ""
	if isContested {
		a.OtherCaller = b.OtherCaller // it alternates with the endpoint
	}
	a.Message, a.Endpoint, a.LastHandshake, a.Remote = b.Message, b.Endpoint, b.LastHandshake, b.Remote
	a.RTTMicroseconds, a.LossPercent = b.RTTMicroseconds, b.LossPercent
	sameConditions := slices.EqualFunc(now.conditions, written.conditions, func(c, w metav1.Condition) bool {
		measured = measured || c.Message != w.Message
		return c.Type == w.Type && c.Status == w.Status && c.Reason == w.Reason && c.ObservedGeneration == w.ObservedGeneration
	})
	switch {
	case now.peering != written.peering || a != b || isFirst || a.Connected && differs && !isContested || !sameConditions:
		return loop.Changed
	case measured:
		return loop.Measured
	}
	return loop.Same
}

// reportDrained notifies the plane's next gateway, which waits for it, that this one has left.
func (a *agent) reportDrained(w writer) error {
	s, ok := a.Status("")
	if !s.plane.Leaving || !ok {
		return nil
	}
	s.plane.Leaving = false
	ctx, cancel := context.WithTimeout(context.Background(), minDrainTime)
	defer cancel()
	return w.write(ctx, s)
}

// metricsIP returns the pod's address at which metrics are served. It prefers IPv4, which is what the nftables table
// lets in (nat.Gateway.Pods).
func metricsIP(addrs []netip.Addr) netip.Addr {
	return addrs[max(0, slices.IndexFunc(addrs, netip.Addr.Is4))]
}

// published is what metrics show.
type published struct {
	metrics *metrics.Agent
	// plane is the last state.
	plane atomic.Pointer[metrics.Plane]
	// services is the exchange of services, nil without one.
	services atomic.Pointer[feed.Feed]
}

// show sets the state, nil for none.
func (s *published) show(plane *metrics.Plane) { s.plane.Store(plane) }

// read returns the last state, with the kernel's current counters. Scrapes call it on their own goroutine.
func (s *published) read(kernel *overlay.Kernel) (out metrics.Snapshot, err error) {
	plane := s.plane.Load()
	if plane == nil {
		return out, nil
	}
	p := *plane
	if t, err := kernel.Traffic(tunnel.InterfaceName); err == nil { // otherwise there is no interface now
		p.Traffic = (*metrics.Traffic)(&t)
	}
	p.Services = servicesShown(s.services.Load())
	drops, err := nat.Drops() // without links
	return metrics.Snapshot{Planes: []metrics.Plane{p}, Drops: drops}, err
}
