package loop

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordination "k8s.io/client-go/applyconfigurations/coordination/v1"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/version"
)

// Lease is an agent's heartbeat.
type Lease struct {
	Client client.Client
	// Name is the object's name, Holder the agent's pod, and Manager the field manager.
	Name, Holder, Manager string
	// UID is the UID of the object to renew, so that no other object of that name is renewed. It is empty where the CLI
	// creates the object.
	UID types.UID
	// Pod is the agent's pod where Holder is its node.
	Pod string
	// Measured is written with each renewal, unless it is nil.
	Measured atomic.Pointer[v1alpha1.Measured]
	// Punctuality measures whether the agent gets a processor in time.
	Punctuality Punctuality
	// Owner is the object with which the Lease is deleted, nil where the CLI creates and removes it.
	Owner *applymeta.OwnerReferenceApplyConfiguration
}

// Renew renews the Lease. It returns a conflict if the Lease with the UID is gone, and an invalid error if another
// one has replaced it.
func (l *Lease) Renew(ctx context.Context) error {
	if _, err := l.apply(ctx, client.ForceOwnership); err != nil {
		return fmt.Errorf("renew Lease %s/%s: %w", v1alpha1.Namespace, l.Name, err)
	}
	return nil
}

// Claim creates the Lease, or takes over the one of the same holder, and returns its UID. It returns a conflict if
// another one holds it.
func (l *Lease) Claim(ctx context.Context) (types.UID, error) { return l.apply(ctx) }

// apply writes the Lease. The renewal time is by the agent's own clock.
func (l *Lease) apply(ctx context.Context, opts ...client.ApplyOption) (types.UID, error) {
	notes := map[string]string{v1alpha1.AnnotationVersion: version.String()}
	if m := l.Measured.Load(); m != nil {
		notes[v1alpha1.AnnotationMeasured] = m.String()
	}
	if percent := l.Punctuality.Starved(); percent >= starvedLeast {
		notes[v1alpha1.AnnotationStarved] = strconv.Itoa(percent)
	}
	if l.Pod != "" {
		notes[v1alpha1.AnnotationPod] = l.Pod
	}
	lease := coordination.Lease(l.Name, v1alpha1.Namespace).WithAnnotations(notes).
		WithSpec(coordination.LeaseSpec().WithHolderIdentity(l.Holder).WithRenewTime(metav1.NewMicroTime(time.Now())))
	if l.Owner != nil {
		lease.WithOwnerReferences(l.Owner).WithLabels(map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager})
	}
	if l.UID != "" {
		lease.WithUID(l.UID)
	}
	if err := l.Client.Apply(ctx, lease, append(opts, client.FieldOwner(l.Manager))...); err != nil {
		return "", err
	}
	return ptr.Deref(lease.UID, ""), nil
}

const (
	// beatEvery is the interval of a Punctuality's checks, and beats how many of them count.
	beatEvery, beats = time.Second, 60
	// starvedLeast is the percentage from which a Lease reports it.
	starvedLeast = 20
)

// Punctuality measures how late an agent runs: how long it waits for a processor when it is due. The cause may be its
// own limit or a busy machine. It needs no help from the kernel. The zero value is punctual.
type Punctuality struct {
	mu   sync.Mutex
	late [beats]time.Duration
	next int
}

// Watch checks until ctx ends.
func (p *Punctuality) Watch(ctx context.Context) {
	for {
		due := time.Now().Add(beatEvery)
		select {
		case <-ctx.Done():
			return
		case <-time.After(beatEvery):
			p.note(time.Since(due))
		}
	}
}

func (p *Punctuality) note(late time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late[p.next] = late
	p.next = (p.next + 1) % beats
}

// Starved returns how late the agent was at the last checks, in percent of the time between two. One long delay
// counts as one, however long it was.
func (p *Punctuality) Starved() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var late time.Duration
	for _, l := range p.late {
		late += min(max(l, 0), beatEvery)
	}
	return int(100 * late / (beats * beatEvery))
}
