package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/quick"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/version"
	"github.com/liqonet/liqonet/test/kit"
)

// upgradable returns a cluster with agents of a version, and three nodes. It is peered with the named clusters: as the
// server if its name is the lower one, otherwise as the client.
func upgradable(name, installed string, planes int, peers ...string) *UpgradeFacts {
	f := &UpgradeFacts{
		Facts: Facts{
			Network:   Network{Name: name, ClusterID: "id-of-" + name},
			Installed: manifests.Agents{Image: version.AgentImage(installed), Version: installed}, OverlayKeys: []int32{1}, Ledger: &v1alpha1.ClusterNetwork{},
		},
		Intent:   Intent{Version: "v0.2.0", DefaultImage: version.AgentImage("v0.2.0"), Upgrade: true},
		Services: map[string]*corev1.Service{}, Secrets: map[string]bool{"liqonet-overlay-1": true},
	}
	for i := range 3 {
		f.Facts.Network.Nodes = append(f.Facts.Network.Nodes, Node{Name: fmt.Sprint(name, "-", i+1), Ready: true, RunsAgents: true})
	}
	for i, peer := range peers {
		p := v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: peer}}
		p.Spec.Index, p.Spec.Overlay, p.Spec.Remote.ClusterID, p.Spec.Remote.Name = int32(i), "VXLAN", "id-of-"+peer, peer
		role := v1alpha1.Client
		if name < peer {
			role = v1alpha1.Server
			f.Services[peer] = manifests.GatewayService(peer, corev1.ServiceTypeNodePort, []int32{0})
		}
		for plane := range int32(planes) {
			p.Spec.Planes = append(p.Spec.Planes, v1alpha1.Plane{Index: plane, Role: role, WireGuard: "Kernel", KeyGeneration: 1})
			f.Secrets[manifests.Gateway{Peering: peer, Plane: plane, KeyGeneration: 1}.SecretName()] = true
		}
		f.Facts.OtherPeerings = append(f.Facts.OtherPeerings, p)
	}
	return f
}

func makeUpgrades(t *testing.T, facts ...*UpgradeFacts) *Upgrades {
	t.Helper()
	out := kit.Must(MakeUpgrades(facts))(t)
	return out
}

func TestUpgradeTarget(t *testing.T) {
	mirrored := "mirror.example:5000/agent"
	for _, tt := range []struct {
		name, installed, image, given string
		want                          manifests.Agents
		refused                       string
	}{
		{name: "the published image", installed: "v0.1.0", want: manifests.Agents{Image: version.AgentImage("v0.2.0"), Version: "v0.2.0"}},
		{name: "a mirror", installed: "v0.1.0", image: mirrored + ":v0.1.0", refused: "--agent-image"},
		{name: "a digest, and another one is given", installed: "v0.1.0", image: mirrored + "@sha256:00", given: "x@sha256:11", want: manifests.Agents{Image: "x@sha256:11", Version: "v0.2.0"}},
		{name: "the same version", installed: "v0.2.0", image: mirrored + "@sha256:00", want: manifests.Agents{Image: mirrored + "@sha256:00", Version: "v0.2.0"}},
		{name: "nothing is there", refused: "not peered"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := upgradable("a", tt.installed, 2, "b")
			f.Overrides.Image = tt.given
			if tt.image != "" {
				f.Facts.Installed.Image = tt.image
			}
			if tt.installed == "" {
				f.Facts.Installed = manifests.Agents{}
			}
			out, err := MakeUpgrades([]*UpgradeFacts{f})
			if tt.refused != "" {
				if e := (*failure.Error)(nil); !errors.As(err, &e) || e.Kind != failure.Usage || e.Hint == "" || !strings.Contains(err.Error()+e.Hint, tt.refused) {
					t.Fatalf("got %v, want %q", err, tt.refused)
				}
				return
			}
			kit.FatalIf(t, err != nil || out.Clusters[0].Agents.Agents != tt.want, "got %v %v", out, err)
		})
	}
}

// The first group is a single item, then each is a quarter. All items are included once, in order.
func TestGroups(t *testing.T) {
	for _, tt := range []struct {
		n     int
		first bool
		want  []int
	}{
		{0, true, nil},
		{2, false, []int{1, 1}},
		{9, true, []int{1, 3, 3, 2}},
		{1000, true, []int{1, 250, 250, 250, 249}},
	} {
		var got []int
		for _, g := range groups(make([]int, tt.n), tt.first) {
			got = append(got, len(g))
		}
		kit.Check(t, fmt.Sprintf("%d", tt.n), got, tt.want)
	}
	err := quick.Check(func(all []int, first bool) bool {
		out := groups(all, first)
		return slices.Equal(slices.Concat(out...), all) && len(out) <= 5 && (!first || len(all) == 0 || len(out[0]) == 1)
	}, nil)
	kit.ErrorIf(t, err != nil, "%v", err)
}

