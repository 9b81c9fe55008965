package beliefs_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/apiserver"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
)

// row is what commands believe of an API server: a few requests, each with what comes of it.
type row struct {
	name string
	play func(r *run)
}

// run is a row that runs against an API, in a namespace of its own.
type run struct {
	*testing.T
	client.WithWatch
	ns string
}

func TestBeliefs(t *testing.T) {
	kit.NotShort(t)
	log.SetLogger(logr.Discard())
	t.Run("real", func(t *testing.T) {
		server := apiserver.Start(t)
		// Of a kind that is made while it runs the collector hears after half a minute only.
		install(t, server.Admin)
		server.StartControllers(t, "garbage-collector-controller,namespace-controller")
		for i, b := range rows {
			t.Run(b.name, func(t *testing.T) {
				t.Parallel()
				b.start(t, server.Admin, i)
			})
		}
	})
	for i, b := range rows {
		t.Run("played/"+b.name, func(t *testing.T) {
			t.Parallel()
			api := kit.Must(fakeapi.NewClient())(t)
			install(t, api)
			collects(t, api.CollectGarbage)
			b.start(t, fakeapi.Watching(api), i)
		})
		t.Run("played over HTTP/"+b.name, func(t *testing.T) {
			t.Parallel()
			server := kit.Must(fakeapi.New())(t)
			t.Cleanup(server.Close)
			server.Unplayed = true
			c := kit.Must(client.NewWithWatch(&rest.Config{Host: server.URL, QPS: -1}, client.Options{Scheme: server.Client.Scheme(), Mapper: apiserver.Mapper(server.Client.Scheme())}))(t)
			install(t, c)
			collects(t, server.Client.CollectGarbage)
			b.start(t, c, i)
		})
	}
}

// collects lets a played collector look again and again until the test ends.
func collects(t *testing.T, collect func() error) {
	ctx, ended := t.Context(), make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := collect(); err != nil {
				ended <- err
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
		ended <- nil
	}()
	t.Cleanup(func() {
		kit.CheckNoError(t, <-ended, "the collector")
	})
}

// install makes our kinds and waits until they are served.
func install(t *testing.T, c client.Client) {
	t.Helper()
	definitions := slices.Concat(manifests.CRDs(), manifests.ServicesCRDs())
	for _, d := range definitions {
		kit.NoError(t, c.Create(t.Context(), d))
	}
	for kind, example := range schema.Examples() {
		apiserver.Wait(t, kind+" is served", func() error {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(example.GetObjectKind().GroupVersionKind())
			return c.List(t.Context(), list)
		})
	}
}

func (b *row) start(t *testing.T, c client.WithWatch, number int) {
	r := &run{T: t, WithWatch: c, ns: fmt.Sprint("belief-", number)}
	r.must(c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.ns}}))
	b.play(r)
}

func (r *run) must(err error) {
	r.Helper()
	kit.NoError(r.T, err)
}

// say compares what a request has come to with what is believed.
func (r *run) say(what, believed string, err error) {
	r.Helper()
	kit.Check(r.T, what, answer(err), believed)
}

var conflictWith = regexp.MustCompile(`conflict with "([^"]*)"`)

// answer is what a command can tell of an error.
func answer(err error) string {
	if err == nil {
		return "ok"
	}
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return err.Error()
	}
	text := string(status.Status().Reason)
	if status.Status().Details == nil {
		return text
	}
	for _, cause := range status.Status().Details.Causes {
		switch cause.Type {
		case metav1.CauseTypeFieldManagerConflict:
			text += fmt.Sprintf(", %s of %s", cause.Field, conflictWith.FindStringSubmatch(cause.Message)[1])
		case corev1.NamespaceTerminatingCause:
			text += ", " + string(cause.Type)
		}
	}
	return text
}

// live reads an object, as far as there is one.
func (r *run) live(obj client.Object) *unstructured.Unstructured {
	r.Helper()
	u := &unstructured.Unstructured{}
	kind, err := apiutil.GVKForObject(obj, r.Scheme())
	r.must(err)
	u.SetGroupVersionKind(kind)
	u.SetName("") // nothing is there yet
	r.must(client.IgnoreNotFound(r.Get(r.Context(), client.ObjectKeyFromObject(obj), u)))
	return u
}

