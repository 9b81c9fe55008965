package feed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
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

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/pkg/services/feed"
)

const (
	// writesPerSecond and writesAtOnce limit the writes to the API server.
	writesPerSecond, writesAtOnce = 100, 500
	// settle is how long the cache may take to show a write.
	settle = 2 * time.Second
	// The pauses before a write is repeated double from firstRetry. What the API server refuses is repeated, too: it may not
	// know the peering's ranges yet.
	firstRetry, lastRetry, lastRetryOfRefused = time.Second, 10 * time.Second, 5 * time.Minute
	// maxRefusals is how often a record may be refused before the object of the one before it is deleted.
	maxRefusals = 3
	// maxBytes is the maximum size of all records of a peer, as JSON.
	maxBytes = 32 << 20
	// logInterval is the minimum time between two log entries about the peer's services.
	logInterval = 10 * time.Second
)

// store records what the peer tells.
type store struct {
	cfg  Config
	rate *rate.Limiter
	logs rate.Sometimes

	mu      sync.Mutex
	peering *v1alpha1.Peering
	entries map[string]*entry
	// used is the sum of all entries that are recorded, or are to be.
	used usage
	// dirty is when objects have to be written or deleted, by key. wake is sent when there are some.
	dirty map[string]time.Time
	wake  notify.Signal
	// written is when each object was written, until the cache shows it.
	written map[string]time.Time
	// counts is how often something was refused, by reason.
	counts map[string]int
	stored int
}

// entry is what is known of one service. It is replaced, not changed, by what the peer tells.
type entry struct {
	hash string
	// record is nil if it is refused, if the peer does not export the service anymore, or if the entry is inherited.
	record *v1alpha1.ServiceRecord
	// inherited is set if another gateway has recorded the service, and the peer has not told it since.
	inherited bool
	// refused is why the service is not recorded.
	refused string
	usage   usage
	// stored is set if there may be an object, and generation is that of its last write.
	stored     bool
	generation int64
	// omitted is how many endpoints were counted as refused.
	omitted  int
	failures int
}

// usage is what is limited.
type usage struct{ services, endpoints, bytes int }

func usageOf(r *v1alpha1.ServiceRecord) usage {
	raw, _ := json.Marshal(r) // strings, numbers and addresses always encode
	return usage{1, lo.SumBy(r.Slices, func(s v1alpha1.RecordSlice) int { return len(s.Endpoints) }), len(raw)}
}

// plus returns the usage with another one added, or subtracted if sign is -1.
func (u usage) plus(sign int, v usage) usage {
	return usage{u.services + sign*v.services, u.endpoints + sign*v.endpoints, u.bytes + sign*v.bytes}
}

func (u usage) isAllowed() bool {
	return u.services <= v1alpha1.MaxPeerServices && u.endpoints <= v1alpha1.MaxPeerEndpoints && u.bytes <= maxBytes
}

// counts reports whether an entry is within the limits of the peer.
func (e *entry) counts() bool { return e.record != nil || e.inherited }

func newStore(cfg Config) *store {
	s := &store{
		cfg: cfg, rate: rate.NewLimiter(writesPerSecond, writesAtOnce), logs: rate.Sometimes{Interval: logInterval},
		wake: notify.NewSignal(), counts: map[string]int{},
	}
	s.clear()
	return s
}

// clear forgets everything that is not in objects. The result of a write that is not finished has no effect.
func (s *store) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries, s.used = map[string]*entry{}, usage{}
	s.dirty, s.written = map[string]time.Time{}, map[string]time.Time{}
}

// begin begins to record, with the objects that another gateway has written.
func (s *store) begin(p *v1alpha1.Peering, there map[string]*v1alpha1.ReceivedService) {
	s.clear()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peering = p
	for k, r := range there {
		e := &entry{hash: r.Spec.Hash, inherited: true, usage: usageOf(&r.Spec.ServiceRecord), stored: true, generation: r.Generation}
		s.entries[k], s.used = e, s.used.plus(1, e.usage)
	}
}

