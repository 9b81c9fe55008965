package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// debounceTime batches changes that arrive together.
const debounceTime = 30 * time.Millisecond

// pollBackoff sets how often a condition is checked without a change: some depend on time, or on objects that are not watched.
var pollBackoff = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 1.1, Jitter: 0.2, Steps: 50, Cap: time.Second}

// Objects hold the current objects of the kinds that a wait watches.
type Objects []cache.Store

// OfKind returns the objects of one kind.
func OfKind[T client.Object](o Objects) (out []T) {
	for _, store := range o {
		for _, item := range store.List() {
			if obj, ok := item.(T); ok {
				out = append(out, obj)
			}
		}
	}
	return out
}

// Find returns the first object for which match returns true, or nil.
func Find[T client.Object](o Objects, match func(T) bool) (found T) {
	found, _ = lo.Find(OfKind[T](o), match)
	return found
}

// ByName returns the object of that name, or nil.
func ByName[T client.Object](o Objects, name string) T {
	return Find(o, func(obj T) bool { return obj.GetName() == name })
}

// Reports returns the NodeNetworks by name. They share memory with the store and must not be changed: copying thousands at each
// check would cost too much.
func (o Objects) Reports() []v1alpha1.NodeNetwork {
	out := lo.FromSlicePtr(OfKind[*v1alpha1.NodeNetwork](o))
	slices.SortFunc(out, func(a, b v1alpha1.NodeNetwork) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Await lists and watches the kinds, and calls condition after every change until it returns no reason, it fails, or ctx ends.
// Without kinds, it only calls condition from time to time, for objects that cannot be watched.
//
// It retries if the API server does not respond. A timeout is reported with the last reason that condition returned, or with the
// API server's error.
func (c *Cluster) Await(ctx context.Context, op, hint string, kinds []client.ObjectList, condition func(Objects) (reason string, err error)) error {
	following, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	var stores Objects
	followers := make([]*kindInformer, len(kinds))
	for i, kind := range kinds {
		f := newKindInformer(c.Client, kind, notify)
		followers[i], stores = f, append(stores, f.informer.GetStore())
		running.Go(func() { f.informer.RunWithContext(following) })
	}
	check := func() (reason string, err error) {
		for _, f := range followers {
			if reason, err := f.pendingReason(); reason != "" || err != nil {
				return reason, err
			}
		}
		return condition(stores)
	}
	lastReason, end := "", StartWait(ctx, c.Name, op, "")
	defer func() { end() }()
	for backoff := pollBackoff; ; {
		reason, err := check()
		if reason != lastReason && reason != "" {
			end()
			lastReason, end = reason, StartWait(ctx, c.Name, op, reason)
		}
		switch {
		case err != nil && ctx.Err() == nil:
			return c.Wrap(op, err)
		case err == nil && reason == "":
			return nil
		}
		select {
		case <-changed:
			time.Sleep(debounceTime)
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
			return c.TimedOut(ctx, op, hint, reason)
		}
	}
}

// kindInformer is the informer of one kind, with its last error.
type kindInformer struct {
	informer cache.SharedIndexInformer
	name     string
	mu       sync.Mutex
	last     error
	failures int
}

func newKindInformer(api client.WithWatch, kind client.ObjectList, notify func()) *kindInformer {
	list := func() client.ObjectList { return kind.DeepCopyObject().(client.ObjectList) }
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l := list()
			// Informers ask for the API server's cache, which may lack what was just applied. Read the latest state instead.
			if o.ResourceVersion == "0" {
				o.ResourceVersion = ""
			}
			return l, api.List(ctx, l, InOurNamespace, &client.ListOptions{Raw: &o})
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return api.Watch(ctx, list(), InOurNamespace, &client.ListOptions{Raw: &o})
		},
	}
	// List, then watch: not every API server or proxy supports streaming lists.
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, noWatchList{}), nil, 0, cache.Indexers{})
	f := &kindInformer{name: KindName(kind), informer: informer}
	// These fail only for informers that have been started.
	_ = informer.SetTransform(stripManagedFields)
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify() }, UpdateFunc: func(any, any) { notify() }, DeleteFunc: func(any) { notify() },
	})
	_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		f.mu.Lock()
		f.last, f.failures = err, f.failures+1
		f.mu.Unlock()
		notify()
	})
	return f
}

// stripManagedFields removes the managed fields of nodes and pods to save memory. Those of Leases and reports are needed.
func stripManagedFields(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Node, *corev1.Pod:
		o.(client.Object).SetManagedFields(nil)
	}
	return obj, nil
}

type noWatchList struct{}

// IsWatchListSemanticsUnSupported makes the informer list before it watches.
func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }

// pendingReason returns why the objects are not yet known. A kind that does not exist has no objects.
func (f *kindInformer) pendingReason() (reason string, err error) {
	if f.informer.HasSynced() {
		return "", nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.last == nil:
		return "the API server has not listed " + f.name + " objects yet", nil
	case IsNotFound(f.last):
		return "", nil
	case apierrors.IsForbidden(f.last) && f.failures > 1 || apierrors.IsUnauthorized(f.last) && f.failures > 1:
		return "", fmt.Errorf("list and watch %s objects: %w", f.name, f.last)
	default:
		return fmt.Sprintf("the API server does not list %s objects: %v", f.name, f.last), nil
	}
}

