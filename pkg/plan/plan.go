// Package plan decides what to do to peer two clusters. It plans each cluster separately, from three values: the facts
// read from that cluster, the intent of this run, and the peer's offer. An offer holds all that others may know of a
// cluster. The result depends only on these values, not on the order of the clusters.
//
// The clusters exchange two offers each. The first one (Introduce) describes the cluster. The second one (Answer) adds
// the ranges by which it knows the reader, and Make needs that one. Decisions that both clusters must make alike, such as
// which one is the server, follow from the two offers in the order of their cluster IDs.
//
// The files form layers. Each file calls only files that are listed below it:
//
//   - draft, upgrade: the exchange of offers and the plans that follow from it, and the plans of upgrades
//   - objects: the objects of a plan, and what is in the Peering
//   - services: whether and how services are exchanged
//   - decide: what the peer may know, all choices in their order, and those that both clusters make alike
//   - choices: one decision after the other
//   - ranges: the ranges by which a cluster knows the peer, and what is stored about it
//   - plan: what was read, what the user wants, and what a plan consists of
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
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
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
	// SingleGatewayReason is why there can be only one plane, empty if there can be more.
	SingleGatewayReason string `json:"-"`
	// Ledger is the ledger after the run.
	Ledger *v1alpha1.ClusterNetwork `json:"-"`
	// Gateways are in the order of their planes.
	Gateways []manifests.Gateway `json:"-"`
	// Service exposes the gateways of a server, nil for clients.
	Service *corev1.Service `json:"-"`
	// Budget is the gateways' disruption budget, nil with one plane.
	Budget *policyv1.PodDisruptionBudget `json:"-"`
	// Services is set if services are exchanged with the peer.
	Services bool `json:"-"`
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

func addNote(notes *[]string, format string, args ...any) {
	*notes = append(*notes, fmt.Sprintf(format, args...))
}

// Statement is a value, with its source or the reason for it.
type Statement struct {
	Subject string `json:"what"`
	Value   Value  `json:"value"`
	Reason  string `json:"reason"`
	// Assumed means that the value was inferred, not read. Subject only node agents know is assumed until they have
	// reported.
	Assumed bool `json:"assumed,omitempty"`
	// DuringRun means that the value becomes known when the plan is carried out.
	DuringRun bool `json:"duringRun,omitempty"`
}

