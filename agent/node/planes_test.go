package node

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liqonet/liqonet/agent/history"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// A starting agent continues with the planes that its predecessor used.
func TestResume(t *testing.T) {
	var l local
	l.restorePlanes([]v1alpha1.NodeGateway{
		{PeeringName: "one", Plane: 0},
		{PeeringName: "one", Plane: 1, Active: true},
		{PeeringName: "none"},
		{PeeringName: "spread", Plane: 2, Active: true},
		{PeeringName: "spread", Plane: 0, Active: true},
		{PeeringName: "spread", Plane: 1},
	})
	want := local{planesInUse: map[string]planesInUse{
		"one":    {primary: 1, all: []int32{1}},
		"spread": {primary: noPlane, all: []int32{0, 2}},
	}}
	kit.Check(t, "restored planes", l, want, compare, cmp.AllowUnexported(local{}, planesInUse{}))
	preferred := []gateway{{plane: 1}, {plane: 2}, {plane: 0}}
	for peering, tt := range map[string]planesInUse{"one": {primary: 1, all: []int32{1}}, "spread": {primary: 2, all: []int32{0, 2}}, "none": {primary: 1, all: []int32{1}}} {
		if used := l.currentPlanes(peering, preferred); used.primary != tt.primary || !slices.Equal(used.all, tt.all) {
			t.Errorf("%s: packets are sent by %v, want %v", peering, used, tt)
		}
		for plane := range int32(3) {
			if want := peering != "none" && slices.Contains(tt.all, plane); l.usesPlane(peering, plane) != want {
				t.Errorf("%s: plane %d: %t", peering, plane, !want)
			}
		}
	}
	// If the links of all planes in use but one are lost, that one stays in use.
	l.planesInUse["lost"] = planesInUse{primary: 2, all: []int32{3}}
	if used := l.currentPlanes("lost", preferred); used.primary != 2 || !slices.Equal(used.all, []int32{2}) {
		t.Errorf("packets are sent by %v", used)
	}
}

// A peer counts as reached if any plane reaches it. The initial state is not recorded.
func TestReachedIsNoted(t *testing.T) {
	var log bytes.Buffer
	first, second := &prober{gateway: gateway{peering: "b"}}, &prober{gateway: gateway{peering: "b", plane: 1}}
	a := &agent{
		history: history.New(&history.Record{Log: slog.New(slog.NewTextHandler(&log, nil))}),
		probers: map[planeKey]*prober{{"b", 0}: first, {"b", 1}: second},
	}
	for i, tt := range []struct {
		first, second bool
		want          string
	}{
		{false, false, ""},
		{true, false, `to=reached`},
		{false, true, ""},
		{false, false, `to="not reached"`},
		{false, false, ""},
		{true, true, `to=reached`},
	} {
		first.ready, second.ready = tt.first, tt.second
		a.recordReachability()
		if got := log.String(); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("step %d: %q, want %q", i, got, tt.want)
		}
		log.Reset()
	}
	clear(a.probers)
	if a.recordReachability(); log.Len() > 0 || len(a.reachable) > 0 {
		t.Errorf("a peering that is gone: %s, %v", &log, a.reachable)
	}
}

// A peer counts as not reached if none of its gateways has reported where it is: a gateway may end after it has reported without
// its MTU. Otherwise, no node would correct conditions that are still True.
func TestWithoutProbersIsNotReached(t *testing.T) {
	p := peering("b", 2, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.244.0.0/16", "10.30.0.0/16"), "10.70.0.0/18")
	for i := range p.Status.Planes {
		p.Status.Planes[i].MTU = 0
	}
	a := &agent{applied: applied{want: kit.Must(desire(local{name: "n1", address: addr("10.80.0.7")}, []v1alpha1.Peering{p}))(t)}}
	a.recordReachability()
	planes, known := a.reachable["b"]
	kit.ErrorIf(t, !known || planes != 0, "known: %t, planes: %b", known, planes)
}
