// Package watch gives an agent its view of its own cluster: a cache of the few
// objects that it may read, and a signal when one of them changes. Many changes
// at once are one signal.
//
// It asks the API for nothing but these objects: kinds are known beforehand, so
// there is no discovery.
package watch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/notify"
)

// DaemonSet is the kind of what runs the node agents, Namespace that of where.
var (
	DaemonSet = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "DaemonSet"}
	Namespace = corev1.SchemeGroupVersion.WithKind("Namespace")
)

// View is an agent's view of its cluster.
type View struct {
	// Reader answers from the cache, for the kinds that Start was given.
	client.Reader
	// Client asks the API server.
	Client client.Client
	// Changed receives after one or more objects changed.
	Changed notify.Signal
}

// dialTimeout is short: on a node that has just started, a connection that is begun
// before kube-proxy has done its work leads nowhere, however often it sends again.
// Another one works.
const dialTimeout = time.Second

// unanswered is how long the other kernel may be silent before a connection is given
// up. The API server's machine may have lost its power, or a link that was down has
// taken kube-proxy's translations with it. HTTP/2's pings, which client-go sends too,
// cannot tell so soon: a busy API server answers them after many seconds.
const unanswered = 5 * time.Second

var dialer = net.Dialer{
	Timeout:         dialTimeout,
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 3 * time.Second, Interval: time.Second},
	Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unanswered.Milliseconds()))
		})
		return errors.Join(err, failed)
	},
}

// Client makes a client of the API server of the cluster that this pod is in. It
// sends nothing yet.
func Client() (client.Client, *rest.Config, error) {
	cfg, err := rest.InClusterConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("find the API server: %w", err)
	}
	cfg.UserAgent = "liqonet-agent"
	cfg.Dial = dialer.DialContext
	scheme, mapper, err := kinds()
	if err != nil {
		return nil, nil, err
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme, Mapper: mapper})
	return c, cfg, err
}

// dial opens a connection.
type dial func(ctx context.Context, network, address string) (net.Conn, error)

// patiently dials until somebody answers, or ctx ends. A watch that fails is begun again
// after longer and longer pauses, of up to a minute. With this, an API server that is not
// there is one that answers late, and the watch goes on soon after it is back.
//
// The context of a request does not tell when nobody wants the connection any more:
// HTTP's transport goes on dialing when a request was cancelled.
func patiently(ctx context.Context, d dial) dial {
	turn := make(chan struct{}, 1) // one dial at a time: all are to the same API server
	return func(_ context.Context, network, address string) (net.Conn, error) {
		turn <- struct{}{}
		defer func() { <-turn }()
		pauses := loop.DialPauses()
		for {
			conn, err := d(ctx, network, address)
			if err == nil || !loop.Sleep(ctx, pauses.Step()) {
				return conn, err
			}
		}
	}
}

