// Package plan decides what to do to peer two clusters. It plans each cluster separately, from three values: the facts
// read from that cluster, the intent of this run, and the peer's offer. An offer holds all that others may know of a
// cluster. The result depends only on these values, not on the order of the clusters.
//
// The clusters exchange two offers each. The first one (Introduce) describes the cluster. The second one (Answer) adds
// the ranges by which it knows the reader, and Make needs that one. Decisions that both clusters must make alike, such as
// which one is the server, follow from the two offers in the order of their cluster IDs.
//
// A plan is immutable. A Value marks what is not known yet, and Resolve returns a new plan with it filled in.
//
// The package is pure: it has no client, no context and no clock.
//
// Out of scope: reading the facts (pkg/discovery and pkg/peering), and carrying out the plan (pkg/peering).
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

// Plan holds everything to do to peer two clusters, and why.
type Plan struct {
	Clusters [2]ClusterPlan `json:"clusters"`
}

// ClusterPlan is the part of a plan for one cluster.
type ClusterPlan struct {
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterID"`
	Peer      string `json:"peer"`
	// Facts describe the cluster.
	Facts []Statement `json:"facts"`
	// Choices are the decisions for the cluster.
	Choices []Statement `json:"choices"`
	// Ranges are the cluster's own ranges, and those by which it knows the peer.
	Ranges []RangePlan `json:"ranges"`
	// Keys are the Secrets that hold the gateways' keys. A plan never contains the keys themselves.
	Keys []Statement `json:"keys"`
	// Endpoints are where the peer's gateways reach this cluster's.
	Endpoints []Statement `json:"endpoints,omitempty"`
	// Objects are in the order of their creation.
	Objects []ObjectPlan `json:"objects"`
	// Warnings do not affect the peering.
	Warnings []string `json:"warnings,omitempty"`
	// Notes are what the user must know after the run too: what was inferred rather than read, and what was left out.
	Notes []string `json:"notes,omitempty"`

	// Agents are the cluster's agents.
	Agents manifests.Agents `json:"-"`
	// NodeMetrics means that node agents serve their metrics at their nodes' own addresses.
	NodeMetrics bool `json:"-"`
	// AgentsWork means that the agents of all ready nodes have reported. They stay unchanged until the gateways run.
	AgentsWork bool `json:"-"`
	// Role is the role of the cluster's gateways.
	Role v1alpha1.Role `json:"-"`
	// OneGateway is why there can be only one plane, empty if there can be more.
	OneGateway string `json:"-"`
	// Ledger is the ledger after the run.
	Ledger *v1alpha1.ClusterNetwork `json:"-"`
	// Gateways are in the order of their planes.
	Gateways []manifests.Gateway `json:"-"`
	// OverlayKeys are the generations of the overlay keys that node agents get.
	OverlayKeys []int32 `json:"-"`
	// Service exposes the gateways of a server, nil for clients.
	Service *corev1.Service `json:"-"`
	// Budget is the gateways' disruption budget, nil with one plane.
	Budget *policyv1.PodDisruptionBudget `json:"-"`
	// Peering is the object to apply, without the fields that are still unknown.
	Peering *v1alpha1.Peering `json:"-"`
	// unknown lists the fields of the Peering's planes that become known during the run.
	unknown []unknown
	// next is the plan to try if no gateway gets an answer, nil if the roles are final.
	next *ClusterPlan
}

// Statement is a value, with its source or the reason for it.
type Statement struct {
	What   string `json:"what"`
	Value  Value  `json:"value"`
	Reason string `json:"reason"`
	// Assumed means that the value was inferred, not read. What only node agents know is assumed until they have
	// reported.
	Assumed bool `json:"assumed,omitempty"`
	// DuringRun means that the value becomes known when the plan is carried out.
	DuringRun bool `json:"duringRun,omitempty"`
}

