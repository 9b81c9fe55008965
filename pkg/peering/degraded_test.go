package peering

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// A node from which no packet passes at all, and a pod outside of the ranges, do not have the gateways of all planes replaced at once.
func TestDegradedPeeringIsReplacedPlaneByPlane(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := pairOf(t, 2)
	run := newRun(a.Cluster, b.Cluster, Options{Image: "image:2"}, Silent{})
	run.ticket = newTickets(1)[0]
	if err := run.observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	silent := node("a-9", true, "172.18.1.99") // no agent reports of it
	if err := a.raw.Create(t.Context(), silent); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	a.slow = silent.Name
	a.did = nil
	a.mu.Unlock()
	views, err := a.Views(t.Context())
	if err != nil || views[0].State != Degraded {
		t.Fatalf("%+v, %v", views, err)
	}
	if turns, err := run.turns(t.Context()); err != nil || !slices.EqualFunc(turns, [][]int32{{0}, {1}}, slices.Equal) {
		t.Errorf("turns %v, %v", turns, err)
	}
}

// One of two planes does not work, as where its gateway has no node. Packets pass by the other one, also those to a host.
func TestExposeHostWhileOnePlaneIsDown(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := pairOf(t, 2)
	d := &appsv1.Deployment{}
	name := types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.GatewayName("b", 1)}
	if err := a.raw.Get(t.Context(), name, d); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	a.lossy = "dead:1"
	a.mu.Unlock()
	d.Spec.Template.Spec.Containers[0].Image = "dead:1"
	if err := a.raw.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	views, err := a.Views(t.Context())
	if err != nil || !slices.ContainsFunc(views[0].Planes, func(p PlaneView) bool { return !p.Connected }) {
		t.Fatalf("%+v, %v", views, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if addr, err := a.ExposeHost(ctx, b.Cluster, netip.MustParseAddr("192.168.1.50"), Silent{}); err != nil || !addr.IsValid() {
		t.Errorf("%v, %v", addr, err)
	}
	p := &v1alpha1.Peering{}
	if err := a.raw.Get(t.Context(), client.ObjectKey{Name: "b"}, p); err != nil || len(p.Spec.Local.Hosts) != 1 || p.PlaneStatus(0).ObservedGeneration != p.Generation {
		t.Errorf("%+v, %v", p, err)
	}
}
