package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/samber/lo"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/pkg/services/feed"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// writing is a store that writes to a fake API. It calls do for each write, with the number of writes before of the same service.
type writing struct {
	*store
	t      *testing.T
	api    client.WithWatch
	writes map[string]int
}

func newWriting(t *testing.T, do func(w *writing, key string, before int) error) *writing {
	t.Helper()
	w := &writing{t: t, writes: map[string]int{}}
	w.api = kubetest.NewCluster(t, "a", interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			key := strings.TrimPrefix(obj.(interface{ GetName() string }).GetName(), "peer.")
			before := w.writes[key]
			w.writes[key]++
			if do != nil {
				if err := do(w, key, before); err != nil {
					return err
				}
			}
			return c.Apply(ctx, obj, opts...)
		},
	}).Client
	w.store = newStore(Config{Client: w.api, Log: slog.New(slog.DiscardHandler), Peering: "peer"})
	w.begin(side("62", "61"), nil)
	return w
}

// put tells a service, with a hash that is that of its number.
func (w *writing) put(key string, n int, r *v1alpha1.ServiceRecord) {
	w.add([]feed.Change{{Key: key, Hash: hashOf(n), Record: r}})
}

func hashOf(n int) string { return services.Digest(fmt.Append(nil, n)) }

// hash returns the hash that is recorded of a service, empty if none is.
func (w *writing) hash(key string) string {
	r := &v1alpha1.ReceivedService{}
	_ = w.api.Get(w.t.Context(), client.ObjectKey{Name: "peer." + key}, r)
	return r.Spec.Hash
}

// let lets the store write for some time, in a bubble.
func (w *writing) let(d time.Duration) {
	ctx, end := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	go func() {
		w.write(ctx, notify.NewSignal())
		close(ended)
	}()
	time.Sleep(d)
	end()
	<-ended
}

// all returns what is to be written, by key: the number of endpoints, or -1 for a deletion.
func (w *writing) all() map[string]int {
	out := map[string]int{}
	for {
		j, _ := w.next()
		if j == nil {
			return out
		}
		out[j.key] = endpointsOf(j.obj)
	}
}

func endpointsOf(obj *unstructured.Unstructured) int {
	if obj == nil {
		return -1
	}
	r := &v1alpha1.ReceivedService{}
	lo.Must0(runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, r))
	return lo.SumBy(r.Spec.Slices, func(s v1alpha1.RecordSlice) int { return len(s.Endpoints) })
}

// Writes that fail are repeated, and do not keep other services from being written.
func TestFailedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriting(t, func(_ *writing, key string, before int) error {
			if key == "shop.web" && before < 5 {
				return errors.New("the API server is busy")
			}
			return nil
		})
		w.put("shop.web", 1, recordOf("10.62.1.5")) // an address that is not the peer's
		w.put("shop.db", 2, recordOf("10.61.1.6"))
		w.let(time.Minute)
		kit.Check(t, "recorded", []string{w.hash("shop.web"), w.hash("shop.db")}, []string{hashOf(1), hashOf(2)})
		kit.Check(t, "writes", w.writes, map[string]int{"shop.web": 6, "shop.db": 1})
		_, refused := w.numbers()
		kit.Check(t, "endpoints that are refused, once each", refused, map[string]int{services.RefusedAddress: 1})
	})
}

// What a policy refuses is counted, and repeated less and less often. The record before it is used for a short time only.
func TestPolicyRefuses(t *testing.T) {
	for name, answer := range map[string]error{
		"forbidden": apierrors.NewForbidden(schema.GroupResource{Resource: "receivedservices"}, "peer.shop.web", errors.New("ValidatingAdmissionPolicy 'x' with binding 'x' denied request")),
		"invalid":   apierrors.NewInvalid(schema.GroupKind{Kind: "ReceivedService"}, "peer.shop.web", nil),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWriting(t, func(_ *writing, key string, before int) error {
					if key != "shop.web" || before == 0 || before > 5 {
						return nil
					}
					return answer
				})
				w.put("shop.web", 1, recordOf("10.61.1.5"))
				w.put("shop.db", 2, recordOf("10.61.1.6"))
				w.let(time.Second)
				w.put("shop.web", 3, recordOf("10.61.1.7"))
				w.let(2 * time.Second) // writes after 0 and 1 s
				kit.Check(t, "recorded at first", []string{w.hash("shop.web"), w.hash("shop.db")}, []string{hashOf(1), hashOf(2)})
				_, refused := w.numbers()
				kit.Check(t, "refused", refused, map[string]int{services.RefusedRecord: 1})
				kit.Check(t, "what is asked for again", w.compare(nil, map[string]string{"shop.web": hashOf(3)}, true), nil, kit.Compare)
				w.let(6 * time.Second) // a write after 3 s, then a deletion instead of one after 7 s
				kit.Check(t, "recorded then", w.hash("shop.web"), "")
				kit.Check(t, "writes", w.writes["shop.web"], 4)
				w.let(time.Minute)
				kit.Check(t, "recorded once it is allowed", w.hash("shop.web"), hashOf(3))
				_, refused = w.numbers()
				kit.Check(t, "refused in the end", refused, map[string]int{services.RefusedRecord: 1})
			})
		})
	}
}

