package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/version"
)

// UpgradeFacts are the facts and the intent of a cluster whose agents get this command's version. All of its Peerings are
// in OtherPeerings.
type UpgradeFacts struct {
	Facts Facts
	Intent
	// Services are the gateways' Services, by the name of the Peering.
	Services map[string]*corev1.Service
	// Secrets are the names of the Secrets with keys, nil if the user may not list them.
	Secrets map[string]bool
}

// Upgrade is what brings the agents of one cluster to this command's version, and why. Nothing in it depends on the
// peers, except temporary planes.
type Upgrade struct {
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterID"`
	// From and To are versions.
	From string `json:"from"`
	To   string `json:"to"`
	// Choices are the decisions, Steps the changes in their order.
	Choices []Statement `json:"choices"`
	Steps   []Statement `json:"steps"`
	// Objects are those after the upgrade.
	Objects []ObjectPlan `json:"objects"`
	// Notes are for the user.
	Notes []string `json:"notes,omitempty"`

	// Agents are the new agents.
	Agents *NodeAgents `json:"-"`
	// Gateways are in groups that are upgraded one after the other: no group contains two planes of one peering.
	Gateways [][]UpgradeGateway `json:"-"`
	// Peerings are those that can be read.
	Peerings []*v1alpha1.Peering `json:"-"`
}

// UpgradeGateway is a gateway to replace.
type UpgradeGateway struct {
	manifests.Gateway
	// NoRedundancy means that packets have no other path.
	NoRedundancy bool
}

// Upgrades are the upgrades of several clusters by one command.
type Upgrades struct {
	Clusters []*Upgrade `json:"clusters"`
	// Temporary are the indexes of clusters whose peering has one plane, and gets a second one while its gateways are
	// replaced.
	Temporary [][2]int `json:"-"`
}

// MakeUpgrades plans the upgrades of clusters by one command.
func MakeUpgrades(facts []*UpgradeFacts) (*Upgrades, error) {
	out := &Upgrades{}
	for i, f := range facts {
		u, err := f.upgrade(facts)
		if err != nil {
			return nil, err
		}
		out.Clusters = append(out.Clusters, u)
		for k := i + 1; k < len(facts); k++ {
			if f.hasTemporary(facts[k]) {
				out.Temporary = append(out.Temporary, [2]int{i, k})
			}
		}
	}
	return out, nil
}

// forPeering returns the input for planning one Peering.
func (f *UpgradeFacts) forPeering(p *v1alpha1.Peering) *input {
	own := &input{f.Facts, f.Intent}
	own.facts.Existing, own.facts.Owner, own.facts.Service = p, p.UID, f.Services[p.Name]
	return own
}

// hasTemporary reports whether the peering with another upgraded cluster has one plane, and can get a second one during
// the upgrade.
func (f *UpgradeFacts) hasTemporary(peer *UpgradeFacts) bool {
	return peer != nil && f.canAddPlane(peer.Facts.Network.ClusterID) && peer.canAddPlane(f.Facts.Network.ClusterID)
}

func (f *UpgradeFacts) canAddPlane(peerID string) bool {
	p, isPeered := lo.Find(f.Facts.OtherPeerings, func(p v1alpha1.Peering) bool { return p.Spec.Remote.ClusterID == peerID })
	own := f.forPeering(&p)
	return isPeered && len(own.facts.PlaneIndexes()) == 1 && len(own.givenEndpoints()) == 0
}

// check refuses an upgrade if there are no agents, or if the user chose their image.
func (f *UpgradeFacts) check() error {
	switch has := f.Facts.Installed; {
	case has.Image == "":
		return f.Facts.usageError("upgrade", "kubectl liqonet peer installs them, of version "+f.Version,
			errors.New("there are no agents: it is not peered"))
	case f.Overrides.Image == "" && has.Version != f.Version && has.Image != version.AgentImage(has.Version):
		return f.Facts.usageError("upgrade", "give the image of that version with --agent-image",
			fmt.Errorf("its image %q was set by --agent-image, and this command has version %s", has.Image, f.Version))
	}
	return nil
}

// upgrade plans the upgrade of one of the clusters.
func (f *UpgradeFacts) upgrade(all []*UpgradeFacts) (*Upgrade, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	own := &input{f.Facts, f.Intent}
	agents, image := own.agents()
	agents.OverlayKeys = own.overlayKeys(f.Facts.Ledger)
	u := &Upgrade{
		Cluster: f.Facts.Network.Name, ClusterID: f.Facts.Network.ClusterID,
		From: f.Facts.Installed.Version, To: agents.Agents.Version, Agents: &agents,
	}
	why := "this command's; the agents have it already"
	if u.From != u.To {
		why = fmt.Sprintf("this command's; the agents have %s", cmp.Or(u.From, "an unknown one"))
	}
	u.Choices = []Statement{statement("version", u.To, why), image}
	if notReady := f.Facts.Network.agentNodes(false); len(notReady) > 0 {
		addNote(&u.Notes, "not ready, and not waited for: %s", strings.Join(notReady, ", "))
	}
	l := &list{}
	l.addCRDs()
	const reason = "namespace, account and permissions of the node agents"
	l.add(Accounts, "", reason, manifests.Namespace())
	l.addNodeAgents(u.Agents, reason)
	if slices.ContainsFunc(f.Facts.OtherPeerings, func(p v1alpha1.Peering) bool { return p.Spec.Services != nil }) {
		l.addServices(u.Agents, f.Facts.Services.Foreign)
	}
	var exposed []manifests.Object
	byPlane := map[int32][]UpgradeGateway{}
	for i := range f.Facts.OtherPeerings {
		p := &f.Facts.OtherPeerings[i]
		if p.Incomplete() {
			addNote(&u.Notes, "Peering %s is not complete, or cannot be read, and is left out: kubectl liqonet peer %s %s", p.Name, failure.Quote(u.Cluster), failure.Quote(p.Name))
			continue
		}
		u.Peerings = append(u.Peerings, manifests.Peering(p.Name, *p.Spec.DeepCopy()))
		exposed = append(exposed, u.addGateways(f, p, all, byPlane)...)
	}
	for plane := range int32(ipam.Planes) {
		u.Gateways = append(u.Gateways, groups(byPlane[plane], len(u.Gateways) == 0)...)
	}
	for _, g := range slices.Concat(u.Gateways...) {
		l.addGateway(g.Gateway, g.Peering)
	}
	l.add(Exposure, "", "shared by all gateways of a peering", exposed...)
	for _, p := range u.Peerings {
		l.add(noStage, "", "the configuration of gateways and nodes", p)
	}
	u.Objects = l.objects
	u.addSteps(f)
	return u, u.checkKeys(f)
}

