package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
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
	// Creator is the creator, if it is not the command itself.
	Creator string `json:"madeBy,omitempty"`
	Reason  string `json:"reason"`
	// Manifest is what is applied. Omitted fields belong to the API server or others. A Secret has no data here.
	Manifest map[string]any `json:"manifest,omitempty"`

	// stage is when the object is applied, gateway is the name of the gateway that it belongs to.
	stage   Stage
	gateway string
	object  manifests.Object
}

// Stage is a part of a run that applies objects that do not depend on each other.
type Stage int

// The stages. Objects without one are written in other ways: keys are created once, and the ledger is claimed. All peerings
// share the DaemonSet, so it is computed again when it is written. Peerings are applied one by one, with the endpoints
// known by then. The nodes' objects are created by their agents.
const (
	noStage Stage = iota
	CRDs
	// Accounts is for the node agents.
	Accounts
	// Exposure is for all gateways of a peering, GatewayAccount and GatewayWorkload are for one.
	Exposure
	GatewayAccount
	GatewayWorkload
	// ServicesAccounts and ServicesWorkload are for the controller of services.
	ServicesAccounts
	ServicesWorkload
)

// ObjectsInStage returns the objects of a list that are applied in a stage, for one gateway or, with an empty name, for
// none.
func ObjectsInStage(all []ObjectPlan, stage Stage, gateway string) []manifests.Object {
	return lo.FilterMap(all, func(o ObjectPlan, _ int) (manifests.Object, bool) {
		return o.object, o.stage == stage && o.gateway == gateway
	})
}

// planObjects lists every object, in the order of creation.
func (c *ClusterPlan) planObjects(own *Facts) {
	l := &list{}
	l.addCRDs()
	l.add(noStage, "", "for the agents", manifests.Namespace())
	for _, key := range c.NodeAgents.OverlayKeys {
		l.add(noStage, "", "the key that keeps others out of the overlay; created once, and never shown", manifests.OverlaySecret(key, nil))
	}
	l.add(noStage, "", "the identity by which peers recognize the cluster; created once, and never shown", manifests.IdentitySecret(nil))
	l.addNodeAgents(&c.NodeAgents, "account and permissions of the node agents")
	if c.Services {
		l.addServices(&c.NodeAgents, own.Services.Foreign)
	}
	ledger := manifests.ClusterNetwork(c.Ledger.Spec)
	l.add(noStage, "", fmt.Sprintf("the ledger: an entry for %s, and the ranges allocated to it", c.Peer), ledger)
	l.objects = append(l.objects, nodeAgentObjects(own, c.Ledger.Spec.InternalCIDR.Prefix)...)
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
		l.add(noStage, "", "the key of the gateway's links to nodes, derived from the overlay's; never shown", g.OverlaySecret(nil))
		if g.PresharedKey > 0 {
			l.add(noStage, "", "the tunnel's pre-shared key, the same in both clusters; created once, and never shown", g.PresharedSecret(nil))
		}
		l.addGateway(g, c.Peer)
	}
	l.add(noStage, "", "the configuration of this cluster's gateways and nodes", c.Peering)
	c.fillUnknown(l.objects[len(l.objects)-1].Manifest)
	for _, plane := range own.existingPlanes() {
		if c.Peering.Plane(plane.Index) == nil {
			l.addOther(Delete, "apps/v1", "Deployment", v1alpha1.GatewayName(c.Peering.Name, plane.Index),
				"the plane is removed, with its account, keys and Lease")
		}
	}
	l.addOldOverlayKey(c, own)
	c.Objects = l.objects
}