// RangePlan is a range, and the range by which the cluster knows it.
type RangePlan struct {
	Subject string       `json:"what"`
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

// Pending returns a value that becomes known during the run. The text describes its source.
func Pending(what string) Value { return Value{later: what} }

// IsKnown reports whether the value is known already.
func (v Value) IsKnown() bool { return v.later == "" }

// String returns the value, or its description in parentheses.
func (v Value) String() string { return lo.Ternary(v.IsKnown(), v.known, "("+v.later+")") }

// jsonValue returns a text, or an object that describes the future value.
func (v Value) jsonValue() any {
	return lo.Ternary[any](v.IsKnown(), v.known, map[string]any{"duringRun": v.later})
}

// KnownPart returns a copy of a manifest without the values that become known during the run, which an API server would refuse. An element
// of a list without its key is refused too: it is left out as a whole. isWhole means that everything is known.
func KnownPart(manifest map[string]any) (part map[string]any, isWhole bool) {
	left, isWhole := known(manifest)
	return left.(map[string]any), isWhole
}

func known(of any) (part any, isWhole bool) {
	isWhole = true
	switch of := of.(type) {
	case map[string]any:
		out := make(map[string]any, len(of))
		for k, v := range of {
			if inner, is := v.(map[string]any); is && len(inner) == 1 && inner["duringRun"] != nil {
				isWhole = false
				continue
			}
			left, all := known(v)
			out[k], isWhole = left, isWhole && all
		}
		return out, isWhole
	case []any:
		out := make([]any, 0, len(of))
		for _, v := range of {
			wrapped, all := known(map[string]any{"": v})
			if isWhole = isWhole && all; all {
				out = append(out, wrapped.(map[string]any)[""])
			}
		}
		return out, isWhole
	}
	return of, true
}

// MarshalJSON writes a text, or an object that describes the future value.
func (v Value) MarshalJSON() ([]byte, error) { return json.Marshal(v.jsonValue()) }

// statement returns a statement about a known value.
func statement(subject, value, reason string) Statement {
	return Statement{Subject: subject, Value: Known(value), Reason: reason}
}

// pending returns a statement about a value that becomes known during the run.
func pending(subject, value, reason string) Statement {
	return Statement{Subject: subject, Value: Pending(value), Reason: reason, DuringRun: true}
}

// flagReason returns the reason for a value: a flag, or that it was so before.
func flagReason(given bool, flag string) string {
	return lo.Ternary(given, "given by "+flag, "as before")
}

// secretRef returns the name of one of our Secrets for a plan.
func secretRef(name string) string { return "Secret " + v1alpha1.Namespace + "/" + name }

// Facts are what was read from one cluster. They are immutable: later reads make new ones.
type Facts struct {
	Network Network
	// APIServer are the addresses of the cluster's API server, as its own pods reach it.
	APIServer []netip.Addr
	// Kubeconfig is the API server's address in the user's kubeconfig, invalid if that has a host name.
	Kubeconfig netip.Addr
	// Reports are the node agents' reports.
	Reports []v1alpha1.NodeNetwork
	// Ledger is the last version read, nil if liqonet is not installed.
	Ledger *v1alpha1.ClusterNetwork
	// Existing is the current Peering with the peer, nil if there is none or it is incomplete.
	Existing *v1alpha1.Peering
	// Owner is the UID of the Peering, complete or not, empty if there is none.
	Owner types.UID
	// OtherPeerings are the Peerings with other peers.
	OtherPeerings []v1alpha1.Peering
	// OverlayKeys are the generations of the overlay keys that node agents have. LostOverlayKey is one whose Secret is
	// gone, 0 if there is none.
	OverlayKeys    []int32
	LostOverlayKey int32
	// NewestOverlayKey is the latest generation that has a Secret, 0 if there is none. Generations are not reused.
	NewestOverlayKey int32
	// Installed are the current node agents. The image is empty if there are none, the version if it is not known.
	Installed manifests.Agents
	// NodeMetrics means that they serve their metrics at their nodes' own addresses.
	NodeMetrics bool
	// Service exposes the gateways to the peer, nil if there is none.
	Service *corev1.Service
	// Planes are the facts about the gateways to the peer, by the plane's index.
	Planes map[int32]PlaneFacts
	// PodsInferred is a note about PodCIDRs that were inferred, and from what. It is empty if an object of the cluster,
	// or the user, names them.
	PodsInferred string
	Services     ServicesFacts
}

// PlaneFacts are a cluster's facts about the gateway of one plane.
type PlaneFacts struct {
	// PublicKey is the gateway's public key, empty while it is not known.
	PublicKey string
	// KeyGeneration identifies the Secret with the gateway's key, 0 while it is not known.
	KeyGeneration int32
	// KeyUnreadable means that the user may not read Secrets.
	KeyUnreadable bool
	// KeyTime is when the gateway's key was created, by the clock of its API server.
	KeyTime metav1.Time
	// PresharedKey is the gateway's pre-shared key, zero if it has none or if the one that the Peering names does not
	// exist.
	PresharedKey v1alpha1.PresharedKey
}

// WithNodeAgents returns the facts with the node agents of a DaemonSet.
func (f Facts) WithNodeAgents(ds *appsv1.DaemonSet) Facts {
	pod := &ds.Spec.Template.Spec
	f.Installed, f.NodeMetrics, f.OverlayKeys = manifests.AgentsOf(ds, pod), manifests.ExposesNodeMetrics(ds), manifests.OverlayKeys(pod)
	return f
}

// WithPlane returns the facts with newer facts about the gateway of a plane.
func (f Facts) WithPlane(plane int32, p PlaneFacts) Facts {
	f.Planes = lo.Assign(f.Planes, map[int32]PlaneFacts{plane: p})
	return f
}

// existingPlanes returns the planes of the current Peering.
func (f *Facts) existingPlanes() []v1alpha1.Plane { return lo.FromPtr(f.Existing).Spec.Planes }

// ExistingPlane returns the plane of the current Peering with an index.
func (f *Facts) ExistingPlane(plane int32) (p v1alpha1.Plane, exists bool) {
	return lo.Find(f.existingPlanes(), func(p v1alpha1.Plane) bool { return p.Index == plane })
}

// PlaneIndexes returns the indexes of the planes for which the cluster has gateways, without temporary ones. If there are
// none yet, it returns index 0.
func (f *Facts) PlaneIndexes() []int32 {
	permanent := lo.FilterMap(f.existingPlanes(), func(p v1alpha1.Plane, _ int) (int32, bool) { return p.Index, !p.Temporary })
	return lo.CoalesceSliceOrEmpty(permanent, []int32{0})
}

// Gateway identifies the current objects of the gateway of a plane.
func (f *Facts) Gateway(peering string, plane int32) manifests.Gateway {
	existing, _ := f.ExistingPlane(plane)
	return manifests.Gateway{
		Peering: peering, Owner: f.Owner, Plane: plane, PresharedKey: existing.PresharedKey.Generation,
		Services:      lo.FromPtr(f.Existing).Spec.Services != nil,
		KeyGeneration: max(1, cmp.Or(f.Planes[plane].KeyGeneration, existing.KeyGeneration)),
	}
}

// role returns the role that was decided before, empty if there is none.
func (f *Facts) role() v1alpha1.Role { return lo.FirstOrEmpty(f.existingPlanes()).Role }

// peerings returns the Peerings with all peers.
func (f *Facts) peerings() []v1alpha1.Peering {
	if f.Existing == nil {
		return f.OtherPeerings
	}
	return append(slices.Clone(f.OtherPeerings), *f.Existing)
}

// ledger returns the current ledger, nil if it is being removed.
func (f *Facts) ledger() *v1alpha1.ClusterNetwork {
	if f.Ledger == nil || !f.Ledger.DeletionTimestamp.IsZero() {
		return nil
	}
	return f.Ledger
}

// ReportsByNode returns the agents' reports by node name. A report without an address does not count: no agent has
// written it, or not yet.
func ReportsByNode(reports []v1alpha1.NodeNetwork) map[string]*v1alpha1.NodeNetwork {
	return lo.FilterSliceToMap(lo.ToSlicePtr(reports), func(r *v1alpha1.NodeNetwork) (string, *v1alpha1.NodeNetwork, bool) {
		return r.Name, r, r.Status.Address.IsValid()
	})
}

// agentNodes returns the nodes that have agents, sorted by name: the ready ones, or the others.
func (f *Network) agentNodes(ready bool) []string {
	names := lo.FilterMap(f.Nodes, func(n Node, _ int) (string, bool) { return n.Name, n.Ready == ready && n.RunsAgents })
	slices.Sort(names)
	return names
}

// Unreported returns the nodes whose agents have not reported their kernels' features.
func (f *Facts) Unreported() []string {
	reports := ReportsByNode(f.Reports)
	return slices.DeleteFunc(f.Network.agentNodes(true), func(node string) bool {
		return reports[node] != nil && reports[node].Status.Kernel != nil
	})
}

// NodeUIDs returns the UIDs of all existing Nodes.
func (f *Network) NodeUIDs() []string {
	return lo.Map(f.Nodes, func(n Node, _ int) string { return n.UID })
}

// wrapError wraps the error of a decision about the cluster.
func (f *Facts) wrapError(op string, err error) error {
	return &failure.Error{Cluster: f.Network.Name, Op: op, Err: err}
}

// usageError returns the error for a request that the cluster cannot fulfil, with a hint at what is possible.
func (f *Facts) usageError(op, hint string, err error) error {
	return &failure.Error{Kind: failure.Usage, Cluster: f.Network.Name, Op: op, Err: err, Hint: hint}
}

// statements returns the facts as a plan shows them.
func (f *Facts) statements() []Statement {
	var out []Statement
	if f.Network.PodsUnknown != nil {
		out = append(out, pending("pod range", "inferred from the node agents' reports", fmt.Sprintf(
			"no object of the cluster names it; if the agents do not report it either, the command fails and rolls back: %v",
			f.Network.PodsUnknown)))
	}
	for _, of := range f.Network.ranges() {
		out = append(out, lo.Map(of.ranges, func(r Range, _ int) Statement { return factStatement(of.kind, r) })...)
	}
	out = append(out, factStatement("network plugin", f.Network.CNI), factStatement("provider", f.Network.Provider),
		factStatement("load balancers", f.Network.LoadBalancers))
	if missing := f.Unreported(); len(missing) > 0 {
		s := statement("routes and kernels of nodes", "no conflict",
			"only node agents know them, and those of "+strings.Join(missing, ", ")+" have not reported yet")
		s.Assumed = true
		return append(out, s)
	}
	routes, resolvers := map[netip.Prefix][]string{}, map[netip.Addr][]string{}
	for _, n := range f.Reports {
		kept, _ := NodeRoutes(&n)
		for _, r := range kept {
			routes[r] = append(routes[r], n.Name)
		}
		for _, r := range n.Status.Resolvers {
			resolvers[r.Addr] = append(resolvers[r.Addr], n.Name)
		}
	}
	return slices.Concat(out, reported("route of nodes", routes), reported("name server of nodes", resolvers))
}

// factStatement returns a fact as a plan shows it.
func factStatement[T any](subject string, f Fact[T]) Statement {
	return Statement{Subject: subject, Value: Known(cmp.Or(fmt.Sprint(f.Value), "unknown")), Reason: f.Source, Assumed: f.Assumed}
}

// reported returns what the agents of nodes report, by value.
func reported[T interface {
	comparable
	Compare(T) int
	String() string
}](what string, nodes map[T][]string) (out []Statement) {
	for _, value := range slices.SortedFunc(maps.Keys(nodes), T.Compare) {
		slices.Sort(nodes[value])
		out = append(out, statement(what, value.String(), "reported by the agents of "+strings.Join(slices.Compact(nodes[value]), ", ")))
	}
	return out
}

// Fact is a value and its source.
type Fact[T any] struct {
	Value T
	// Source completes "<value>: …", e.g. "from Calico's IPPool default".
	Source string
	// Assumed means that the value was inferred from other facts, not read. The source names them.
	Assumed bool
}

// Range is an address range of a cluster.
type Range = Fact[netip.Prefix]

// Ranges are address ranges that do not overlap.
type Ranges []Range

// Prefixes returns the ranges without their sources.
func (r Ranges) Prefixes() []netip.Prefix {
	return lo.Map(r, func(f Range, _ int) netip.Prefix { return f.Value })
}

// Contains reports whether one of the ranges contains addr.
func (r Ranges) Contains(addr netip.Addr) bool {
	return slices.ContainsFunc(r, func(f Range) bool { return f.Value.Contains(addr) })
}

// Network holds the ranges, nodes and load balancers of a cluster according to its API. The order of all lists stays the
// same as long as the cluster does not change.
type Network struct {
	// ClusterID is the UID of the namespace kube-system.
	ClusterID string
	// Name is the user's name of the cluster.
	Name string
	// PodCIDRs are the ranges of the pods, empty if PodsUnknown is set.
	PodCIDRs Ranges
	// PodsUnknown is why no object of the cluster names the ranges of the pods. The node agents' reports may contain
	// them.
	PodsUnknown error
	// PodAddrs are the addresses of the pods, if PodsUnknown is set.
	PodAddrs []netip.Addr
	// ServiceCIDRs are the ranges of the services' cluster IPs.
	ServiceCIDRs Ranges
	// NodeCIDRs are the subnets of the nodes. They are usually assumed: only the node agents know them. They may overlap
	// PodCIDRs if pods have addresses of the nodes' subnets (EKS, Azure CNI).
	NodeCIDRs Ranges
	// Reserved are ranges that the user does not want to be mapped to peers.
	Reserved Ranges
	// CNI is the network plugin, Provider is the provider of the cluster. Empty if not known.
	CNI, Provider Fact[string]
	// LoadBalancers is whether services of type LoadBalancer get addresses: Yes, No, or empty if not known.
	LoadBalancers Fact[string]
	Nodes         []Node
	// Warnings are unexpected facts that do not affect a peering.
	Warnings []string
}

// The values of Network.LoadBalancers.
const (
	Yes = "yes"
	No  = "no"
)

// rangesOf are ranges of one kind, with their names in plans and in errors.
type rangesOf struct {
	kind, owner string
	ranges      Ranges
}

// ranges returns all ranges that the cluster is known to use.
func (f *Network) ranges() []rangesOf {
	return []rangesOf{
		{"pod range", "pods of", f.PodCIDRs},
		{"service range", "services of", f.ServiceCIDRs},
		{"node range", "nodes of", f.NodeCIDRs},
		{"reserved range", "reserved in", f.Reserved},
	}
}

// Node is a node of the cluster. Virtual nodes, which have no kernel, are left out.
type Node struct {
	Name string
	// UID is the UID of the Node: a new Node with the same name has another.
	UID                      string
	InternalIPs, ExternalIPs []netip.Addr
	Ready                    bool
	// Schedulable is false for a cordoned node, and for one with a NoSchedule or NoExecute taint.
	Schedulable bool
	// RunsAgents means that the node gets agents once it is ready: it runs Linux, with a kernel of its own.
	RunsAgents bool
	// Labels and Taints are the Node's.
	Labels map[string]string
	Taints []corev1.Taint
}

// addresses returns all addresses of the node.
func (n *Node) addresses() []netip.Addr { return slices.Concat(n.InternalIPs, n.ExternalIPs) }

// publicAddress returns an address at which the node may be reachable from outside: an external one, or an internal one
// that is public. It is invalid if there is none.
func (n *Node) publicAddress() netip.Addr {
	if len(n.ExternalIPs) > 0 {
		return n.ExternalIPs[0]
	}
	internal, _ := lo.Find(n.InternalIPs, func(a netip.Addr) bool { return a.IsGlobalUnicast() && !ipam.IsPrivateAddr(a) })
	return internal
}

// singleAddress returns the prefix that contains only the address.
func singleAddress(a netip.Addr, _ int) netip.Prefix {
	return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())
}

