package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/samber/lo"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/pkg/status"
)

// ServicesPermissions returns the permissions that a command needs, beyond InstallPermissions, to exchange services: those that it grants
// to the controller and to users, and those to remove everything again.
func ServicesPermissions() []kube.Permission {
	const exports, imports = "serviceexports.multicluster.x-k8s.io", "serviceimports.multicluster.x-k8s.io"
	return slices.Concat(
		kube.Permissions("", "get list watch create update patch delete", exports),
		kube.Permissions("", "get list watch create patch delete", imports),
		kube.Permissions("", "patch", "serviceexports/status.multicluster.x-k8s.io serviceimports/status.multicluster.x-k8s.io"),
		kube.Permissions("", "list watch create patch delete", "services endpointslices.discovery.k8s.io"),
		kube.Permissions("", "create", "endpointslices/restricted.discovery.k8s.io"),
		kube.Permissions("", "list watch", "namespaces clusternetworks.liqonet.io"),
		kube.Permissions("", "list watch create patch delete", "exportedservices.liqonet.io receivedservices.liqonet.io"),
		kube.Permissions(v1alpha1.Namespace, "get update create patch delete", kube.Leases),
	)
}

// implementations are definitions by which other implementations of the Multi-Cluster Services API are recognized.
func implementations() map[string]string {
	return map[string]string{
		"brokers.submariner.io":                           "Submariner",
		"resourceexports.multicluster.crd.antrea.io":      "Antrea",
		"resourcebindings.work.karmada.io":                "Karmada",
		"serviceexports.net.gke.io":                       "GKE Multi-cluster Services",
		"multiclusterservices.networking.fleet.azure.com": "Azure Kubernetes Fleet Manager",
	}
}

// ReadServices reads what others have of the Multi-Cluster Services API.
func ReadServices(ctx context.Context, c *kube.Cluster) (f plan.ServicesFacts, err error) {
	f.Foreign = map[string]bool{}
	for _, want := range manifests.MultiClusterCRDs() {
		there, err := kube.Get[apiextensionsv1.CustomResourceDefinition](ctx, c, "", want.Name)
		if err != nil {
			return f, err
		}
		if there == nil || kube.IsManaged(there) {
			continue
		}
		f.Foreign[want.Name] = true
		if !lo.ContainsBy(there.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
			return v.Name == mcs.GroupVersion.Version && v.Served
		}) {
			f.Refused = fmt.Errorf("its definition %s, which others have installed, does not serve version %s", want.Name, mcs.GroupVersion.Version)
			return f, nil
		}
	}
	if len(f.Foreign) == 0 {
		return f, nil
	}
	for name, program := range implementations() {
		there, err := kube.Get[apiextensionsv1.CustomResourceDefinition](ctx, c, "", name)
		if err != nil {
			return f, err
		}
		if there != nil {
			f.Refused = errors.Join(f.Refused, fmt.Errorf("%s, which exchanges services itself, has installed the definition %s", program, name))
		}
	}
	var imports mcs.ServiceImportList
	if err := c.List(ctx, &imports); err != nil {
		return f, err
	}
	if other, found := lo.Find(imports.Items, func(i mcs.ServiceImport) bool { return !kube.IsManaged(&i) }); found && f.Refused == nil {
		f.Refused = fmt.Errorf("another program has made ServiceImport %s/%s", other.Namespace, other.Name)
	}
	return f, nil
}

// InstallServices installs the controller of services as planned, if services are exchanged.
func (s *Side) InstallServices(ctx context.Context, objects []plan.ObjectPlan) error {
	if err := s.Apply(ctx, plan.ObjectsInStage(objects, plan.ServicesAccounts, "")...); err != nil {
		return err
	}
	return s.Apply(ctx, plan.ObjectsInStage(objects, plan.ServicesWorkload, "")...)
}