// nodeAgentObjects returns the objects that node agents create: for each a report, and the Lease that holds its overlay
// address.
func nodeAgentObjects(own *Facts, internal netip.Prefix) []ObjectPlan {
	reports := ReportsByNode(own.Reports)
	taken := lo.MapEntries(reports, func(_ string, r *v1alpha1.NodeNetwork) (netip.Addr, bool) { return r.Status.Address.Addr, true })
	var out []ObjectPlan
	for _, node := range own.Network.agentNodes(true) {
		o := ObjectPlan{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeNetwork", Name: node,
			Action: Create, Creator: "the agent of node " + node, Reason: "the node's report",
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
			APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeLeaseName(addr),
			Action: o.Action, Creator: o.Creator, Reason: "the node's overlay address: the first free one, by the node's name",
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
			owner, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(&manifests.OwnerReferences(peering, "")[0])
			owner["uid"] = Pending("of Peering " + peering).jsonValue()
			_ = unstructured.SetNestedSlice(u.Object, []any{owner}, "metadata", "ownerReferences") // every object has metadata
		}
		l.objects = append(l.objects, ObjectPlan{
			APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName(),
			Reason: reason, Manifest: u.Object, stage: stage, gateway: gateway, object: obj,
		})
	}
}

// addOther lists an object of our namespace that is deleted or changed, not applied.
func (l *list) addOther(action Action, apiVersion, kind, name, reason string) {
	l.objects = append(l.objects, ObjectPlan{
		Action: action, APIVersion: apiVersion, Kind: kind, Namespace: v1alpha1.Namespace, Name: name, Reason: reason,
	})
}

// addCRDs lists the custom resource definitions.
func (l *list) addCRDs() {
	for _, o := range plannedCRDs() {
		o.Manifest, o.object = runtime.DeepCopyJSON(o.Manifest), o.object.DeepCopyObject().(manifests.Object)
		l.objects = append(l.objects, o)
	}
}

// plannedCRDs converts them once: their schemas are larger than all other objects.
var plannedCRDs = sync.OnceValue(func() []ObjectPlan {
	l := &list{}
	for _, crd := range manifests.CRDs() {
		l.add(CRDs, "", "the API that stores the decisions", crd)
	}
	return l.objects
})

// addNodeAgents lists the objects that run node agents, except their namespace and keys.
func (l *list) addNodeAgents(a *NodeAgents, reason string) {
	account, daemonSet := a.Objects()
	l.add(Accounts, "", "lets the agents have the priority of critical pods", manifests.CriticalPodsQuota())
	l.add(Accounts, "", reason, account...)
	l.add(noStage, "", "a node agent on every Linux node", daemonSet)
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
	for _, g := range own.installedOverlayKeys(before) {
		if g != own.LostOverlayKey {
			l.addOther(Delete, "v1", "Secret", manifests.OverlaySecretName(g), "a node that has left knows the key")
		}
	}
}

// planPeering adds the cluster's Peering, without keys that are not created yet and endpoints that are not assigned yet.
func (d *draft) planPeering(c *ClusterPlan) error {
	given, got := Allocation(c.Ledger, d.peer.ClusterID), d.peer.Reader
	external := v1alpha1.CIDR{Prefix: got.ExternalCIDR}
	hosts, err := HostMappings(given, got.ExternalCIDR)
	if err != nil {
		return err
	}
	nodes, err := ipam.ExternalMapping(d.peer.InternalCIDR, given.ExternalCIDR.Prefix)
	if err != nil {
		return err
	}
	ips, services := nodeIPs(d.peer.Nodes), d.input.facts.Network.ServiceCIDRs.Prefixes()
	spec := v1alpha1.PeeringSpec{
		Index: given.Index,
		Local: v1alpha1.LocalNetwork{
			ClusterID: c.ClusterID, Pods: got.Pods, InternalCIDR: c.Ledger.Spec.InternalCIDR, ExternalCIDR: external, Hosts: hosts,
			ServiceCIDRs: v1alpha1.NewCIDRs(services[:min(len(services), maxServiceCIDRs)]...),
		},
		Remote: v1alpha1.RemoteNetwork{
			ClusterID: d.peer.ClusterID, Name: cmp.Or(lo.FromPtr(d.input.facts.Existing).Spec.Remote.Name, d.peer.Name),
			Pods: given.Pods, ExternalCIDR: given.ExternalCIDR, NodeIPs: ips[:min(len(ips), maxNodeIPs)],
		},
		Gateways: d.placement,
		Overlay:  v1alpha1.OverlayKind(d.overlay.Value.String()), Limits: d.input.limits(), PlanesMode: d.mode,
		Services: d.peeringServices(),
	}
	for _, g := range c.Gateways {
		plane, err := d.planPlane(c, g, nodes)
		if err != nil {
			return err
		}
		spec.Planes = append(spec.Planes, plane)
	}
	c.Peering = manifests.Peering(given.Name, spec)
	return nil
}

