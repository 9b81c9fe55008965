package plan

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// gatewayPort is the UDP port of a gateway, in its pod and of its Service: that
// of pkg/tunnel, which the CLI does not link because it drives kernels.
const gatewayPort = 51840

// Plan is all that is done to peer two clusters, and why.
type Plan struct {
	Clusters [2]ClusterPlan `json:"clusters"`
}

// ClusterPlan is the part of a plan that is done in one cluster.
type ClusterPlan struct {
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterID"`
	Peer      string `json:"peer"`
	// Facts are what is known of the cluster.
	Facts []Statement `json:"facts"`
	// Choices are what was decided for it.
	Choices []Statement `json:"choices"`
	// Ranges are those that it uses itself, and by which it knows the peer.
	Ranges []RangePlan `json:"ranges"`
	// Keys are the Secrets with the keys of the gateways. What is in them is never
	// part of a plan.
	Keys []Statement `json:"keys"`
	// Endpoints are where the gateways are called by the peer's ones.
	Endpoints []Statement `json:"endpoints,omitempty"`
	// Objects are in the order in which they are made.
	Objects []ObjectPlan `json:"objects"`
	// Warnings are things that do no harm to the peering.
	Warnings []string `json:"warnings,omitempty"`
	// Notes are what whoever peers has to know afterwards, too: what was concluded
	// and not read, and what was left out.
	Notes []string `json:"notes,omitempty"`

	// Agents are those of the cluster.
	Agents manifests.Agents `json:"-"`
	// NodeMetrics says that node agents show their metrics at their nodes' own addresses.
	NodeMetrics bool `json:"-"`
	// Role of the cluster's gateways.
	Role v1alpha1.Role `json:"-"`
	// Ledger as it will be.
	Ledger *v1alpha1.ClusterNetwork `json:"-"`
	// Gateways are in the order of their planes.
	Gateways []GatewayPlan `json:"-"`
	// OverlayKeys are the generations of the overlay's keys that node agents are given.
	OverlayKeys []int32 `json:"-"`
	// Service exposes the gateways of a server, nil for clients.
	Service *corev1.Service `json:"-"`
	// StaleService is one of an earlier role that is to be deleted.
	StaleService *corev1.Service `json:"-"`
	// Budget is of the gateways, nil where there is one plane.
	Budget *policyv1.PodDisruptionBudget `json:"-"`
	// Peering is the object to be applied, without what comes about during the run.
	Peering *v1alpha1.Peering `json:"-"`
}

// GatewayPlan is the gateway of one plane.
type GatewayPlan struct {
	manifests.Gateway
	// Preshared is the pre-shared key, without a fingerprint if there is none yet.
	Preshared v1alpha1.PresharedKey
	// endpoints are where the peer's gateway calls it.
	endpoints []Statement
}

// Statement is a value, and where it is from or why it is this one.
type Statement struct {
	What   string `json:"what"`
	Value  string `json:"value"`
	Reason string `json:"reason"`
	// Assumed says that it was concluded and not read. What only the node agents
	// know is assumed as long as they have not reported.
	Assumed bool `json:"assumed,omitempty"`
	// DuringRun says that the value comes about when the plan is carried out.
	DuringRun bool `json:"duringRun,omitempty"`
}

// RangePlan is a range, and by which the cluster knows it.
type RangePlan struct {
	What    string       `json:"what"`
	Real    netip.Prefix `json:"real,omitzero"`
	Mapped  netip.Prefix `json:"mapped,omitzero"`
	Reason  string       `json:"reason"`
	Assumed bool         `json:"assumed,omitempty"`
	// DuringRun says that the range is not known before the plan is carried out.
	DuringRun bool `json:"duringRun,omitempty"`
}

// Action is what is done with an object.
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

// ObjectPlan is an object as it will be. What comes about during the run is
// named in angle brackets.
type ObjectPlan struct {
	Action     Action `json:"action"`
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	// MadeBy is who makes it, if it is not the command itself.
	MadeBy string `json:"madeBy,omitempty"`
	Reason string `json:"reason"`
	// Manifest is what is applied: fields that are left out are the API server's or
	// somebody else's. A Secret has no data here.
	Manifest map[string]any `json:"manifest,omitempty"`
}

// Changes counts the objects that are not kept.
func (p *Plan) Changes() int {
	n := 0
	for _, c := range p.Clusters {
		for _, o := range c.Objects {
			if o.Action != Keep {
				n++
			}
		}
	}
	return n
}

// Server is the index of the cluster whose gateways are called by the other's.
func (p *Plan) Server() int {
	if p.Clusters[0].Role == v1alpha1.Server {
		return 0
	}
	return 1
}