// lastWarning returns the newest warning event in our namespace, often the reason why a pod does not start, such as a volume or
// an admission webhook.
func lastWarning(api client.Client) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var events corev1.EventList
	_ = api.List(ctx, &events, client.InNamespace(v1alpha1.Namespace)) // best effort: it only adds to an error
	warnings := slices.DeleteFunc(events.Items, func(e corev1.Event) bool { return e.Type != corev1.EventTypeWarning })
	if len(warnings) == 0 {
		return ""
	}
	newest := slices.MaxFunc(warnings, func(a, b corev1.Event) int { return eventTime(a).Compare(eventTime(b)) })
	return fmt.Sprintf("%s %s: %s", newest.InvolvedObject.Kind, newest.InvolvedObject.Name, strings.TrimSpace(newest.Message))
}

// eventTime returns when an Event last happened.
func eventTime(e corev1.Event) time.Time {
	return cmp.Or(e.LastTimestamp.Time, e.CreationTimestamp.Time)
}

// AwaitDeleted waits until this object, identified by its UID, no longer exists. An error about a namespace says what keeps it.
func (c *Cluster) AwaitDeleted(ctx context.Context, obj client.Object) error {
	uid, hint := obj.GetUID(), ""
	err := c.Await(ctx, "wait until "+Describe(obj)+" is gone", "", nil, func(Objects) (string, error) {
		live := obj.DeepCopyObject().(client.Object)
		err := c.Client.Get(ctx, client.ObjectKeyFromObject(obj), live)
		if IsNotFound(err) || err == nil && live.GetUID() != uid {
			return "", nil
		}
		why := "it is being deleted"
		if ns, is := live.(*corev1.Namespace); is {
			for _, cond := range ns.Status.Conditions {
				if cond.Status == corev1.ConditionTrue {
					why += fmt.Sprintf("; %s: %s", cond.Reason, cond.Message)
				}
				if api := brokenAPI.FindStringSubmatch(cond.Message); api != nil && cond.Type == corev1.NamespaceDeletionDiscoveryFailure {
					hint = fmt.Sprintf("repair the server of that API or, if nobody needs it, remove it: %s delete apiservice %s.%s", c.Kubectl, api[2], api[1])
				}
			}
		}
		return why, err
	})
	if e := (*Error)(nil); errors.As(err, &e) {
		e.Hint = cmp.Or(e.Hint, hint)
	}
	return err
}

// brokenAPI matches the first API that Kubernetes could not discover, in the condition of a namespace: its group and its version.
var brokenAPI = regexp.MustCompile(`\b([a-z0-9-]+(?:\.[a-z0-9-]+)+)/(v[0-9][a-z0-9]*)\b`)

// TimedOut returns the error of a wait that timed out.
func (c *Cluster) TimedOut(ctx context.Context, op, hint, reason string) error {
	e := &Error{Kind: NotReady, Cluster: c.Name, Op: op, Hint: hint, Err: context.Cause(ctx)}
	if reason != "" {
		e.Err = fmt.Errorf("%s (%w)", reason, context.Cause(ctx))
	}
	if warning := lastWarning(c.Client); warning != "" {
		e.Err = fmt.Errorf("%w; the cluster says: %s", e.Err, warning)
	}
	return e
}

// Wait is a wait of a command.
type Wait struct {
	// Scope is the cluster, or the pair of clusters for a whole step.
	Scope string
	// Operation was waited for, and what was missing until then. Reason is empty if nothing was missing at the first check.
	Operation, Reason string
	Start, End        time.Time
}

// Timeline records the waits of a command. It is safe for concurrent use. The zero value is empty.
type Timeline struct {
	mu    sync.Mutex
	waits []Wait
}

type timelineKey struct{}

// WithTimeline records all waits under the context in t.
func WithTimeline(ctx context.Context, t *Timeline) context.Context {
	return context.WithValue(ctx, timelineKey{}, t)
}

// StartWait records the start of a wait, and the returned function its end. Without a Timeline in the context it does
// nothing.
func StartWait(ctx context.Context, scope, operation, missing string) (end func()) {
	t, wanted := ctx.Value(timelineKey{}).(*Timeline)
	if !wanted {
		return func() {}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i := len(t.waits)
	t.waits = append(t.waits, Wait{Scope: scope, Operation: operation, Reason: missing, Start: time.Now()})
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.waits[i].End = time.Now()
	}
}

// Waits returns the waits in the order in which they started. One that has not ended yet ends now.
func (t *Timeline) Waits() []Wait {
	t.mu.Lock()
	defer t.mu.Unlock()
	return lo.Map(t.waits, func(w Wait, _ int) Wait {
		w.End = cmp.Or(w.End, time.Now())
		return w
	})
}

// Reporter shows the progress of a command.
type Reporter interface {
	// Step runs fn, and reports its start, its end and its error.
	Step(ctx context.Context, name string, fn func(context.Context) error) error
}

// Quiet is a Reporter that shows nothing.
type Quiet struct{}

// Step runs fn.
func (Quiet) Step(ctx context.Context, _ string, fn func(context.Context) error) error {
	return fn(ctx)
}

// TimedReporter records the steps of a pair of clusters in the timeline.
type TimedReporter struct {
	Reporter
	Scope string
}

// Step runs fn.
func (t TimedReporter) Step(ctx context.Context, name string, fn func(context.Context) error) error {
	return t.Reporter.Step(ctx, name, func(ctx context.Context) error {
		defer StartWait(ctx, t.Scope, name, "")()
		return fn(ctx)
	})
}
