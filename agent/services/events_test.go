package services

import (
	"context"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/test/kit"
)

// drain empties the queues, and returns what was in them, as SOURCE:SERVICE.
func (p *played) drain() (out []string) {
	p.queues.mu.Lock()
	all := maps.Clone(p.queues.all)
	p.queues.mu.Unlock()
	for source, queue := range all {
		for queue.Len() > 0 {
			k, _ := queue.Get()
			out = append(out, source+":"+k.String())
			queue.Done(k)
		}
	}
	slices.Sort(out)
	return out
}

// end ends the queues.
func (p *played) end() {
	for _, queue := range p.queues.all {
		queue.ShutDown()
	}
}

// Each change leads to the services that it concerns, in the queue of their source.
func TestEvents(t *testing.T) {
	p := play(t, append(exportOf(0), peer("b", v1alpha1.ImportAll), receivedOf("b", 0, "10.62.1.5"))...)
	defer p.end()
	kit.Check(t, "at first", p.drain(), []string{":shop/web", "b:shop/web"})
	for name, tt := range map[string]struct {
		obj  client.Object
		want []string
	}{
		"Peering":            {peer("b", v1alpha1.ImportNone), []string{":shop/web", "b:shop/web"}},
		"another Peering":    {peer("c", v1alpha1.ImportNone), []string{":shop/web"}},
		"Namespace":          {namespace("shop"), []string{":shop/web"}},
		"another Namespace":  {namespace("default"), nil},
		"ClusterNetwork":     {&v1alpha1.ClusterNetwork{}, []string{":shop/web"}},
		"NodeNetwork":        {&v1alpha1.NodeNetwork{}, []string{":shop/web"}},
		"Service":            {&corev1.Service{ObjectMeta: named("web")}, []string{":shop/web"}},
		"derived Service":    {&corev1.Service{ObjectMeta: named(web.DerivedName(), ofDerived...)}, []string{":shop/web"}},
		"slice":              {&discoveryv1.EndpointSlice{ObjectMeta: named("web-x", discoveryv1.LabelServiceName, "web")}, []string{":shop/web"}},
		"slice of an import": {&discoveryv1.EndpointSlice{ObjectMeta: named("derived-x", ofMade...)}, []string{":shop/web"}},
		"another slice":      {&discoveryv1.EndpointSlice{ObjectMeta: named("x")}, nil},
		"ServiceExport":      {&mcs.ServiceExport{ObjectMeta: named("web")}, []string{":shop/web"}},
		"ServiceImport":      {&mcs.ServiceImport{ObjectMeta: named("web")}, []string{":shop/web"}},
		"ExportedService":    {&v1alpha1.ExportedService{ObjectMeta: metav1.ObjectMeta{Name: "shop.web"}}, []string{":shop/web"}},
		"ReceivedService":    {receivedOf("b", 0, "10.62.1.5"), []string{"b:shop/web"}},
	} {
		p.observe(tt.obj)
		kit.Check(t, name, p.drain(), tt.want, kit.Compare)
	}
}

// change reads an object, and changes it.
func change[T client.Object](p *played, obj T, by func(T)) {
	p.t.Helper()
	kit.NoError(p.t, p.client.Get(p.t.Context(), client.ObjectKeyFromObject(obj), obj))
	by(obj)
	kit.NoError(p.t, p.client.Update(p.t.Context(), obj))
}

func TestServiceOfTwoPeers(t *testing.T) {
	b := peer("b", v1alpha1.ImportAll)
	b.Finalizers = []string{"liqonet.io/test"}
	p := play(t, append(exportOf(0), b, peer("c", v1alpha1.ImportAll), receivedOf("b", 1, "10.62.1.5"), receivedOf("c", 2, "10.62.1.6"))...)
	defer p.end()
	p.settle()
	kit.Check(t, "all", p.shown(), "imports:1 service:true id-b=10.62.1.5,true id-c=10.62.1.6,true own=10.244.1.5,true")
	conflict := string(mcs.ServiceExportConditionConflict)
	kit.Check(t, "conflict", p.condition(conflict), "False NoConflicts")
	change(p, receivedOf("c", 2, "10.62.1.6"), func(r *v1alpha1.ReceivedService) { r.Spec.Ports[0].Port = 81 })
	p.settle()
	kit.Check(t, "conflict about a port", p.condition(conflict), "True PortConflict")
	kit.NoError(t, p.client.Delete(t.Context(), b)) // its finalizer keeps it
	p.settle()
	kit.Check(t, "while a Peering is deleted", p.shown(), "imports:1 service:true id-c=10.62.1.6,true own=10.244.1.5,true")
	change(p, peer("c", v1alpha1.ImportAll), func(c *v1alpha1.Peering) { c.Spec.Planes = nil })
	p.settle()
	kit.Check(t, "without a plane", p.shown(), "imports:1 service:true own=10.244.1.5,true")
	kit.Check(t, "no conflict any more", p.condition(conflict), "False NoConflicts")
	kit.Check(t, "nobody can use it", p.condition(string(mcs.ServiceExportConditionReady)), "False Pending")
}

