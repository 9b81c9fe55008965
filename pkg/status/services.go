package status

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/services"
)

// ServicesView is the exchange of services with one peer.
type ServicesView struct {
	// LocalID and RemoteID are the IDs of this cluster and the peer among the clusters that exchange services.
	LocalID  string `json:"localID"`
	RemoteID string `json:"remoteID"`
	// Import, Precedence and Endpoints are as in the Peering.
	Import     v1alpha1.ImportPolicy `json:"import"`
	Precedence v1alpha1.Precedence   `json:"precedence"`
	Endpoints  v1alpha1.EndpointUse  `json:"endpoints"`
	// Exported are the services that the peer may use, Received those that it tells, and Imported those of them that can be used here.
	Exported int `json:"exported"`
	Received int `json:"received"`
	Imported int `json:"imported"`
	// Withdrawn are the imported services of which the peer's endpoints are not used, because it cannot be reached.
	Withdrawn int `json:"withdrawn"`
}

// ServiceView is one exported or imported service of a cluster.
type ServiceView struct {
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Type is ClusterSetIP or Headless, empty while the service is not imported.
	Type string `json:"type,omitempty"`
	// Exported is set if this cluster exports it.
	Exported bool `json:"exported"`
	// Clusters are the IDs of the clusters whose exports are used.
	Clusters []string `json:"clusters,omitempty"`
	// Addresses are those of the whole service, with its ports.
	Addresses []string `json:"addresses,omitempty"`
	Ports     []string `json:"ports,omitempty"`
	// Ready of Endpoints are ready, in all clusters.
	Ready     int `json:"ready"`
	Endpoints int `json:"endpoints"`
	// Problems are conditions of the export that are not as they should be, and why a peer's service is not imported.
	Problems []string `json:"problems,omitempty"`
}

// servicesRead are the objects of exported and imported services.
type servicesRead struct {
	exports   mcs.ServiceExportList
	imports   mcs.ServiceImportList
	slices    discoveryv1.EndpointSliceList
	exported  v1alpha1.ExportedServiceList
	received  v1alpha1.ReceivedServiceList
	peerings  v1alpha1.PeeringList
	bySource  map[services.Key][]*discoveryv1.EndpointSlice
	importsOf map[services.Key]*mcs.ServiceImport
}

// readServices reads the objects of services. If the kinds are not served, there are none.
func readServices(ctx context.Context, c *kube.Cluster) (r servicesRead, err error) {
	if err = c.List(ctx, &r.peerings); err != nil {
		return r, err
	}
	made := client.MatchingLabels{discoveryv1.LabelManagedBy: v1alpha1.ServicesManager}
	err = cmp.Or(c.List(ctx, &r.exports), c.List(ctx, &r.imports), c.List(ctx, &r.exported), c.List(ctx, &r.received), c.List(ctx, &r.slices, made))
	if kube.IsNotFound(err) {
		return r, nil
	}
	r.index()
	return r, err
}

// index fills what finds objects by their service.
func (r *servicesRead) index() {
	r.bySource, r.importsOf = map[services.Key][]*discoveryv1.EndpointSlice{}, map[services.Key]*mcs.ServiceImport{}
	for _, s := range kube.Pointers(r.slices.Items) {
		k := services.Key{Namespace: s.Namespace, Name: s.Labels[mcs.LabelServiceName]}
		r.bySource[k] = append(r.bySource[k], s)
	}
	for _, i := range kube.Pointers(r.imports.Items) {
		r.importsOf[services.Key{Namespace: i.Namespace, Name: i.Name}] = i
	}
}

// servicesViewOf returns the settings of an exchange, nil without one.
func servicesViewOf(p *v1alpha1.Peering) *ServicesView {
	s := p.Spec.Services
	if s == nil {
		return nil
	}
	return &ServicesView{RemoteID: s.RemoteID, Import: s.Import, Precedence: s.Precedence, Endpoints: s.Endpoints}
}

// addServices adds the numbers of services to the views of peerings that exchange some.
func addServices(ctx context.Context, c *kube.Cluster, views []View, localID string, beats Heartbeats) error {
	exchanging := lo.Filter(kube.Pointers(views), func(v *View, _ int) bool { return v.Services != nil })
	if len(exchanging) == 0 {
		return nil
	}
	r, err := readServices(ctx, c)
	for _, v := range exchanging {
		v.Services.LocalID = localID
		r.count(v.Name, v.Services)
		if !beats.Alive(v1alpha1.ServicesName) {
			const problem = "the controller of services does not renew its Lease: exports and imports stay as they are"
			v.Message = strings.Join(lo.Compact([]string{v.Message, problem}), "; ")
		}
	}
	return kube.IgnoreForbidden(err)
}

func (r *servicesRead) count(peering string, v *ServicesView) {
	v.Exported = lo.CountBy(r.exported.Items, func(e v1alpha1.ExportedService) bool { return services.IsFor(&e.Spec, peering) })
	for i := range r.received.Items {
		from, k, isValid := services.ParseReceived(r.received.Items[i].Name)
		if !isValid || from != peering {
			continue
		}
		v.Received++
		if there := r.importsOf[k]; there != nil && lo.ContainsBy(there.Status.Clusters, func(c mcs.ClusterStatus) bool { return c.Cluster == v.RemoteID }) {
			v.Imported++
		}
		if lo.ContainsBy(r.bySource[k], func(e *discoveryv1.EndpointSlice) bool {
			return e.Labels[mcs.LabelSourceCluster] == v.RemoteID && e.Annotations[services.AnnotationWithdrawn] != ""
		}) {
			v.Withdrawn++
		}
	}
}

