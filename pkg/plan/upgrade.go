package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/version"
	"github.com/liqonet/liqonet/pkg/wire"
)

// UpgradeFacts are what is known of a cluster whose agents are to be of this command's version, and what is wanted of it. All of its Peerings
// are other ones.
type UpgradeFacts struct {
	Facts
	Intent
	// Services are those of the gateways, by the name of the Peering.
	Services map[string]*corev1.Service
	// Secrets are the names of those with keys, nil where the user may not list them.
	Secrets map[string]bool
}

// Upgrade is what is done in one cluster to bring its agents to this command's version, and why. Nothing of it depends on what the
// peers do, but for temporary planes.
type Upgrade struct {
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterID"`
	// From and To are versions.
	From string `json:"from"`
	To   string `json:"to"`
	// Choices are what was decided, Steps what is done, in this order.
	Choices []Statement `json:"choices"`
	Steps   []Statement `json:"steps"`
	// Objects are those that are there afterwards.
	Objects []ObjectPlan `json:"objects"`
	// Notes are what the user has to know.
	Notes []string `json:"notes,omitempty"`

	// Agents are those that are wanted, as in the plan of a peering.
	Agents *ClusterPlan `json:"-"`
	// Nodes are in groups that are done one after the other. So are the gateways: no two planes of a peering are in
	// one group.
	Nodes    [][]string         `json:"-"`
	Gateways [][]UpgradeGateway `json:"-"`
	// Peerings are those that can be read.
	Peerings []*v1alpha1.Peering `json:"-"`
}

// UpgradeGateway is a gateway that is replaced.
type UpgradeGateway struct {
	manifests.Gateway
	// NoRedundancy says that packets have no other way.
	NoRedundancy bool
}

// Upgrades are those of several clusters that are done together.
type Upgrades struct {
	Clusters []*Upgrade `json:"clusters"`
	// Temporary are the IDs of clusters whose peering has one plane, and gets another one while gateways are replaced.
	Temporary [][2]string `json:"-"`
}

// MakeUpgrades plans for clusters that are upgraded by one command.
func MakeUpgrades(facts []*UpgradeFacts) (*Upgrades, error) {
	out := &Upgrades{}
	for i, f := range facts {
		u, err := f.upgrade(facts)
		if err != nil {
			return nil, err
		}
		out.Clusters = append(out.Clusters, u)
		for _, peer := range facts[i+1:] {
			if f.hasTemporary(peer) {
				out.Temporary = append(out.Temporary, [2]string{f.ClusterID, peer.ClusterID})
			}
		}
	}
	return out, nil
}

// of is what the planner of a peering knows of the one of a Peering.
func (f *UpgradeFacts) of(p *v1alpha1.Peering) *sheet {
	own := &sheet{f.Facts, f.Intent}
	own.Existing, own.Owner, own.Service = p, p.UID, f.Services[p.Name]
	return own
}

// hasTemporary says that the peering with another cluster that is upgraded has one plane, and can have another one at that time.
func (f *UpgradeFacts) hasTemporary(peer *UpgradeFacts) bool {
	return peer != nil && f.canHaveAnother(peer.ClusterID) && peer.canHaveAnother(f.ClusterID)
}

func (f *UpgradeFacts) canHaveAnother(peerID string) bool {
	p, isPeered := lo.Find(f.OtherPeerings, func(p v1alpha1.Peering) bool { return p.Spec.Remote.ClusterID == peerID })
	own := f.of(&p)
	return isPeered && len(own.PlaneIndexes()) == 1 && len(own.givenEndpoints()) == 0
}

// check refuses what has nothing to do with what the cluster is like at the moment.
func (f *UpgradeFacts) check() error {
	switch has := f.Installed; {
	case has.Image == "":
		return f.refuse("upgrade", "kubectl liqonet peer installs them, of version "+f.Version,
			errors.New("there are no agents: it is not peered"))
	case f.Overrides.Image == "" && has.Version != f.Version && has.Image != version.AgentImage(has.Version):
		return f.refuse("upgrade", "give the image of that version by --agent-image",
			fmt.Errorf("its image %q was chosen by --agent-image, and this command is of version %s", has.Image, f.Version))
	}
	return nil
}