// planPlane plans a plane of the Peering. nodes maps the overlay addresses of the peer.
func (d *draft) planPlane(c *ClusterPlan, g manifests.Gateway, nodes ipam.Mapping) (plane v1alpha1.Plane, err error) {
	address, err := GatewayAddress(d.peer.InternalCIDR, d.peer.Reader.Index, g.Plane)
	if err != nil {
		return plane, err
	}
	address, _ = nodes.Translate(address)
	plane = v1alpha1.Plane{
		Index: g.Plane, Temporary: g.Temporary, Role: g.Role, WireGuard: g.WireGuard, KeyGeneration: g.KeyGeneration,
		OverlayKeyGeneration: g.OverlayKey, RemoteAddress: v1alpha1.IP{Addr: address}, PresharedKey: d.presharedKey(g.Plane),
		ServiceName: lo.FromPtr(c.Service).Name, KeyTime: lo.EmptyableToPtr(d.input.facts.Planes[g.Plane].KeyTime),
	}
	if g.PresharedKey > 0 && plane.PresharedKey.Fingerprint == "" {
		fingerprint := Pending("of the key in " + secretRef(g.PresharedSecretName()))
		c.unknown = append(c.unknown, unknown{g.Plane, "fingerprint", []Value{fingerprint}})
	}
	remote, isOffered := lo.Find(d.peer.Reader.Gateways, func(offered GatewayOffer) bool { return offered.Plane == g.Plane })
	if !isOffered {
		return plane, d.input.facts.wrapError("plan", fmt.Errorf("the peer offers no gateway of plane %d", g.Plane))
	}
	switch existing, exists := d.input.facts.ExistingPlane(g.Plane); {
	case remote.PublicKey.IsKnown():
		plane.RemotePublicKey = remote.PublicKey.String()
	case remote.KeyUnreadable && exists:
		plane.RemotePublicKey = existing.RemotePublicKey // counts as unchanged
	default:
		c.unknown = append(c.unknown, unknown{g.Plane, "remotePublicKey", []Value{remote.PublicKey}})
	}
	switch {
	case c.Service != nil:
	case lo.EveryBy(remote.Endpoints, Value.IsKnown):
		plane.Endpoints = lo.Map(remote.Endpoints, func(e Value, _ int) string { return e.String() })
	default:
		c.unknown = append(c.unknown, unknown{g.Plane, "endpoints", remote.Endpoints})
	}
	return plane, nil
}

// GatewayAddress returns the overlay address of the gateway of a plane of a peering.
func GatewayAddress(internal netip.Prefix, index, plane int32) (netip.Addr, error) {
	number, err := ipam.GatewayNumber(int(index), int(plane))
	if err != nil {
		return netip.Addr{}, err
	}
	return ipam.GatewayAddr(internal, number)
}

// nodeIPs returns the addresses of nodes, sorted. A Peering can hold maxNodeIPs of them.
func nodeIPs(nodes []NodeOffer) []v1alpha1.IP {
	addrs := lo.FlatMap(nodes, func(n NodeOffer, _ int) []netip.Addr { return n.Addresses })
	slices.SortFunc(addrs, netip.Addr.Compare)
	return lo.Map(slices.Compact(addrs), func(a netip.Addr, _ int) v1alpha1.IP { return v1alpha1.IP{Addr: a} })
}

