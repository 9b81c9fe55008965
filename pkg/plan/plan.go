// Package plan decides what is done to peer two clusters. Each side is planned by itself from three values. Facts
// are what was read of its cluster. The intent is what is wanted of it in this run. The peer's offer is what that lets others know
// of it. Same input, same plan, whichever cluster is named first.
//
// Two offers of each cluster are exchanged. The first one (Introduce) says what the cluster is. The second one (Answer) says
// in addition by which ranges it knows the reader. With that one, Make makes a plan. What both clusters have to decide
// alike, such as who is called, follows from the two offers in the order of their IDs.
//
// A plan is a value: nobody changes it after it was made. What is not known yet is a Value that says so. Resolve returns another plan
// with it.
//
// The package is pure: it has no client, no context and no clock.
//
// Out of scope: reading the facts (pkg/discovery and pkg/peering), and carrying out
// the plan (pkg/peering).
package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/wire"
)

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
	// AgentsWork says that the agents of all nodes that are ready have reported. They are left as they are until the gateways run.
	AgentsWork bool `json:"-"`
	// Role of the cluster's gateways.
	Role v1alpha1.Role `json:"-"`
	// OneGateway says why there can be one plane only, empty if there can be more.
	OneGateway string `json:"-"`
	// Ledger as it will be.
	Ledger *v1alpha1.ClusterNetwork `json:"-"`
	// Gateways are in the order of their planes.
	Gateways []manifests.Gateway `json:"-"`
	// OverlayKeys are the generations of the overlay's keys that node agents are given.
	OverlayKeys []int32 `json:"-"`
	// Service exposes the gateways of a server, nil for clients.
	Service *corev1.Service `json:"-"`
	// Budget is of the gateways, nil where there is one plane.
	Budget *policyv1.PodDisruptionBudget `json:"-"`
	// Peering is the object to be applied, without what is unknown yet.
	Peering *v1alpha1.Peering `json:"-"`
	// unknown are the fields of the Peering's planes that come about during the run.
	unknown []unknown
	// next is what is done instead if no gateway gets an answer, nil if the roles were decided.
	next *ClusterPlan
}

