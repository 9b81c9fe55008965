package plan

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/test/kit"
)

// Gateways run on the nodes that the user chose, and later commands keep the choice. A choice that no node meets is
// refused during planning, before anything exists.
func TestGatewayPlacement(t *testing.T) {
	selected := func(labels ...string) map[string]string {
		out := map[string]string{}
		for _, l := range labels {
			key, value, _ := strings.Cut(l, "=")
			out[key] = value
		}
		return out
	}
	gateways, none := selected("pool=gateways"), []corev1.Toleration{}
	dedicated := []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "gateways"}}
	type placement = v1alpha1.GatewayPlacement
	with := func(s map[string]string, t []corev1.Toleration) *placement {
		return &placement{NodeSelector: s, Tolerations: t}
	}
	for _, tt := range []struct {
		name         string
		taint        corev1.Taint
		given        placement
		before, want *placement
		says, err    string
	}{
		{name: "nobody has chosen", says: "any"},
		{name: "nothing is removed", given: placement{NodeSelector: selected(), Tolerations: none}, says: "any"},
		{name: "given", given: placement{NodeSelector: gateways}, want: with(gateways, none), says: "pool=gateways, given by"},
		{name: "as before", before: with(gateways, dedicated), want: with(gateways, dedicated), says: "pool=gateways, as before"},
		{name: "others than before", given: placement{NodeSelector: selected("zone=a")}, before: with(gateways, none), want: with(selected("zone=a"), none), says: "zone=a, given by"},
		{name: "removed", given: placement{NodeSelector: selected()}, before: with(gateways, dedicated), want: with(selected(), dedicated), says: "any, given by"},
		{name: "a role, which has no value", given: placement{NodeSelector: selected("role/gateway=")}, want: with(selected("role/gateway="), none), says: "role/gateway="},
		{name: "labels that no node has all of", given: placement{NodeSelector: selected("pool=gateways", "os=windows")}, err: "no node that runs agents has the labels os=windows,pool=gateways"},
		{name: "more than there is room for", given: placement{Tolerations: slices.Repeat(dedicated, 17)}, err: "can hold 16 labels and 16 tolerations"},
		{name: "a node without agents", given: placement{NodeSelector: selected("os=windows")}, err: "no node that runs agents"},
		{name: "no node has it now", before: with(selected("pool=former"), none), err: "--gateway-node-selector a="},
		{
			name: "kept for others", taint: corev1.Taint{Key: "dedicated", Value: "gateways", Effect: corev1.TaintEffectNoSchedule}, given: placement{NodeSelector: gateways},
			err: "--gateway-toleration a=dedicated=gateways:NoSchedule",
		},
		{
			name: "kept for others, with another value", taint: corev1.Taint{Key: "dedicated", Value: "database", Effect: corev1.TaintEffectNoExecute},
			given: *with(gateways, dedicated), err: "--gateway-toleration a=dedicated=database:NoExecute",
		},
		{
			name: "kept for gateways", taint: corev1.Taint{Key: "dedicated", Value: "gateways", Effect: corev1.TaintEffectNoExecute},
			given: *with(gateways, dedicated), want: with(gateways, dedicated), says: "dedicated=gateways",
		},
		{
			name: "a control plane", taint: corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule},
			given: placement{NodeSelector: gateways}, want: with(gateways, none), says: "pool=gateways",
		},
		{
			name: "cordoned for now", taint: corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule},
			given: placement{NodeSelector: gateways}, want: with(gateways, none), says: "pool=gateways",
		},
		{
			name: "rather for others", taint: corev1.Taint{Key: "spot", Effect: corev1.TaintEffectPreferNoSchedule},
			given: placement{NodeSelector: gateways}, want: with(gateways, none), says: "pool=gateways",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := newFacts("a", []string{"10.1.0.0/16"}, "", "172.18.1.0/24"), newFacts("b", []string{"10.2.0.0/16"}, "", "172.18.2.0/24")
			for _, f := range []*input{a, b} {
				f.Version, f.DefaultImage = "v0.1.0", "image"
			}
			a.facts.Network.Nodes[0].Labels = map[string]string{"pool": "others"}
			a.facts.Network.Nodes = append(a.facts.Network.Nodes,
				Node{Name: "a-2", Ready: true, RunsAgents: true, Labels: map[string]string{"pool": "gateways", "zone": "a", "role/gateway": ""}},
				Node{Name: "a-3", Ready: true, Labels: map[string]string{"os": "windows", "pool": "gateways"}})
			if tt.taint.Key != "" {
				a.facts.Network.Nodes[1].Taints = []corev1.Taint{tt.taint}
			}
			a.Overrides.Gateways = tt.given
			if tt.before != nil {
				a.facts.Existing = &v1alpha1.Peering{Spec: v1alpha1.PeeringSpec{Overlay: "VXLAN", Gateways: tt.before, Planes: []v1alpha1.Plane{{Role: v1alpha1.Server, WireGuard: "Kernel"}}}}
			}
			p, err := makeBoth(a, b)
			if tt.err != "" {
				e := (*failure.Error)(nil)
				kit.ErrorIf(t, !errors.As(err, &e) || e.Kind != failure.Usage || !strings.Contains(e.Error()+": "+e.Hint, tt.err),
					"want %q, got %v", tt.err, e)
				kit.ErrorIf(t, check(a, b) == nil, "the placement is never refused")
				return
			}
			kit.NoError(t, err)
			kit.Check(t, "the Peering keeps", p.Clusters[0].Peering.Spec.Gateways, tt.want)
			kit.Check(t, "the gateway gets", p.Clusters[0].Gateways[0].Placement, tt.want)
			kit.ErrorIf(t, p.Clusters[1].Peering.Spec.Gateways != nil, "the other cluster's gateway has a placement as well")
			said := ""
			for _, s := range p.Clusters[0].Choices {
				said += s.Subject + ": " + s.Value.String() + ", " + s.Reason + "\n"
			}
			kit.ErrorIf(t, !strings.Contains(said, tt.says), "the plan says\n%swant %q", said, tt.says)
		})
	}
}

