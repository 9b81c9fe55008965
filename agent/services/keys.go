package services

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/services"
)

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

// keys returns the services of which there is more than a Service with its slices, in a namespace or, if it is empty, in all.
func (o *controller) keys(namespace string) (out []services.Key) {
	ours := client.HasLabels{mcs.LabelServiceName}
	seen := map[services.Key]bool{}
	for list, which := range map[client.ObjectList]client.HasLabels{
		&mcs.ServiceExportList{}: nil, &mcs.ServiceImportList{}: nil, &v1alpha1.ExportedServiceList{}: nil, &v1alpha1.ReceivedServiceList{}: nil,
		&corev1.ServiceList{}: ours, &discoveryv1.EndpointSliceList{}: ours,
	} {
		_ = o.view.List(context.Background(), list, watch.Shared, which) // fails only if the cache does not have the kind
		_ = meta.EachListItem(list, func(obj runtime.Object) error {
			k, _, is := keysOf(obj.(client.Object))
			if is && !seen[k] && (namespace == "" || k.Namespace == namespace) {
				seen[k] = true
				out = append(out, k)
			}
			return nil
		})
	}
	return out
}

// keysFrom returns the services that a peer tells.
func (o *controller) keysFrom(peering string) (out []services.Key) {
	var received v1alpha1.ReceivedServiceList
	_ = o.view.List(context.Background(), &received, watch.Shared, client.MatchingLabels{v1alpha1.LabelPeering: peering})
	for i := range received.Items {
		if k, source, is := keysOf(&received.Items[i]); is && source == peering {
			out = append(out, k)
		}
	}
	return out
}

// concernsOthers reports whether there is more of a service than a Service with its slices.
func (o *controller) concernsOthers(k services.Key) bool {
	ctx := context.Background()
	name := client.ObjectKey{Namespace: k.Namespace, Name: k.Name}
	return get(ctx, o, name, &mcs.ServiceExport{}) != nil || get(ctx, o, name, &mcs.ServiceImport{}) != nil ||
		get(ctx, o, client.ObjectKey{Name: k.ObjectName()}, &v1alpha1.ExportedService{}) != nil
}