// byKey returns the objects of a peering's services by their keys.
func byKey(peering string, received []v1alpha1.ReceivedService) map[string]*v1alpha1.ReceivedService {
	out := map[string]*v1alpha1.ReceivedService{}
	for i := range received {
		if key, is := strings.CutPrefix(received[i].Name, peering+"."); is {
			out[key] = &received[i]
		}
	}
	return out
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
	if s.peering.Generation == p.Generation && s.peering.UID == p.UID {
		return
	}
	s.peering = p
	for k, e := range s.entries {
		if e.record != nil {
			e.refused, e.failures = "", 0
			s.markDirty(k)
		}
	}
}

// markDirty makes the object of a service be written at once.
func (s *store) markDirty(key string) {
	now := time.Now()
	if due, is := s.dirty[key]; !is || due.After(now) {
		s.dirty[key] = now
	}
	s.wake.Send()
}

// add records changes. It does not block: the newest one counts.
func (s *store) add(changes []feed.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		e := &entry{hash: c.Hash, record: c.Record}
		if before := s.entries[c.Key]; before != nil {
			e.stored, e.generation = before.stored, before.generation
		}
		s.drop(c.Key)
		s.entries[c.Key] = e
		if c.Record != nil {
			s.admit(c.Key, e)
		}
		switch {
		case e.record != nil || e.stored:
			s.markDirty(c.Key)
			continue
		case c.Record == nil:
			delete(s.entries, c.Key)
		}
		delete(s.dirty, c.Key)
	}
}

// admit refuses a record that is not valid or exceeds a limit.
func (s *store) admit(key string, e *entry) {
	if _, reason := services.CheckKey(key); reason != "" {
		s.refuse(key, e, reason, nil)
	} else if err := services.Validate(e.record); err != nil {
		s.refuse(key, e, services.RefusedRecord, err)
	} else if e.usage = usageOf(e.record); !s.used.plus(1, e.usage).isAllowed() {
		s.refuse(key, e, services.RefusedLimit, nil)
	} else {
		s.used = s.used.plus(1, e.usage)
		return
	}
	e.record = nil
}

// refuse notes that a service is not recorded.
func (s *store) refuse(key string, e *entry, reason string, err error) {
	if e.refused != reason {
		s.counts[reason]++
	}
	e.refused = reason
	s.logs.Do(func() {
		s.cfg.Log.Warn("a service of the peer is refused", "service", key, "reason", cmp.Or(err, errors.New(reason)))
	})
}

// compare compares the objects with what the peer has told, by its hashes. Objects that others have changed or deleted are written
// again. If all is told, objects of services that were not told are deleted. It returns the services that the peer has to tell again.
func (s *store) compare(there map[string]*v1alpha1.ReceivedService, held map[string]string, allTold bool) (lost []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored = len(there)
	now := time.Now()
	maps.DeleteFunc(s.written, func(_ string, at time.Time) bool { return now.Sub(at) > settle })
	for k := range there {
		if _, has := held[k]; !has && allTold && !s.isBusy(k) {
			s.drop(k)
			s.entries[k] = &entry{stored: true}
			s.markDirty(k)
		}
	}
	room := s.used
	for _, k := range slices.Sorted(maps.Keys(held)) {
		e, obj := lo.FromPtr(s.entries[k]), there[k]
		switch {
		case e.refused != "" && e.record == nil && obj != nil && !s.isBusy(k):
			s.entries[k].stored = true // another gateway has recorded it before
			s.markDirty(k)
		case e.refused == services.RefusedLimit:
			if with := room.plus(1, e.usage); with.isAllowed() && !e.stored {
				room = with
				s.drop(k)
				lost = append(lost, k)
			}
		case e.refused != "" || s.isBusy(k) || obj != nil && obj.Spec.Hash == held[k] && obj.Generation == cmp.Or(e.generation, obj.Generation):
		case e.record != nil:
			s.markDirty(k)
		default:
			s.drop(k)
			lost = append(lost, k)
		}
	}
	return lost
}