// AwaitServices waits until the controller of services runs as planned.
func (s *Side) AwaitServices(ctx context.Context, objects []plan.ObjectPlan) error {
	if len(plan.ObjectsInStage(objects, plan.ServicesWorkload, "")) == 0 {
		return nil
	}
	of := []client.ObjectList{&appsv1.DeploymentList{}, &corev1.PodList{}}
	return s.Await(ctx, "wait for the controller of services", s.PodsHint(), of, func(o kube.Objects) (string, error) {
		d := kube.ByName[*appsv1.Deployment](o, v1alpha1.ServicesName)
		switch {
		case d == nil:
			return "", kube.ErrUninstalling
		case d.Status.ObservedGeneration >= d.Generation && d.Status.UpdatedReplicas > 0 && d.Status.AvailableReplicas > 0:
			return "", nil
		}
		for _, p := range kube.OfKind[*corev1.Pod](o) {
			for _, status := range p.Status.ContainerStatuses {
				if err := StartFailure(s.Cluster, p, status); err != nil && p.Spec.ServiceAccountName == v1alpha1.ServicesName {
					return "", err
				}
			}
		}
		return "it does not run yet", nil
	})
}

// isServicesInstalled reports whether the cluster has anything for the exchange of services.
func isServicesInstalled(ctx context.Context, c *kube.Cluster) (bool, error) {
	for _, name := range []string{"exportedservices.liqonet.io", "serviceexports.multicluster.x-k8s.io"} {
		crd, err := kube.Get[apiextensionsv1.CustomResourceDefinition](ctx, c, "", name)
		if err != nil || crd != nil && kube.IsManaged(crd) {
			return true, err
		}
	}
	return false, nil
}

// RemoveUnusedServices removes the exchange of services from a cluster in which no peering uses it, under the cluster's lock. Exports
// are the users' objects, and stay.
func RemoveUnusedServices(ctx context.Context, c *kube.Cluster, r kube.Reporter) error {
	if was, err := isServicesInstalled(ctx, c); !was || err != nil {
		return err
	}
	if used, err := usesServices(ctx, c); used || err != nil {
		return err
	}
	return WithLocks(ctx, lock.Unpeer, r.Step, []lock.Cluster{LockFor(c, "")}, func(ctx context.Context) error {
		if used, err := usesServices(ctx, c); used || err != nil {
			return err
		}
		return removeServices(ctx, c)
	})
}

// usesServices reports whether a peering exchanges services.
func usesServices(ctx context.Context, c *kube.Cluster) (bool, error) {
	cn, err := c.ReadLedger(ctx)
	return lo.ContainsBy(lo.FromPtr(cn).Spec.Peers, func(e v1alpha1.PeerAllocation) bool { return e.ServicesID != "" }), err
}

// removeServices removes everything for the exchange of services, in this order: the controller, whose pods have to be gone so that nothing
// is made any more; what it has made; the definitions.
func removeServices(ctx context.Context, c *kube.Cluster) error {
	return failure.RunSteps(ctx,
		func(ctx context.Context) error {
			labels := client.MatchingLabels(manifests.ServicesLabels())
			policies := []client.ObjectList{&admissionv1.ValidatingAdmissionPolicyBindingList{}, &admissionv1.ValidatingAdmissionPolicyList{}}
			err := cmp.Or(DeleteAll(ctx, c, labels), deleteLists(ctx, c, labels, policies...))
			return cmp.Or(err, deleteNamed[coordinationv1.Lease](ctx, c, v1alpha1.ServicesName))
		},
		func(ctx context.Context) error { return deleteImports(ctx, c) },
		func(ctx context.Context) error { return clearExports(ctx, c) },
		func(ctx context.Context) error { return deleteServicesCRDs(ctx, c) },
		func(ctx context.Context) error {
			_, err := UpdateLedger(ctx, c, func(cn *v1alpha1.ClusterNetwork) error {
				cn.Spec.Services = nil
				return nil
			})
			return ignoreRemoved(err)
		},
	)
}

// deleteImports deletes what the controller has made in users' namespaces: first what makes names and addresses known, then the rest.
func deleteImports(ctx context.Context, c *kube.Cluster) error {
	ours := client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}
	slicesOfOurs := client.MatchingLabels{discoveryv1.LabelManagedBy: v1alpha1.ServicesManager}
	for _, of := range []struct {
		list   client.ObjectList
		labels client.MatchingLabels
	}{{&mcs.ServiceImportList{}, ours}, {&corev1.ServiceList{}, ours}, {&discoveryv1.EndpointSliceList{}, slicesOfOurs}} {
		err := c.List(ctx, of.list, of.labels, client.HasLabels{mcs.LabelServiceName})
		if kube.IsNotFound(err) {
			continue // the kind is not served
		}
		if err := cmp.Or(err, c.DeleteEach(ctx, kube.Items(of.list))); err != nil {
			return err
		}
	}
	return nil
}