// withKey returns a cluster with agents, whose nodes know the overlay key of a generation.
func withKey(generation int32, nodes ...string) *input {
	f := newFacts("a", nil, "", "")
	f.facts.Installed.Image = "image"
	f.facts.Ledger.Spec.OverlayKey = v1alpha1.OverlayKey{Generation: generation, Nodes: nodes}
	return f
}

func (f *input) withUIDs(uids ...string) *input {
	for _, uid := range uids {
		f.facts.Network.Nodes = append(f.facts.Network.Nodes, Node{Name: "node of " + uid, UID: uid, RunsAgents: !strings.HasPrefix(uid, "windows")})
	}
	return f
}

// A node that has left still knows the overlay key, so the others get a new one.
func TestKeyChangesWhenANodeLeaves(t *testing.T) {
	lost, known, fresh := withKey(2, "1").withUIDs("1"), withKey(2, "1", "2").withUIDs("1"), newFacts("a", nil, "", "").withUIDs("2", "1")
	lost.facts.LostOverlayKey, known.KeepOverlayKey, fresh.facts.Ledger = 2, true, nil
	lostBefore := withKey(3, "1").withUIDs("1")
	lostBefore.facts.LostOverlayKey = 2
	for _, tt := range []struct {
		name       string
		facts      *input
		generation int32
		nodes      string
		reason     string
	}{
		{"the first peering", fresh, 1, "1 2", "created during the run"},
		{"nothing happened", withKey(1, "1", "2").withUIDs("1", "2"), 1, "1 2", "as before"},
		{"a node came", withKey(1, "1").withUIDs("2", "1"), 1, "1 2", "as before"},
		{"a node without agents came", withKey(1, "1").withUIDs("1", "windows"), 1, "1", "as before"},
		{"a node left", withKey(1, "1", "2").withUIDs("1"), 2, "1", "nodes that know the previous one have left (1)"},
		{"a node was created again with the same name", withKey(1, "1", "2").withUIDs("1", "2b"), 2, "1 2b", "have left (1)"},
		{"the Secret is gone", lost, 3, "1", "the Secret of the previous one is gone"},
		{"that of a key before is gone", lostBefore, 3, "1", "as before"},
		{"the agents have been given it in this run", known, 2, "1 2", "as before"},
		{"of a version that kept no account", withKey(0).withUIDs("1"), 1, "1", "as before"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			key, reason := tt.facts.overlayKey()
			kit.ErrorIf(t, key.Generation != tt.generation || strings.Join(key.Nodes, " ") != tt.nodes || !strings.Contains(reason, tt.reason),
				"got %+v, %q", key, reason)
		})
	}
}