// No group has two gateways of a peering, and no plane begins before the previous one is finished.
func TestUpgradeOrder(t *testing.T) {
	f := upgradable("a", "v0.1.0", 2, "b", "c", "d", "e", "f")
	u := makeUpgrades(t, f).Clusters[0]
	plane, done := int32(0), 0
	for _, group := range u.Gateways {
		seen := map[string]bool{}
		for _, g := range group {
			kit.ErrorIf(t, seen[g.Peering] || g.Plane < plane || g.NoRedundancy, "%+v", group)
			seen[g.Peering], plane = true, g.Plane
			done++
		}
	}
	kit.ErrorIf(t, done != 10 || len(u.Gateways[0]) != 1, "%d gateways", done)
	var what []string
	for _, s := range u.Steps {
		what = append(what, s.Subject)
	}
	if diff := cmp.Diff([]string{"definitions and permissions", "node agents", "gateways of plane 0", "gateways of plane 1"}, slices.Compact(what)); diff != "" {
		t.Error(diff)
	}
}

// A peering with one plane gets a second one if both clusters are upgraded, and the user has not given the endpoint of
// its only gateway.
func TestUpgradeTemporary(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(a, b *UpgradeFacts)
		both   bool
		// want is whether there is a temporary plane, said is the note for the user.
		want bool
		said string
	}{
		"both":                    {func(_, _ *UpgradeFacts) {}, true, true, ""},
		"one of them":             {func(_, _ *UpgradeFacts) {}, false, false, "kubectl liqonet upgrade a b"},
		"an endpoint is given":    {func(a, _ *UpgradeFacts) { a.Services["b"].Annotations[AnnotationEndpoints] = "192.0.2.1:51840" }, true, false, "--endpoint names"},
		"one is left":             {func(a, b *UpgradeFacts) { a.withTemporary("b"); b.withTemporary("a") }, true, true, ""},
		"one is left, one of two": {func(a, b *UpgradeFacts) { a.withTemporary("b"); b.withTemporary("a") }, false, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := upgradable("a", "v0.1.0", 1, "b"), upgradable("b", "v0.1.0", 1, "a")
			tt.change(a, b)
			facts := []*UpgradeFacts{a}
			if tt.both {
				facts = append(facts, b)
			}
			out := makeUpgrades(t, facts...)
			kit.ErrorIf(t, (len(out.Temporary) == 1) != tt.want, "temporary planes: %v", out.Temporary)
			for _, u := range out.Clusters {
				if said := strings.Join(u.Notes, "\n"); u.Cluster == "a" && (said != "") != (tt.said != "") || u.Cluster == "a" && !strings.Contains(said, tt.said) {
					t.Errorf("got the note %q, want %q", said, tt.said)
				}
				for _, g := range slices.Concat(u.Gateways...) {
					kit.ErrorIf(t, g.NoRedundancy != (tt.said != "") || g.Temporary && tt.both, "%+v", g)
				}
				for _, o := range ObjectsInStage(u.Objects, Exposure, "") {
					s, is := o.(*corev1.Service)
					kit.ErrorIf(t, is && (len(s.Spec.Ports) == 2) != (name == "one is left, one of two"), "the Service has %v", s.Spec.Ports)
				}
			}
		})
	}
}

func (f *UpgradeFacts) withTemporary(peer string) {
	p := &f.Facts.OtherPeerings[slices.IndexFunc(f.Facts.OtherPeerings, func(p v1alpha1.Peering) bool { return p.Name == peer })]
	second := p.Spec.Planes[0]
	second.Index, second.Temporary = 1, true
	p.Spec.Planes = append(p.Spec.Planes, second)
	f.Secrets[manifests.Gateway{Peering: peer, Plane: 1, KeyGeneration: 1}.SecretName()] = true
}

// An upgrade that would leave agents without a key is refused before anything is changed.
func TestUpgradeRefused(t *testing.T) {
	for want, remove := range map[string]func(*UpgradeFacts){
		"gateway-b-0-1":     func(f *UpgradeFacts) { delete(f.Secrets, "gateway-b-0-1") },
		"liqonet-overlay-1": func(f *UpgradeFacts) { clear(f.Secrets) },
	} {
		f := upgradable("a", "v0.2.0", 1, "b")
		remove(f)
		_, err := MakeUpgrades([]*UpgradeFacts{f})
		if e := (*failure.Error)(nil); !errors.As(err, &e) || e.Kind != failure.NotReady || e.Hint == "" || !strings.Contains(err.Error(), want) {
			t.Errorf("without %s: %v", want, err)
		}
	}
}