// What a peer tells and takes back before it is written leaves nothing.
func TestServicesThatComeAndGo(t *testing.T) {
	w := newWriting(t, nil)
	for i := range 3 * v1alpha1.MaxPeerServices {
		key := fmt.Sprint("shop.s", i)
		w.put(key, i, recordOf("10.61.1.5"))
		w.add([]feed.Change{{Key: key}, {Key: "no key"}})
	}
	kit.Check(t, "left", []int{len(w.entries), len(w.dirty), w.used.services, w.used.endpoints, w.used.bytes}, []int{0, 0, 0, 0, 0})
	_, refused := w.numbers()
	kit.Check(t, "refused", refused, nil, kit.Compare)
}

// What another gateway has recorded counts for the limits. What others change in it is told again.
func TestInherited(t *testing.T) {
	w := newWriting(t, nil)
	objectOf := func(n int, r *v1alpha1.ServiceRecord) *v1alpha1.ReceivedService {
		return &v1alpha1.ReceivedService{ObjectMeta: metav1.ObjectMeta{Generation: 1}, Spec: v1alpha1.ReceivedServiceSpec{Hash: hashOf(n), ServiceRecord: *r}}
	}
	there, held := map[string]*v1alpha1.ReceivedService{}, map[string]string{}
	for i := range v1alpha1.MaxPeerEndpoints / v1alpha1.MaxRecordEndpoints {
		key := fmt.Sprint("shop.s", i)
		there[key], held[key] = objectOf(i, recordWith("10.61.0.1", v1alpha1.MaxRecordEndpoints)), hashOf(i)
	}
	w.begin(side("62", "61"), there)
	kit.Check(t, "lost", w.compare(there, held, false), nil, kit.Compare)
	w.put("shop.more", 1000, recordOf("10.61.0.1"))
	_, refused := w.numbers()
	kit.Check(t, "refused", refused, map[string]int{services.RefusedLimit: 1})
	w.add([]feed.Change{{Key: "shop.s0"}})
	w.put("shop.more", 1000, recordOf("10.61.0.1"))
	kit.Check(t, "to write", w.all(), map[string]int{"shop.s0": -1, "shop.more": 1})
	delete(held, "shop.s0")
	edited := *there["shop.s1"]
	edited.Generation = 2
	there["shop.s1"] = &edited
	kit.Check(t, "edited", w.compare(there, held, false), []string{"shop.s1"})
	delete(held, "shop.s1")
	kit.Check(t, "before all is told", w.all(), nil, kit.Compare)
	w.compare(there, held, true)
	kit.Check(t, "when all is told", w.all(), map[string]int{"shop.s1": -1})
	// What is not valid anymore does not stay.
	bad := recordOf("10.61.0.1")
	bad.Type = "Other"
	w.compare(there, held, false)
	w.written = map[string]time.Time{}
	edited = *there["shop.s2"]
	edited.Generation = 2
	there["shop.s2"] = &edited
	kit.Check(t, "edited", w.compare(there, held, false), []string{"shop.s2"})
	w.put("shop.s2", 2, bad)
	w.compare(there, held, false)
	kit.Check(t, "told again", w.all(), map[string]int{"shop.s2": -1})
}