// Statement is a value, and where it is from or why it is this one.
type Statement struct {
	What   string `json:"what"`
	Value  Value  `json:"value"`
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

// Changes counts the objects that are not kept.
func (p *Plan) Changes() int {
	return changes(slices.Concat(p.Clusters[0].Objects, p.Clusters[1].Objects))
}

// changes counts objects that are not kept.
func changes(objects []ObjectPlan) int {
	return lo.CountBy(objects, func(o ObjectPlan) bool { return o.Action != Keep })
}

// Server is the index of the cluster whose gateways are called by the other's.
func (p *Plan) Server() int { return lo.Ternary(p.Clusters[0].Role == v1alpha1.Server, 0, 1) }

// SameGateways says that both plans have the same gateways, exposed in the same way.
func (p *Plan) SameGateways(other *Plan) bool {
	exposed := func(c ClusterPlan, _ int) []any { return []any{c.Gateways, c.Service, c.Budget} }
	return reflect.DeepEqual(lo.Map(p.Clusters[:], exposed), lo.Map(other.Clusters[:], exposed))
}

// GivenEndpoints are those that the user named for a server's gateway, nil if there are none.
func (c *ClusterPlan) GivenEndpoints() []string { return endpointsOf(c.Service) }

// Candidates are the plans in the order in which they are tried: this one, and what is done where no gateway gets an answer.
func (p *Plan) Candidates() []*Plan {
	out := []*Plan{p}
	if a, b := p.Clusters[0].next, p.Clusters[1].next; a != nil && b != nil {
		out = append(out, &Plan{[2]ClusterPlan{*a, *b}})
	}
	return out
}

// Both makes the plans of two clusters: each from the other's offer.
func Both(own [2]Facts, intents [2]Intent) (*Plan, error) {
	var plans [2]*ClusterPlan
	_, err := exchange(own, intents, func(i int, peer Offer) (err error) {
		plans[i], err = Make(own[i], intents[i], peer)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Plan{[2]ClusterPlan{*plans[0], *plans[1]}}, nil
}

// Offers are the first ones of two clusters.
func Offers(own [2]Facts, intents [2]Intent) (out [2]Offer, err error) {
	for i := range own {
		if out[i], err = Introduce(own[i], intents[i], own[1-i].ClusterID); err != nil {
			return out, err
		}
	}
	return out, nil
}

// exchange has two clusters read each other's offers twice. Then each does something with the other's.
func exchange(own [2]Facts, intents [2]Intent, do func(i int, peer Offer) error) (offers [2]Offer, err error) {
	first, err := Offers(own, intents)
	if err != nil {
		return first, err
	}
	for i := range own {
		if offers[i], err = Answer(own[i], intents[i], first[1-i]); err != nil {
			return offers, err
		}
	}
	for i := range own {
		if err := do(i, offers[1-i]); err != nil {
			return offers, err
		}
	}
	return offers, nil
}

// Make makes the plan of one cluster. The peer's offer is its answer to one of this cluster.
func Make(own Facts, intent Intent, peer Offer) (*ClusterPlan, error) {
	out, err := choose(own, intent, peer)
	if err != nil {
		return nil, err
	}
	for c := out; c != nil; c = c.next {
		if err := c.planObjects(&own); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// choose makes the plan without the list of objects.
func choose(own Facts, intent Intent, peer Offer) (*ClusterPlan, error) {
	if peer.Reader == nil {
		return nil, own.fail("plan", fmt.Errorf("the offer of %q does not say by which ranges it knows this cluster: "+
			"it has to be made with an offer of this one", peer.Name))
	}
	d, err := begin(own, intent, &peer)
	if err != nil {
		return nil, err
	}
	var out *ClusterPlan
	for i := range slices.Backward(d.roles) {
		c, err := d.candidate(i)
		if err != nil {
			return nil, err
		}
		c.next, out = out, c
	}
	return out, nil
}

// draft is the plan of one cluster while it is made.
type draft struct {
	*sheet
	decisions
	mine Offer
	peer *Offer
	// plan has what does not depend on what the peer has decided.
	plan ClusterPlan
}

// begin decides all that does not depend on what the peer has decided about this cluster.
func begin(own Facts, intent Intent, peer *Offer) (d *draft, err error) {
	f := &sheet{own, intent}
	d = &draft{sheet: f, peer: peer}
	if d.decisions, err = f.decideAlone(); err != nil {
		return nil, err
	}
	if d.mine, err = f.offer(peer.ClusterID, &d.decisions); err != nil {
		return nil, err
	}
	if err := f.decide(&d.mine, peer, &d.decisions); err != nil {
		return nil, err
	}
	agents, _ := f.agents()
	d.plan = ClusterPlan{
		Cluster: f.Name, ClusterID: f.ClusterID, Peer: peer.Name, Agents: agents, NodeMetrics: f.nodeMetrics(),
		OneGateway: cmp.Or(d.mine.OneGateway, peer.OneGateway), AgentsWork: f.Installed.Image != "" && len(f.Unreported()) == 0,
		Facts: f.statements(), Warnings: slices.Clone(f.Warnings),
	}
	if agents.Version != f.Version {
		d.plan.note("the agents of %s stay of version %s: kubectl liqonet upgrade %[1]s brings them to %[3]s", f.Name, agents.Version, f.Version)
	}
	if f.PodsConcluded != "" {
		d.plan.note("%s", f.PodsConcluded)
	}
	return d, d.plan.planLedger(f, peer)
}

func (c *ClusterPlan) note(format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf(format, args...))
}

// candidate completes the plan with the gateways in one of the roles, and with the Peering.
func (d *draft) candidate(role int) (*ClusterPlan, error) {
	c := d.plan
	c.Role = v1alpha1.Role(d.roles[role].Value.String())
	c.Choices, c.Keys, c.Notes = slices.Clone(c.Choices), slices.Clone(c.Keys), slices.Clone(c.Notes)
	entry := Allocation(c.Ledger, d.peer.ClusterID)
	_, image := d.agents()
	c.Choices = append(append(c.Choices, d.roles[role], d.planesBy, d.overlay, d.wireguard, image), d.placed...)
	if c.Role == v1alpha1.Server {
		c.Service = d.service(entry.Name, d.planes)
	}
	if len(d.permanent) > 1 {
		c.Budget = manifests.Owned(manifests.GatewayBudget(entry.Name), entry.Name, d.Owner)
	}
	for _, plane := range d.planes {
		g, preshared := d.Gateway(entry.Name, plane), d.presharedKey(plane)
		g.Agents, g.Role, g.WireGuard = c.Agents, c.Role, v1alpha1.WireGuardBackend(d.wireguard.Value.String())
		g.OverlayKey, g.Port, g.Placement = d.linkKey(plane, OverlayKey(c.Ledger)), wire.TunnelPort, d.placement
		g.Planes, g.Temporary = len(d.permanent), !slices.Contains(d.permanent, plane)
		g.PresharedKey = preshared.Generation
		addr, _ := GatewayAddress(c.Ledger.Spec.InternalCIDR.Prefix, entry.Index, plane)
		const why = "by the index, from the end of the overlay's range"
		c.Choices = append(c.Choices, known("overlay address of the gateway", addr.String(), why))
		key := known("WireGuard key of the gateway", secret(g.SecretName()), "as before")
		if d.Planes[plane].PublicKey == "" {
			key.Reason, key.DuringRun = "made during the run, and never shown", true
		}
		c.Keys = append(c.Keys, key, presharedStatement(g, preshared))
		if c.Service != nil {
			c.Endpoints = append(c.Endpoints, d.plannedEndpoints(plane, c.Service)...)
		}
		c.Gateways = append(c.Gateways, g)
	}
	c.OverlayKeys = c.overlayKeys(&d.Facts)
	c.Choices = append(c.Choices,
		later("address and node of the gateway's pod", "given by the cluster", "the pod is not there before the run"),
		later("MTU", "agreed by the gateways", "they measure what both clusters can carry"),
	)
	if c.Role == v1alpha1.Server {
		c.Choices = append(c.Choices, d.serviceType)
	}
	c.Choices = slices.Concat(c.Choices, d.limitStatements(), modeStatements(d.mode, d.Overrides.PlanesMode))
	if c.NodeMetrics || d.NodeMetrics {
		where := lo.Ternary(c.NodeMetrics, "at the nodes' own addresses", "at 127.0.0.1")
		c.Choices = append(c.Choices, known("metrics of node agents", where, byFlag(d.Overrides.NodeMetrics != "", "--node-metrics")))
	}
	c.Notes = append(c.Notes, d.leftOut(c.Service)...)
	return &c, d.planPeering(&c)
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
func (c ClusterPlan) WithCurrent(own Facts, intent Intent) ClusterPlan {
	f := &sheet{own, intent}
	c.Agents, _ = f.agents()
	c.NodeMetrics, c.Ledger = f.nodeMetrics(), f.Ledger
	c.OverlayKeys = union(c.OverlayKeys, c.overlayKeys(&own))
	return c
}

// Value is what a plan says of something: a text that is known, or what comes about when the plan is carried out.
type Value struct{ known, later string }

// Known is a value that is known.
func Known(text string) Value { return Value{known: text} }

// Later is a value that comes about during the run. The text says where from.
func Later(what string) Value { return Value{later: what} }

// IsKnown says that there is a value already.
func (v Value) IsKnown() bool { return v.later == "" }

// String is the value, or what it will be, in brackets.
func (v Value) String() string {
	if v.IsKnown() {
		return v.known
	}
	return "(" + v.later + ")"
}

// known is a statement of a value that is known.
func known(what, value, reason string) Statement {
	return Statement{What: what, Value: Known(value), Reason: reason}
}

// later is one of a value that comes about during the run.
func later(what, value, reason string) Statement {
	return Statement{What: what, Value: Later(value), Reason: reason, DuringRun: true}
}

// byFlag is why something is as it is: a flag says so, or it was so before.
func byFlag(given bool, flag string) string {
	if given {
		return "given by " + flag
	}
	return "as before"
}

// secret is how a plan names a Secret of ours.
func secret(name string) string { return "Secret " + v1alpha1.Namespace + "/" + name }

// plain is a text, or an object that says what the value will be.
func (v Value) plain() any {
	if v.IsKnown() {
		return v.known
	}
	return map[string]any{"duringRun": v.later}
}

// MarshalJSON writes a text, or an object that says what the value will be.
func (v Value) MarshalJSON() ([]byte, error) { return json.Marshal(v.plain()) }

// UnmarshalJSON reads what MarshalJSON writes.
func (v *Value) UnmarshalJSON(raw []byte) error {
	var later struct{ DuringRun string }
	if json.Unmarshal(raw, &later) == nil && later.DuringRun != "" {
		*v = Later(later.DuringRun)
		return nil
	}
	*v = Value{}
	return json.Unmarshal(raw, &v.known)
}
