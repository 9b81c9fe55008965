package feed

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/samber/lo"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/pkg/services/feed"
)

const (
	// writesPerSecond and writesAtOnce limit the writes to the API server.
	writesPerSecond, writesAtOnce = 100, 500
	// settle is how long the cache may take to show a write.
	settle = 2 * time.Second
	// manager is the field manager of ReceivedServices. It is the same for all gateways of a peering, so that the next one
	// removes fields that the previous one has written.
	manager = "liqonet-feed"
)

// store records what the peer tells.
type store struct {
	cfg  Config
	view *watch.View
	rate *rate.Limiter

	mu      sync.Mutex
	peering *v1alpha1.Peering
	// learned are the services that the peer has told since this gateway began to record, as it told them.
	learned map[string]feed.Change
	// endpoints is how many endpoints each of them has, and total their sum.
	endpoints map[string]int
	total     int
	// dirty are the services whose objects have to be written or deleted, since when, and wake is sent when there are some.
	dirty map[string]time.Time
	wake  notify.Signal
	// written is when each object was written, until the cache shows it.
	written map[string]time.Time
	// refused are services that are not recorded, by reason, and counts how often that happened.
	refused map[string]string
	counts  map[string]int
	stored  int
}

func newStore(cfg Config, view *watch.View) *store {
	s := &store{cfg: cfg, view: view, rate: rate.NewLimiter(writesPerSecond, writesAtOnce), wake: notify.NewSignal(), counts: map[string]int{}}
	s.clear()
	return s
}

// clear forgets everything that is not in objects.
func (s *store) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.learned, s.endpoints, s.total = map[string]feed.Change{}, map[string]int{}, 0
	s.dirty, s.written, s.refused = map[string]time.Time{}, map[string]time.Time{}, map[string]string{}
}

// keyOf returns the key of a recorded service.
func keyOf(r *v1alpha1.ReceivedService) string {
	_, key, _ := strings.Cut(r.Name, ".")
	return key
}

// numbers returns how many services are recorded, and how often something was refused, by reason.
func (s *store) numbers() (received int, refused map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stored, maps.Clone(s.counts)
}

// isSettling reports whether the cache may not show all writes yet.
func (s *store) isSettling() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.written) > 0
}

// setPeering makes the store check everything again if the peering has changed.
func (s *store) setPeering(p *v1alpha1.Peering) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.peering != nil && s.peering.Generation == p.Generation && s.peering.UID == p.UID {
		return
	}
	s.peering = p
	for k := range s.learned {
		delete(s.refused, k)
		s.markDirty(k)
	}
}

func (s *store) markDirty(key string) {
	if _, is := s.dirty[key]; !is {
		s.dirty[key] = time.Now()
	}
	s.wake.Send()
}

// add records changes. It does not block: the newest one counts.
func (s *store) add(changes []feed.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		delete(s.refused, c.Key)
		s.total -= s.endpoints[c.Key]
		delete(s.endpoints, c.Key)
		delete(s.learned, c.Key)
		s.markDirty(c.Key)
		if c.Record == nil {
			continue
		}
		n := lo.SumBy(c.Record.Slices, func(s v1alpha1.RecordSlice) int { return len(s.Endpoints) })
		if len(s.learned) >= v1alpha1.MaxPeerServices || s.total+n > v1alpha1.MaxPeerEndpoints {
			s.refuse(c.Key, services.RefusedLimit)
			continue
		}
		s.learned[c.Key], s.endpoints[c.Key] = c, n
		s.total += n
	}
}

// refuse notes that a service is not recorded.
func (s *store) refuse(key, reason string) {
	if s.refused[key] != reason {
		s.counts[reason]++
	}
	if len(s.refused) < 2*v1alpha1.MaxPeerServices {
		s.refused[key] = reason
	}
}

