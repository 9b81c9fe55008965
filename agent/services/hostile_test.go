package services

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// slices returns the EndpointSlices that the controller has made.
func (p *played) slices() []discoveryv1.EndpointSlice {
	p.t.Helper()
	var list discoveryv1.EndpointSliceList
	kit.NoError(p.t, p.client.List(p.t.Context(), &list, client.MatchingLabels{discoveryv1.LabelManagedBy: v1alpha1.ServicesManager}))
	return list.Items
}

// made returns how many Services, ServiceImports and EndpointSlices there are in all namespaces.
func (p *played) made() int {
	p.t.Helper()
	var made corev1.ServiceList
	var imports mcs.ServiceImportList
	kit.NoError(p.t, p.client.List(p.t.Context(), &made))
	kit.NoError(p.t, p.client.List(p.t.Context(), &imports))
	return len(made.Items) + len(imports.Items) + len(p.slices())
}

// A hostile peer's services are written here without the gateway's checks and the admission policies: the controller alone keeps them out.
// TestHostileRecords is about the gateway alone, and TestAttackServices about the policies alone.
func TestHostileServices(t *testing.T) {
	const usable = "imports:1 service:true id-b=10.62.1.5,true"
	record := func(change func(*v1alpha1.ServiceRecord)) func(r *v1alpha1.ReceivedService) {
		return func(r *v1alpha1.ReceivedService) { change(&r.Spec.ServiceRecord) }
	}
	address := func(a string) func(r *v1alpha1.ReceivedService) {
		return record(func(r *v1alpha1.ServiceRecord) {
			r.Slices[0].Endpoints[0].Address = v1alpha1.IP{Addr: kubetest.Prefix(a + "/32").Addr()}
		})
	}
	renamed := func(name string) func(r *v1alpha1.ReceivedService) {
		return func(r *v1alpha1.ReceivedService) { r.Name = name }
	}
	const empty, nothing = "imports:1 service:true", "imports:0 service:false"
	for name, tt := range map[string]struct {
		change func(*v1alpha1.ReceivedService)
		want   string
	}{
		"nothing hostile":               {func(*v1alpha1.ReceivedService) {}, usable},
		"kube-system":                   {renamed("b.kube-system.web"), nothing},
		"kube-public":                   {renamed("b.kube-public.web"), nothing},
		"kube-node-lease":               {renamed("b.kube-node-lease.web"), nothing},
		"our namespace":                 {renamed("b.liqonet-system.web"), nothing},
		"the API server":                {renamed("b.default.kubernetes"), nothing},
		"a namespace that is not there": {renamed("b.elsewhere.web"), nothing},
		"a namespace that refuses":      {renamed("b.private.web"), nothing},
		"another peer's name":           {renamed("c.shop.web"), nothing},
		"no name":                       {renamed("b.shop"), nothing},
		"an address of this cluster":    {address("10.244.1.5"), empty},
		"an address of another peer":    {address("10.63.1.5"), empty},
		"its node":                      {address("10.72.1.5"), empty},
		"loopback":                      {address("127.0.0.1"), nothing},
		"metadata of a cloud":           {address("169.254.169.254"), nothing},
		"a public address":              {address("8.8.8.8"), empty},
		"an unknown type":               {record(func(r *v1alpha1.ServiceRecord) { r.Type = "Other" }), nothing},
		"a port that Kubernetes refuses": {record(func(r *v1alpha1.ServiceRecord) {
			r.Ports[0].AppProtocol = "a/b/c"
		}), nothing},
		"two ports of one name in a slice": {record(func(r *v1alpha1.ServiceRecord) {
			r.Slices[0].Ports = append(r.Slices[0].Ports, r.Slices[0].Ports[0])
		}), nothing},
	} {
		t.Run(name, func(t *testing.T) {
			r := receivedOf("b", 0, "10.62.1.5")
			tt.change(r)
			p := play(t, peer("b", v1alpha1.ImportAll), r, namespace("kube-system"), namespace("kube-public"), namespace("kube-node-lease"),
				namespace("liqonet-system"), namespace("default"), namespace("private", "false"))
			defer p.end()
			if _, k, isValid := services.ParseReceived(r.Name); isValid {
				kit.NoError(t, p.reconcile(t.Context(), k))
			}
			p.settle()
			kit.Check(t, "made", p.shown(), tt.want)
			if tt.want == nothing {
				kit.Check(t, "made anywhere", p.made(), 0)
			}
		})
	}
}