// RangePlan is a range, and the range by which the cluster knows it.
type RangePlan struct {
	What    string       `json:"what"`
	Real    netip.Prefix `json:"real,omitzero"`
	Mapped  netip.Prefix `json:"mapped,omitzero"`
	Reason  string       `json:"reason"`
	Assumed bool         `json:"assumed,omitempty"`
	// DuringRun means that the range is not known before the plan is carried out.
	DuringRun bool `json:"duringRun,omitempty"`
}

// Changes returns the number of objects that are not kept.
func (p *Plan) Changes() int {
	return changes(slices.Concat(p.Clusters[0].Objects, p.Clusters[1].Objects))
}

// changes returns the number of objects that are not kept.
func changes(objects []ObjectPlan) int {
	return lo.CountBy(objects, func(o ObjectPlan) bool { return o.Action != Keep })
}

// Server returns the index of the cluster whose gateways are the servers.
func (p *Plan) Server() int { return lo.Ternary(p.Clusters[0].Role == v1alpha1.Server, 0, 1) }

// SameGateways reports whether both plans have the same gateways, exposed in the same way.
func (p *Plan) SameGateways(other *Plan) bool {
	exposed := func(c ClusterPlan, _ int) []any { return []any{c.Gateways, c.Service, c.Budget} }
	return reflect.DeepEqual(lo.Map(p.Clusters[:], exposed), lo.Map(other.Clusters[:], exposed))
}

// GivenEndpoints returns the endpoints that the user gave for a server's gateway, nil if there are none.
func (c *ClusterPlan) GivenEndpoints() []string { return endpointsOf(c.Service) }

// Candidates returns the plans in the order to try them: this one, and the one for the case that no gateway gets an
// answer.
func (p *Plan) Candidates() []*Plan {
	out := []*Plan{p}
	if a, b := p.Clusters[0].next, p.Clusters[1].next; a != nil && b != nil {
		out = append(out, &Plan{[2]ClusterPlan{*a, *b}})
	}
	return out
}

// Both plans two clusters, each from the other's offer.
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

// Offers returns the first offers of two clusters.
func Offers(own [2]Facts, intents [2]Intent) (out [2]Offer, err error) {
	for i := range own {
		if out[i], err = Introduce(own[i], intents[i], own[1-i].ClusterID); err != nil {
			return out, err
		}
	}
	return out, nil
}

// exchange lets two clusters read each other's offers twice, and then calls do for each with the other's second offer.
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

// Make plans one cluster. The peer's offer must be an answer to an offer of this cluster.
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
		return nil, own.fail("plan", fmt.Errorf("the offer of %q does not contain the ranges by which it knows this cluster: "+
			"it must answer an offer of this cluster", peer.Name))
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

// draft is a cluster's plan under construction.
type draft struct {
	*input
	decisions
	mine Offer
	peer *Offer
	// plan holds what does not depend on the peer's decisions.
	plan ClusterPlan
}

// begin decides everything that does not depend on the peer's decisions about this cluster.
func begin(own Facts, intent Intent, peer *Offer) (d *draft, err error) {
	f := &input{own, intent}
	d = &draft{input: f, peer: peer}
	if d.decisions, err = f.decideLocal(); err != nil {
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
		d.plan.note("the agents of %s stay at version %s: kubectl liqonet upgrade %[1]s brings them to %[3]s", f.Name, agents.Version, f.Version)
	}
	if f.PodsInferred != "" {
		d.plan.note("%s", f.PodsInferred)
	}
	return d, d.plan.planLedger(f, peer)
}

func (c *ClusterPlan) note(format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf(format, args...))
}

