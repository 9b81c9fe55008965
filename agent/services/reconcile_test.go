package services

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// played is a controller with a fake API.
type played struct {
	*controller
	t      *testing.T
	writes int
}

func play(t *testing.T, objs ...client.Object) *played {
	t.Helper()
	p := &played{t: t}
	count := interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			p.writes++
			return c.Apply(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			p.writes++
			return c.Delete(ctx, obj, opts...)
		},
	}
	cn := &v1alpha1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ClusterNetworkName}}
	cn.Spec = v1alpha1.ClusterNetworkSpec{ClusterID: "id-of-own", InternalCIDR: kit.CIDR("10.80.0.0/19"), Services: &v1alpha1.ClusterServices{ID: "own"}}
	all := append([]client.Object{cn, namespace("shop")}, objs...)
	api := kubetest.NewCluster(t, "own", count, all...).Client
	p.controller = newController(slog.New(slog.DiscardHandler), api, metrics.New(metrics.ServicesController, "v1"))
	p.view, p.clusterID = &watch.View{Reader: api, Client: api, Changed: notify.NewSignal()}, "id-of-own"
	p.restored.Store(true)
	for _, obj := range all {
		p.observe(obj)
	}
	return p
}

func namespace(name string, labels ...string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: lo.SliceToMap(labels, func(l string) (string, string) { return v1alpha1.LabelImport, l })}}
}

// peer returns a Peering with a connected cluster whose pods are known as 10.62.0.0/16.
func peer(name string, imports v1alpha1.ImportPolicy) *v1alpha1.Peering {
	p := &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Local.InternalCIDR, p.Spec.Local.ExternalCIDR = kit.CIDR("10.80.0.0/19"), kit.CIDR("10.71.0.0/18")
	p.Spec.Local.Pods = []v1alpha1.CIDRMapping{kit.Mapping("10.244.0.0/16", "10.61.0.0/16")}
	p.Spec.Remote.Pods, p.Spec.Remote.ExternalCIDR = []v1alpha1.CIDRMapping{kit.Mapping("10.244.0.0/16", "10.62.0.0/16")}, kit.CIDR("10.72.0.0/18")
	p.Spec.Planes = []v1alpha1.Plane{{Index: 0}}
	p.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionConnected, Status: metav1.ConditionTrue, Reason: "Connected"}}
	p.Spec.Services = &v1alpha1.PeeringServices{RemoteID: "id-" + name, Import: imports, Precedence: v1alpha1.PrecedenceAge, Endpoints: v1alpha1.EndpointsEqual}
	return p
}

var web = services.Key{Namespace: "shop", Name: "web"}

// exportOf returns an export of a service with one pod, created after so many seconds.
func exportOf(seconds int) []client.Object {
	name := metav1.ObjectMeta{Namespace: "shop", Name: "web", CreationTimestamp: metav1.NewTime(time.Unix(1e9+int64(seconds), 0))}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-abc", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv4}
	slice.Ports = []discoveryv1.EndpointPort{{Name: ptr.To(""), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(8080))}}
	slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.5"}, NodeName: ptr.To("n")}}
	return []client.Object{
		&mcs.ServiceExport{ObjectMeta: name},
		&corev1.Service{ObjectMeta: name, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.7", Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}},
		slice,
	}
}

// receivedOf returns the service as a peer tells it.
func receivedOf(peering string, seconds int, address string) *v1alpha1.ReceivedService {
	return &v1alpha1.ReceivedService{
		ObjectMeta: metav1.ObjectMeta{Name: web.ReceivedName(peering), Labels: map[string]string{v1alpha1.LabelPeering: peering}},
		Spec: v1alpha1.ReceivedServiceSpec{Hash: "abc", ServiceRecord: v1alpha1.ServiceRecord{
			Created: metav1.NewTime(time.Unix(1e9+int64(seconds), 0)), Type: v1alpha1.ClusterSetIP, Ports: []v1alpha1.RecordPort{{Protocol: corev1.ProtocolTCP, Port: 80}},
			Slices: []v1alpha1.RecordSlice{{ID: "x", Ports: []v1alpha1.SlicePort{{Protocol: corev1.ProtocolTCP, Port: 8080}}, Endpoints: []v1alpha1.RecordEndpoint{
				{Address: v1alpha1.IP{Addr: kubetest.Prefix(address + "/32").Addr()}, Ready: true, Serving: true},
			}}},
		}},
	}
}

// settle processes the service until nothing is written any more, as the cache's events would.
func (p *played) settle() {
	p.t.Helper()
	for range 5 {
		before := p.writes
		kit.NoError(p.t, p.reconcile(p.t.Context(), web))
		var made discoveryv1.EndpointSliceList
		kit.NoError(p.t, p.client.List(p.t.Context(), &made))
		for i := range made.Items {
			p.observe(&made.Items[i])
		}
		if p.writes == before {
			return
		}
	}
	p.t.Fatal("it writes each time")
}

