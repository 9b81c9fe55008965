package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/version"
)

// UpgradeFacts are what is known of a cluster whose agents are to be of another version.
type UpgradeFacts struct {
	Name, ClusterID string
	// Command is the version of this command, with the image of that version.
	Command manifests.Agents
	// Image is the one that is asked for, empty to decide.
	Image string
	// Installed are the node agents that are there, without an image if there are none.
	Installed manifests.Agents
	// NodeMetrics says that they show their metrics at their nodes' own addresses.
	NodeMetrics bool
	// OverlayKeys are the generations of the overlay's keys that they are given.
	OverlayKeys []int32
	Ledger      *v1alpha1.ClusterNetwork
	Peerings    []v1alpha1.Peering
	// Services are those of the gateways, by the name of the Peering.
	Services map[string]*corev1.Service
	// Secrets are the names of those with keys, nil where the user may not list them.
	Secrets map[string]bool
	// Nodes have agents, and are ready. NotReady are left out.
	Nodes, NotReady []string
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

	// Agents are those that are wanted.
	Agents manifests.Agents `json:"-"`
	// DaemonSet runs the agents of nodes.
	DaemonSet *appsv1.DaemonSet `json:"-"`
	// Nodes are in groups that are done one after the other. So are the gateways: no two planes of a peering are in
	// one group.
	Nodes    [][]string         `json:"-"`
	Gateways [][]UpgradeGateway `json:"-"`
	// Peerings are those that can be read, exposed is what else belongs to the gateways of all planes.
	Peerings []*v1alpha1.Peering `json:"-"`
	exposed  []manifests.Object
}

// UpgradeGateway is a gateway that is replaced.
type UpgradeGateway struct {
	manifests.Gateway
	// Alone says that packets have no other way.
	Alone bool
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
	for _, f := range facts {
		u, err := f.upgrade(facts)
		if err != nil {
			return nil, err
		}
		out.Clusters = append(out.Clusters, u)
	}
	for i, f := range facts {
		for _, peer := range facts[i+1:] {
			if f.hasTemporary(peer) {
				out.Temporary = append(out.Temporary, [2]string{f.ClusterID, peer.ClusterID})
			}
		}
	}
	return out, nil
}

// among is the cluster with that ID, nil if it is not among those that are upgraded.
func among(facts []*UpgradeFacts, id string) *UpgradeFacts {
	if i := slices.IndexFunc(facts, func(f *UpgradeFacts) bool { return f.ClusterID == id }); i >= 0 {
		return facts[i]
	}
	return nil
}

// peeringWith is the one with a cluster, nil if there is none.
func (f *UpgradeFacts) peeringWith(id string) *v1alpha1.Peering {
	if i := slices.IndexFunc(f.Peerings, func(p v1alpha1.Peering) bool { return p.Spec.Remote.ClusterID == id }); i >= 0 {
		return &f.Peerings[i]
	}
	return nil
}

// oneEndpoint says that the user has named where the one gateway of a peering is called.
func (f *UpgradeFacts) oneEndpoint(peering string) bool {
	s := f.Services[peering]
	return s != nil && s.Annotations[AnnotationEndpoints] != ""
}

// hasTemporary says that the peering of two clusters that are upgraded has one plane, and can have another one meanwhile.
func (f *UpgradeFacts) hasTemporary(peer *UpgradeFacts) bool {
	own, of := f.peeringWith(peer.ClusterID), peer.peeringWith(f.ClusterID)
	return own != nil && of != nil && len(permanent(own)) == 1 && len(permanent(of)) == 1 && !f.oneEndpoint(own.Name) && !peer.oneEndpoint(of.Name)
}

// permanent are the planes of a peering but temporary ones.
func permanent(p *v1alpha1.Peering) []v1alpha1.Plane {
	return slices.DeleteFunc(slices.Clone(p.Spec.Planes), func(plane v1alpha1.Plane) bool { return plane.Temporary })
}

// refused is an error that has nothing to do with what the cluster is like at the moment.
func (f *UpgradeFacts) refused(err error, hint string) error {
	return &failure.Error{Kind: failure.Usage, Cluster: f.Name, Doing: "upgrade", Err: err, Hint: hint}
}

// target are the agents that are wanted, and why: those of this command.
func (f *UpgradeFacts) target() (a manifests.Agents, s Statement, err error) {
	has, a := f.Installed, f.Command
	s = Statement{What: "image of the agents", Reason: "the published one of this version"}
	switch {
	case has.Image == "":
		return a, s, f.refused(errors.New("there are no agents: it is not peered"), "kubectl liqonet peer installs them, of version "+a.Version)
	case f.Image != "":
		a.Image, s.Reason = f.Image, "given by --agent-image"
	case has.Version == a.Version:
		a.Image, s.Reason = has.Image, "as before"
	case has.Image != version.AgentImage(has.Version):
		return a, s, f.refused(fmt.Errorf("its image %q was chosen by --agent-image, and this command is of version %s", has.Image, a.Version), "give the image of that version by --agent-image")
	}
	s.Value = Known(a.Image)
	return a, s, nil
}

