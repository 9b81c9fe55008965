package services

import (
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/services"
)

// index finds the objects of a service without a search. It may also have objects that are gone.
type index struct {
	mu sync.Mutex
	// sources are the names of the EndpointSlices of each Service, and derived those that this controller has made.
	sources, derived map[services.Key]map[string]bool
	// received are the names of the peerings that tell a service.
	received map[services.Key]map[string]bool
	// namespaces are the services of each namespace of which there is anything: an export, an import, or a peer's.
	namespaces map[string]map[services.Key]bool
}

func newIndex() *index {
	return &index{
		sources: map[services.Key]map[string]bool{}, derived: map[services.Key]map[string]bool{},
		received: map[services.Key]map[string]bool{}, namespaces: map[string]map[services.Key]bool{},
	}
}

// keysOf returns the service that an object concerns, and the peering from which it comes, "" for none.
func keysOf(obj client.Object) (k services.Key, source string, is bool) {
	k = services.Key{Namespace: obj.GetNamespace(), Name: obj.GetName()}
	switch o := obj.(type) {
	case *corev1.Service:
		if isOurs(o) {
			k.Name = o.Labels[mcs.LabelServiceName]
		}
		return k, "", k.Name != ""
	case *discoveryv1.EndpointSlice:
		k.Name = o.Labels[discoveryv1.LabelServiceName]
		if o.Labels[discoveryv1.LabelManagedBy] == v1alpha1.ServicesManager {
			k.Name = o.Labels[mcs.LabelServiceName]
		}
		return k, "", k.Name != ""
	case *mcs.ServiceExport, *mcs.ServiceImport:
		return k, "", true
	case *v1alpha1.ExportedService:
		k, is = services.ParseKey(o.Name)
		return k, "", is
	case *v1alpha1.ReceivedService:
		source, k, is = services.ParseReceived(o.Name)
		return k, source, is
	}
	return k, "", false
}

// isOurs reports whether this controller manages an object.
func isOurs(obj client.Object) bool {
	return obj.GetLabels()[v1alpha1.LabelManagedBy] == v1alpha1.FieldManager && obj.GetLabels()[mcs.LabelServiceName] != ""
}

// add notes an object.
func (x *index) add(obj client.Object, k services.Key, source string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch o := obj.(type) {
	case *corev1.Service:
		return // of most services there is nothing else
	case *discoveryv1.EndpointSlice:
		if o.Labels[discoveryv1.LabelManagedBy] != v1alpha1.ServicesManager {
			put(x.sources, k, o.Name)
			return
		}
		put(x.derived, k, o.Name)
	case *v1alpha1.ReceivedService:
		put(x.received, k, source)
	}
	put(x.namespaces, k.Namespace, k)
}

func put[K, V comparable](in map[K]map[V]bool, k K, v V) {
	if in[k] == nil {
		in[k] = map[V]bool{}
	}
	in[k][v] = true
}

// get passes the names in one map of the index to keep, and removes those for which it returns false. The cache has an object before
// the index does. So with the lock held, no object can come between keep's look into the cache and the removal.
func (x *index) get(in map[services.Key]map[string]bool, k services.Key, keep func(name string) bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if maps.DeleteFunc(in[k], func(name string, _ bool) bool { return !keep(name) }); len(in[k]) == 0 {
		delete(in, k)
	}
}

// has reports whether there is anything of a service but a Service with its slices.
func (x *index) has(k services.Key) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.namespaces[k.Namespace][k]
}

// in returns the services of a namespace, or of all namespaces if it is empty.
func (x *index) in(namespace string) (out []services.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for ns, keys := range x.namespaces {
		for k := range keys {
			if namespace == "" || ns == namespace {
				out = append(out, k)
			}
		}
	}
	return out
}

// of returns the services that a peering tells.
func (x *index) of(peering string) (out []services.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for k, peerings := range x.received {
		if peerings[peering] {
			out = append(out, k)
		}
	}
	return out
}

// remember adds a service again that was forgotten too early.
func (x *index) remember(k services.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	put(x.namespaces, k.Namespace, k)
}

// forget forgets a service of which nothing is left.
func (x *index) forget(k services.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if delete(x.namespaces[k.Namespace], k); len(x.namespaces[k.Namespace]) == 0 {
		delete(x.namespaces, k.Namespace)
	}
}
