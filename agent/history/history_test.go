package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/agent/logs"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/history"
	"github.com/liqonet/liqonet/test/kit"
)

// api is an API server that counts writes, and fails them while it is down.
type api struct {
	client.WithWatch
	down   bool
	writes int
}

func newAPI(objs ...client.Object) *api {
	a := &api{}
	write := func(send func() error) error {
		a.writes++
		if a.down {
			return errors.New("it is down")
		}
		return send()
	}
	a.WithWatch = fake.NewClientBuilder().WithObjects(objs...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			return write(func() error { return c.Create(ctx, obj, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return write(func() error { return c.Patch(ctx, obj, patch, opts...) })
		},
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("agents may not read")
		},
	}).Build()
	return a
}

// entries returns the entries of the record, as PEERING TO.
func (a *api) entries(t *testing.T) (out []string) {
	t.Helper()
	var list corev1.ConfigMapList
	if err := a.List(context.Background(), &list); err != nil || len(list.Items) != 1 {
		t.Fatalf("%d ConfigMaps: %v", len(list.Items), err)
	}
	for _, e := range history.Decode(list.Items[0].Data) {
		out = append(out, e.Peering+" "+e.To)
	}
	return out
}

func ofNode() *metav1.OwnerReference {
	return &metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n", UID: "uid"}
}

func (a *api) record(owner *metav1.OwnerReference) *Record {
	return New(&Record{Client: a, Log: slog.New(slog.DiscardHandler), Name: "history", Manager: "agent", Owner: owner, Interval: 5 * time.Second})
}

func change(peering, to string) Change {
	return Change{Entry: history.Entry{Peering: peering, Subject: "plane", To: to}}
}

// start runs a record until the test calls end.
func start(t *testing.T, r *Record) (end func()) { return r.Start(t.Context()) }

// Changes at the same time share a write, frequent ones are batched, and without changes there are no writes. Each
// agent continues where its predecessor ended.
func TestRecordIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		end := start(t, a.record(ofNode()))
		time.Sleep(time.Hour)
		kit.ErrorIf(t, a.writes != 0, "%d writes without a change", a.writes)
		end()
		r := a.record(ofNode())
		end = start(t, r)
		r.Add(change("b", "1"))
		r.Add(change("b", "2"))
		time.Sleep(2*batchDelay + time.Millisecond)
		if diff := cmp.Diff([]string{"b 1", "b 2"}, a.entries(t)); diff != "" || a.writes != 3 {
			t.Errorf("%d writes, want a try, one that makes it and one that fills it: %s", a.writes, diff)
		}
		a.writes = 0
		for i := range 600 {
			time.Sleep(100 * time.Millisecond)
			r.Add(change("b", fmt.Sprint(i)))
		}
		kit.ErrorIf(t, a.writes > 13 || a.writes < 6, "%d writes in a minute of changes", a.writes)
		r.Add(change("b", "end"))
		end()
		end = start(t, r)
		end()
		next := a.record(ofNode())
		end = start(t, next)
		next.Add(change("b", "begin"))
		end()
		got := a.entries(t)
		if len(got) != history.Size || !slices.Equal(got[history.Size-3:], []string{"b 599", "b end", "b begin"}) {
			t.Errorf("%d entries, the last %v", len(got), got[max(0, len(got)-3):])
		}
	})
}

// While the API server does not answer, changes are kept, and nothing waits for it.
func TestRecordOutlivesOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "history"}})
		var log bytes.Buffer
		r := a.record(nil)
		r.Log = logs.New(&log, slog.LevelInfo)
		defer start(t, r)()
		synctest.Wait()
		a.down = true
		bad := change("b", "1")
		bad.Event, bad.IsDegradation, bad.PeeringUID = "PlaneDown", true, types.UID("uid-of-b")
		r.Add(bad)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := bytes.Count(log.Bytes(), []byte("cannot write")); n != 1 || a.writes > 200 {
			t.Errorf("it tried %d times, and logged %d failures", a.writes, n)
		}
		a.down = false
		r.Add(change("b", "2"))
		time.Sleep(time.Minute)
		synctest.Wait()
		kit.Check(t, "entries", a.entries(t), []string{"b 1", "b 2"})
		var events corev1.EventList
		if err := a.List(t.Context(), &events); err != nil || len(events.Items) != 1 {
			t.Fatalf("%v: %v", events.Items, err)
		}
		e := events.Items[0]
		want := corev1.ObjectReference{APIVersion: "liqonet.io/v1alpha1", Kind: "Peering", Name: "b", UID: "uid-of-b"}
		if e.InvolvedObject != want || e.Namespace != "default" || e.Type != "Warning" || e.Reason != "PlaneDown" || time.Since(e.FirstTimestamp.Time) < 10*time.Minute {
			t.Errorf("got %+v", e)
		}
	})
}

// A plane that changes its state all the time sends few Events.
func TestEventsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "history"}})
		r := a.record(nil)
		defer start(t, r)()
		for range 6000 {
			c := change("b", "down")
			c.Event = "PlaneDown"
			r.Add(c)
			time.Sleep(100 * time.Millisecond)
		}
		var events corev1.EventList
		if err := a.List(t.Context(), &events); err != nil || len(events.Items) < 40 || len(events.Items) > 90 {
			t.Errorf("%d Events in ten minutes: %v", len(events.Items), err)
		}
	})
}

// A peer whose endpoint changes every ten seconds for a day replaces few of the entries, and causes few writes, log lines and
// Events.
func TestPeerFillsNoHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		r := a.record(ofNode())
		var lines bytes.Buffer
		r.Log = slog.New(slog.NewTextHandler(&lines, nil))
		end := start(t, r)
		r.Add(change("b", "up"))
		for i := range 8640 {
			time.Sleep(10 * time.Second)
			c := change("b", fmt.Sprint(i))
			c.Subject, c.Event = []string{"endpoint", "MTU"}[i%2], "EndpointChanged"
			r.Add(c)
		}
		end()
		got := a.entries(t)
		if len(got) > history.Size*2/3 || !slices.Contains(got, "b up") || got[len(got)-1] < "b 8500" {
			t.Errorf("%d entries: %v", len(got), got)
		}
		if n := bytes.Count(lines.Bytes(), []byte("\n")); n > 200 || a.writes > 400 {
			t.Errorf("%d lines, %d writes", n, a.writes)
		}
	})
}

// An entry that follows a call of RetainPeerings is written soon: there was nothing to drop before it.
func TestKeepDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		r := a.record(ofNode())
		r.Interval = time.Minute
		defer start(t, r)()
		r.RetainPeerings([]string{"b"})
		time.Sleep(5 * time.Second)
		r.Add(change("b", "up"))
		time.Sleep(3 * time.Second)
		kit.Check(t, "entries", a.entries(t), []string{"b up"})
	})
}

// Entries of removed peerings are dropped, including those of an earlier agent.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		r := a.record(ofNode())
		end := start(t, r)
		for _, peering := range []string{"b", "c", "b"} {
			r.Add(change(peering, "up"))
		}
		time.Sleep(time.Minute)
		end()
		r = a.record(ofNode())
		defer start(t, r)()
		r.RetainPeerings([]string{"b", "c"})
		r.Add(change("c", "down"))
		time.Sleep(time.Minute)
		r.Add(change("b", "never written"))
		r.RetainPeerings([]string{"c"})
		time.Sleep(time.Minute)
		kit.Check(t, "entries", a.entries(t), []string{"c up", "c down"})
	})
}