// omissionNotes returns notes about endpoints and node addresses that a peer does not get, because a Peering cannot
// hold them.
func (f *input) omissionNotes(svc *corev1.Service) (notes []string) {
	internal, external := nodeHosts(f.facts.Network.Nodes)
	n := len(internal) + len(external)
	if n > maxEndpoints && svc != nil && svc.Spec.Type == corev1.ServiceTypeNodePort && len(f.givenEndpoints()) == 0 {
		notes = append(notes, fmt.Sprintf("%d of %d endpoints of %s are left out, as a Peering can hold %d; "+
			"give the best ones with --endpoint %[3]s=ADDRESS:PORT,…", n-maxEndpoints, n, f.facts.Network.Name, maxEndpoints))
	}
	if n := len(nodeIPs(f.facts.Network.nodeOffers())); n > maxNodeIPs {
		notes = append(notes, fmt.Sprintf("%d of %d node addresses of %s are left out, as a Peering can hold %d: "+
			"peers may mistake them for pods", n-maxNodeIPs, n, f.facts.Network.Name, maxNodeIPs))
	}
	return notes
}

// limits returns the planned limits on traffic from the peer.
func (f *input) limits() v1alpha1.Limits {
	l := lo.FromPtr(f.facts.Existing).Spec.Limits
	l.NewConnections = int32(lo.FromPtrOr(f.Overrides.LimitNew, int64(l.NewConnections)))
	l.BitsPerSecond = lo.FromPtrOr(f.Overrides.LimitRate, l.BitsPerSecond)
	return l
}

// limitStatements describes the limits, and those that are removed.
func (f *input) limitStatements() (out []Statement) {
	add := func(what, unit string, limit int64, flag string, given bool) {
		if limit > 0 || given {
			value := lo.Ternary(limit > 0, fmt.Sprintf("%d %s", limit, unit), "none")
			out = append(out, statement(what, value, flagReason(given, flag)))
		}
	}
	l := f.limits()
	add("limit of new connections of the peer", "per second and node", int64(l.NewConnections), "--limit-new", f.Overrides.LimitNew != nil)
	add("limit of the peer's rate", "bit/s", l.BitsPerSecond, "--limit-rate", f.Overrides.LimitRate != nil)
	return out
}

// unknown is a field of a plane in a Peering that becomes known during the run. A list may be known in part.
type unknown struct {
	plane  int32
	field  string
	values []Value
}

// fillUnknown writes the unknown values into the manifest of the Peering.
func (c *ClusterPlan) fillUnknown(manifest map[string]any) {
	planes, _, _ := unstructured.NestedFieldNoCopy(manifest, "spec", "planes")
	for _, p := range planes.([]any) {
		plane := p.(map[string]any)
		for _, u := range c.unknown {
			switch {
			case plane["index"] != int64(u.plane):
			case u.field == "endpoints":
				plane[u.field] = lo.Map(u.values, func(e Value, _ int) any { return e.jsonValue() })
			case u.field == "fingerprint":
				plane["presharedKey"].(map[string]any)[u.field] = u.values[0].jsonValue()
			default:
				plane[u.field] = u.values[0].jsonValue()
			}
		}
	}
}

// Unknown returns the fields of the Peering that become known during the run, with their names in the plan.
func (c *ClusterPlan) Unknown() []string {
	return lo.Map(c.unknown, func(u unknown, _ int) string { return fmt.Sprintf("%s of plane %d: %s", u.field, u.plane, u.values) })
}

// Resolve returns the plan with the endpoints of the server's gateways, by plane, that were assigned since it was made.
func (p *Plan) Resolve(endpoints map[int32][]string) *Plan {
	out := &Plan{p.Clusters, p.next}
	c := &out.Clusters[1-p.Server()]
	c.Peering = c.Peering.DeepCopy()
	for i := range c.Peering.Spec.Planes {
		plane := &c.Peering.Spec.Planes[i]
		plane.Endpoints = endpoints[plane.Index]
	}
	c.unknown = lo.Reject(c.unknown, func(u unknown, _ int) bool { return u.field == "endpoints" && len(endpoints[u.plane]) > 0 })
	return out
}