// shown describes what was made: the addresses of the import's endpoints by cluster, with their states.
func (p *played) shown() string {
	p.t.Helper()
	ctx := p.t.Context()
	var imports mcs.ServiceImportList
	var made discoveryv1.EndpointSliceList
	kit.NoError(p.t, p.client.List(ctx, &imports))
	kit.NoError(p.t, p.client.List(ctx, &made, client.MatchingLabels{discoveryv1.LabelManagedBy: v1alpha1.ServicesManager}))
	derived := p.client.Get(ctx, client.ObjectKey{Namespace: "shop", Name: web.DerivedName()}, &corev1.Service{}) == nil
	out := fmt.Sprintf("imports:%d service:%v", len(imports.Items), derived)
	for _, s := range made.Items {
		for _, e := range s.Endpoints {
			out += fmt.Sprintf(" %s=%s,%v", s.Labels[mcs.LabelSourceCluster], e.Addresses[0], *e.Conditions.Ready)
		}
	}
	return out
}

func (p *played) condition(of string) string {
	e := &mcs.ServiceExport{}
	kit.NoError(p.t, p.client.Get(p.t.Context(), client.ObjectKey{Namespace: "shop", Name: "web"}, e))
	c := meta.FindStatusCondition(e.Status.Conditions, of)
	if c == nil {
		return "none"
	}
	return string(c.Status) + " " + c.Reason
}

func TestServicesAreExportedAndImported(t *testing.T) {
	p := play(t, append(exportOf(0), peer("b", v1alpha1.ImportAll))...)
	p.settle()
	kit.Check(t, "own export", p.shown(), "imports:1 service:true own=10.244.1.5,true")
	kit.Check(t, "Ready", p.condition(string(mcs.ServiceExportConditionReady)), "True Exported")
	exported := &v1alpha1.ExportedService{}
	kit.NoError(t, p.client.Get(t.Context(), client.ObjectKey{Name: web.ObjectName()}, exported))
	kit.Check(t, "exported address", exported.Spec.Slices[0].Endpoints[0].Address.String(), "10.244.1.5")

	r := receivedOf("b", 1, "10.62.1.5")
	kit.NoError(t, p.client.Create(t.Context(), r))
	p.observe(r)
	p.settle()
	kit.Check(t, "both", p.shown(), "imports:1 service:true id-b=10.62.1.5,true own=10.244.1.5,true")
	kit.Check(t, "Conflict", p.condition(string(mcs.ServiceExportConditionConflict)), "False NoConflicts")

	p.holder.restore("b", true)
	p.settle()
	kit.Check(t, "withdrawn", p.shown(), "imports:1 service:true id-b=10.62.1.5,false own=10.244.1.5,true")
	p.holder.set("b", true)

	export := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	kit.NoError(t, p.client.Delete(t.Context(), export))
	p.settle()
	kit.Check(t, "not exported here", p.shown(), "imports:1 service:true id-b=10.62.1.5,true")
	kit.NoError(t, p.client.Delete(t.Context(), r))
	p.settle()
	kit.Check(t, "exported by nobody", p.shown(), "imports:0 service:false")
}

func TestWhereServicesAreImported(t *testing.T) {
	for name, tt := range map[string]struct {
		policy v1alpha1.ImportPolicy
		labels []string
		want   string
	}{
		"all":              {v1alpha1.ImportAll, nil, "imports:1 service:true id-b=10.62.1.5,true"},
		"all, refused":     {v1alpha1.ImportAll, []string{"false"}, "imports:0 service:false"},
		"labeled":          {v1alpha1.ImportLabeled, []string{"true"}, "imports:1 service:true id-b=10.62.1.5,true"},
		"labeled, without": {v1alpha1.ImportLabeled, nil, "imports:0 service:false"},
		"none":             {v1alpha1.ImportNone, []string{"true"}, "imports:0 service:false"},
	} {
		p := play(t, peer("b", tt.policy), receivedOf("b", 0, "10.62.1.5"))
		kit.NoError(t, p.client.Update(t.Context(), namespace("shop", tt.labels...)))
		p.settle()
		kit.Check(t, name, p.shown(), tt.want)
	}
	p := play(t, peer("b", v1alpha1.ImportAll), receivedOf("b", 0, "10.62.1.5"))
	kit.NoError(t, p.client.Delete(t.Context(), namespace("shop")))
	p.settle()
	kit.Check(t, "no namespace", p.shown(), "imports:0 service:false")
	p = play(t, peer("b", v1alpha1.ImportAll), receivedOf("b", 0, "10.244.1.5"))
	p.settle()
	kit.Check(t, "an address that is not the peer's", p.shown(), "imports:1 service:true")
}

func TestNothingIsDone(t *testing.T) {
	copied := play(t, append(exportOf(0), peer("b", v1alpha1.ImportAll))...)
	copied.clusterID = "id-of-a-copy"
	foreign := play(t, peer("b", v1alpha1.ImportAll), receivedOf("b", 0, "10.62.1.5"), &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}})
	off := peer("b", v1alpha1.ImportAll)
	off.Spec.Services = nil
	without := play(t, off, receivedOf("b", 0, "10.62.1.5"))
	for name, p := range map[string]*played{"in a copy of the cluster": copied, "next to another implementation": foreign, "without an exchange": without} {
		kit.NoError(t, p.reconcile(t.Context(), web))
		kit.Check(t, name+": writes", p.writes, 0)
	}
}