func addresses(ips []v1alpha1.IP) []netip.Addr {
	return lo.Map(ips, func(ip v1alpha1.IP, _ int) netip.Addr { return ip.Addr })
}

// Intent is what this run should do in one cluster.
type Intent struct {
	// Version is the version of this command, DefaultImage the agents' image of that version.
	Version, DefaultImage string
	// Overrides are the user's choices.
	Overrides Overrides
	// Temporary requests a plane that carries packets while the gateways of another one are replaced.
	Temporary bool
	// KeepOverlayKey keeps the key that the ledger names: the agents have it already, or it is replaced later.
	KeepOverlayKey bool
	// Upgrade replaces agents of another version.
	Upgrade bool
	// Renew are the planes whose gateways get new keys.
	Renew map[int32]Renewal
}

// Renewal selects the new keys for the gateway of a plane.
type Renewal struct {
	// OverlayKey is the generation of the overlay key for its links, 0 to decide.
	OverlayKey int32
	// PresharedKey requests a new pre-shared key.
	PresharedKey bool
}

// Overrides are what the user can choose for one cluster.
type Overrides struct {
	// Image is the agents' image. If it is empty, the running agents' image is used if they have this version, otherwise
	// the default.
	Image string
	// Overlay is "Geneve" or "VXLAN", WireGuard is "Kernel" or "UserSpace", and ServiceType is "NodePort", "LoadBalancer" or
	// "ClusterIP". Each is "auto" or empty to decide.
	Overlay, WireGuard, ServiceType string
	// NodePort is the node port to request, 0 for any.
	NodePort int32
	// Planes is the number of planes of the peering, 0 to decide.
	Planes int
	// Server makes this cluster's gateway the server.
	Server bool
	// Endpoints are where the gateway can be reached, as host:port, if that differs from the Service: behind a NAT or a
	// load balancer.
	Endpoints []string
	// AutoEndpoints removes the Endpoints of an earlier command.
	AutoEndpoints bool
	// Map are the ranges by which peers should know this cluster's pods. Real may be omitted if the cluster has one pod
	// range of that length.
	Map ipam.Mappings
	// MapNodes is the /18 by which peers should know this cluster's nodes.
	MapNodes netip.Prefix
	// LimitNew and LimitRate are the cluster's limits for its peer (see v1alpha1.Limits). Nil keeps the current one, 0
	// removes it.
	LimitNew, LimitRate *int64
	// PlanesMode selects how many planes nodes use. Empty keeps the current mode. It is the same for both clusters.
	PlanesMode v1alpha1.PlanesMode
	// Gateways selects the nodes on which gateways run. A nil list keeps the earlier choice, an empty one removes it.
	Gateways v1alpha1.GatewayPlacement
	// NodeMetrics is where node agents serve their metrics, MetricsLoopback or MetricsNode. Empty keeps it.
	NodeMetrics string
	// Services are the choices about services.
	Services ServicesOverrides
}

// MetricsLoopback lets node agents serve their metrics on 127.0.0.1, MetricsNode at their nodes' own addresses.
const (
	MetricsLoopback = "loopback"
	MetricsNode     = "node"
)

// isAutomatic reports whether the planner decides.
func isAutomatic(override string) bool { return override == "" || override == "auto" }

// input is what one cluster has, and what the user wants from it.
type input struct {
	facts Facts
	Intent
}