// The size of all records is limited, too.
func TestLimitOfBytes(t *testing.T) {
	w := newWriting(t, nil)
	large := recordOf("10.61.1.5")
	large.Annotations = map[string]string{}
	for i := range 32 {
		large.Annotations[fmt.Sprintf("example.com/%040d", i)] = strings.Repeat("x", 1024)
	}
	for i := range v1alpha1.MaxPeerServices {
		w.put(fmt.Sprint("shop.s", i), i, large)
	}
	most := maxBytes / usageOf(large).bytes
	kit.ErrorIf(t, most > v1alpha1.MaxPeerServices/2, "the records are too small for this test: %d fit", most)
	kit.Check(t, "services", len(w.all()), most)
}

// A change that arrives while an earlier one is written counts, whatever becomes of the earlier one.
func TestChangeDuringAWrite(t *testing.T) {
	for name, answer := range map[string]error{
		"accepted": nil,
		"failed":   errors.New("the API server is busy"),
		"refused":  apierrors.NewInvalid(schema.GroupKind{Kind: "ReceivedService"}, "peer.shop.web", nil),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWriting(t, func(w *writing, key string, before int) error {
					if before > 0 {
						return nil
					}
					w.put(key, 2, recordOf("10.61.1.6"))
					return answer
				})
				w.put("shop.web", 1, recordOf("10.61.1.5"))
				w.let(time.Minute)
				kit.Check(t, "recorded", w.hash("shop.web"), hashOf(2))
				// If someone deletes it, it is written again.
				w.compare(nil, map[string]string{"shop.web": hashOf(2)}, true)
				kit.Check(t, "to write", w.all(), map[string]int{"shop.web": 1})
			})
		})
	}
}

// A gateway that stops recording while a write fails deletes nothing: another gateway records now.
func TestStopDuringAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriting(t, func(w *writing, _ string, before int) error {
			if before == 0 {
				return nil
			}
			w.clear()
			return errors.New("the API server is busy")
		})
		w.put("shop.web", 1, recordOf("10.61.1.5"))
		w.let(time.Second)
		w.put("shop.web", 2, recordOf("10.61.1.6"))
		w.let(time.Minute)
		kit.Check(t, "recorded", w.hash("shop.web"), hashOf(1))
	})
}

func TestLimitOfEndpoints(t *testing.T) {
	w := newWriting(t, nil)
	const full = v1alpha1.MaxPeerEndpoints / v1alpha1.MaxRecordEndpoints
	for i := range full {
		w.put(fmt.Sprint("shop.s", i), i, recordWith("10.61.0.1", v1alpha1.MaxRecordEndpoints))
	}
	w.put("shop.none", 1000, recordWith("10.61.0.1", 0))
	w.put("shop.more", 1001, recordWith("10.61.0.1", 1))
	written := w.all()
	kit.Check(t, "services", len(written), full+1)
	kit.Check(t, "those at the limit", []int{written["shop.s0"], written["shop.none"]}, []int{v1alpha1.MaxRecordEndpoints, 0})
	_, refused := w.numbers()
	kit.Check(t, "refused", refused, map[string]int{services.RefusedLimit: 1})
	// Room that becomes free is used: the peer is asked for what was left out.
	w.put("shop.s0", 1002, recordWith("10.61.0.1", 10))
	kit.Check(t, "smaller", w.all(), map[string]int{"shop.s0": 10})
	w.written = map[string]time.Time{}
	kit.Check(t, "to ask for", w.compare(nil, map[string]string{"shop.more": hashOf(1001)}, true), []string{"shop.more"})
	w.put("shop.more", 1001, recordWith("10.61.0.1", 1))
	kit.Check(t, "what was left out", w.all(), map[string]int{"shop.more": 1})
}

// When the Peering has changed, everything is checked again. So is what a range did not allow.
func TestAnotherGeneration(t *testing.T) {
	w := newWriting(t, nil)
	w.put("shop.web", 1, recordOf("10.61.1.5"))
	w.put("shop.far", 2, recordOf("10.64.1.5"))
	kit.Check(t, "at first", w.all(), map[string]int{"shop.web": 1, "shop.far": 0})
	w.setPeering(side("62", "61"))
	kit.Check(t, "unchanged", w.all(), nil, kit.Compare)
	p := side("62", "64")
	p.Generation = 2
	w.setPeering(p)
	kit.Check(t, "another range", w.all(), map[string]int{"shop.web": 0, "shop.far": 1})
	p = side("62", "64")
	p.Generation, p.UID = 2, "another"
	w.setPeering(p)
	kit.Check(t, "another Peering", w.all(), map[string]int{"shop.web": 0, "shop.far": 1})
}