func kinds() (*runtime.Scheme, meta.RESTMapper, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, nil, err
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(Namespace, meta.RESTScopeRoot)
	mapper.Add(DaemonSet, meta.RESTScopeNamespace)
	mapper.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	for _, kind := range []string{"Pod", "Service", "ConfigMap", "Event"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	for _, kind := range []string{"ClusterNetwork", "Peering", "NodeNetwork"} {
		mapper.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	return scheme, mapper, nil
}

// All selects every object of a kind.
func All() fields.Selector { return fields.Everything() }

// Named selects the one of that name.
func Named(name string) fields.Selector { return fields.OneTermEqualSelector("metadata.name", name) }

// OnNode selects the pods of that node.
func OnNode(name string) fields.Selector { return fields.OneTermEqualSelector("spec.nodeName", name) }

// Shared makes a List return the objects of the cache, which must not be changed. Copies of
// all pods of a node, made each time, cost more than anything else.
const Shared = client.UnsafeDisableDeepCopy

// lastLook is how long objects are watched after ctx has ended: what comes then may say why.
const lastLook = 3 * time.Second

// pageSize is how many objects an API server is asked for at once that cannot stream the first
// list. All of them, as they are, may be more than an agent has memory for.
const pageSize = 50

// Start watches the objects that are selected of each kind. It returns when the
// cache has been filled, and watches until lastLook after the end of ctx. What the agent does
// not need of an object is stripped, more than once maybe, before the next one is read.
func Start(ctx context.Context, c client.Client, cfg *rest.Config, selected map[client.Object]fields.Selector, strip func(client.Object)) (*View, error) {
	byObject := map[client.Object]cache.ByObject{}
	keep := func(obj any) (any, error) {
		onlyNeeded(obj)
		if o, ok := obj.(client.Object); ok {
			strip(o)
		}
		return obj, nil
	}
	for obj, selector := range selected {
		by := cache.ByObject{Field: selector, Transform: keep}
		if _, ok := obj.(*corev1.Service); ok {
			// That one Service is all that may be read.
			by.Namespaces = map[string]cache.Config{v1alpha1.Namespace: {}}
		}
		byObject[obj] = by
	}
	cfg = rest.CopyConfig(cfg)
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(lastLook, stop) })
	cfg.Dial = patiently(watching, dialer.DialContext)
	cfg.QPS = -1 // pages follow each other; the API server has limits of its own
	store, err := cache.New(cfg, cache.Options{
		Scheme: c.Scheme(), Mapper: c.RESTMapper(), ByObject: byObject, ReaderFailOnMissingInformer: true,
		NewInformer: func(lw toolscache.ListerWatcher, obj runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
			return toolscache.NewSharedIndexInformer(inPages(lw, keep), obj, resync, indexers)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make the cache: %w", err)
	}
	changed := notify.NewSignal()
	var filled []toolscache.DoneChecker
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed.Send() },
		UpdateFunc: func(before, now any) {
			if !same(before, now) {
				changed.Send()
			}
		},
		DeleteFunc: func(any) { changed.Send() },
	}
	for obj := range selected {
		informer, err := store.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		if err == nil {
			_, err = informer.AddEventHandler(handler)
		}
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", obj, err)
		}
		filled = append(filled, informer.HasSyncedChecker())
	}
	go func() { _ = store.Start(watching) }() // it ends with its context only
	// Not store.WaitForCacheSync, which looks every 0.1 s.
	if !toolscache.WaitFor(ctx, "", filled...) {
		return nil, fmt.Errorf("fill the cache: %w", context.Cause(ctx))
	}
	return &View{Reader: store, Client: c, Changed: changed}, nil
}

// same says that of an object only its version has changed, as far as the agent keeps it. Nodes report what they measure as
// often as every 30 s, and a gateway looks at all nodes for each change.
func same(before, now any) bool {
	newer, ok := now.(client.Object)
	if !ok {
		return false
	}
	old := before.(client.Object).DeepCopyObject().(client.Object)
	old.SetResourceVersion(newer.GetResourceVersion())
	return reflect.DeepEqual(old, newer)
}

// inPages has objects listed in pages. What an API server answers from its cache has no pages, so
// that is not asked for.
func inPages(lw toolscache.ListerWatcher, keep toolscache.TransformFunc) *toolscache.ListWatch {
	whole := toolscache.ToListerWatcherWithContext(lw)
	pages := pager.ListPager{PageFn: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		page, err := whole.ListWithContext(ctx, opts)
		if err != nil {
			return nil, err
		}
		return page, meta.EachListItem(page, func(obj runtime.Object) error {
			_, err := keep(obj)
			return err
		})
	}}
	return &toolscache.ListWatch{
		WatchFuncWithContext: whole.WatchWithContext,
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.ResourceVersion, opts.ResourceVersionMatch, opts.Limit = "", "", pageSize
			all, _, err := pages.ListWithAlloc(ctx, opts) // or one that stays would keep its page
			return all, err
		},
	}
}

// onlyNeeded keeps of pods what agents look at, and strips what is large of the
// others, so that the cache stays small.
func onlyNeeded(obj any) {
	switch o := obj.(type) {
	case *corev1.Pod:
		*o = corev1.Pod{
			TypeMeta: o.TypeMeta,
			ObjectMeta: metav1.ObjectMeta{
				Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, DeletionTimestamp: o.DeletionTimestamp,
			},
			Spec:   corev1.PodSpec{NodeName: o.Spec.NodeName, HostNetwork: o.Spec.HostNetwork},
			Status: corev1.PodStatus{Phase: o.Status.Phase, PodIPs: o.Status.PodIPs},
		}
	case *corev1.Node:
		o.Status.Images, o.ManagedFields = nil, nil
	case client.Object:
		o.SetManagedFields(nil)
	}
}
