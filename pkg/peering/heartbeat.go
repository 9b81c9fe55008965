package peering

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
)

const (
	// silence is how long after the last renewal of its Lease a gateway is taken for
	// dead, nodeSilence the same for a node agent.
	silence     = 3 * v1alpha1.ReportInterval
	nodeSilence = 3 * v1alpha1.NodeReportInterval
	// leaseMargin is more than a renewal comes late: agents spread theirs.
	leaseMargin = 3 * time.Second
)

// nodeLease and gatewayLease name the Leases of agents.
func nodeLease(overlayAddress string) string { return "node-" + overlayAddress }

func gatewayLease(peering string, plane int32) string {
	return manifests.Gateway{Peering: peering, Plane: plane}.Name()
}

// heartbeats tell which agents are alive. A Lease has the time of its agent's clock,
// which may be wrong by any amount. So what counts is when it was seen to change, by
// the clock of this machine that no one sets. A Lease that is seen for the first time
// has the API server's own stamp, compared with the API server's own clock. If
// these say that it is recent, it is.
type heartbeats map[string]heartbeat

type heartbeat struct {
	lease *coordinationv1.Lease
	// changed is when it last changed, zero if that is not known.
	changed time.Time
}

// note takes what is seen now.
func (h heartbeats) note(leases []*coordinationv1.Lease, serverNow time.Time) {
	for _, l := range leases {
		last, known := h[l.Name]
		switch {
		case !known:
			b := heartbeat{lease: l}
			if age := serverNow.Sub(stampOf(l)); age >= -time.Second && age < nodeSilence {
				b.changed = time.Now().Add(-max(age, 0))
			}
			h[l.Name] = b
		case last.lease.ResourceVersion != l.ResourceVersion:
			h[l.Name] = heartbeat{lease: l, changed: time.Now()}
		}
	}
}

// stampOf is when an agent last wrote its Lease, by the API server's clock.
func stampOf(l *coordinationv1.Lease) (latest time.Time) {
	for _, f := range l.ManagedFields {
		if f.Manager != v1alpha1.FieldManager && f.Time != nil && f.Time.After(latest) {
			latest = f.Time.Time
		}
	}
	return latest
}

// age is how long ago the Lease was renewed. It says false where it never was, as far
// as is known.
func (h heartbeats) age(name string) (time.Duration, bool) {
	b := h[name]
	return time.Since(b.changed), !b.changed.IsZero()
}

// alive says that the Lease was renewed within the time.
func (h heartbeats) alive(name string, within time.Duration) bool {
	age, known := h.age(name)
	return known && age <= within
}

// heldBy says that the agent in the pod renews the Lease.
func (h heartbeats) heldBy(name string, pod *corev1.Pod) bool {
	l := h[name].lease
	return l != nil && l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity == pod.Name
}

// sinceOf is how long ago something was that the agent has told with its own clock,
// nil where that is not known. The Lease has a time of the same clock.
func (h heartbeats) sinceOf(name string, at time.Time) *time.Duration {
	l := h[name].lease
	age, known := h.age(name)
	if !known || l.Spec.RenewTime == nil {
		return nil
	}
	return new(max(l.Spec.RenewTime.Sub(at)+age, 0))
}

// listen reads the Leases. Of those named, with how often they are renewed, some may
// seem old, or of the future. These are watched for as long as a renewal takes, before
// anybody says that their agents are dead.
func (c *Cluster) listen(ctx context.Context, renewed map[string]time.Duration) (heartbeats, error) {
	h := heartbeats{}
	start := time.Now()
	until, hasEnd := ctx.Deadline()
	doubtful := func() string {
		for name, interval := range renewed {
			if l := h[name].lease; l != nil && l.Spec.HolderIdentity != nil && !h.alive(name, 3*interval) && time.Since(start) < interval*5/4+leaseMargin {
				return name + " was not renewed yet"
			}
		}
		return ""
	}
	var leases coordinationv1.LeaseList
	if err := c.Client.List(ctx, &leases, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return nil, c.fail("list Leases", err)
	}
	h.note(pointers(leases.Items), c.now())
	if doubtful() == "" {
		return h, nil
	}
	return h, c.await(ctx, "watch the agents' Leases", "", []kind{inNamespace(&coordinationv1.LeaseList{})}, func(_ context.Context, o objects) (string, error) {
		h.note(of[*coordinationv1.Lease](o), c.now())
		if hasEnd && time.Until(until) < 2*lookInterval {
			return "", nil // what is known by now has to do
		}
		return doubtful(), nil
	})
}

func pointers[T any](in []T) (out []*T) {
	for i := range in {
		out = append(out, &in[i])
	}
	return out
}
