// Package watch gives an agent its view of its own cluster: a cache of the few objects that it may read, and a signal
// when one of them changes. Several changes at once are one signal.
//
// It requests only these objects from the API: the kinds are known in advance, so there is no discovery.
package watch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/udp"
)

// View is an agent's view of its cluster.
type View struct {
	// Reader reads from the cache, for the kinds passed to Start.
	client.Reader
	// Client sends requests to the API server.
	Client client.Client
	// Changed signals that one or more objects have changed.
	Changed notify.Signal
}

// dialTimeout is short: on a node that has just started, a connection that begins before kube-proxy is ready leads
// nowhere, however often it retransmits. Another connection works.
const dialTimeout = time.Second

// ackTimeout is how long the remote kernel may be silent before a connection is closed. The API server's machine may
// have lost power, or a link that went down may have removed kube-proxy's translations. HTTP/2's pings, which
// client-go sends too, cannot find out as soon: a busy API server takes many seconds to answer them.
const ackTimeout = 5 * time.Second

// maxRate and maxBurst limit requests for one kind of objects, per second. If all gateways of 250 peerings fail, a node
// agent reads 500 Leases (package heartbeat).
const maxRate, maxBurst = 200, 500

var dialer = net.Dialer{
	Timeout:         dialTimeout,
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 3 * time.Second, Interval: time.Second},
	Control:         udp.Options(unix.IPPROTO_TCP, map[int]int{unix.TCP_USER_TIMEOUT: int(ackTimeout.Milliseconds())}),
}

// Client returns a client for the API server of the pod's own cluster. It does not connect yet.
func Client() (client.Client, *rest.Config, error) {
	cfg, err := rest.InClusterConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("find the API server: %w", err)
	}
	cfg.UserAgent = "liqonet-agent"
	cfg.Dial = dialer.DialContext
	cfg.QPS, cfg.Burst = maxRate, maxBurst
	scheme, mapper := kinds()
	c, err := client.New(cfg, client.Options{Scheme: scheme, Mapper: mapper})
	return c, cfg, err
}

// dial opens a connection.
type dial func(ctx context.Context, network, address string) (net.Conn, error)

// dialUntilAnswered dials until a server answers or ctx ends. A failed watch restarts after increasing pauses of up
// to a minute. With this function, an absent API server looks like a slow one, and the watch continues soon after the
// server is back.
//
// The context of a request does not tell when a connection is no longer wanted: HTTP's transport continues to dial
// after a request is canceled.
func dialUntilAnswered(ctx context.Context, d dial) dial {
	turn := make(chan struct{}, 1) // one dial at a time: all are to the same API server
	return func(_ context.Context, network, address string) (net.Conn, error) {
		turn <- struct{}{}
		defer func() { <-turn }()
		pauses := loop.DialPauses()
		for {
			conn, err := d(ctx, network, address)
			if err == nil || !failure.Pause(ctx, pauses.Step()) {
				return conn, err
			}
		}
	}
}

func kinds() (*runtime.Scheme, meta.RESTMapper) {
	scheme := runtime.NewScheme()
	utilruntime.Must(errors.Join(
		corev1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme), mcs.AddToScheme(scheme), v1alpha1.AddToScheme(scheme),
	))
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Node", "Namespace"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	mapper.Add(appsv1.SchemeGroupVersion.WithKind("DaemonSet"), meta.RESTScopeNamespace)
	mapper.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	for _, kind := range []string{"Pod", "Service", "ConfigMap", "Event"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	mapper.Add(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), meta.RESTScopeNamespace)
	for _, kind := range []string{mcs.ServiceExportKindName, mcs.ServiceImportKindName} {
		mapper.Add(schema.GroupVersion(mcs.GroupVersion).WithKind(kind), meta.RESTScopeNamespace)
	}
	for _, kind := range []string{"ClusterNetwork", "Peering", "NodeNetwork", "ExportedService", "ReceivedService"} {
		mapper.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	return scheme, mapper
}

