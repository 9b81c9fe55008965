// Package plan decides what to do to peer two clusters. It plans each cluster separately, from three values: the facts
// read from that cluster, the intent of this run, and the peer's offer. An offer holds all that others may know of a
// cluster. The result depends only on these values, not on the order of the clusters.
//
// The clusters exchange two offers each. The first one (Introduce) describes the cluster. The second one (Answer) adds
// the ranges by which it knows the reader, and Make needs that one. Decisions that both clusters must make alike, such as
// which one is the server, follow from the two offers in the order of their cluster IDs.
//
// The files form floors. Each file calls only files that are named after it here:
//
//   - draft, upgrade: the exchange of offers and the plans that follow from it, and the plans of upgrades
//   - objects: the objects of a plan, and what is in the Peering
//   - decide: what the peer may know, all choices in their order, and those that both clusters make alike
//   - choices: one decision after the other
//   - ranges: the ranges by which a cluster knows the peer, and what is stored about it
//   - facts: what was read, and what the user wants
//   - plan: what a plan consists of
//
// A plan is immutable. A Value marks what is not known yet, and Resolve returns a new plan with it filled in.
//
// The package is pure: it has no client, no context and no clock.
//
// Out of scope: reading the facts (pkg/discovery and pkg/peering), and carrying out the plan (pkg/peering).
package plan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// Plan holds everything to do to peer two clusters, and why.
type Plan struct {
	Clusters [2]ClusterPlan `json:"clusters"`
	// next is the plan to try if no gateway gets an answer, nil if the roles are final.
	next *Plan
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

	NodeAgents NodeAgents `json:"-"`
	// Role is the role of the cluster's gateways.
	Role v1alpha1.Role `json:"-"`
	// OneGateway is why there can be only one plane, empty if there can be more.
	OneGateway string `json:"-"`
	// Ledger is the ledger after the run.
	Ledger *v1alpha1.ClusterNetwork `json:"-"`
	// Gateways are in the order of their planes.
	Gateways []manifests.Gateway `json:"-"`
	// Service exposes the gateways of a server, nil for clients.
	Service *corev1.Service `json:"-"`
	// Budget is the gateways' disruption budget, nil with one plane.
	Budget *policyv1.PodDisruptionBudget `json:"-"`
	// Peering is the object to apply, without the fields that are still unknown.
	Peering *v1alpha1.Peering `json:"-"`
	// unknown lists the fields of the Peering's planes that become known during the run.
	unknown []unknown
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

// Candidates returns the plans in the order to try them: this one, and the one for the case that no gateway gets an
// answer.
func (p *Plan) Candidates() []*Plan { return lo.Compact([]*Plan{p, p.next}) }

func (c *ClusterPlan) note(format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf(format, args...))
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

// Value is a text in a plan: a known one, or a description of a value that becomes known when the plan is carried out.
type Value struct{ known, later string }

// Known returns a known value.
func Known(text string) Value { return Value{known: text} }

// Later returns a value that becomes known during the run. The text describes its source.
func Later(what string) Value { return Value{later: what} }

// IsKnown reports whether the value is known already.
func (v Value) IsKnown() bool { return v.later == "" }

// String returns the value, or its description in parentheses.
func (v Value) String() string { return lo.Ternary(v.IsKnown(), v.known, "("+v.later+")") }

// forJSON returns a text, or an object that describes the future value.
func (v Value) forJSON() any {
	return lo.Ternary[any](v.IsKnown(), v.known, map[string]any{"duringRun": v.later})
}

// MarshalJSON writes a text, or an object that describes the future value.
func (v Value) MarshalJSON() ([]byte, error) { return json.Marshal(v.forJSON()) }

// known returns a statement about a known value.
func known(what, value, reason string) Statement {
	return Statement{What: what, Value: Known(value), Reason: reason}
}

// later returns a statement about a value that becomes known during the run.
func later(what, value, reason string) Statement {
	return Statement{What: what, Value: Later(value), Reason: reason, DuringRun: true}
}

// byFlag returns the reason for a value: a flag, or that it was so before.
func byFlag(given bool, flag string) string { return lo.Ternary(given, "given by "+flag, "as before") }

// secret returns the name of one of our Secrets for a plan.
func secret(name string) string { return "Secret " + v1alpha1.Namespace + "/" + name }