// moves does something with an object, and compares the answer with what is believed: which of the object's numbers have
// moved, "ok" if none has, or an error.
func (r *run) moves(what, believed string, obj client.Object, do func() error) {
	r.Helper()
	before := r.live(obj)
	err := do()
	after := r.live(obj)
	var moved []string
	for _, number := range []struct {
		name        string
		before, now any
	}{
		{"UID", before.GetUID(), after.GetUID()}, {"version", before.GetResourceVersion(), after.GetResourceVersion()}, {"generation", before.GetGeneration(), after.GetGeneration()},
	} {
		if err == nil && number.before != number.now {
			moved = append(moved, number.name+" moves")
		}
	}
	kit.Check(r.T, what, cmp.Or(strings.Join(moved, ", "), answer(err)), believed)
}

// has compares a field of an object with what is believed: "nothing" if there is none.
func (r *run) has(believed string, obj client.Object, path ...string) {
	r.Helper()
	text := "nothing"
	if value, ok, err := unstructured.NestedFieldNoCopy(r.live(obj).Object, path...); err != nil {
		r.Fatal(err)
	} else if ok {
		raw, err := json.Marshal(value)
		r.must(err)
		text = string(raw)
	}
	kit.Check(r.T, strings.Join(path, "."), text, believed)
}

// is compares with what is believed whether objects are there, going, or gone.
func (r *run) is(believed string, objs ...client.Object) {
	r.Helper()
	for _, obj := range objs {
		state := "there"
		if u := r.live(obj); u.GetName() == "" {
			state = "gone"
		} else if u.GetDeletionTimestamp() != nil {
			state = "going"
		}
		kit.Check(r.T, obj.GetName(), state, believed)
	}
}

// until waits until something is as it has to become.
func (r *run) until(what string, obj client.Object, is func(*unstructured.Unstructured) bool) {
	r.Helper()
	apiserver.Wait(r.T, what, func() error {
		if u := r.live(obj); !is(u) {
			return fmt.Errorf("%s is %v", obj.GetName(), u.Object)
		}
		return nil
	})
}

// goes waits until objects are gone.
func (r *run) goes(objs ...client.Object) {
	r.Helper()
	for _, obj := range objs {
		r.until(obj.GetName()+" goes", obj, func(u *unstructured.Unstructured) bool { return u.GetName() == "" })
	}
}

// apply applies an object by a manager, with the UID and the resourceVersion that it has.
func (r *run) apply(manager string, obj client.Object, opts ...client.ApplyOption) error {
	r.Helper()
	kind, err := apiutil.GVKForObject(obj, r.Scheme())
	r.must(err)
	obj.GetObjectKind().SetGroupVersionKind(kind)
	u := manifests.ToApply(obj.(manifests.Object))
	u.SetUID(obj.GetUID())
	u.SetResourceVersion(obj.GetResourceVersion())
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	return r.Apply(r.Context(), client.ApplyConfigurationFromUnstructured(u), append(opts, client.FieldOwner(manager))...)
}

func (r *run) create(objs ...client.Object) {
	r.Helper()
	for _, obj := range objs {
		r.must(r.Create(r.Context(), obj))
	}
}

// edit changes an object as it is.
func edit[T client.Object](r *run, obj T, change func(T)) error {
	r.must(r.Get(r.Context(), client.ObjectKeyFromObject(obj), obj))
	change(obj)
	return r.Update(r.Context(), obj, client.FieldOwner("editor"))
}

func (r *run) patch(obj client.Object, kind types.PatchType, text string) error {
	return r.Patch(r.Context(), obj, client.RawPatch(kind, []byte(text)), client.FieldOwner("patcher"))
}

// events compares the next events of a watch, in any order, with what is believed, such as "ADDED a, DELETED b".
func (r *run) events(from <-chan event, believed string) {
	r.Helper()
	var got []string
	for range strings.Count(believed, ",") + 1 {
		select {
		case e := <-from:
			got = append(got, string(e.Type)+" "+e.Object.(client.Object).GetName())
		case <-r.Context().Done():
			r.Fatal("no event: ", got)
		}
	}
	slices.Sort(got)
	kit.Check(r.T, "events", strings.Join(got, ", "), believed)
}