// ClusterID returns the ID of the agent's cluster. Objects that were made for another one are copies.
func ClusterID(ctx context.Context, c client.Reader) (string, error) {
	ns := &corev1.Namespace{}
	if err := c.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, ns); err != nil {
		return "", fmt.Errorf("read the ID of this cluster: %w", err)
	}
	return string(ns.UID), nil
}

// ByName selects the object of that name.
func ByName(name string) fields.Selector { return fields.OneTermEqualSelector("metadata.name", name) }

// Shared makes a List return the objects of the cache, which must not be changed. Copying all pods of a node each
// time would cost more than anything else.
const Shared = client.UnsafeDisableDeepCopy

// drainTime is how long objects are watched after ctx ends: later events may contain the reason.
const drainTime = 3 * time.Second

// pageSize is the size of a page for API servers that cannot stream the initial list. Listing all objects in full
// could exceed the agent's memory.
const pageSize = 50

// Start watches the selected objects of each kind. It returns when the cache is filled, and watches until drainTime
// after ctx ends. Before the next object is read, strip removes the parts of one that the agent does not need. It may be
// called several times for an object. Each observer is called with every object that has changed, as it was before and as it
// is now.
func Start(
	ctx context.Context, c client.Client, cfg *rest.Config, selected map[client.Object]cache.ByObject, strip func(client.Object), observers ...func(client.Object),
) (*View, error) {
	keep := func(obj any) (any, error) {
		stripUnused(obj)
		if o, ok := obj.(client.Object); ok {
			strip(o)
		}
		return obj, nil
	}
	cfg = rest.CopyConfig(cfg)
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(drainTime, stop) })
	cfg.Dial = dialUntilAnswered(watching, dialer.DialContext)
	cfg.QPS = -1 // pages are requested one by one; the API server has its own limits
	store, err := cache.New(cfg, cache.Options{
		Scheme: c.Scheme(), Mapper: c.RESTMapper(), ByObject: selected, DefaultTransform: keep, ReaderFailOnMissingInformer: true,
		NewInformer: func(lw toolscache.ListerWatcher, obj runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
			return toolscache.NewSharedIndexInformer(paginated(lw, keep), obj, resync, indexers)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("create the cache: %w", err)
	}
	changed := notify.NewSignal()
	var filled []toolscache.DoneChecker
	report := func(objs ...any) {
		for _, obj := range objs {
			if unknown, is := obj.(toolscache.DeletedFinalStateUnknown); is {
				obj = unknown.Obj
			}
			for _, observe := range observers {
				if o, is := obj.(client.Object); is {
					observe(o)
				}
			}
		}
		changed.Send()
	}
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { report(obj) },
		UpdateFunc: func(before, now any) {
			if !isUnchanged(before, now) {
				report(before, now)
			}
		},
		DeleteFunc: func(obj any) { report(obj) },
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
	go func() { _ = store.Start(watching) }() // it ends only with its context
	// store.WaitForCacheSync polls only every 0.1 s.
	if !toolscache.WaitFor(ctx, "", filled...) {
		return nil, fmt.Errorf("sync the cache: %w", context.Cause(ctx))
	}
	return &View{Reader: store, Client: c, Changed: changed}, nil
}

// isUnchanged reports whether only the version of an object has changed, in the part that the agent keeps. Nodes report
// measurements as often as every 30 s, and a gateway reads all nodes after each change.
func isUnchanged(before, now any) bool {
	newer := now.(client.Object)
	old := before.(client.Object).DeepCopyObject().(client.Object)
	old.SetResourceVersion(newer.GetResourceVersion())
	return reflect.DeepEqual(old, newer)
}

// paginated lists objects in pages. Lists from the API server's cache have no pages, so they are not used.
func paginated(lw toolscache.ListerWatcher, keep toolscache.TransformFunc) *toolscache.ListWatch {
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
			all, _, err := pages.ListWithAlloc(ctx, opts) // with List, an object that is kept would keep its whole page
			return all, err
		},
	}
}

// stripUnused keeps the parts of pods that agents read, and removes the large parts of other objects, so that the
// cache stays small.
func stripUnused(obj any) {
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
