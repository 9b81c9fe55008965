package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/tunnel"
)

// reporter remembers what was reported.
type reporter struct {
	*watch.Report
	failed string
	// writing is what is being written, written what was last.
	writing, written v1alpha1.PlaneStatus
	at               time.Time
}

// report begins to write the plane's status where something changed that others
// wait for, and regularly.
func (a *agent) report(ctx context.Context) error {
	if a.peering == nil || !a.status.Free() {
		return nil
	}
	s := a.planeStatus()
	age := time.Since(a.status.at)
	if same(s, a.status.written) && age < v1alpha1.ReportInterval && (age < settleInterval || !moved(s.RTTMicroseconds, a.status.written.RTTMicroseconds)) {
		return nil
	}
	s.Reported = new(metav1.Now())
	patch := map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Peering",
		"metadata": map[string]any{"name": a.peering.Name, "uid": a.peering.UID},
		"status":   v1alpha1.PeeringStatus{Planes: []v1alpha1.PlaneStatus{s}},
	}
	raw, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	p := &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: a.peering.Name}}
	a.status.writing = s
	a.status.Begin(ctx, func(ctx context.Context) error {
		// Server-side apply: each plane's gateway owns its entry of the list.
		err := a.view.Client.Status().Patch(ctx, p, client.RawPatch(types.ApplyPatchType, raw),
			client.FieldOwner(fmt.Sprintf("liqonet-gateway-%d", a.machine.plane)), client.ForceOwnership)
		return client.IgnoreNotFound(err)
	})
	return nil
}

// reported notes that a report was written, or why not.
func (a *agent) reported(err error) {
	a.status.Note(err)
	if err == nil {
		a.status.written, a.status.at = a.status.writing, time.Now()
	}
}

func (a *agent) planeStatus() v1alpha1.PlaneStatus {
	s := v1alpha1.PlaneStatus{
		Index: a.machine.plane, ObservedGeneration: a.applied, PodIP: v1alpha1.IP{Addr: a.podIP}, NodeName: a.NodeName,
		MTU: int32(a.desired.mtu), Connected: a.connected(), Message: a.status.failed,
	}
	if a.device != nil {
		if stats, err := a.device.Stats(); err == nil {
			if stats.Endpoint.IsValid() {
				s.Endpoint = stats.Endpoint.String()
			}
			if !stats.LastHandshake.IsZero() {
				s.LastHandshake = new(metav1.NewTime(stats.LastHandshake))
			}
		}
	}
	var probes tunnel.ProbeStats
	if a.prober != nil {
		probes = a.prober.Snapshot()
		s.RTTMicroseconds, s.LossPercent = probes.Median.Microseconds(), int32(probes.Loss*100+0.5)
	}
	if !s.Connected && s.Message == "" {
		s.Message = a.whyNot(s, probes.LastReply)
	}
	return s
}

// whyNot tells what is known of a tunnel that does not work.
func (a *agent) whyNot(s v1alpha1.PlaneStatus, lastReply time.Time) string {
	switch {
	case s.LastHandshake == nil && len(a.endpoints.hosts) > 0:
		return fmt.Sprintf("no handshake with the peer's gateway at %v: is UDP let through?", a.endpoints.hosts)
	case s.LastHandshake == nil:
		return "the peer's gateway has not called yet"
	case lastReply.IsZero():
		return "probes through the tunnel were never answered"
	default:
		return fmt.Sprintf("probes through the tunnel are not answered since %s", lastReply.UTC().Format(time.RFC3339))
	}
}

// settleInterval is how soon a round trip time that has changed much is told.
// The first probes of a tunnel wait for its handshake.
const settleInterval = time.Second

func moved(now, before int64) bool {
	return now > 2*before || before > 2*now
}

// same says that nobody needs to be told of the difference now.
func same(a, b v1alpha1.PlaneStatus) bool {
	return a.ObservedGeneration == b.ObservedGeneration && a.PodIP == b.PodIP && a.NodeName == b.NodeName &&
		a.MTU == b.MTU && a.Connected == b.Connected && (a.Message == b.Message && a.Endpoint == b.Endpoint || !a.Connected)
}
