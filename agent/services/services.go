// Package services is the controller of exported and imported services. From ServiceExports, Services and EndpointSlices
// it makes ExportedServices, which gateways tell to peers. From these and the ReceivedServices that gateways have written,
// it makes ServiceImports, with Services and EndpointSlices, which kube-proxy uses.
//
// It has no network input but its API server's. What is made of several clusters' exports is decided by pkg/services, which
// is pure.
package services

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/pkg/version"
)

const (
	// The Lease of the controller that works: how long it is valid, how long its holder tries to renew it, and how often.
	leaseDuration, renewDeadline, retryPeriod = 6 * time.Second, 4 * time.Second, time.Second
	// writesPerSecond and writesAtOnce limit the writes to the API server. Sources of services take turns.
	writesPerSecond, writesAtOnce = 200, 200
)

// Config is the configuration that the pod gives to the controller.
type Config struct {
	PodName string
	PodIPs  []netip.Addr
	Log     *slog.Logger
}

// Run runs the controller. It returns when ctx ends, or with an error that a restart may fix.
func Run(ctx context.Context, cfg Config) error {
	cfg.Log.Info("the controller of services starts", "version", version.String(), "pod", cfg.PodName)
	c, rest, err := watch.Client()
	if err != nil {
		return err
	}
	health := &loop.Health{}
	go loop.Serve(ctx, cfg.Log, "serve health checks", netip.AddrPortFrom(cfg.PodIPs[0], v1alpha1.HealthPort), health)
	meter := metrics.New(metrics.ServicesController, version.String())
	go loop.Serve(ctx, cfg.Log, "serve metrics", netip.AddrPortFrom(cfg.PodIPs[0], v1alpha1.MetricsPort), meter.Handler())
	return asLeader(ctx, cfg, rest, func(ctx context.Context) error { return newController(cfg.Log, c, meter).run(ctx, rest) })
}

// errLeadership means that another controller may work now.
var errLeadership = errors.New("this controller could not renew its Lease in time")

// asLeader calls run once this pod holds the Lease of the controller. The context of run ends when the pod loses it.
func asLeader(ctx context.Context, cfg Config, rest *rest.Config, run func(context.Context) error) error {
	leases, err := coordinationclient.NewForConfig(rest)
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	electing, stop := context.WithCancel(ctx)
	defer stop()
	result := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: v1alpha1.ServicesName}, Client: leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: cfg.PodName},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				result <- run(leading)
				stop()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("elect a controller: %w", err)
	}
	elector.Run(electing)
	select {
	case err := <-result:
		if err != nil || ctx.Err() != nil {
			return err
		}
	default:
	}
	if ctx.Err() != nil {
		return nil
	}
	return errLeadership // the process ends, so that nothing is written any more
}

// controller makes the objects of exported and imported services.
type controller struct {
	log    *slog.Logger
	client client.Client
	meter  *metrics.Agent
	view   *watch.View
	queues *queues
	holder *holder
	writes *rate.Limiter
	// restored is set once it is known what the last controller has left. following is held while one peering is looked at.
	restored  atomic.Bool
	following sync.Mutex
	// applied has the labels and annotations of the objects that this process has applied, by the objects' names.
	applied sync.Map
	// prefersNodes is set if the API server knows PreferSameZone and PreferSameNode.
	prefersNodes bool
	// clusterID is the UID of kube-system. Objects that were made for another one are copies.
	clusterID string
}

func newController(log *slog.Logger, c client.Client, meter *metrics.Agent) *controller {
	o := &controller{log: log, client: c, meter: meter, writes: rate.NewLimiter(writesPerSecond, writesAtOnce)}
	o.queues = newQueues(o.reconcile)
	o.queues.processed = meter.Reconciled
	o.holder = newHolder(func(peering string) { o.addAll(peering, o.keysFrom(peering)) })
	return o
}

// run works until ctx ends.
func (o *controller) run(ctx context.Context, rest *rest.Config) (err error) {
	err = loop.Retry(ctx, o.log, func(ctx context.Context) (err error) {
		if o.prefersNodes, err = knowsNodes(rest); err != nil {
			return err
		}
		o.clusterID, err = watch.ClusterID(ctx, o.client)
		return err
	})
	if err != nil {
		return err
	}
	o.view, err = watch.Start(ctx, o.client, rest, map[client.Object]cache.ByObject{
		&corev1.Service{}: {}, &discoveryv1.EndpointSlice{}: {}, &corev1.Namespace{}: {}, &mcs.ServiceExport{}: {}, &mcs.ServiceImport{}: {},
		&v1alpha1.Peering{}: {}, &v1alpha1.ClusterNetwork{}: {}, &v1alpha1.NodeNetwork{}: {}, &v1alpha1.ExportedService{}: {}, &v1alpha1.ReceivedService{}: {},
	}, strip, o.observe)
	if err != nil {
		return err
	}
	o.restore(ctx)
	o.meter.SetSource(func() (metrics.Snapshot, error) { return metrics.Snapshot{Services: o.numbers()}, nil })
	defer o.meter.SetSource(nil)
	o.queues.run(ctx)
	return nil
}

// firstWithNodes is the first version of Kubernetes whose Services can prefer endpoints on the same node, without a feature gate
// (KEP-3015).
var firstWithNodes = utilversion.MustParseGeneric("1.34")

