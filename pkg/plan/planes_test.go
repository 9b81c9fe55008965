package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/test/kit"
)

// Nodes use as many planes as the user chose, or as before, even if only one cluster's mode was changed.
func TestPlanesMode(t *testing.T) {
	const one, spread = v1alpha1.PlanesSingle, v1alpha1.PlanesSpread
	for _, tt := range []struct {
		given, own, peer v1alpha1.PlanesMode
		want             v1alpha1.PlanesMode
		said             string
	}{
		{want: one},
		{given: spread, want: spread, said: "all that work, chosen by pairs of addresses: given by --planes-mode"},
		{own: spread, peer: spread, want: spread, said: "all that work, chosen by pairs of addresses: as before"},
		{own: one, peer: spread, want: spread, said: "all that work, chosen by pairs of addresses: as before"},
		{given: one, own: spread, peer: spread, want: one, said: "one, and another one if that fails: given by --planes-mode"},
	} {
		with := func(mode v1alpha1.PlanesMode) *v1alpha1.Peering {
			return &v1alpha1.Peering{Spec: v1alpha1.PeeringSpec{PlanesMode: mode}}
		}
		own, peer := newFacts("a", nil, "", ""), newFacts("b", nil, "", "")
		own.facts.Existing, peer.facts.Existing, own.Overrides.PlanesMode = with(tt.own), with(tt.peer), tt.given
		d := kit.Must(decideBoth(own, peer))(t)
		said := ""
		for _, s := range modeStatements(d[0].mode, tt.given) {
			said = s.Value.String() + ": " + s.Reason
		}
		if got := d[0].mode; got != d[1].mode || got != tt.want || said != tt.said {
			t.Errorf("given %q, as before %q and %q: %q, %q; want %q, %q", tt.given, tt.own, tt.peer, got, said, tt.want, tt.said)
		}
	}
}