// What is recorded is compared with what the peer tells, a while after each write.
func TestCompare(t *testing.T) {
	w := newWriting(t, nil)
	w.put("shop.web", 1, recordOf("10.61.1.5"))
	w.put("shop.db", 2, recordOf("10.61.1.6"))
	kit.Check(t, "at first", len(w.all()), 2)
	there := func(hashes map[string]int) map[string]*v1alpha1.ReceivedService {
		return lo.MapValues(hashes, func(n int, _ string) *v1alpha1.ReceivedService {
			return &v1alpha1.ReceivedService{Spec: v1alpha1.ReceivedServiceSpec{Hash: hashOf(n)}}
		})
	}
	held := map[string]string{"shop.web": hashOf(1), "shop.db": hashOf(2), "shop.old": hashOf(3), "shop.lost": hashOf(4)}
	old := map[string]int{"shop.web": 9, "shop.old": 3, "shop.gone": 5}
	kit.Check(t, "before all is told", [2]int{len(w.compare(there(old), held, false)), len(w.all())}, [2]int{1, 0})
	lost := w.compare(there(old), held, true)
	kit.Check(t, "lost", lost, []string{"shop.lost"})
	kit.Check(t, "what was written a moment ago", w.all(), map[string]int{"shop.gone": -1})
	w.written = map[string]time.Time{}
	delete(held, "shop.lost")
	kit.Check(t, "lost later", w.compare(there(old), held, true), nil, kit.Compare)
	kit.Check(t, "later", w.all(), map[string]int{"shop.web": 1, "shop.db": 1, "shop.gone": -1})
	w.written = map[string]time.Time{}
	kit.Check(t, "lost at last", w.compare(there(map[string]int{"shop.web": 1, "shop.db": 2, "shop.old": 3}), held, true), nil, kit.Compare)
	kit.Check(t, "at last", w.all(), nil, kit.Compare)
}

// A peer that tells a million services, and takes them back again or not, takes a bounded amount of memory.
func TestMillionServices(t *testing.T) {
	const most = 64 << 20
	number := lo.Ternary(kit.Full(), 1_000_000, 50_000)
	for name, leaves := range map[string]bool{"that stay": false, "that go": true} {
		t.Run(name, func(t *testing.T) {
			w := newWriting(t, nil)
			receiver := feed.NewReceiver(nil)
			tell := func(m *feed.Message) {
				changes, _ := receiver.Receive(m, time.Now())
				w.add(changes)
			}
			before := heap()
			record := recordOf("10.61.1.5")
			for i := range number {
				key := fmt.Sprint("shop.s", i)
				tell(&feed.Message{Type: feed.TypePut, Key: key, Hash: "abc", Record: record.DeepCopy()})
				if i%100 == 0 { // the API server is slower than the peer
					if j, _ := w.next(); j != nil {
						w.finish(j, nil)
					}
				}
				if leaves {
					tell(&feed.Message{Type: feed.TypeGone, Keys: []string{key}})
				}
				if i%1000 == 0 {
					w.compare(nil, receiver.Held(), false)
				}
			}
			used := heap() - before
			t.Logf("%d bytes, %d services, %d writes to do", used, len(w.entries), len(w.dirty))
			kit.ErrorIf(t, used > most, "it takes %d bytes", used)
			kit.ErrorIf(t, len(w.dirty) > 3*v1alpha1.MaxPeerServices || len(w.entries) > 3*v1alpha1.MaxPeerServices, "%d services, %d writes to do", len(w.entries), len(w.dirty))
		})
	}
}

// heap returns how many bytes are in use.
func heap() int64 {
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// However many services the peer tells, the API server gets a limited number of writes. What is told again while it waits is written once.
func TestWritesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriting(t, nil)
		for n := range 3 {
			for i := range v1alpha1.MaxPeerServices {
				w.put(fmt.Sprint("shop.s", i), n, recordOf("10.61.1.5"))
			}
		}
		const d = 10 * time.Second
		w.let(d)
		want := writesAtOnce + int(d.Seconds())*writesPerSecond
		kit.ErrorIf(t, len(w.writes) < want-1 || len(w.writes) > want+1, "%d services are written in %s, want %d", len(w.writes), d, want)
		w.let(time.Minute)
		kit.Check(t, "services", len(w.writes), v1alpha1.MaxPeerServices)
		kit.Check(t, "writes of all", lo.Sum(lo.Values(w.writes)), v1alpha1.MaxPeerServices)
	})
}