// SameGateways says that both plans have the same gateways, exposed in the same way.
func (p *Plan) SameGateways(other *Plan) bool {
	for i := range p.Clusters {
		c, o := &p.Clusters[i], &other.Clusters[i]
		same := slices.EqualFunc(c.Gateways, o.Gateways, func(a, b GatewayPlan) bool { return reflect.DeepEqual(a.Gateway, b.Gateway) })
		if !same || !reflect.DeepEqual(c.Service, o.Service) || !reflect.DeepEqual(c.Budget, o.Budget) {
			return false
		}
	}
	return true
}

// Make makes the plan for two clusters.
func Make(a, b FactSheet) (*Plan, error) {
	p, err := choose(a, b)
	if err != nil {
		return nil, err
	}
	for i, f := range []*FactSheet{&a, &b} {
		if err := p.Clusters[i].planObjects(f); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// choose makes the plan without the list of objects. Its copies of the fact sheets get
// the ledgers as they will be.
func choose(a, b FactSheet) (*Plan, error) {
	p := &Plan{}
	clusters := [2]*FactSheet{&a, &b}
	d, err := decide(clusters)
	if err != nil {
		return nil, err
	}
	for i, f := range clusters {
		agents, _ := f.agents()
		p.Clusters[i] = ClusterPlan{
			Cluster: f.Name, ClusterID: f.ClusterID, Peer: clusters[1-i].Name, Agents: agents, NodeMetrics: f.nodeMetrics(), Role: v1alpha1.Role(d[i].role.Value),
			Facts: f.statements(), Warnings: slices.Clone(f.Warnings),
		}
		if agents.Version != f.Version {
			p.Clusters[i].Notes = append(p.Clusters[i].Notes, fmt.Sprintf("the agents of %s stay of version %s: kubectl liqonet upgrade %s brings them to %s", f.Name, agents.Version, f.Name, f.Version))
		}
		if f.PodsConcluded != "" {
			p.Clusters[i].Notes = append(p.Clusters[i].Notes, f.PodsConcluded)
		}
		if err := p.Clusters[i].planLedger(f, clusters[1-i]); err != nil {
			return nil, err
		}
		f.Ledger = p.Clusters[i].Ledger
	}
	for i, f := range clusters {
		c := &p.Clusters[i]
		c.planGateways(f, clusters[1-i], d[i])
		c.Notes = append(c.Notes, f.leftOut(c.Service)...)
	}
	for i, own := range clusters {
		c := &p.Clusters[i]
		if c.Peering, err = c.planPeering(own, clusters[1-i], v1alpha1.OverlayKind(d[i].overlay.Value), &p.Clusters[1-i]); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// planLedger is the ledger as it will be: with an entry for the peer, and the
// ranges by which this cluster knows it.
func (c *ClusterPlan) planLedger(own, peer *FactSheet) error {
	internal, internalReason, err := own.InternalCIDR()
	if err != nil {
		return err
	}
	peerInternal, _, err := peer.InternalCIDR()
	if err != nil {
		return err
	}
	cn := own.ledger().DeepCopy()
	if cn == nil {
		cn = NewLedger(internal)
	}
	entry, reason, nameReason := Allocation(cn, peer.ClusterID), "as before", "as before"
	if entry == nil {
		a, err := NewAllocation(cn, peer.ClusterID, peer.Name)
		if err != nil {
			return own.fail("claim an entry of the ledger", err)
		}
		cn.Spec.Peers = append(cn.Spec.Peers, a)
		entry, reason, nameReason = &cn.Spec.Peers[len(cn.Spec.Peers)-1], "the lowest that is free", "after the name of the peer"
	}
	got, err := own.rangesFor(cn, entry, peer)
	if err != nil {
		return err
	}
	setRanges(entry, got)
	entry.Established = true
	c.Ledger = cn
	c.planOverlayKey(own, cn)
	assumed := len(own.Unreported()) > 0
	c.Ranges = append(c.Ranges, RangePlan{What: "overlay addresses of nodes and gateways", Real: internal, Mapped: internal, Reason: internalReason})
	if peer.PodsUnknown != nil {
		c.Ranges = append(c.Ranges, RangePlan{What: "pods of " + peer.Name, Reason: "the agents of " + peer.Name + " tell its pods' range", DuringRun: true})
	}
	var public []string
	for _, r := range got.Pods {
		if !ipam.Private(r.Real) {
			public = append(public, r.Mapping.String())
		}
		c.Ranges = append(c.Ranges, RangePlan{What: "pods of " + peer.Name, Real: r.Real, Mapped: r.Mapped, Reason: r.Reason, Assumed: assumed})
	}
	if len(public) > 0 {
		c.Notes = append(c.Notes, fmt.Sprintf("%s knows pods of %s whose addresses are not private (RFC 1918, RFC 6598) as: %s; such a range is mapped to a private one, unless --map %s=RANGE=RANGE says otherwise",
			own.Name, peer.Name, strings.Join(public, ", "), peer.Name))
	}
	c.Ranges = append(c.Ranges, RangePlan{
		What: "nodes and single addresses of " + peer.Name, Real: peerInternal, Mapped: got.External, Reason: got.ExternalReason, Assumed: assumed,
	})
	c.Choices = append(c.Choices,
		Statement{What: "name of the peering", Value: entry.Name, Reason: nameReason},
		Statement{What: "index of the peering", Value: strconv.Itoa(int(entry.Index)), Reason: reason + "; interface names, VNIs and gateways' addresses derive from it"},
	)
	return nil
}

// planGateways are the cluster's gateways, and where the peer's ones call them.
func (c *ClusterPlan) planGateways(own, peer *FactSheet, d decisions) {
	entry := Allocation(own.Ledger, peer.ClusterID)
	_, image := own.agents()
	c.Choices = append(append(c.Choices, d.role, d.planesBy, d.overlay, d.wireguard, image), d.placed...)
	planes := d.planes
	if temporary, is := d.temporary(own); is {
		planes = append(slices.Clone(planes), temporary)
	}
	if c.Role == v1alpha1.Server {
		c.Service = manifests.GatewayService(entry.Name, corev1.ServiceType(d.serviceType.Value), gatewayPort, planes)
		c.Service.Spec.Ports[0].NodePort = own.Overrides.NodePort
		c.Service.Annotations[AnnotationEndpoints] = strings.Join(own.GivenEndpoints(), ",")
	} else {
		c.StaleService = own.Service
	}
	if len(d.planes) > 1 {
		c.Budget = manifests.GatewayBudget(entry.Name)
	}
	for _, plane := range planes {
		g := GatewayPlan{Gateway: manifests.Gateway{
			Peering: entry.Name, Plane: plane, Agents: c.Agents, Role: c.Role, OverlayKey: own.linkKey(plane, OverlayKey(own.Ledger)), WireGuard: v1alpha1.WireGuardBackend(d.wireguard.Value),
			KeyGeneration: own.keyGeneration(plane), Port: gatewayPort, Planes: len(d.planes), Placement: d.placement, Temporary: !slices.Contains(d.planes, plane),
		}}
		address, _ := gatewayAddress(own.Ledger.Spec.InternalCIDR.Prefix, entry.Index, plane)
		c.Choices = append(c.Choices, Statement{What: "overlay address of the gateway", Value: address.String(), Reason: "by the index, from the end of the overlay's range"})
		key := Statement{What: "WireGuard key of the gateway", Value: "Secret " + v1alpha1.Namespace + "/" + g.SecretName(), Reason: "made during the run, and never shown", DuringRun: true}
		if own.Planes[plane].PublicKey != "" {
			key.Reason, key.DuringRun = "as before", false
		}
		c.Keys = append(c.Keys, key, c.planPresharedKey(own, peer, &g))
		if c.Service != nil {
			g.endpoints = own.plannedEndpoints(plane, c.Service)
			c.Endpoints = append(c.Endpoints, g.endpoints...)
		}
		c.Gateways = append(c.Gateways, g)
	}
	c.OverlayKeys = c.overlayKeys(own)
	c.Choices = append(c.Choices,
		Statement{What: "address and node of the gateway's pod", Value: "<given by the cluster>", Reason: "the pod is not there before the run", DuringRun: true},
		Statement{What: "MTU", Value: "<agreed by the gateways>", Reason: "they measure what both clusters can carry", DuringRun: true},
	)
	if c.Role == v1alpha1.Server {
		c.Choices = append(c.Choices, d.serviceType)
	}
	c.Choices = slices.Concat(c.Choices, own.limitStatements(), modeStatements(own, peer))
	if c.NodeMetrics || own.NodeMetrics {
		s := Statement{What: "metrics of node agents", Value: "at 127.0.0.1", Reason: "as before"}
		if c.NodeMetrics {
			s.Value = "at the nodes' own addresses"
		}
		if own.Overrides.NodeMetrics != "" {
			s.Reason = "given by --node-metrics"
		}
		c.Choices = append(c.Choices, s)
	}
}

// NodeAgents are the account of the node agents with its permissions, and their DaemonSet.
func (c *ClusterPlan) NodeAgents() (account []manifests.Object, daemonSet *appsv1.DaemonSet) {
	account, daemonSet = manifests.NodeAgent(c.Agents, c.OverlayKeys)
	if c.NodeMetrics {
		manifests.ShowNodeMetrics(daemonSet)
	}
	return account, daemonSet
}

// WithCurrent returns the plan with node agents as they have to be by facts that were read since it was made. What the user
// has not chosen is as it is by now. The agents have the planned keys of the overlay, and all that others have been given.
func (c ClusterPlan) WithCurrent(f *FactSheet) ClusterPlan {
	c.Agents, _ = f.agents()
	c.NodeMetrics, c.Ledger = f.nodeMetrics(), f.Ledger
	c.OverlayKeys = sets.List(sets.New(slices.Concat(c.OverlayKeys, c.overlayKeys(f))...))
	return c
}

// planObjects lists every object, in the order in which they are made.
func (c *ClusterPlan) planObjects(own *FactSheet) error {
	var failed error
	add := func(reason string, objs ...manifests.Object) {
		for _, obj := range objs {
			u, err := manifests.ToApply(obj)
			if err != nil {
				failed = err
				return
			}
			c.Objects = append(c.Objects, ObjectPlan{
				APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName(),
				Reason: reason, Manifest: u.Object,
			})
		}
	}
	crds, err := manifests.CRDs()
	if err != nil {
		return err
	}
	for _, crd := range crds {
		add("the API in which is written what was decided", crd)
	}
	account, daemonSet := c.NodeAgents()
	add("for the agents", manifests.Namespace())
	add("lets the agents have the priority of what a node cannot do without", manifests.CriticalPods())
	for _, key := range c.OverlayKeys {
		add("the key that keeps others out of the overlay; made once, and never shown", manifests.OverlaySecret(key, nil))
	}
	add("account and permissions of the node agents", account...)
	add("a node agent on every Linux node", daemonSet)
	add(fmt.Sprintf("the ledger: an entry for %s, and the ranges given out to it", c.Peer), manifests.ClusterNetwork(c.Ledger.Spec))
	c.Objects = append(c.Objects, own.plannedNodes(c.Ledger.Spec.InternalCIDR.Prefix)...)
	if c.Service != nil {
		add("by which the gateways of "+c.Peer+" call this cluster's", c.Service)
	}
	remove := func(apiVersion, kind, name, reason string) {
		c.Objects = append(c.Objects, ObjectPlan{
			Action: Delete, APIVersion: apiVersion, Kind: kind, Namespace: v1alpha1.Namespace, Name: name, Reason: reason,
		})
	}
	if c.StaleService != nil {
		remove("v1", "Service", c.StaleService.Name, "the gateways are not called any more, they call")
	}
	switch {
	case c.Budget != nil:
		add("lets nodes be drained one after the other only, as far as they have gateways", c.Budget)
	case own.Existing != nil && len(own.Existing.Spec.Planes) > 1:
		stale := manifests.GatewayBudget(c.Peering.Name)
		remove(stale.APIVersion, stale.Kind, stale.Name, "it is for several gateways")
	}
	for _, g := range c.Gateways {
		account, deployment := g.Objects()
		add("the gateway's WireGuard key; made once, and never shown", g.Secret(nil))
		if g.PresharedKey > 0 {
			add("the tunnel's pre-shared key, the same in both clusters; made once, and never shown", g.PresharedSecret(nil))
		}
		add("account and permissions of the gateway", account...)
		add("the gateway to "+c.Peer, deployment)
	}
	add("what the gateways and the nodes of this cluster do", c.Peering)
	if own.Existing != nil {
		for _, plane := range own.Existing.Spec.Planes {
			if c.Peering.Plane(plane.Index) == nil {
				remove("apps/v1", "Deployment", own.Gateway(c.Peering.Name, plane.Index).Name(), "there is no such plane any more; its account, keys and Lease go with it")
			}
		}
	}
	c.planOldOverlayKey(own)
	return failed
}

// plannedNodes are the objects that node agents make: a report of each, and the
// Lease that holds its overlay address.
func (f *FactSheet) plannedNodes(internal netip.Prefix) []ObjectPlan {
	taken := map[netip.Addr]bool{}
	reports := ReportsByNode(f.Reports)
	for _, r := range reports {
		taken[r.Status.Address.Addr] = true
	}
	var out []ObjectPlan
	for _, node := range f.agentNodes() {
		o := ObjectPlan{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeNetwork", Name: node, Action: Create, MadeBy: "the agent of node " + node, Reason: "the node's report",
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
			Action: o.Action, MadeBy: o.MadeBy, Reason: "the node's overlay address, by its name: the first that is free",
		}
		out = append(out, o, lease)
	}
	return out
}
