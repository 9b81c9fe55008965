package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/services"
)

// world is what this cluster knows of one service.
type world struct {
	key       services.Key
	export    *mcs.ServiceExport
	service   *corev1.Service
	namespace *corev1.Namespace
	sources   []*discoveryv1.EndpointSlice
	received  []*v1alpha1.ReceivedService
	peerings  map[string]*v1alpha1.Peering
	nodes     map[netip.Addr]bool
	// ownID is this cluster's ID among the clusters that exchange services.
	ownID string
	// What the controller has made.
	exported      *v1alpha1.ExportedService
	serviceImport *mcs.ServiceImport
	derived       *corev1.Service
	made          []*discoveryv1.EndpointSlice
}

// reconcile makes the objects of one service.
func (o *controller) reconcile(ctx context.Context, k services.Key) error {
	w, err := o.read(ctx, k)
	if w == nil || err != nil {
		return err
	}
	export := w.ownExport()
	exportErr := o.applyExported(ctx, w, export)
	if export != nil && (apierrors.IsInvalid(exportErr) || apierrors.IsForbidden(exportErr)) {
		export.Failure = "the API server does not accept the service for peers: " + exportErr.Error()
	}
	exporters := w.exporters(export, o.holder.isWithdrawn)
	if len(exporters) == 0 {
		err = o.removeImport(ctx, w)
	} else {
		merged := services.Merge(k, exporters, time.Now())
		if !o.prefersNodes {
			merged.PreferClose()
		}
		if export != nil {
			export.Merged = merged
		}
		err = o.applyImport(ctx, w, merged)
	}
	err = cmp.Or(exportErr, err, o.applyConditions(ctx, w, export))
	return o.failed(k, err)
}

// failed logs why a service could not be processed. A namespace that is being deleted is no failure.
func (o *controller) failed(k services.Key, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	if !apierrors.IsConflict(err) {
		o.log.Warn("cannot write the objects of a service", "service", k.String(), "error", err)
	}
	return err
}

// read reads what this cluster knows of a service. It returns nil if nothing may be done: the objects were made for another cluster,
// or services are not exchanged.
func (o *controller) read(ctx context.Context, k services.Key) (*world, error) {
	cn := &v1alpha1.ClusterNetwork{}
	if err := o.view.Get(ctx, client.ObjectKey{Name: v1alpha1.ClusterNetworkName}, cn); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if cn.Spec.Services == nil || !cn.DeletionTimestamp.IsZero() || v1alpha1.CopiedFrom(cn.Spec.ClusterID, o.clusterID) != "" {
		return nil, nil
	}
	w := &world{key: k, ownID: cn.Spec.Services.ID, peerings: map[string]*v1alpha1.Peering{}, nodes: map[netip.Addr]bool{}}
	name, inNamespace := client.ObjectKey{Namespace: k.Namespace, Name: k.Name}, func(name string) client.ObjectKey {
		return client.ObjectKey{Namespace: k.Namespace, Name: name}
	}
	w.export, w.service, w.serviceImport = get(ctx, o, name, &mcs.ServiceExport{}), get(ctx, o, name, &corev1.Service{}), get(ctx, o, name, &mcs.ServiceImport{})
	w.namespace = get(ctx, o, client.ObjectKey{Name: k.Namespace}, &corev1.Namespace{})
	w.exported = get(ctx, o, client.ObjectKey{Name: k.ObjectName()}, &v1alpha1.ExportedService{})
	w.derived = get(ctx, o, inNamespace(k.DerivedName()), &corev1.Service{})
	of := func(labels client.MatchingLabels) (out []*discoveryv1.EndpointSlice) {
		var list discoveryv1.EndpointSliceList
		_ = o.view.List(ctx, &list, watch.Shared, client.InNamespace(k.Namespace), labels)
		for i := range list.Items {
			if list.Items[i].DeletionTimestamp.IsZero() {
				out = append(out, &list.Items[i])
			}
		}
		return out
	}
	w.sources = lo.Filter(of(client.MatchingLabels{discoveryv1.LabelServiceName: k.Name}), func(s *discoveryv1.EndpointSlice, _ int) bool {
		return s.Labels[discoveryv1.LabelManagedBy] != v1alpha1.ServicesManager
	})
	w.made = of(client.MatchingLabels{discoveryv1.LabelManagedBy: v1alpha1.ServicesManager, mcs.LabelServiceName: k.Name})
	var peerings v1alpha1.PeeringList
	var nodes v1alpha1.NodeNetworkList
	_, _ = o.view.List(ctx, &peerings, watch.Shared), o.view.List(ctx, &nodes, watch.Shared)
	for i := range peerings.Items {
		if p := &peerings.Items[i]; p.ExchangesServices() {
			w.peerings[p.Name] = p
			if r := get(ctx, o, client.ObjectKey{Name: k.ReceivedName(p.Name)}, &v1alpha1.ReceivedService{}); r != nil {
				w.received = append(w.received, r)
			}
		}
	}
	slices.SortFunc(w.received, func(a, b *v1alpha1.ReceivedService) int { return strings.Compare(a.Name, b.Name) })
	for i := range nodes.Items {
		for _, ip := range nodes.Items[i].Status.NodeIPs {
			w.nodes[ip.Addr] = true
		}
	}
	return w, nil
}