// clearExports removes the conditions that the controller has written to exports.
func clearExports(ctx context.Context, c *kube.Cluster) error {
	var exports mcs.ServiceExportList
	if err := c.List(ctx, &exports); err != nil {
		return kube.IgnoreAbsent(err)
	}
	return failure.ForEachLimit(ctx, failure.MaxParallel, kube.Pointers(exports.Items), func(ctx context.Context, _ int, e *mcs.ServiceExport) error {
		if len(e.Status.Conditions) == 0 {
			return nil
		}
		patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"conditions":null}}`))
		return c.Wrap("clear the conditions of "+kube.Describe(e), kube.IgnoreAbsent(c.Client.Status().Patch(ctx, e, patch, kube.FieldOwner)))
	})
}

// deleteServicesCRDs deletes the definitions. Those of the Multi-Cluster Services API stay while there are exports, and are not ours any
// more.
func deleteServicesCRDs(ctx context.Context, c *kube.Cluster) error {
	var exports mcs.ServiceExportList
	if err := kube.IgnoreAbsent(c.List(ctx, &exports)); err != nil {
		return err
	}
	all := slices.Concat(manifests.ServicesCRDs(), manifests.MultiClusterCRDs())
	return failure.ForEach(ctx, all, func(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) error {
		there, err := kube.Get[apiextensionsv1.CustomResourceDefinition](ctx, c, "", crd.Name)
		if there == nil || err != nil || !kube.IsManaged(there) {
			return err
		}
		if crd.Spec.Group == mcs.GroupName && len(exports.Items) > 0 {
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:null,%q:null},"annotations":{%q:null}}}`,
				v1alpha1.LabelManagedBy, "app.kubernetes.io/name", v1alpha1.AnnotationVersion))
			return c.Wrap("leave "+kube.Describe(there), kube.IgnoreAbsent(c.Client.Patch(ctx, there, patch, kube.FieldOwner)))
		}
		return cmp.Or(c.Delete(ctx, there), c.AwaitDeleted(ctx, there))
	})
}

// DeleteReceived deletes the services that a peer has told.
func DeleteReceived(ctx context.Context, c *kube.Cluster, peering string) error {
	var received v1alpha1.ReceivedServiceList
	if err := c.List(ctx, &received, kube.PeeringLabels(peering)); err != nil {
		return kube.IgnoreAbsent(err)
	}
	return c.DeleteEach(ctx, kube.Items(&received))
}

// ExportResult is the result of ExportService.
type ExportResult struct {
	// Changed is set if the ServiceExport was created or changed.
	Changed bool
	// Peers are the peers that may use the service, by their names.
	Peers []string
	// Problems are what keeps peers from using it.
	Problems []string
}

// exportAnnotation returns the value of the annotation for peers that the user has named, by the names of their Peerings.
func exportAnnotation(c *kube.Cluster, peerings []v1alpha1.Peering, named []string) (string, error) {
	var out []string
	for _, name := range named {
		p, found := lo.Find(peerings, func(p v1alpha1.Peering) bool { return p.Name == name || p.Spec.Remote.Name == name })
		if !found || p.Spec.Services == nil {
			known := lo.FilterMap(peerings, func(p v1alpha1.Peering, _ int) (string, bool) { return p.Spec.Remote.Name, p.Spec.Services != nil })
			return "", c.Errorf(kube.Usage, "export to "+name, "", "it exchanges services with: %s", cmp.Or(strings.Join(known, ", "), "no peer"))
		}
		out = append(out, p.Name)
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), ","), nil
}

// AllPeers in the list of peers of ExportService removes a restriction.
const AllPeers = "all"