// An export without a Service waits for it, and one whose Service is deleted is withdrawn.
func TestExportWithoutAService(t *testing.T) {
	objs := exportOf(0)
	p := play(t, objs[0], peer("b", v1alpha1.ImportAll))
	defer p.end()
	exported := func() bool {
		return p.client.Get(t.Context(), client.ObjectKey{Name: web.ObjectName()}, &v1alpha1.ExportedService{}) == nil
	}
	valid := string(mcs.ServiceExportConditionValid)
	p.settle()
	kit.ErrorIf(t, exported(), "it is exported without a Service")
	kit.Check(t, "without a Service", p.condition(valid), "False NoService")
	for _, obj := range objs[1:] {
		kit.NoError(t, p.client.Create(t.Context(), obj))
		p.observe(obj)
	}
	p.settle()
	kit.ErrorIf(t, !exported(), "it is not exported")
	kit.Check(t, "with a Service", p.condition(valid), "True Valid")
	kit.NoError(t, p.client.Delete(t.Context(), &corev1.Service{ObjectMeta: named("web")}))
	p.settle()
	kit.ErrorIf(t, exported(), "it is still exported")
	kit.Check(t, "after the Service", p.condition(valid)+", "+p.shown(), "False NoService, imports:0 service:false")
}

// A slice that now belongs to another service is none of this one's endpoints any more.
func TestSliceOfAnotherService(t *testing.T) {
	p := play(t, append(exportOf(0), peer("b", v1alpha1.ImportAll))...)
	defer p.end()
	p.settle()
	s := &discoveryv1.EndpointSlice{ObjectMeta: named("web-abc")}
	change(p, s, func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "other" })
	p.observe(s)
	p.settle()
	kit.Check(t, "endpoints", p.shown(), "imports:1 service:true")
}

// inTime reads a Namespace as it was before it was deleted, as a cache does for a moment.
type inTime struct{ client.Reader }

func (r inTime) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	err := r.Reader.Get(ctx, key, obj, opts...)
	if ns, is := obj.(*corev1.Namespace); is {
		ns.DeletionTimestamp = nil
	}
	return err
}

// That nothing can be created in a Namespace that is being deleted is no failure.
func TestNamespaceEnds(t *testing.T) {
	kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "kept", Finalizers: []string{"liqonet.io/test"}}}
	p := play(t, peer("b", v1alpha1.ImportAll), receivedOf("b", 0, "10.62.1.5"))
	defer p.end()
	kit.NoError(t, p.client.Create(t.Context(), kept))
	kit.NoError(t, p.client.Delete(t.Context(), namespace("shop")))
	p.view = &watch.View{Reader: inTime{p.client}, Client: p.client}
	kit.NoError(t, p.reconcile(t.Context(), web))
	kit.ErrorIf(t, p.writes == 0, "it has not tried to create anything")
	kit.Check(t, "made", p.shown(), "imports:0 service:false")
	p.view = &watch.View{Reader: p.client, Client: p.client}
	p.writes = 0
	kit.NoError(t, p.reconcile(t.Context(), web))
	kit.Check(t, "writes", p.writes, 0)
}

// sliceOf returns a slice that another controller has made for a peer.
func sliceOf(cluster string, withdrawn bool) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: named(web.DerivedName()+"-"+cluster+"-x", append(slices.Clone(ofMade), mcs.LabelSourceCluster, cluster)...)}
	if withdrawn {
		s.Annotations = map[string]string{services.AnnotationWithdrawn: "true"}
	}
	return s
}

// A new controller goes on with what another one has left.
func TestRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unconnected := func(name string) *v1alpha1.Peering {
			p := peer(name, v1alpha1.ImportAll)
			p.Status.Conditions = nil
			return p
		}
		p := play(t, unconnected("b"), unconnected("c"), receivedOf("b", 0, "10.62.1.5"), receivedOf("c", 0, "10.62.1.6"),
			sliceOf("id-b", true), sliceOf("id-c", false))
		defer p.end()
		p.drain()
		withdrawn := func(what string, b, c bool) {
			t.Helper()
			kit.Check(t, what, []bool{p.holder.isWithdrawn("b"), p.holder.isWithdrawn("c")}, []bool{b, c})
		}
		p.restore(t.Context())
		withdrawn("at first", true, false)
		kit.Check(t, "changes", p.drain(), []string{":shop/web"})
		time.Sleep(firstHold + time.Millisecond)
		synctest.Wait()
		withdrawn("after the hold", true, true)
		kit.Check(t, "changes after the hold", p.drain(), []string{"c:shop/web"})
		b := &v1alpha1.Peering{}
		kit.NoError(t, p.client.Get(t.Context(), client.ObjectKey{Name: "b"}, b))
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionConnected, Status: metav1.ConditionTrue, Reason: "Connected"})
		kit.NoError(t, p.client.Status().Update(t.Context(), b))
		p.observe(b)
		withdrawn("when the peer is back", false, true)
		kit.Check(t, "changes when the peer is back", p.drain(), []string{":shop/web", "b:shop/web"})
		kit.Check(t, "number", p.numbers().Withdrawn, 1)
		kit.NoError(t, p.client.Delete(t.Context(), peer("c", v1alpha1.ImportAll)))
		p.observe(peer("c", v1alpha1.ImportAll))
		kit.Check(t, "number without the peer", p.numbers().Withdrawn, 0)
	})
}