// get reads an object from the cache. It returns nil if there is none, or if it is being deleted.
func get[T client.Object](ctx context.Context, o *controller, key client.ObjectKey, obj T) (none T) {
	if o.view.Get(ctx, key, obj) != nil || !obj.GetDeletionTimestamp().IsZero() {
		return none
	}
	return obj
}

// ownExport returns this cluster's export, nil if there is no ServiceExport.
func (w *world) ownExport() *services.Export {
	if w.export == nil {
		return nil
	}
	e := &services.Export{Key: w.key, Refusal: services.CheckExport(w.key, w.service), Unreachable: map[string]services.Unreachable{}}
	if e.Refusal != nil {
		return e
	}
	e.Record = services.NewRecord(w.export, w.service, w.sources)
	e.Peers, e.UnknownPeers, e.IsLimited = services.Peers(w.export, func(name string) bool { return w.peerings[name] != nil })
	for name, p := range w.peerings {
		if !e.IsLimited || slices.Contains(e.Peers, name) {
			_, e.Unreachable[name] = services.ToPeer(e.Record, p, w.nodes)
		}
	}
	return e
}

// exporters returns the clusters whose exports this cluster uses.
func (w *world) exporters(own *services.Export, isWithdrawn func(peering string) bool) (out []services.Exporter) {
	if own != nil && own.Record != nil {
		out = append(out, services.Exporter{ID: w.ownID, IsOwn: true, Record: own.Record})
	}
	if _, reason := services.CheckKey(w.key.ObjectName()); w.namespace == nil || reason != "" {
		return out
	}
	for _, r := range w.received {
		peering, _, _ := services.ParseReceived(r.Name)
		p := w.peerings[peering]
		if p == nil || !services.Imports(p.Spec.Services.Import, w.namespace.Labels) {
			continue
		}
		// The ranges may have changed since the gateway checked the addresses.
		record, _, err := services.FromPeer(&r.Spec.ServiceRecord, p)
		if err != nil {
			continue
		}
		out = append(out, services.Exporter{ID: p.Spec.Services.RemoteID, Record: record, Settings: p.Spec.Services, Withdrawn: isWithdrawn(peering)})
	}
	return lo.UniqBy(out, func(e services.Exporter) string { return e.ID })
}