// knowsNodes reports whether the API server knows how to prefer endpoints on the same node.
func knowsNodes(config *rest.Config) (bool, error) {
	api, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return false, fmt.Errorf("find the API server: %w", err)
	}
	info, err := api.ServerVersion()
	if err != nil {
		return false, fmt.Errorf("read the API server's version: %w", err)
	}
	v, err := utilversion.ParseGeneric(info.GitVersion)
	return err == nil && v.AtLeast(firstWithNodes), nil // an unknown version may not know it
}

// strip removes what this controller does not need.
func strip(obj client.Object) {
	switch o := obj.(type) {
	case *corev1.Service:
		o.Annotations, o.Status = nil, corev1.ServiceStatus{}
	case *discoveryv1.EndpointSlice:
		if o.Labels[discoveryv1.LabelManagedBy] != v1alpha1.ServicesManager {
			o.Annotations, o.OwnerReferences = nil, nil
		}
		for i := range o.Endpoints {
			o.Endpoints[i].TargetRef, o.Endpoints[i].DeprecatedTopology = nil, nil
		}
	case *v1alpha1.NodeNetwork:
		o.Status = v1alpha1.NodeNetworkStatus{NodeIPs: o.Status.NodeIPs}
	case *v1alpha1.Peering:
		o.Status.Planes = nil // measured values
	}
}

// observe adds the services that an object concerns to their queues. What has changed before restore is in its lists.
func (o *controller) observe(obj client.Object) {
	if !o.restored.Load() {
		return
	}
	switch obj := obj.(type) {
	case *corev1.Namespace:
		o.addAll("", o.keys(obj.Name))
	case *v1alpha1.ClusterNetwork, *v1alpha1.NodeNetwork:
		o.addAll("", o.keys(""))
	case *v1alpha1.Peering:
		// Each export has conditions that depend on it.
		o.addAll(obj.Name, o.keysFrom(obj.Name))
		o.addAll("", o.keys(""))
		o.followPeering(obj.Name)
	default:
		k, source, is := keysOf(obj)
		_, isService := obj.(*corev1.Service)
		_, isSlice := obj.(*discoveryv1.EndpointSlice)
		if is && (!isService && !isSlice || obj.GetLabels()[mcs.LabelServiceName] != "" || o.concernsOthers(k)) {
			o.queues.add(source, k)
		}
	}
}

func (o *controller) addAll(source string, keys []services.Key) {
	for _, k := range keys {
		o.queues.add(source, k)
	}
}

// restore finds out which peers' endpoints the last controller has withdrawn, begins to follow the peerings, and adds all services.
func (o *controller) restore(ctx context.Context) {
	var list v1alpha1.PeeringList
	var made discoveryv1.EndpointSliceList
	// Lists from the cache fail only if it does not have the kind.
	_ = o.view.List(ctx, &list)
	_ = o.view.List(ctx, &made, client.MatchingLabels{discoveryv1.LabelManagedBy: v1alpha1.ServicesManager})
	withdrawn := map[string]bool{} // by the ID of the cluster from which the endpoints are
	for i := range made.Items {
		id := made.Items[i].Labels[mcs.LabelSourceCluster]
		withdrawn[id] = withdrawn[id] || made.Items[i].Annotations[services.AnnotationWithdrawn] != ""
	}
	for i := range list.Items {
		if p := &list.Items[i]; p.Spec.Services != nil {
			if is, hasEndpoints := withdrawn[p.Spec.Services.RemoteID]; hasEndpoints {
				o.holder.restore(p.Name, is)
			}
		}
	}
	o.restored.Store(true)
	for i := range list.Items {
		o.followPeering(list.Items[i].Name)
	}
	o.addAll("", o.keys(""))
}

// followPeering says whether a peer is connected. What the cache has counts: an event may be older.
func (o *controller) followPeering(name string) {
	o.following.Lock()
	defer o.following.Unlock()
	p := &v1alpha1.Peering{}
	if o.view.Get(context.Background(), client.ObjectKey{Name: name}, p) != nil || p.Spec.Services == nil || !p.DeletionTimestamp.IsZero() {
		o.holder.forget(name)
		return
	}
	o.holder.set(name, meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionConnected))
}

// numbers returns what metrics show.
func (o *controller) numbers() *metrics.ServiceNumbers {
	ctx := context.Background()
	var exported v1alpha1.ExportedServiceList
	var received v1alpha1.ReceivedServiceList
	var imports mcs.ServiceImportList
	var exports mcs.ServiceExportList
	for _, list := range []client.ObjectList{&exported, &received, &imports, &exports} {
		_ = o.view.List(ctx, list, watch.Shared)
	}
	n := &metrics.ServiceNumbers{Exported: len(exported.Items), Received: len(received.Items), Withdrawn: o.holder.withdrawn()}
	for i := range imports.Items {
		if isOurs(&imports.Items[i]) {
			n.Imported++
		}
	}
	for i := range exports.Items {
		if meta.IsStatusConditionTrue(exports.Items[i].Status.Conditions, string(mcs.ServiceExportConditionConflict)) {
			n.Conflicts++
		}
	}
	return n
}