// A peer's labels and annotations are on the ServiceImport only, and none has a meaning for Kubernetes or for liqonet.
func TestHostileLabels(t *testing.T) {
	r := receivedOf("b", 0, "10.62.1.5")
	r.Spec.Labels = map[string]string{"app": "web", "kubernetes.io/x": "y", "a.k8s.io/x": "y", mcs.LabelServiceName: "other", v1alpha1.LabelManagedBy: "x"}
	r.Spec.Annotations = map[string]string{"note": "web", "service.kubernetes.io/topology-mode": "Auto", "liqonet.io/withdrawn": "true"}
	p := play(t, peer("b", v1alpha1.ImportAll), r)
	defer p.end()
	p.settle()
	i, svc := &mcs.ServiceImport{}, &corev1.Service{}
	kit.NoError(t, p.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "web"}, i))
	kit.NoError(t, p.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: web.DerivedName()}, svc))
	ours := map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager, mcs.LabelServiceName: "web"}
	kit.Check(t, "labels of the Service", svc.Labels, ours)
	kit.Check(t, "annotations of the Service", len(svc.Annotations), 0)
	ours["app"] = "web"
	kit.Check(t, "labels of the ServiceImport", i.Labels, ours)
	kit.Check(t, "annotations of the ServiceImport", i.Annotations, map[string]string{"note": "web", services.AnnotationDerived: web.DerivedName()})
}

// A record has neither nodes of this cluster nor the ID of another one, whatever the peer puts into it.
func TestFieldsThatRecordsDoNotHave(t *testing.T) {
	r := receivedOf("b", 0, "10.62.1.5")
	raw := `{"created":"2001-01-01T00:00:00Z","type":"ClusterSetIP","remoteID":"own","cluster":"own","ports":[{"protocol":"TCP","port":80}],
		"slices":[{"id":"x","cluster":"own","endpoints":[{"address":"10.62.1.5","nodeName":"n","NodeName":"n","ready":true}]}]}`
	r.Spec.ServiceRecord = v1alpha1.ServiceRecord{}
	kit.NoError(t, json.Unmarshal([]byte(raw), &r.Spec.ServiceRecord))
	p := play(t, peer("b", v1alpha1.ImportAll), r)
	defer p.end()
	p.settle()
	kit.Check(t, "made", p.shown(), "imports:1 service:true id-b=10.62.1.5,true")
	for _, s := range p.slices() {
		kit.ErrorIf(t, s.Endpoints[0].NodeName != nil, "the endpoint is on node %v", s.Endpoints[0].NodeName)
	}
}

// A peer does not decide about a service of this cluster by a time in the future. Without that, it does, unless its Peering says that own exports
// have precedence.
func TestHostileConflicts(t *testing.T) {
	for name, tt := range map[string]struct {
		created    time.Time
		precedence v1alpha1.Precedence
		want       int32
	}{
		"in the future":       {time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC), v1alpha1.PrecedenceAge, 80},
		"in the past":         {time.Unix(1, 0), v1alpha1.PrecedenceAge, 81},
		"own have precedence": {time.Unix(1, 0), v1alpha1.PrecedenceOwn, 80},
	} {
		b, r := peer("b", v1alpha1.ImportAll), receivedOf("b", 0, "10.62.1.5")
		b.Spec.Services.Precedence = tt.precedence
		r.Spec.Created, r.Spec.Ports[0].Port = metav1.NewTime(tt.created), 81
		p := play(t, append(exportOf(0), b, r)...)
		p.settle()
		i := &mcs.ServiceImport{}
		kit.NoError(t, p.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "web"}, i))
		kit.Check(t, name, i.Spec.Ports[0].Port, tt.want)
		kit.Check(t, name+": condition", p.condition(string(mcs.ServiceExportConditionConflict)), "True PortConflict")
		p.end()
	}
}