// addGateways adds the gateways of a peering, as its Peering describes them. It returns the objects that belong to all of
// them.
func (u *Upgrade) addGateways(
	f *UpgradeFacts, p *v1alpha1.Peering, all []*UpgradeFacts, byPlane map[int32][]UpgradeGateway,
) (exposed []manifests.Object) {
	peer, _ := lo.Find(all, func(other *UpgradeFacts) bool { return other.Facts.Network.ClusterID == p.Spec.Remote.ClusterID })
	own, hasTemporary := f.forPeering(p), f.hasTemporary(peer)
	permanent := own.facts.PlaneIndexes()
	alone := len(p.Spec.Planes) == 1 && !hasTemporary
	if alone {
		name := cmp.Or(p.Spec.Remote.Name, p.Name)
		why := fmt.Sprintf("with both clusters (kubectl liqonet upgrade %s %s) it gets a second one in the meantime", failure.Quote(u.Cluster), failure.Quote(name))
		if peer != nil {
			why = "--endpoint names its endpoint, so there can be no second one in the meantime"
		}
		addNote(&u.Notes, "the peering of %s and %s has one gateway in %[1]s: no packets pass while it is replaced; %[3]s", u.Cluster, name, why)
	}
	var planes []int32
	for _, plane := range p.Spec.Planes {
		if plane.Temporary && hasTemporary {
			continue // it is replaced, and removed, with the peer's
		}
		planes = append(planes, plane.Index)
		g := own.facts.Gateway(p.Name, plane.Index)
		g.Agents, g.Role, g.WireGuard, g.Temporary = u.Agents.Agents, plane.Role, plane.WireGuard, plane.Temporary
		g.OverlayKey, g.Placement = own.linkKey(plane.Index, OverlayKey(f.Facts.Ledger)), p.Spec.Gateways
		g.Planes = len(permanent)
		byPlane[plane.Index] = append(byPlane[plane.Index], UpgradeGateway{g, alone})
	}
	if own.facts.Service != nil && own.facts.role() == v1alpha1.Server {
		exposed = append(exposed, own.service(p.Name, planes))
	}
	if len(permanent) > 1 {
		exposed = append(exposed, manifests.SetOwner(manifests.GatewayBudget(p.Name), p.Name, own.facts.Owner))
	}
	return exposed
}

// checkKeys refuses an upgrade if a Secret that pods mount is missing.
func (u *Upgrade) checkKeys(f *UpgradeFacts) error {
	missing := lo.Map(u.Agents.OverlayKeys, func(key int32, _ int) string { return manifests.OverlaySecretName(key) })
	for _, g := range slices.Concat(u.Gateways...) {
		missing = append(missing, g.SecretName())
		if g.PresharedKey > 0 {
			missing = append(missing, g.PresharedSecretName())
		}
	}
	missing = slices.DeleteFunc(missing, func(name string) bool { return f.Secrets == nil || f.Secrets[name] })
	if len(missing) == 0 {
		return nil
	}
	return &failure.Error{
		Kind: failure.NotReady, Cluster: f.Facts.Network.Name, Op: "upgrade", Hint: "kubectl liqonet peer creates new ones",
		Err: fmt.Errorf("agents do not start without keys that are gone: Secrets %s", strings.Join(union(missing), ", ")),
	}
}

// addSteps describes the changes, in their order.
func (u *Upgrade) addSteps(f *UpgradeFacts) {
	nodes := lo.Map(f.Facts.NodeGroups(), func(group []string, _ int) string { return strings.Join(group, ", ") })
	u.Steps = []Statement{
		statement("definitions and permissions", "those of this command", "definitions only get additions, and are never downgraded"),
		statement("node agents", strings.Join(nodes, "; "), "one first, then a quarter at a time; packets continue to pass"),
	}
	for _, group := range u.Gateways {
		stops := slices.ContainsFunc(group, func(g UpgradeGateway) bool { return g.NoRedundancy })
		reason := lo.Ternary(stops, "there is no other plane: packets stop until it runs", "nodes use another plane until it runs")
		peers := lo.Map(group, func(g UpgradeGateway, _ int) string { return g.Peering })
		u.Steps = append(u.Steps, statement(fmt.Sprintf("gateways of plane %d", group[0].Plane), strings.Join(peers, ", "), reason))
	}
}

// Changes returns the number of objects that are not kept.
func (u *Upgrade) Changes() int {
	// A temporary plane is removed if the peer is upgraded as well.
	temporary := lo.SumBy(u.Peerings, func(p *v1alpha1.Peering) int {
		return lo.CountBy(p.Spec.Planes, func(plane v1alpha1.Plane) bool { return plane.Temporary })
	})
	return temporary + changes(u.Objects)
}