// The number of planes is the one that the user chose, the current one, or the one that both clusters can run.
func TestChoosePlanes(t *testing.T) {
	nodes := func(n int) (out []Node) {
		for i := range n {
			out = append(out, Node{Name: fmt.Sprint("n", i), Ready: true, RunsAgents: true})
		}
		return out
	}
	with := func(indexes ...int32) *v1alpha1.Peering {
		p := &v1alpha1.Peering{}
		for _, i := range indexes {
			p.Spec.Planes = append(p.Spec.Planes, v1alpha1.Plane{Index: i, Role: v1alpha1.Client, WireGuard: "Kernel"})
		}
		return p
	}
	tainted := nodes(3)
	tainted[1].Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
	tainted[2].Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
	fresh := nodes(2)
	fresh[1].Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
	back := nodes(2)
	back[1].Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule}}
	down := nodes(2)
	down[1].Ready, down[1].Taints = false, []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule}}
	controlPlane := nodes(2)
	controlPlane[0].Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
	service := serviceWithEndpoint()
	for _, tt := range []struct {
		name    string
		nodes   []Node
		exists  *v1alpha1.Peering
		service *corev1.Service
		given   int
		options Overrides
		want    string
		reason  string
		refused string
		waits   bool
	}{
		{name: "new", nodes: nodes(2), want: "[0 1]"},
		{name: "one that gateways get", nodes: tainted, want: "[0]"},
		{name: "one that has just become ready", nodes: fresh, want: "[0 1]"},
		{name: "one that was away", nodes: back, given: 2, want: "[0 1]"},
		{name: "one before", nodes: nodes(2), exists: with(0), want: "[0]"},
		{name: "an endpoint by default", nodes: nodes(2), options: Overrides{Endpoints: []string{"192.0.2.1:1"}}, want: "[0]"},
		{name: "given", nodes: nodes(3), given: 3, want: "[0 1 2]"},
		{name: "one is given, on no node", given: 1, want: "[0]"},
		{name: "as before", nodes: nodes(1), exists: with(0, 1), want: "[0 1]"},
		{name: "given as before, while a node is down", nodes: down, exists: with(0, 1), given: 2, want: "[0 1]"},
		{name: "given, while a node is down", nodes: down, given: 2, refused: "and there are 1: n0; not ready: n1", waits: true},
		{name: "taken away", nodes: nodes(1), exists: with(0, 1), given: 1, want: "[0]"},
		{name: "more than nodes", nodes: nodes(1), given: 2, refused: "2 planes need as many nodes for gateways, and there are 1: n0"},
		{name: "nodes that gateways do not get", nodes: tainted, given: 2, refused: "and there are 1: n0"},
		{name: "control planes count", nodes: controlPlane, given: 2, want: "[0 1]"},
		{name: "more than there can be", nodes: nodes(9), given: 5, refused: "at most 4 planes"},
		{name: "an endpoint is one gateway's", nodes: nodes(2), options: Overrides{Endpoints: []string{"192.0.2.1:1"}}, given: 2, refused: "--endpoint names the endpoint of one gateway of a, and 2 planes need as many endpoints"},
		{name: "so is one of an earlier command", nodes: nodes(2), service: service, given: 2, refused: "--endpoint names"},
		{name: "so it is in a later command", nodes: nodes(2), service: service, exists: with(0), want: "[0]", reason: "--endpoint names the endpoint of one gateway of a"},
		{name: "and the plane stays", nodes: nodes(2), service: service, exists: with(1), want: "[1]", reason: "--endpoint names"},
		{name: "an endpoint for a peering with two planes", nodes: nodes(2), exists: with(0, 1), options: Overrides{Endpoints: []string{"192.0.2.1:1"}}, want: "[0]"},
		{name: "a node port", nodes: nodes(2), options: Overrides{ServiceType: "NodePort", NodePort: 31000}, given: 2, refused: "--service-type names the port"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := newFacts("a", nil, "", ""), newFacts("b", nil, "", "")
			a.facts.Network.Nodes, b.facts.Network.Nodes = tt.nodes, nodes(4)
			a.facts.Existing, b.facts.Existing, a.facts.Service = tt.exists, tt.exists, tt.service
			a.Overrides = tt.options
			a.Overrides.Planes, b.Overrides.Planes = tt.given, tt.given
			for _, both := range [][2]*input{{a, b}, {b, a}} {
				d, err := decideBoth(both[0], both[1])
				if tt.refused != "" {
					if kind := kindOf(t, err); (kind == failure.NotReady) != tt.waits || (kind == failure.Usage) == tt.waits || !strings.Contains(err.Error(), tt.refused) {
						t.Errorf("%v", err)
					}
					continue
				}
				for _, d := range d {
					kit.ErrorIf(t, err != nil || fmt.Sprint(d.planes) != tt.want || d.planesStatement.Reason == "" || !strings.Contains(d.planesStatement.Reason, tt.reason), "%+v, %v", d, err)
				}
			}
		})
	}
}

// A plan with an endpoint says that there is one plane, also if an earlier command chose the endpoint.
func TestOneEndpointIsOnePlane(t *testing.T) {
	for name, set := range map[string]func(a *input){
		"given":             func(a *input) { a.Overrides.Endpoints = []string{"192.0.2.1:1"} },
		"given earlier":     func(a *input) { a.facts.Service = serviceWithEndpoint() },
		"given, one plane":  func(a *input) { a.Overrides.Endpoints, a.Overrides.Planes = []string{"192.0.2.1:1"}, 1 },
		"a port is given":   func(a *input) { a.Overrides.ServiceType, a.Overrides.NodePort = "NodePort", 31000 },
		"nothing was given": func(*input) {},
	} {
		a, b := newFacts("a", []string{"10.1.0.0/16"}, "", "").withNodes(2), newFacts("b", []string{"10.2.0.0/16"}, "", "").withNodes(2)
		a.Overrides.Server = true
		set(a)
		p := kit.Must(chooseBoth(a, b))(t)
		said := strings.Join(append(p.Clusters[0].Notes, p.Clusters[1].Notes...), "\n")
		kit.ErrorIf(t, strings.Count(said, "one plane") != lo.Ternary(name == "nothing was given", 0, 1), "%s: the notes are %q", name, said)
	}
}

// serviceWithEndpoint is the Service of gateways after an endpoint was given.
func serviceWithEndpoint() *corev1.Service {
	service := &corev1.Service{}
	service.Annotations = map[string]string{AnnotationEndpoints: "192.0.2.1:51840"}
	return service
}