// upgrade plans for one of the clusters.
func (f *UpgradeFacts) upgrade(all []*UpgradeFacts) (*Upgrade, error) {
	agents, image, err := f.target()
	if err != nil {
		return nil, err
	}
	u := &Upgrade{Cluster: f.Name, ClusterID: f.ClusterID, From: f.Installed.Version, To: agents.Version, Agents: agents}
	u.Choices = append(u.Choices, Statement{What: "version", Value: Known(agents.Version), Reason: f.why()}, image)
	l := &list{}
	l.addDefinitions()
	account, daemonSet := manifests.NodeAgent(agents, f.keys())
	if u.DaemonSet = daemonSet; f.NodeMetrics {
		manifests.ShowNodeMetrics(daemonSet)
	}
	l.add(Accounts, "", "namespace, account and permissions of the node agents", append([]manifests.Object{manifests.Namespace(), manifests.CriticalPods()}, account...)...)
	l.add(Workload, "", "a node agent on every Linux node", daemonSet)
	u.Nodes = groups(f.Nodes, true)
	u.addGateways(f, all)
	if err := f.check(u); err != nil {
		return nil, err
	}
	u.addSteps(f)
	for _, g := range slices.Concat(u.Gateways...) {
		l.addGateway(&g.Gateway, g.Peering)
	}
	l.add(Exposure, "", "what belongs to all gateways of a peering", u.exposed...)
	for _, p := range u.Peerings {
		l.add(Peerings, "", "what gateways and nodes do", p)
	}
	u.Objects = l.objects
	return u, l.err
}

func (f *UpgradeFacts) why() string {
	if f.Installed.Version == f.Command.Version {
		return "this command's; the agents are of it already"
	}
	return fmt.Sprintf("this command's; the agents are of %s", cmp.Or(f.Installed.Version, "one that is not known"))
}

// sheet has what the planner for two clusters needs to know of a peering's keys.
func (f *UpgradeFacts) sheet(p *v1alpha1.Peering) *sheet {
	return &sheet{Facts: Facts{Ledger: f.Ledger, OverlayKeys: f.OverlayKeys, Existing: p}}
}

// keys are the overlay's keys that node agents have.
func (f *UpgradeFacts) keys() []int32 { return f.sheet(nil).givenOverlayKeys(OverlayKey(f.Ledger)) }

// addGateways adds the gateways of all peerings, and what belongs to them.
func (u *Upgrade) addGateways(f *UpgradeFacts, all []*UpgradeFacts) {
	byPlane := map[int32][]UpgradeGateway{}
	for i := range f.Peerings {
		p := &f.Peerings[i]
		planes := permanent(p)
		if len(planes) == 0 {
			u.Notes = append(u.Notes, fmt.Sprintf("Peering %s is not complete, or cannot be read, and is left out: kubectl liqonet peer %s %s", p.Name, f.Name, p.Name))
			continue
		}
		peer := among(all, p.Spec.Remote.ClusterID)
		alone := len(p.Spec.Planes) == 1 && (peer == nil || !f.hasTemporary(peer))
		if alone {
			u.Notes = append(u.Notes, f.whyAlone(p, peer))
		}
		for _, plane := range p.Spec.Planes {
			g := manifests.Gateway{
				Peering: p.Name, Owner: p.UID, Plane: plane.Index, Agents: u.Agents, Role: plane.Role, WireGuard: plane.WireGuard,
				KeyGeneration: max(plane.KeyGeneration, 1), PresharedKey: plane.PresharedKey.Generation, OverlayKey: f.sheet(p).linkKey(plane.Index, OverlayKey(f.Ledger)),
				Temporary: plane.Temporary, Port: gatewayPort, Planes: len(planes), Placement: p.Spec.Gateways,
			}
			if !plane.Temporary || peer == nil || !f.hasTemporary(peer) { // otherwise it is replaced, and removed, with the peer's
				byPlane[plane.Index] = append(byPlane[plane.Index], UpgradeGateway{g, alone})
			}
		}
		u.Peerings = append(u.Peerings, manifests.Peering(p.Name, *p.Spec.DeepCopy()))
		if s := f.Services[p.Name]; s != nil && planes[0].Role == v1alpha1.Server {
			stay := p.Spec.Planes
			if peer != nil && f.hasTemporary(peer) {
				stay = planes
			}
			u.exposed = append(u.exposed, manifests.Owned(exposedAgain(s, p.Name, stay), p.Name, p.UID))
		}
		if len(planes) > 1 {
			u.exposed = append(u.exposed, manifests.Owned(manifests.GatewayBudget(p.Name), p.Name, p.UID))
		}
	}
	first := true
	for plane := range int32(4) {
		u.Gateways = append(u.Gateways, groups(byPlane[plane], first)...)
		first = first && len(byPlane[plane]) == 0
	}
}