// applyExported makes the ExportedService, or deletes it.
func (o *controller) applyExported(ctx context.Context, w *world, e *services.Export) error {
	if e == nil || e.Record == nil || e.IsLimited && len(e.Peers) == 0 {
		if w.exported == nil {
			return nil
		}
		return o.delete(ctx, w.exported)
	}
	want := &v1alpha1.ExportedService{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ExportedService"},
		ObjectMeta: metav1.ObjectMeta{Name: w.key.ObjectName(), Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}},
		Spec:       v1alpha1.ExportedServiceSpec{Peers: e.Peers, ServiceRecord: *e.Record},
	}
	if w.exported != nil && services.Hash(&w.exported.Spec.ServiceRecord) == services.Hash(e.Record) && slices.Equal(w.exported.Spec.Peers, want.Spec.Peers) {
		return nil
	}
	return o.apply(ctx, want)
}

// applyImport makes the ServiceImport, the Service that stands for it, and the EndpointSlices. The Service comes first: its address is
// in the ServiceImport.
func (o *controller) applyImport(ctx context.Context, w *world, m *services.Merged) error {
	if w.serviceImport != nil && !isOurs(w.serviceImport) {
		return nil // another implementation's
	}
	if w.derived != nil && !isOurs(w.derived) {
		return fmt.Errorf("service %s/%s was made by others: delete it, so that it can stand for the imported one", w.key.Namespace, w.derived.Name)
	}
	var ips []string
	if want := m.DerivedService(); want != nil {
		if w.derived == nil || !o.hasMetadata(want, w.derived) || !sameService(want, w.derived) {
			made, err := o.applyService(ctx, want)
			if err != nil {
				return err
			}
			w.derived = made
		}
		ips = w.derived.Spec.ClusterIPs
	} else if w.derived != nil {
		if err := o.delete(ctx, w.derived); err != nil {
			return err
		}
		w.derived = nil
	}
	slicesErr := o.applySlices(ctx, w, m)
	want := m.Import(ips)
	there := w.serviceImport
	if there == nil || !o.hasMetadata(want, there) || !equality.Semantic.DeepEqual(want.Spec, there.Spec) {
		if err := o.apply(ctx, want); err != nil {
			return err
		}
	}
	before := lo.FromPtr(there).Status
	if status := m.ImportStatus(before, ips); !equality.Semantic.DeepEqual(status, before) {
		want.Status = status
		if err := o.applyStatus(ctx, want); err != nil {
			return err
		}
	}
	return slicesErr
}

// sameService reports whether a derived Service is as wanted. The API server has added defaults to it.
func sameService(want, there *corev1.Service) bool {
	port := func(p corev1.ServicePort, _ int) corev1.ServicePort {
		return corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port, AppProtocol: p.AppProtocol}
	}
	w, t := want.Spec, there.Spec
	return w.Type == t.Type && len(t.Selector)+len(t.ExternalIPs) == 0 &&
		equality.Semantic.DeepEqual(lo.Map(w.Ports, port), lo.Map(t.Ports, port)) &&
		w.SessionAffinity == t.SessionAffinity && equality.Semantic.DeepEqual(w.SessionAffinityConfig, t.SessionAffinityConfig) &&
		lo.FromPtrOr(w.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster) == lo.FromPtrOr(t.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster) &&
		lo.FromPtr(w.TrafficDistribution) == lo.FromPtr(t.TrafficDistribution)
}

// applySlices makes the EndpointSlices, and deletes others that it has made before.
func (o *controller) applySlices(ctx context.Context, w *world, m *services.Merged) error {
	var errs []error
	there := lo.SliceToMap(w.made, func(s *discoveryv1.EndpointSlice) (string, *discoveryv1.EndpointSlice) { return s.Name, s })
	for _, want := range m.EndpointSlices() {
		now := there[want.Name]
		delete(there, want.Name)
		if now == nil && get(ctx, o, client.ObjectKeyFromObject(want), &discoveryv1.EndpointSlice{}) != nil {
			errs = append(errs, fmt.Errorf("EndpointSlice %s/%s was made by others: delete it, so that the peer's endpoints can be used", want.Namespace, want.Name))
		} else if now == nil || !o.hasMetadata(want, now) || !sameSlice(want, now) {
			errs = append(errs, o.apply(ctx, want))
		}
	}
	for _, s := range there {
		errs = append(errs, o.delete(ctx, s))
	}
	return errors.Join(errs...)
}