// Services returns the exported and imported services of a cluster, by namespace and name.
func Services(ctx context.Context, c *kube.Cluster) ([]ServiceView, error) {
	r, err := readServices(ctx, c)
	if err != nil {
		return nil, err
	}
	return r.views(c.Name), nil
}

// views returns all services, by namespace and name.
func (r *servicesRead) views(cluster string) []ServiceView {
	views := map[services.Key]*ServiceView{}
	view := func(k services.Key) *ServiceView {
		if views[k] == nil {
			views[k] = &ServiceView{Cluster: cluster, Namespace: k.Namespace, Name: k.Name}
		}
		return views[k]
	}
	for i := range r.exports.Items {
		e := &r.exports.Items[i]
		v := view(services.Key{Namespace: e.Namespace, Name: e.Name})
		v.Exported, v.Problems = true, append(v.Problems, ExportProblems(e)...)
	}
	for k, i := range r.importsOf {
		v := view(k)
		v.Type, v.Addresses = string(i.Spec.Type), i.Spec.IPs
		v.Clusters = lo.Map(i.Status.Clusters, func(c mcs.ClusterStatus, _ int) string { return c.Cluster })
		slices.Sort(v.Clusters)
		v.Ports = lo.Map(i.Spec.Ports, func(p mcs.ServicePort, _ int) string {
			return fmt.Sprintf("%d%s", p.Port, lo.Ternary(cmp.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP, "", "/"+strings.ToLower(string(p.Protocol))))
		})
		for _, s := range r.bySource[k] {
			v.Endpoints += len(s.Endpoints)
			v.Ready += lo.CountBy(s.Endpoints, func(e discoveryv1.Endpoint) bool { return lo.FromPtrOr(e.Conditions.Ready, true) })
		}
	}
	remote := lo.FilterSliceToMap(r.peerings.Items, func(p v1alpha1.Peering) (string, string, bool) {
		return p.Name, lo.FromPtr(p.Spec.Services).RemoteID, p.Spec.Services != nil
	})
	for i := range r.received.Items {
		peering, k, isValid := services.ParseReceived(r.received.Items[i].Name)
		if !isValid {
			continue
		}
		if v := view(k); !slices.Contains(v.Clusters, remote[peering]) {
			v.Problems = append(v.Problems, fmt.Sprintf("%s exports it, and it is not imported: there is no namespace %s, or it does not admit services of this peer", peering, k.Namespace))
		}
	}
	out := lo.Map(lo.Values(views), func(v *ServiceView, _ int) ServiceView { return *v })
	slices.SortFunc(out, func(a, b ServiceView) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return out
}

// ExportProblems returns the conditions of an export that are not as they should be.
func ExportProblems(e *mcs.ServiceExport) (out []string) {
	conditions := e.Status.Conditions
	if len(conditions) == 0 {
		return []string{"nothing has exported it yet"}
	}
	for of, want := range map[string]metav1.ConditionStatus{
		string(mcs.ServiceExportConditionValid): metav1.ConditionTrue, string(mcs.ServiceExportConditionReady): metav1.ConditionTrue,
		string(mcs.ServiceExportConditionConflict): metav1.ConditionFalse, v1alpha1.ConditionReachable: metav1.ConditionTrue,
	} {
		if now := meta.FindStatusCondition(conditions, of); now != nil && now.Status != want {
			out = append(out, fmt.Sprintf("%s: %s", now.Reason, now.Message))
		}
	}
	slices.Sort(out)
	return out
}

// mapService returns the addresses and ports by which the peer reaches a service that this cluster exports. isExported is false if it does not
// export it.
func mapService(ctx context.Context, c *kube.Cluster, peer *kube.Cluster, namespace, name string) (out []string, isExported bool, err error) {
	export, err := kube.Get[mcs.ServiceExport](ctx, c, namespace, name)
	if export == nil || err != nil {
		return nil, false, kube.IgnoreAbsent(err)
	}
	there, err := kube.Get[mcs.ServiceImport](ctx, peer, namespace, name)
	if err != nil {
		return nil, true, err
	}
	what := fmt.Sprintf("map service %s/%s", namespace, name)
	switch {
	case there == nil:
		return nil, true, peer.Errorf(kube.NotReady, what, fmt.Sprintf("kubectl liqonet services %s %s", c.Name, peer.Name), "%s exports it, and it is not imported", c.Name)
	case there.Spec.Type == mcs.Headless:
		return nil, false, nil // the endpoints' addresses are all there is
	case len(there.Spec.IPs) == 0:
		return nil, true, peer.Errorf(kube.NotReady, what, "", "it is imported, and has no address yet")
	}
	for _, ip := range there.Spec.IPs {
		addr, err := netip.ParseAddr(ip)
		for _, p := range there.Spec.Ports {
			if err == nil {
				out = append(out, netip.AddrPortFrom(addr, uint16(p.Port)).String())
			}
		}
	}
	return out, true, nil
}