// exposedAgain is the Service of a peering's gateways as this version makes it.
func exposedAgain(s *corev1.Service, peering string, planes []v1alpha1.Plane) *corev1.Service {
	var indexes []int32
	for _, plane := range planes {
		indexes = append(indexes, plane.Index)
	}
	out := manifests.GatewayService(peering, s.Spec.Type, gatewayPort, indexes)
	out.Annotations[AnnotationEndpoints] = s.Annotations[AnnotationEndpoints]
	return out
}

// whyAlone says why packets of a peering stop while its gateway is replaced.
func (f *UpgradeFacts) whyAlone(p *v1alpha1.Peering, peer *UpgradeFacts) string {
	name := cmp.Or(p.Spec.Remote.Name, p.Name)
	lost := fmt.Sprintf("the peering of %s and %s has one gateway in %s: no packets pass while the next one starts; ", f.Name, name, f.Name)
	if peer == nil {
		return lost + fmt.Sprintf("with both clusters (kubectl liqonet upgrade %s %s) it gets another one meanwhile", f.Name, name)
	}
	return lost + "--endpoint names where it is called, so it can have no other one meanwhile"
}

// groups puts things into groups that are done one after the other: a quarter at a time. If it is the first time that something of
// the kind is done, a single one comes before.
func groups[T any](all []T, first bool) (out [][]T) {
	quarter := (len(all) + 3) / 4
	if first && len(all) > 0 {
		out, all = append(out, all[:1]), all[1:]
	}
	for len(all) > 0 {
		n := min(quarter, len(all))
		out, all = append(out, all[:n]), all[n:]
	}
	return out
}

// check refuses what would leave pods without something that they mount.
func (f *UpgradeFacts) check(u *Upgrade) error {
	var missing []string
	need := func(name string) {
		if !f.Secrets[name] {
			missing = append(missing, name)
		}
	}
	for _, key := range f.keys() {
		need(manifests.OverlaySecretName(key))
	}
	for _, g := range slices.Concat(u.Gateways...) {
		need(g.SecretName())
		if g.PresharedKey > 0 {
			need(g.PresharedSecretName())
		}
	}
	if len(missing) == 0 || f.Secrets == nil {
		return nil
	}
	slices.Sort(missing)
	return &failure.Error{
		Kind: failure.NotReady, Cluster: f.Name, Doing: "upgrade", Hint: "kubectl liqonet peer makes others",
		Err: fmt.Errorf("keys are gone, without which agents do not start: Secrets %s", strings.Join(slices.Compact(missing), ", ")),
	}
}

// addSteps says what is done, in its order.
func (u *Upgrade) addSteps(f *UpgradeFacts) {
	nodes := Statement{What: "node agents", Reason: "one first, then a quarter at a time; packets pass meanwhile"}
	var names []string
	for _, group := range u.Nodes {
		names = append(names, strings.Join(group, ", "))
	}
	nodes.Value = Known(strings.Join(names, "; "))
	if len(f.NotReady) > 0 {
		u.Notes = append(u.Notes, "not ready, and not waited for: "+strings.Join(f.NotReady, ", "))
	}
	var gateways []Statement
	for _, group := range u.Gateways {
		s := Statement{What: fmt.Sprintf("gateways of plane %d", group[0].Plane), Reason: "nodes use another plane meanwhile"}
		var peers []string
		for _, g := range group {
			peers = append(peers, g.Peering)
			if g.Alone {
				s.Reason = "there is no other plane: packets stop meanwhile"
			}
		}
		s.Value = Known(strings.Join(peers, ", "))
		gateways = append(gateways, s)
	}
	u.Steps = []Statement{{What: "definitions and permissions", Value: Known("those of this command"), Reason: "definitions are changed by addition only, and never go back"}}
	u.Steps = append(append(u.Steps, nodes), gateways...)
}

// Changes counts the objects that are not kept.
func (u *Upgrade) Changes() int {
	n := 0
	for _, p := range u.Peerings {
		n += len(p.Spec.Planes) - len(permanent(p)) // temporary planes go, if the peer is upgraded as well
	}
	for _, o := range u.Objects {
		if o.Action != Keep {
			n++
		}
	}
	return n
}
