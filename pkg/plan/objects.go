package plan

import (
	"fmt"
	"net/netip"

	"github.com/samber/lo"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// Action is the change to an object.
type Action string

// The actions.
const (
	Create Action = "create"
	Change Action = "change"
	Keep   Action = "keep"
	Delete Action = "delete"
	// Unclear is for an object that the user may not read.
	Unclear Action = "unclear"
)

// ObjectPlan is a planned object. Fields that become known during the run are unknown Values.
type ObjectPlan struct {
	Action     Action `json:"action"`
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	// MadeBy is the creator, if it is not the command itself.
	MadeBy string `json:"madeBy,omitempty"`
	Reason string `json:"reason"`
	// Manifest is what is applied. Omitted fields belong to the API server or others. A Secret has no data here.
	Manifest map[string]any `json:"manifest,omitempty"`

	// stage is when the object is applied, of is the name of the gateway that it belongs to.
	stage  Stage
	of     string
	object manifests.Object
}

// Stage is a part of a run that applies objects that do not depend on each other.
type Stage int

// The stages. Objects without one are created in other ways: keys are created once, the ledger is claimed, and the nodes'
// objects are created by their agents.
const (
	noStage Stage = iota
	Definitions
	// Accounts and Workload are for the node agents. All peerings share the DaemonSet, so it is computed again when it is
	// written.
	Accounts
	Workload
	// Exposure is for all gateways of a peering, GatewayAccount and GatewayWorkload are for one.
	Exposure
	GatewayAccount
	GatewayWorkload
	// Peerings are applied one by one, with the endpoints known by then.
	Peerings
)

// Staged returns the objects of a list that are applied in a stage, for one gateway or, with an empty name, for none.
func Staged(all []ObjectPlan, stage Stage, gateway string) []manifests.Object {
	return lo.FilterMap(all, func(o ObjectPlan, _ int) (manifests.Object, bool) {
		return o.object, o.stage == stage && o.of == gateway
	})
}

// planObjects lists every object, in the order of creation.
func (c *ClusterPlan) planObjects(own *Facts) {
	l := &list{}
	l.addDefinitions()
	l.add(noStage, "", "for the agents", manifests.Namespace())
	for _, key := range c.NodeAgents.OverlayKeys {
		l.add(noStage, "", "the key that keeps others out of the overlay; created once, and never shown", manifests.OverlaySecret(key, nil))
	}
	l.add(noStage, "", "the identity by which peers recognise the cluster; created once, and never shown", manifests.Identity(nil))
	l.addNodeAgents(&c.NodeAgents, "account and permissions of the node agents")
	ledger := manifests.ClusterNetwork(c.Ledger.Spec)
	l.add(noStage, "", fmt.Sprintf("the ledger: an entry for %s, and the ranges allocated to it", c.Peer), ledger)
	l.objects = append(l.objects, plannedNodes(own, c.Ledger.Spec.InternalCIDR.Prefix)...)
	if c.Service != nil {
		l.add(Exposure, "", "through which the gateways of "+c.Peer+" reach this cluster's", c.Service)
	} else if own.Service != nil {
		l.addOther(Delete, "v1", "Service", own.Service.Name, "the gateways are clients now")
	}
	switch {
	case c.Budget != nil:
		l.add(Exposure, "", "lets nodes with gateways be drained only one after the other", c.Budget)
	case len(own.existingPlanes()) > 1:
		stale := manifests.GatewayBudget(c.Peering.Name)
		l.addOther(Delete, stale.APIVersion, stale.Kind, stale.Name, "it is for several gateways")
	}
	for _, g := range c.Gateways {
		l.add(noStage, "", "the gateway's WireGuard key; created once, and never shown", g.Secret(nil))
		if g.PresharedKey > 0 {
			l.add(noStage, "", "the tunnel's pre-shared key, the same in both clusters; created once, and never shown", g.PresharedSecret(nil))
		}
		l.addGateway(g, c.Peer)
	}
	l.add(Peerings, "", "the configuration of this cluster's gateways and nodes", c.Peering)
	c.showUnknown(l.objects[len(l.objects)-1].Manifest)
	for _, plane := range own.existingPlanes() {
		if c.Peering.Plane(plane.Index) == nil {
			l.addOther(Delete, "apps/v1", "Deployment", v1alpha1.GatewayName(c.Peering.Name, plane.Index),
				"the plane is removed, with its account, keys and Lease")
		}
	}
	l.addOldOverlayKey(c, own)
	c.Objects = l.objects
}

// plannedNodes returns the objects that node agents create: for each a report, and the Lease that holds its overlay
// address.
func plannedNodes(own *Facts, internal netip.Prefix) []ObjectPlan {
	reports := ReportsByNode(own.Reports)
	taken := lo.MapEntries(reports, func(_ string, r *v1alpha1.NodeNetwork) (netip.Addr, bool) { return r.Status.Address.Addr, true })
	var out []ObjectPlan
	for _, node := range own.Network.agentNodes(true) {
		o := ObjectPlan{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeNetwork", Name: node,
			Action: Create, MadeBy: "the agent of node " + node, Reason: "the node's report",
		}
		var addr netip.Addr
		if r := reports[node]; r != nil {
			addr, o.Action = r.Status.Address.Addr, Keep
		}
		for i := 0; i < ipam.MaxNode && (!addr.IsValid() || o.Action == Create && taken[addr]); i++ {
			addr, _ = ipam.NodeAddr(internal, ipam.NodeCandidate(node, i)) // both are in their range
		}
		taken[addr] = true
		lease := ObjectPlan{
			APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeLease(addr),
			Action: o.Action, MadeBy: o.MadeBy, Reason: "the node's overlay address: the first free one, by the node's name",
		}
		out = append(out, o, lease)
	}
	return out
}

// list builds a list of objects.
type list struct{ objects []ObjectPlan }

// add lists objects that are applied in a stage.
func (l *list) add(stage Stage, gateway, reason string, objs ...manifests.Object) {
	for _, obj := range objs {
		u := manifests.ToApply(obj)
		if peering := obj.GetLabels()[v1alpha1.LabelPeering]; peering != "" && u.GetKind() != "Peering" && obj.GetOwnerReferences() == nil {
			owner, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(&manifests.Owner(peering, "")[0])
			owner["uid"] = Later("of Peering " + peering).forJSON()
			_ = unstructured.SetNestedSlice(u.Object, []any{owner}, "metadata", "ownerReferences") // every object has metadata
		}
		l.objects = append(l.objects, ObjectPlan{
			APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName(),
			Reason: reason, Manifest: u.Object, stage: stage, of: gateway, object: obj,
		})
	}
}

// addOther lists an object of our namespace that is deleted or changed, not applied.
func (l *list) addOther(action Action, apiVersion, kind, name, reason string) {
	l.objects = append(l.objects, ObjectPlan{
		Action: action, APIVersion: apiVersion, Kind: kind, Namespace: v1alpha1.Namespace, Name: name, Reason: reason,
	})
}

// addDefinitions lists the custom resource definitions.
func (l *list) addDefinitions() {
	for _, crd := range manifests.CRDs() {
		l.add(Definitions, "", "the API that stores the decisions", crd)
	}
}

// addNodeAgents lists the objects that run node agents, except their namespace and keys.
func (l *list) addNodeAgents(a *NodeAgents, reason string) {
	account, daemonSet := a.Objects()
	l.add(Accounts, "", "lets the agents have the priority of critical pods", manifests.CriticalPods())
	l.add(Accounts, "", reason, account...)
	l.add(Workload, "", "a node agent on every Linux node", daemonSet)
}

// addGateway lists the objects that run a gateway.
func (l *list) addGateway(g manifests.Gateway, peer string) {
	account, deployment := g.Objects()
	l.add(GatewayAccount, g.Name(), "account and permissions of the gateway", account...)
	l.add(GatewayWorkload, g.Name(), "the gateway to "+peer, deployment)
}

// addOldOverlayKey lists what a new overlay key changes in addition to the objects of this peering: the gateways of other
// peerings, and the Secret of the old key.
func (l *list) addOldOverlayKey(c *ClusterPlan, own *Facts) {
	before := OverlayKey(own.ledger())
	if own.Installed.Image == "" || c.Ledger.Spec.OverlayKey.Generation == before {
		return
	}
	for _, p := range own.OtherPeerings {
		for _, plane := range p.Spec.Planes {
			name := manifests.Gateway{Peering: p.Name, Plane: plane.Index}.Name()
			l.addOther(Change, "apps/v1", "Deployment", name, "it gets the new key of the overlay")
		}
	}
	for _, g := range own.givenOverlayKeys(before) {
		if g != own.LostOverlayKey {
			l.addOther(Delete, "v1", "Secret", manifests.OverlaySecretName(g), "a node that has left knows the key")
		}
	}
}
