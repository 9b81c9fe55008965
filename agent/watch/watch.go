// Package watch gives an agent its view of its own cluster: a cache of the few
// objects that it may read, and a signal when one of them changes. Many changes
// at once are one signal.
//
// Both agents tell alike what they cannot do (Tell), and write their reports alike
// (Report).
//
// It asks the API for nothing but these objects: kinds are known beforehand, so
// there is no discovery.
package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	Changed <-chan struct{}
}

// dialTimeout is short: on a node that has just started, a connection that is begun
// before kube-proxy has done its work leads nowhere, however often it sends again;
// another one works. retry is the time between them.
const dialTimeout, retry = time.Second, 200 * time.Millisecond

// unanswered is how long the kernel of who we talk to may say nothing before a
// connection is given up. It may be dead without a word, as where the API server's
// machine has lost its power, or a link that was down has taken kube-proxy's
// translations with it. HTTP/2's pings, which client-go sends too, are answered by the
// API server itself, which a busy one does after many seconds: they cannot tell so soon.
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

// Client connects to the API server of the cluster that this pod is in. It waits
// until that answers: an agent that ended instead would be started anew after
// 10 s only, and later each time.
func Client(ctx context.Context, log *slog.Logger) (client.Client, *rest.Config, error) {
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
	if err != nil {
		return nil, nil, err
	}
	return c, cfg, reached(ctx, c, log)
}

// reached returns when the API server has said something, whatever it is.
func reached(ctx context.Context, c client.Client, log *slog.Logger) error {
	last := ""
	return wait.PollUntilContextCancel(ctx, retry, true, func(ctx context.Context) (bool, error) {
		err := c.List(ctx, &v1alpha1.PeeringList{}, client.Limit(1))
		if err == nil || errors.As(err, new(apierrors.APIStatus)) && !apierrors.IsServiceUnavailable(err) {
			return true, nil
		}
		if err.Error() != last {
			last = err.Error()
			log.Warn("the API server does not answer", "error", err)
		}
		return false, nil
	})
}

// dialPatiently tries until somebody answers. A watch that fails is begun anew after
// longer and longer pauses, of up to a minute; with this, an API server that is not
// there is one that answers late, and the watch goes on as soon as it is back.
func dialPatiently(ctx context.Context, network, address string) (net.Conn, error) {
	for {
		conn, err := dialer.DialContext(ctx, network, address)
		if err == nil {
			return conn, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(retry):
		}
	}
}

func kinds() (*runtime.Scheme, meta.RESTMapper, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, nil, err
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	mapper.Add(DaemonSet, meta.RESTScopeNamespace)
	mapper.Add(Namespace, meta.RESTScopeRoot)
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

// Start watches the objects that are selected of each kind. It returns when the
// cache has been filled, and watches until ctx ends.
func Start(ctx context.Context, c client.Client, cfg *rest.Config, selected map[client.Object]fields.Selector) (*View, error) {
	byObject := map[client.Object]cache.ByObject{}
	for obj, selector := range selected {
		byObject[obj] = cache.ByObject{Field: selector, Transform: onlyNeeded}
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Dial = dialPatiently
	store, err := cache.New(cfg, cache.Options{
		Scheme: c.Scheme(), Mapper: c.RESTMapper(), ByObject: byObject, ReaderFailOnMissingInformer: true,
	})
	if err != nil {
		return nil, fmt.Errorf("make the cache: %w", err)
	}
	changed := notify.NewSignal()
	for obj := range selected {
		informer, err := store.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", obj, err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { changed.Send() },
			UpdateFunc: func(any, any) { changed.Send() },
			DeleteFunc: func(any) { changed.Send() },
		}); err != nil {
			return nil, fmt.Errorf("watch %T: %w", obj, err)
		}
	}
	go func() { _ = store.Start(ctx) }() // it ends with ctx only
	if !store.WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("fill the cache: %w", context.Cause(ctx))
	}
	return &View{Reader: store, Client: c, Changed: changed}, nil
}

// onlyNeeded keeps of pods what agents look at, and strips what is large of the
// others, so that the cache stays small.
func onlyNeeded(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		return &corev1.Pod{
			TypeMeta: o.TypeMeta,
			ObjectMeta: metav1.ObjectMeta{
				Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, DeletionTimestamp: o.DeletionTimestamp,
			},
			Spec:   corev1.PodSpec{NodeName: o.Spec.NodeName, HostNetwork: o.Spec.HostNetwork},
			Status: corev1.PodStatus{Phase: o.Status.Phase, PodIPs: o.Status.PodIPs},
		}, nil
	case *corev1.Node:
		o.Status.Images, o.ManagedFields = nil, nil
	case client.Object:
		o.SetManagedFields(nil)
	}
	return obj, nil
}