// compare compares the objects with what the peer has told, by its hashes. Objects that others have changed or deleted are written
// again. It returns the services that this gateway does not know any more.
func (s *store) compare(received []v1alpha1.ReceivedService, held map[string]string) (lost []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored = len(received)
	now := time.Now()
	maps.DeleteFunc(s.written, func(_ string, at time.Time) bool { return now.Sub(at) > settle })
	there := heldIn(received)
	for k := range there {
		if _, has := held[k]; !has {
			s.check(k)
		}
	}
	for k, hash := range held {
		if there[k] == hash || s.refused[k] != "" {
			continue
		}
		if _, knows := s.learned[k]; knows {
			s.check(k)
		} else if !s.isBusy(k) {
			lost = append(lost, k)
		}
	}
	return lost
}

// check marks a service whose object differs, unless it was written a moment ago.
func (s *store) check(key string) {
	if !s.isBusy(key) {
		s.markDirty(key)
	}
}

func (s *store) isBusy(key string) bool {
	_, isDirty := s.dirty[key]
	_, isWritten := s.written[key]
	return isDirty || isWritten
}

// write writes dirty services until ctx ends. If the peer's records are refused, it sends changed.
func (s *store) write(ctx context.Context, changed notify.Signal) {
	pauses := loop.DialPauses()
	for {
		key, obj := s.next()
		if key == "" {
			select {
			case <-ctx.Done():
				return
			case <-s.wake:
			}
			continue
		}
		if s.rate.Wait(ctx) != nil {
			return
		}
		err := s.apply(ctx, key, obj)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			pauses = loop.DialPauses()
		case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy"):
			s.cfg.Log.Warn("the API server refuses a service of the peer", "service", key, "error", err)
			s.mu.Lock()
			s.refuse(key, services.RefusedRecord)
			s.mu.Unlock()
		default:
			s.cfg.Log.Warn("cannot record a service of the peer", "service", key, "error", err)
			s.mu.Lock()
			s.markDirty(key)
			s.mu.Unlock()
			if !failure.Pause(ctx, pauses.Step()) {
				return
			}
		}
		changed.Send()
	}
}

// next takes the service that is dirty for longest, and returns its object: nil if it is to be deleted. The key is empty if none is
// dirty.
func (s *store) next() (key string, obj *unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, since := range s.dirty {
		if key == "" || since.Before(s.dirty[key]) || since.Equal(s.dirty[key]) && k < key {
			key = k
		}
	}
	if key == "" {
		return "", nil
	}
	delete(s.dirty, key)
	s.written[key] = time.Now()
	c, isTold := s.learned[key]
	if !isTold || s.peering == nil {
		return key, nil
	}
	k, reason := services.CheckKey(key)
	if reason != "" {
		s.refuse(key, reason)
		return key, nil
	}
	record, refused, err := services.FromPeer(c.Record, s.peering)
	if s.counts[services.RefusedAddress] += refused; err != nil {
		s.refuse(key, services.RefusedRecord)
		s.cfg.Log.Warn("a service of the peer is refused", "service", key, "error", err)
		return key, nil
	}
	return key, received(s.peering, k, &v1alpha1.ReceivedServiceSpec{Hash: c.Hash, ServiceRecord: *record})
}

// received returns the object to apply.
func received(p *v1alpha1.Peering, k services.Key, spec *v1alpha1.ReceivedServiceSpec) *unstructured.Unstructured {
	obj := &v1alpha1.ReceivedService{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ReceivedService"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            k.ReceivedName(p.Name),
			Labels:          map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager, v1alpha1.LabelPeering: p.Name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Peering", Name: p.Name, UID: p.UID}},
		},
		Spec: *spec,
	}
	u := &unstructured.Unstructured{Object: lo.Must(runtime.DefaultUnstructuredConverter.ToUnstructured(obj))} // all types can be converted
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	return u
}

// apply writes or deletes the object of a service.
func (s *store) apply(ctx context.Context, key string, obj *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if obj != nil {
		return s.cfg.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner(manager), client.ForceOwnership)
	}
	gone := &v1alpha1.ReceivedService{ObjectMeta: metav1.ObjectMeta{Name: s.cfg.Peering + "." + key}}
	if err := s.view.Get(ctx, client.ObjectKeyFromObject(gone), &v1alpha1.ReceivedService{}); apierrors.IsNotFound(err) {
		return nil // most refused services never had an object; if the cache does not show it yet, compare finds it
	}
	return client.IgnoreNotFound(s.cfg.Client.Delete(ctx, gone))
}
