package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

	"github.com/liqonet/liqonet/agent/watch"
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
			key := keyOf(&v1alpha1.ReceivedService{ObjectMeta: metav1.ObjectMeta{Name: obj.(interface{ GetName() string }).GetName()}})
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
	w.store = newStore(Config{Client: w.api, Log: slog.New(slog.DiscardHandler), Peering: "peer"}, &watch.View{Reader: w.api, Client: w.api, Changed: notify.NewSignal()})
	w.setPeering(side("62", "61"))
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
		key, obj := w.next()
		if key == "" {
			return out
		}
		out[key] = endpointsOf(obj)
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

// What a policy refuses is counted, and not repeated all the time.
func TestPolicyRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriting(t, func(_ *writing, key string, _ int) error {
			if key != "shop.web" {
				return nil
			}
			return apierrors.NewForbidden(schema.GroupResource{Resource: "receivedservices"}, "peer.shop.web", errors.New("ValidatingAdmissionPolicy 'x' with binding 'x' denied request"))
		})
		w.put("shop.web", 1, recordOf("10.61.1.5"))
		w.put("shop.db", 2, recordOf("10.61.1.6"))
		w.let(10 * time.Second)
		kit.Check(t, "recorded", []string{w.hash("shop.web"), w.hash("shop.db")}, []string{"", hashOf(2)})
		kit.Check(t, "writes", w.writes["shop.web"], 1)
		_, refused := w.numbers()
		kit.Check(t, "refused", refused, map[string]int{services.RefusedRecord: 1})
		lost := w.compare(nil, map[string]string{"shop.web": hashOf(1)})
		kit.Check(t, "what is asked for again", lost, nil, kit.Compare)
	})
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
				w.compare(nil, map[string]string{"shop.web": hashOf(2)})
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
	kit.Check(t, "services", len(written), full+2)
	kit.Check(t, "those at the limit", []int{written["shop.s0"], written["shop.none"], written["shop.more"]}, []int{v1alpha1.MaxRecordEndpoints, 0, -1})
	_, refused := w.numbers()
	kit.Check(t, "refused", refused, map[string]int{services.RefusedLimit: 1})
	// Room that becomes free is used: the peer is asked for what was left out.
	w.put("shop.s0", 1002, recordWith("10.61.0.1", 10))
	kit.Check(t, "smaller", w.all(), map[string]int{"shop.s0": 10})
	w.written = map[string]time.Time{}
	kit.Check(t, "to ask for", w.compare(nil, map[string]string{"shop.more": hashOf(1001)}), []string{"shop.more"})
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
	there := func(hashes map[string]int) (out []v1alpha1.ReceivedService) {
		for key, n := range hashes {
			out = append(out, v1alpha1.ReceivedService{ObjectMeta: metav1.ObjectMeta{Name: "peer." + key}, Spec: v1alpha1.ReceivedServiceSpec{Hash: hashOf(n)}})
		}
		return out
	}
	held := map[string]string{"shop.web": hashOf(1), "shop.db": hashOf(2), "shop.old": hashOf(3), "shop.lost": hashOf(4)}
	old := map[string]int{"shop.web": 9, "shop.old": 3, "shop.gone": 5}
	lost := w.compare(there(old), held)
	kit.Check(t, "lost", lost, []string{"shop.lost"})
	kit.Check(t, "what was written a moment ago", w.all(), map[string]int{"shop.gone": -1})
	w.written = map[string]time.Time{}
	delete(held, "shop.lost")
	kit.Check(t, "lost later", w.compare(there(old), held), nil, kit.Compare)
	kit.Check(t, "later", w.all(), map[string]int{"shop.web": 1, "shop.db": 1, "shop.gone": -1})
	w.written = map[string]time.Time{}
	kit.Check(t, "lost at last", w.compare(there(map[string]int{"shop.web": 1, "shop.db": 2, "shop.old": 3}), held), nil, kit.Compare)
	kit.Check(t, "at last", w.all(), nil, kit.Compare)
}
