// Package heartbeat observes which of a peering's gateways are alive, by their Leases. A gateway renews its Lease only
// if its last write of the Peering's status has succeeded, so the status of a gateway that is alive is current. Only
// the observer's own monotonic clock counts.
package heartbeat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/samber/lo"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
)

// Timeout is how long a gateway may not renew its Lease before other gateways consider it dead.
const Timeout = 3 * v1alpha1.ReportInterval

// renewal is when a Lease was last renewed, by the clock of its gateway, empty if it never was or is missing. Other writes
// of a Lease, such as labels that others add, do not show that the gateway is alive.
type renewal struct {
	time string
	err  error
}

// renewals reads the Leases of gateways at the same time: an API server may be slow.
func renewals(ctx context.Context, c client.Reader, peering string, planes []int32) []renewal {
	out := make([]renewal, len(planes))
	var all sync.WaitGroup
	for i, plane := range planes {
		all.Go(func() {
			var l coordinationv1.Lease
			err := c.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: v1alpha1.GatewayName(peering, plane)}, &l)
			out[i] = renewal{Renewal(&l), client.IgnoreNotFound(err)}
		})
	}
	all.Wait()
	return out
}

// Renewal returns when a Lease was last renewed, by the clock of its holder, empty if it never was.
func Renewal(l *coordinationv1.Lease) string {
	if l.Spec.RenewTime == nil {
		return ""
	}
	return l.Spec.RenewTime.UTC().Format(time.RFC3339Nano)
}

// Observer observes the other gateways of a gateway's peering. Its methods are safe for concurrent use.
type Observer struct {
	// Client reads Leases of the peering, Own is the plane of the observer's gateway.
	Client  client.Client
	Peering string
	Own     int32

	mu     sync.Mutex
	others []int32
	seen   map[int32]beat
}

// beat is the renewal of a Lease at the last successful read. changed is when another one was read, zero for never.
type beat struct {
	renewal       string
	changed, read time.Time
}

// SetPlanes sets the peering's planes.
func (o *Observer) SetPlanes(planes []v1alpha1.Plane) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.others = lo.Without(indexes(planes), o.Own)
}

func indexes(planes []v1alpha1.Plane) []int32 {
	return lo.Map(planes, func(p v1alpha1.Plane, _ int) int32 { return p.Index })
}

// Run reads the Leases until ctx ends.
func (o *Observer) Run(ctx context.Context) {
	for failure.Pause(ctx, v1alpha1.ReportInterval) {
		o.observe(ctx)
	}
}

func (o *Observer) observe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, v1alpha1.ReportInterval)
	defer cancel()
	o.mu.Lock()
	others := o.others
	o.mu.Unlock()
	now := renewals(ctx, o.Client, o.Peering, others)
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.seen
	o.seen = map[int32]beat{}
	for i, plane := range others {
		b, known := before[plane]
		if now[i].err == nil { // an observer that cannot read does not know whether a gateway is dead
			if known && now[i].time != b.renewal && now[i].time != "" {
				b.changed = time.Now()
			}
			b.renewal, b.read, known = now[i].time, time.Now(), true
		}
		if known {
			o.seen[plane] = b
		}
	}
}

// IsAlive reports whether the gateway of another plane is alive. It returns false if that is not known yet, and what was last
// known if its Lease cannot be read.
func (o *Observer) IsAlive(plane int32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.seen[plane]
	return !b.changed.IsZero() && b.read.Sub(b.changed) < Timeout
}

// silence is the time between two checks of a Silence. It is twice as long as gateways take to renew a Lease. A node
// notices after 7 s that it does not reach the peer, so that the second check comes before 30 s.
const silence = 2 * v1alpha1.ReportInterval

// maxReads is of how many peerings a Silence reads the Leases at the same time.
const maxReads = 64

// Silence corrects a Peering's conditions if all of its gateways are dead. Dead gateways cannot do so themselves, and
// clients that wait would trust their last report. Each node waits a random time of up to one pause before its first
// check. The first node that finds dead gateways reports them for all.
type Silence struct {
	Client client.Client
	Log    *slog.Logger
	// suspects are the peerings whose conditions may be wrong.
	suspects atomic.Pointer[[]suspect]
}