// The ledger records a key before a node gets it, and forgets a departed node only once the others have another key.
func TestLedgerOfNodes(t *testing.T) {
	f := withKey(1, "1", "2").withUIDs("1", "3")
	planned, _ := f.overlayKey()
	cn := f.facts.Ledger
	for i, want := range []bool{true, false} {
		kit.ErrorIf(t, RecordOverlayKey(cn, planned) != want, "recorded at attempt %d: %t", i+1, !want)
	}
	kit.Check(t, "OverlayKey", cn.Spec.OverlayKey, v1alpha1.OverlayKey{Generation: 2, Nodes: []string{"1", "2", "3"}})
	// If this command is killed now, the next one learns that the key may be known.
	again, _ := withKey(2, cn.Spec.OverlayKey.Nodes...).withUIDs("1", "3").overlayKey()
	kit.ErrorIf(t, again.Generation != 3, "the next command takes the key %d", again.Generation)
	// A concurrent command with the same plan creates no key of its own.
	other, _ := withKey(1, "1", "2").withUIDs("1", "3").overlayKey()
	kit.ErrorIf(t, RecordOverlayKey(cn, other), "another command records %+v", cn.Spec.OverlayKey)
	for range 2 {
		RemoveDepartedNodes(cn, []string{"2"})
	}
	gone := DepartedNodes(cn, []string{"1", "3"})
	kit.ErrorIf(t, len(gone) > 0 || cn.Spec.OverlayKey.Generation != 2, "%v are still gone, of %+v", gone, cn.Spec.OverlayKey)
	gone = DepartedNodes(cn, []string{"1"})
	kit.ErrorIf(t, !slices.Equal(gone, []string{"3"}), "%v are gone", gone)
}

// The plan shows everything that a new key changes, including in other peerings.
func TestPlanOfANewKey(t *testing.T) {
	a, b := newFacts("a", []string{"10.1.0.0/16"}, "", "172.18.1.0/24"), newFacts("b", []string{"10.2.0.0/16"}, "", "172.18.2.0/24")
	for _, f := range []*input{a, b} {
		f.Version, f.DefaultImage, f.facts.Installed.Image = "v0.1.0", "image", "image"
	}
	a.facts.Ledger.Spec.OverlayKey = v1alpha1.OverlayKey{Generation: 3, Nodes: []string{"gone"}}
	a.facts.OtherPeerings = []v1alpha1.Peering{{Spec: v1alpha1.PeeringSpec{Overlay: "VXLAN", Planes: []v1alpha1.Plane{{Index: 1}}}}}
	a.facts.OtherPeerings[0].Name = "c"
	p := kit.Must(makeBoth(a, b))(t)
	of := func(c ClusterPlan) map[string]Action {
		out := map[string]Action{}
		for _, o := range c.Objects {
			if strings.HasPrefix(o.Name, "liqonet-overlay-") || o.Kind == "Deployment" {
				out[o.Kind+" "+o.Name] = o.Action
			}
		}
		return out
	}
	want := map[string]Action{"Secret liqonet-overlay-4": "", "Secret liqonet-overlay-3": Delete, "Deployment gateway-b-0": "", "Deployment gateway-c-1": Change}
	kit.Check(t, "of", of(p.Clusters[0]), want)
	kit.Check(t, "Sorted", slices.Sorted(maps.Keys(of(p.Clusters[1]))), []string{"Deployment gateway-a-0", "Secret liqonet-overlay-1"})
	if k := p.Clusters[0].Keys[0]; k.Value.String() != "Secret liqonet-system/liqonet-overlay-4" || !strings.Contains(k.Reason, "have left") {
		t.Errorf("the plan says %+v", k)
	}
	for _, g := range p.Clusters[0].Gateways {
		kit.Check(t, "the gateway gets the key", g.OverlayKey, 4)
	}
}