// ExportService exports a service, to the named peers, or with none to those to which it is exported already. It waits until the controller
// has processed the export.
func ExportService(ctx context.Context, c *kube.Cluster, k services.Key, to []string, dryRun bool) (r ExportResult, err error) {
	if refusal := services.CheckExport(k, &corev1.Service{}); refusal != nil {
		return r, c.Errorf(kube.Usage, "export "+k.String(), "", "%s", refusal.Message)
	}
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return r, err
	}
	exchanging := lo.Filter(peerings.Items, func(p v1alpha1.Peering, _ int) bool { return p.ExchangesServices() })
	isExchanging := func(name string) bool {
		return lo.ContainsBy(exchanging, func(p v1alpha1.Peering) bool { return p.Name == name })
	}
	if len(exchanging) == 0 {
		return r, c.Errorf(kube.Usage, "export "+k.String(), fmt.Sprintf("kubectl liqonet services enable %s PEER", failure.Quote(c.Name)), "it exchanges services with no peer")
	}
	want := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name}}
	there, err := kube.Get[mcs.ServiceExport](ctx, c, k.Namespace, k.Name)
	if err != nil {
		return r, err
	}
	if there != nil {
		want = there.DeepCopy()
	}
	if len(to) > 0 {
		names := lo.Without(to, AllPeers)
		value, err := exportAnnotation(c, peerings.Items, names)
		if err != nil {
			return r, err
		}
		want.Annotations = lo.OmitByKeys(want.Annotations, []string{v1alpha1.AnnotationPeers})
		if value != "" && len(names) == len(to) {
			want.Annotations = lo.Assign(want.Annotations, map[string]string{v1alpha1.AnnotationPeers: value})
		}
	}
	allowed, _, isLimited := services.Peers(want, isExchanging)
	r.Peers = lo.FilterMap(exchanging, func(p v1alpha1.Peering, _ int) (string, bool) {
		return p.Spec.Remote.Name, !isLimited || slices.Contains(allowed, p.Name)
	})
	r.Changed = there == nil || there.Annotations[v1alpha1.AnnotationPeers] != want.Annotations[v1alpha1.AnnotationPeers]
	if dryRun {
		return r, nil
	}
	doing := "write ServiceExport " + k.String()
	switch {
	case there == nil:
		err = c.Client.Create(ctx, want, kube.FieldOwner)
	case r.Changed:
		err = c.Client.Update(ctx, want, kube.FieldOwner)
	}
	if err != nil {
		return r, c.Wrap(doing, err)
	}
	kinds := []client.ObjectList{&mcs.ServiceExportList{}, &v1alpha1.ExportedServiceList{}}
	err = c.Await(ctx, "wait until the export is processed", "", kinds, func(o kube.Objects) (string, error) {
		e := kube.Find(o, func(e *mcs.ServiceExport) bool { return e.Namespace == k.Namespace && e.Name == k.Name })
		switch {
		case e == nil:
			return "", c.Errorf(kube.Usage, doing, "", "it was deleted")
		case meta.FindStatusCondition(e.Status.Conditions, string(mcs.ServiceExportConditionReady)) == nil:
			return "the controller of services has not processed it", nil
		case meta.IsStatusConditionTrue(e.Status.Conditions, string(mcs.ServiceExportConditionValid)):
			made := kube.ByName[*v1alpha1.ExportedService](o, k.ObjectName())
			allowed, _, isLimited := services.Peers(e, isExchanging)
			if isNone := isLimited && len(allowed) == 0; isNone != (made == nil) || made != nil && !slices.Equal(made.Spec.Peers, allowed) {
				return "the controller of services has not processed the change", nil
			}
		}
		r.Problems = status.ExportProblems(e)
		return "", nil
	})
	return r, err
}

// UnexportService deletes the export of a service, and reports whether there was one.
func UnexportService(ctx context.Context, c *kube.Cluster, k services.Key) (was bool, err error) {
	there, err := kube.Get[mcs.ServiceExport](ctx, c, k.Namespace, k.Name)
	if there == nil || err != nil {
		return false, err
	}
	return true, c.Delete(ctx, there)
}

// ServiceNames returns services of a cluster as NAMESPACE/NAME: those that are exported, or those that can be.
func ServiceNames(ctx context.Context, c *kube.Cluster, exported bool) ([]string, error) {
	var exports mcs.ServiceExportList
	if err := kube.IgnoreAbsent(c.List(ctx, &exports)); err != nil {
		return nil, err
	}
	names := lo.Map(exports.Items, func(e mcs.ServiceExport, _ int) string { return e.Namespace + "/" + e.Name })
	if exported {
		return names, nil
	}
	var all corev1.ServiceList
	if err := c.List(ctx, &all); err != nil {
		return nil, err
	}
	return lo.FilterMap(kube.Pointers(all.Items), func(s *corev1.Service, _ int) (string, bool) {
		k := services.Key{Namespace: s.Namespace, Name: s.Name}
		return k.String(), services.CheckExport(k, s) == nil && !slices.Contains(names, k.String())
	}), nil
}