// suspect is a Peering, and how many planes this node reaches its peer by.
type suspect struct {
	v1alpha1.Peering
	planes int
}

// wrong returns the conditions that are wrong if no gateway is alive.
func (s suspect) wrong() (out map[int]metav1.Condition) {
	out = map[int]metav1.Condition{}
	isTrue := func(of string) bool { return meta.IsStatusConditionTrue(s.Status.Conditions, of) }
	lost := s.planes == 0 && isTrue(v1alpha1.ConditionConnected)
	for i, c := range s.Status.Conditions {
		isLast := c.Type == v1alpha1.ConditionRedundant && s.planes < 2
		if !lost && (!isLast || c.Status != metav1.ConditionTrue) {
			continue
		}
		now := c
		now.Status, now.LastTransitionTime = metav1.ConditionUnknown, metav1.Now()
		now.Reason, now.Message = v1alpha1.ReasonGatewaysSilent, v1alpha1.MessageGatewaysSilent
		if isLast {
			now.Status, now.Message = metav1.ConditionFalse, v1alpha1.MessageNotRedundant
		}
		if now.Status != c.Status || now.Reason != c.Reason {
			out[i] = now
		}
	}
	return out
}

// Update sets the Peerings, and by which planes this node reaches their peers: a bit for each plane, by the Peering's
// name. It does not wait for an API server.
func (s *Silence) Update(peerings []v1alpha1.Peering, reached map[string]uint8) {
	s.suspects.Store(new(lo.FilterMap(peerings, func(p v1alpha1.Peering, _ int) (suspect, bool) {
		planes, known := reached[p.Name]
		now := suspect{p, bits.OnesCount8(planes)}
		return now, known && len(now.wrong()) > 0
	})))
}

// Run checks the suspects until ctx ends.
func (s *Silence) Run(ctx context.Context) {
	var before map[string][]renewal
	for pause := rand.N(silence); failure.Pause(ctx, pause); pause = silence {
		before = s.check(ctx, before)
	}
}

// check returns the renewals of the Leases of all suspects' gateways, by peering. If none of a peering has changed since
// the last successful read, it corrects the conditions. Later checks retry failures.
func (s *Silence) check(ctx context.Context, before map[string][]renewal) map[string][]renewal {
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	suspects := ptr.Deref(s.suspects.Load(), nil)
	read, turns := make([][]renewal, len(suspects)), make(chan struct{}, maxReads)
	var all sync.WaitGroup
	for i, p := range suspects {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			var err error
			if read[i], err = s.checkPeering(ctx, p, before[p.Name]); err != nil {
				s.Log.Debug("cannot find out whether gateways are dead", "peering", p.Name, "error", err)
			}
		})
	}
	all.Wait()
	now := map[string][]renewal{}
	for i, p := range suspects {
		now[p.Name] = read[i]
	}
	return now
}

// checkPeering does the same for one peering.
func (s *Silence) checkPeering(ctx context.Context, p suspect, before []renewal) ([]renewal, error) {
	now := renewals(ctx, s.Client, p.Name, indexes(p.Spec.Planes))
	if err := errors.Join(lo.Map(now, func(r renewal, _ int) error { return r.err })...); err != nil {
		return before, err
	}
	if before == nil || !slices.Equal(before, now) {
		return now, nil // otherwise a gateway is alive, and writes the conditions itself
	}
	return now, s.correct(ctx, p)
}

// correct writes the conditions that are wrong, unless the Peering has changed since it was read. The agents' admission
// policy allows only these texts, each only once, by a field manager that all node agents share. The other conditions stay unchanged: messages are missing in the agent's view.
func (s *Silence) correct(ctx context.Context, p suspect) error {
	ops := []map[string]any{{"op": "test", "path": "/metadata/resourceVersion", "value": p.ResourceVersion}}
	for i, c := range p.wrong() {
		ops = append(ops, map[string]any{"op": "replace", "path": fmt.Sprint("/status/conditions/", i), "value": c})
	}
	raw, _ := json.Marshal(ops) // strings and conditions
	return s.Client.Status().Patch(ctx, p.DeepCopy(), client.RawPatch(types.JSONPatchType, raw), client.FieldOwner(v1alpha1.NodeAgentName))
}