// upgrade plans for one of the clusters.
func (f *UpgradeFacts) upgrade(all []*UpgradeFacts) (*Upgrade, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	agents, image := (&sheet{f.Facts, f.Intent}).agents()
	u := &Upgrade{Cluster: f.Name, ClusterID: f.ClusterID, From: f.Installed.Version, To: agents.Version}
	why := "this command's; the agents are of it already"
	if u.From != u.To {
		why = fmt.Sprintf("this command's; the agents are of %s", cmp.Or(u.From, "one that is not known"))
	}
	u.Choices = []Statement{known("version", u.To, why), image}
	u.Agents = &ClusterPlan{Agents: agents, NodeMetrics: f.NodeMetrics, Ledger: f.Ledger}
	u.Agents.OverlayKeys = u.Agents.overlayKeys(&f.Facts)
	u.Nodes = f.NodeGroups()
	if notReady := f.agentNodes(false); len(notReady) > 0 {
		u.note("not ready, and not waited for: %s", strings.Join(notReady, ", "))
	}
	l := &list{}
	l.addDefinitions()
	const reason = "namespace, account and permissions of the node agents"
	l.add(Accounts, "", reason, manifests.Namespace())
	l.addNodeAgents(u.Agents, reason)
	var exposed []manifests.Object
	byPlane := map[int32][]UpgradeGateway{}
	for i := range f.OtherPeerings {
		p := &f.OtherPeerings[i]
		if p.Incomplete() {
			u.note("Peering %s is not complete, or cannot be read, and is left out: kubectl liqonet peer %s %s", p.Name, f.Name, p.Name)
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
	l.add(Exposure, "", "what belongs to all gateways of a peering", exposed...)
	for _, p := range u.Peerings {
		l.add(Peerings, "", "what gateways and nodes do", p)
	}
	u.Objects = l.objects
	u.addSteps()
	return u, cmp.Or(l.err, u.checkKeys(f))
}

func (u *Upgrade) note(format string, args ...any) {
	u.Notes = append(u.Notes, fmt.Sprintf(format, args...))
}

// addGateways adds those of a peering, which are as its Peering says. It returns what belongs to all of them.
func (u *Upgrade) addGateways(
	f *UpgradeFacts, p *v1alpha1.Peering, all []*UpgradeFacts, byPlane map[int32][]UpgradeGateway,
) (exposed []manifests.Object) {
	peer, _ := lo.Find(all, func(other *UpgradeFacts) bool { return other.ClusterID == p.Spec.Remote.ClusterID })
	own, hasTemporary := f.of(p), f.hasTemporary(peer)
	permanent := own.PlaneIndexes()
	alone := len(p.Spec.Planes) == 1 && !hasTemporary
	if alone {
		name := cmp.Or(p.Spec.Remote.Name, p.Name)
		why := fmt.Sprintf("with both clusters (kubectl liqonet upgrade %s %s) it gets another one meanwhile", f.Name, name)
		if peer != nil {
			why = "--endpoint names where it is called, so it can have no other one meanwhile"
		}
		u.note("the peering of %s and %s has one gateway in %s: no packets pass while the next one starts; %s", f.Name, name, f.Name, why)
	}
	var planes []int32
	for _, plane := range p.Spec.Planes {
		if plane.Temporary && hasTemporary {
			continue // it is replaced, and removed, with the peer's
		}
		planes = append(planes, plane.Index)
		g := own.Gateway(p.Name, plane.Index)
		g.Agents, g.Role, g.WireGuard, g.Temporary = u.Agents.Agents, plane.Role, plane.WireGuard, plane.Temporary
		g.OverlayKey, g.Port, g.Placement = own.linkKey(plane.Index, OverlayKey(f.Ledger)), wire.TunnelPort, p.Spec.Gateways
		g.Planes = len(permanent)
		byPlane[plane.Index] = append(byPlane[plane.Index], UpgradeGateway{g, alone})
	}
	if own.Service != nil && own.role() == v1alpha1.Server {
		exposed = append(exposed, own.service(p.Name, planes))
	}
	if len(permanent) > 1 {
		exposed = append(exposed, manifests.Owned(manifests.GatewayBudget(p.Name), p.Name, own.Owner))
	}
	return exposed
}

// groups puts things into groups that are done one after the other: a quarter at a time. If it is the first time that something of
// the kind is done, a single one comes before.
func groups[T any](all []T, first bool) (out [][]T) {
	quarter := (len(all) + 3) / 4
	if first && len(all) > 0 {
		out, all = append(out, all[:1]), all[1:]
	}
	return slices.AppendSeq(out, slices.Chunk(all, max(quarter, 1)))
}

// checkKeys refuses what would leave pods without something that they mount.
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
	slices.Sort(missing)
	return &failure.Error{
		Kind: failure.NotReady, Cluster: f.Name, Doing: "upgrade", Hint: "kubectl liqonet peer makes others",
		Err: fmt.Errorf("keys are gone, without which agents do not start: Secrets %s", strings.Join(slices.Compact(missing), ", ")),
	}
}

// addSteps says what is done, in its order.
func (u *Upgrade) addSteps() {
	nodes := lo.Map(u.Nodes, func(group []string, _ int) string { return strings.Join(group, ", ") })
	u.Steps = []Statement{
		known("definitions and permissions", "those of this command", "definitions are changed by addition only, and never go back"),
		known("node agents", strings.Join(nodes, "; "), "one first, then a quarter at a time; packets pass meanwhile"),
	}
	for _, group := range u.Gateways {
		stops := slices.ContainsFunc(group, func(g UpgradeGateway) bool { return g.NoRedundancy })
		reason := lo.Ternary(stops, "there is no other plane: packets stop until it runs", "nodes use another plane until it runs")
		peers := lo.Map(group, func(g UpgradeGateway, _ int) string { return g.Peering })
		u.Steps = append(u.Steps, known(fmt.Sprintf("gateways of plane %d", group[0].Plane), strings.Join(peers, ", "), reason))
	}
}

// Changes counts the objects that are not kept.
func (u *Upgrade) Changes() int {
	// A temporary plane goes, if the peer is upgraded as well.
	temporary := lo.SumBy(u.Peerings, func(p *v1alpha1.Peering) int {
		return lo.CountBy(p.Spec.Planes, func(plane v1alpha1.Plane) bool { return plane.Temporary })
	})
	return temporary + changes(u.Objects)
}