// candidate completes the plan for one of the roles, with the gateways and the Peering.
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
			key.Reason, key.DuringRun = "created during the run, and never shown", true
		}
		c.Keys = append(c.Keys, key, presharedStatement(g, preshared))
		if c.Service != nil {
			c.Endpoints = append(c.Endpoints, d.plannedEndpoints(plane, c.Service)...)
		}
		c.Gateways = append(c.Gateways, g)
	}
	c.OverlayKeys = c.overlayKeys(&d.Facts)
	c.Choices = append(c.Choices,
		later("address and node of the gateway's pod", "assigned by the cluster", "the pod does not exist before the run"),
		later("MTU", "agreed by the gateways", "they measure what both clusters' networks can carry"),
	)
	if c.Role == v1alpha1.Server {
		c.Choices = append(c.Choices, d.serviceType)
	}
	c.Choices = slices.Concat(c.Choices, d.limitStatements(), modeStatements(d.mode, d.Overrides.PlanesMode))
	if c.NodeMetrics || d.NodeMetrics {
		where := lo.Ternary(c.NodeMetrics, "at the nodes' own addresses", "at 127.0.0.1")
		c.Choices = append(c.Choices, known("metrics of node agents", where, byFlag(d.Overrides.NodeMetrics != "", "--node-metrics")))
	}
	c.Notes = append(c.Notes, d.omitted(c.Service)...)
	return &c, d.planPeering(&c)
}

// NodeAgents returns the node agents' account with its permissions, and their DaemonSet.
func (c *ClusterPlan) NodeAgents() (account []manifests.Object, daemonSet *appsv1.DaemonSet) {
	account, daemonSet = manifests.NodeAgent(c.Agents, c.OverlayKeys)
	if c.NodeMetrics {
		manifests.ShowNodeMetrics(daemonSet)
	}
	return account, daemonSet
}

// WithCurrent returns the plan with node agents updated to newer facts. What the user has not chosen follows the
// cluster's current state. The agents get the planned overlay keys, and all that they have by now.
func (c ClusterPlan) WithCurrent(own Facts, intent Intent) ClusterPlan {
	f := &input{own, intent}
	c.Agents, _ = f.agents()
	c.NodeMetrics, c.Ledger = f.nodeMetrics(), f.Ledger
	c.OverlayKeys = union(c.OverlayKeys, c.overlayKeys(&own))
	return c
}

// Value is a text in a plan: a known one, or a description of a value that becomes known when the plan is carried out.
type Value struct{ known, later string }

// Known returns a known value.
func Known(text string) Value { return Value{known: text} }

// Later returns a value that becomes known during the run. The text describes its source.
func Later(what string) Value { return Value{later: what} }

// IsKnown reports whether the value is known already.
func (v Value) IsKnown() bool { return v.later == "" }

// String returns the value, or its description in parentheses.
func (v Value) String() string {
	if v.IsKnown() {
		return v.known
	}
	return "(" + v.later + ")"
}

// known returns a statement about a known value.
func known(what, value, reason string) Statement {
	return Statement{What: what, Value: Known(value), Reason: reason}
}

// later returns a statement about a value that becomes known during the run.
func later(what, value, reason string) Statement {
	return Statement{What: what, Value: Later(value), Reason: reason, DuringRun: true}
}

// byFlag returns the reason for a value: a flag, or that it was so before.
func byFlag(given bool, flag string) string {
	if given {
		return "given by " + flag
	}
	return "as before"
}

// secret returns the name of one of our Secrets for a plan.
func secret(name string) string { return "Secret " + v1alpha1.Namespace + "/" + name }

// forJSON returns a text, or an object that describes the future value.
func (v Value) forJSON() any {
	if v.IsKnown() {
		return v.known
	}
	return map[string]any{"duringRun": v.later}
}

// MarshalJSON writes a text, or an object that describes the future value.
func (v Value) MarshalJSON() ([]byte, error) { return json.Marshal(v.forJSON()) }

// UnmarshalJSON reads the output of MarshalJSON.
func (v *Value) UnmarshalJSON(raw []byte) error {
	var later struct{ DuringRun string }
	if json.Unmarshal(raw, &later) == nil && later.DuringRun != "" {
		*v = Later(later.DuringRun)
		return nil
	}
	*v = Value{}
	return json.Unmarshal(raw, &v.known)
}