// drop removes an entry.
func (s *store) drop(key string) {
	if e := s.entries[key]; e != nil && e.counts() {
		s.used = s.used.plus(-1, e.usage)
	}
	delete(s.entries, key)
}

// isBusy reports whether the object of a service is to be written, or was a moment ago.
func (s *store) isBusy(key string) bool {
	_, isDirty := s.dirty[key]
	_, isWritten := s.written[key]
	return isDirty || isWritten
}

// job is a write of an object. Without an object, it is a deletion.
type job struct {
	key   string
	entry *entry
	obj   *unstructured.Unstructured
}

// write writes objects that are due until ctx ends, and sends changed after each.
func (s *store) write(ctx context.Context, changed notify.Signal) {
	for {
		j, wait := s.next()
		if j == nil {
			var due <-chan time.Time
			if wait > 0 {
				due = time.After(wait)
			}
			select {
			case <-ctx.Done():
				return
			case <-s.wake:
			case <-due:
			}
			continue
		}
		if s.rate.Wait(ctx) != nil {
			return
		}
		err := s.apply(ctx, j)
		if ctx.Err() != nil {
			return
		}
		s.finish(j, err)
		changed.Send()
	}
}

// next takes the write that is due for longest. If none is due, it returns how long to wait, 0 if there is none at all.
func (s *store) next() (*job, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := ""
	for k, due := range s.dirty {
		if key == "" || cmp.Or(due.Compare(s.dirty[key]), strings.Compare(k, key)) < 0 {
			key = k
		}
	}
	if key == "" {
		return nil, 0
	}
	now := time.Now()
	if wait := s.dirty[key].Sub(now); wait > 0 {
		return nil, wait
	}
	delete(s.dirty, key)
	s.written[key] = now
	e := s.entries[key]
	j := &job{key: key, entry: e}
	if e.record == nil || e.stored && e.refused != "" && e.failures >= maxRefusals {
		return j, 0
	}
	record, omitted, err := services.FromPeer(e.record, s.peering)
	lo.Must0(err) // admit has validated it
	if more := omitted - e.omitted; more > 0 {
		s.counts[services.RefusedAddress] += more
		e.omitted = omitted
	}
	e.stored = true // also if the write fails: the API server may have done it
	k, _ := services.CheckKey(key)
	j.obj = received(s.peering, k, &v1alpha1.ReceivedServiceSpec{Hash: e.hash, ServiceRecord: *record})
	return j, 0
}

// finish processes the result of a write. What the peer has told since then counts more.
func (s *store) finish(j *job, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := j.entry
	if s.entries[j.key] != e {
		return
	}
	switch {
	case err == nil && j.obj != nil:
		e.refused, e.failures, e.generation = "", 0, j.obj.GetGeneration()
		return
	case err == nil:
		if e.stored = false; e.record == nil {
			if e.refused == "" {
				delete(s.entries, j.key)
			}
			return
		}
	case isRefusal(err) && j.obj != nil:
		e.failures++
		s.refuse(j.key, e, services.RefusedRecord, err)
	default:
		e.failures++
		s.logs.Do(func() { s.cfg.Log.Warn("cannot record a service of the peer", "service", j.key, "error", err) })
	}
	longest := lo.Ternary(e.refused != "", lastRetryOfRefused, lastRetry)
	if _, is := s.dirty[j.key]; !is {
		s.dirty[j.key] = time.Now().Add(min(firstRetry<<min(e.failures-1, 20), longest))
	}
}

// isRefusal reports whether the API server does not accept an object. Policies refuse it as invalid or as forbidden.
func isRefusal(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
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
func (s *store) apply(ctx context.Context, j *job) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if j.obj != nil {
		return s.cfg.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(j.obj), client.FieldOwner(v1alpha1.FeedManager), client.ForceOwnership)
	}
	gone := &v1alpha1.ReceivedService{ObjectMeta: metav1.ObjectMeta{Name: s.cfg.Peering + "." + j.key}}
	return client.IgnoreNotFound(s.cfg.Client.Delete(ctx, gone))
}