func sameSlice(want, there *discoveryv1.EndpointSlice) bool {
	return equality.Semantic.DeepEqual(want.Ports, there.Ports) && equality.Semantic.DeepEqual(want.Endpoints, there.Endpoints)
}

// removeImport deletes everything that was made for an import.
func (o *controller) removeImport(ctx context.Context, w *world) error {
	var errs []error
	if w.serviceImport != nil && isOurs(w.serviceImport) {
		errs = append(errs, o.delete(ctx, w.serviceImport))
	}
	if w.derived != nil && isOurs(w.derived) {
		errs = append(errs, o.delete(ctx, w.derived))
	}
	for _, s := range w.made {
		errs = append(errs, o.delete(ctx, s))
	}
	return errors.Join(errs...)
}

// applyConditions writes the conditions of the ServiceExport.
func (o *controller) applyConditions(ctx context.Context, w *world, e *services.Export) error {
	if e == nil {
		return nil
	}
	before := w.export.Status.Conditions
	now := e.Conditions(before)
	if equality.Semantic.DeepEqual(before, now) {
		return nil
	}
	want := &mcs.ServiceExport{
		TypeMeta:   metav1.TypeMeta{APIVersion: mcs.GroupVersion.String(), Kind: mcs.ServiceExportKindName},
		ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: w.key.Name, UID: w.export.UID},
		Status:     mcs.ServiceExportStatus{Conditions: now},
	}
	return client.IgnoreNotFound(o.applyStatus(ctx, want))
}

// apply applies an object.
func (o *controller) apply(ctx context.Context, obj client.Object) error {
	if err := o.writes.Wait(ctx); err != nil {
		return err
	}
	err := o.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(toApply(obj, false)), client.FieldOwner(v1alpha1.ServicesManager), client.ForceOwnership)
	if err == nil {
		o.applied.Store(nameOf(obj), metadataOf(obj))
	}
	return err
}

// applyService applies a Service, and returns what the API server has made of it.
func (o *controller) applyService(ctx context.Context, obj *corev1.Service) (*corev1.Service, error) {
	if err := o.writes.Wait(ctx); err != nil {
		return nil, err
	}
	u := toApply(obj, false)
	if err := o.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.ServicesManager), client.ForceOwnership); err != nil {
		return nil, err
	}
	o.applied.Store(nameOf(obj), metadataOf(obj))
	out := &corev1.Service{}
	return out, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out)
}

// applyStatus applies the status of an object.
func (o *controller) applyStatus(ctx context.Context, obj client.Object) error {
	if err := o.writes.Wait(ctx); err != nil {
		return err
	}
	return o.client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(toApply(obj, true)), client.FieldOwner(v1alpha1.ServicesManager), client.ForceOwnership)
}

// toApply returns the fields of an object that this controller owns: the status, or everything else.
func toApply(obj client.Object, status bool) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: lo.Must(runtime.DefaultUnstructuredConverter.ToUnstructured(obj))} // all types can be converted
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	if status {
		unstructured.RemoveNestedField(u.Object, "spec")
		unstructured.RemoveNestedField(u.Object, "metadata", "labels")
		unstructured.RemoveNestedField(u.Object, "metadata", "annotations")
	} else {
		unstructured.RemoveNestedField(u.Object, "status")
	}
	return u
}

// delete deletes an object, unless it was replaced.
func (o *controller) delete(ctx context.Context, obj client.Object) error {
	if err := o.writes.Wait(ctx); err != nil {
		return err
	}
	o.applied.Delete(nameOf(obj))
	uid := obj.GetUID()
	err := o.client.Delete(ctx, obj, client.Preconditions{UID: &uid})
	return client.IgnoreNotFound(err)
}
