package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/manifests"
)

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
	f.Installed, f.NodeMetrics, f.OverlayKeys = manifests.AgentsOf(ds, pod), manifests.ShowsNodeMetrics(ds), manifests.OverlayKeys(pod)
	return f
}

// WithPlane returns the facts with newer facts about the gateway of a plane.
func (f Facts) WithPlane(plane int32, p PlaneFacts) Facts {
	f.Planes = lo.Assign(f.Planes, map[int32]PlaneFacts{plane: p})
	return f
}

// existingPlanes returns the planes of the current Peering.
func (f *Facts) existingPlanes() []v1alpha1.Plane {
	return lo.FromPtr(f.Existing).Spec.Planes
}

// existingPlane returns the plane with an index.
func (f *Facts) existingPlane(plane int32) (p v1alpha1.Plane, exists bool) {
	return lo.Find(f.existingPlanes(), func(p v1alpha1.Plane) bool { return p.Index == plane })
}

// PlaneIndexes returns the indexes of the planes for which the cluster has gateways, without temporary ones. If there are
// none yet, it returns index 0.
func (f *Facts) PlaneIndexes() []int32 {
	permanent := lo.FilterMap(f.existingPlanes(), func(p v1alpha1.Plane, _ int) (int32, bool) { return p.Index, !p.Temporary })
	return lo.CoalesceSliceOrEmpty(permanent, []int32{0})
}

// NamedPresharedKey returns the key that the Peering names for a plane, and whether the Peering has that plane.
func (f *Facts) NamedPresharedKey(plane int32) (key v1alpha1.PresharedKey, isThere bool) {
	p, isThere := f.existingPlane(plane)
	return p.PresharedKey, isThere
}

// Gateway identifies the current objects of the gateway of a plane.
func (f *Facts) Gateway(peering string, plane int32) manifests.Gateway {
	existing, _ := f.existingPlane(plane)
	return manifests.Gateway{
		Peering: peering, Owner: f.Owner, Plane: plane, PresharedKey: existing.PresharedKey.Generation,
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

// fail wraps the error of a decision about the cluster.
func (f *Facts) fail(doing string, err error) error {
	return &failure.Error{Cluster: f.Network.Name, Doing: doing, Err: err}
}

// refuse returns the error for a request that the cluster cannot fulfil, with a hint at what is possible.
func (f *Facts) refuse(doing, hint string, err error) error {
	return &failure.Error{Kind: failure.Usage, Cluster: f.Network.Name, Doing: doing, Err: err, Hint: hint}
}

// statements returns the facts as a plan shows them.
func (f *Facts) statements() []Statement {
	var out []Statement
	if f.Network.PodsUnknown != nil {
		out = append(out, later("pod range", "inferred from the node agents' reports", fmt.Sprintf(
			"no object of the cluster names it; if the agents do not report it either, the command fails and rolls back: %v",
			f.Network.PodsUnknown)))
	}
	for _, of := range f.Network.ranges() {
		out = append(out, lo.Map(of.ranges, func(r Range, _ int) Statement { return factStatement(of.what, r) })...)
	}
	out = append(out, factStatement("network plugin", f.Network.CNI), factStatement("provider", f.Network.Provider),
		factStatement("load balancers", f.Network.LoadBalancers))
	if missing := f.Unreported(); len(missing) > 0 {
		s := known("routes and kernels of nodes", "no conflict",
			"only node agents know them, and those of "+strings.Join(missing, ", ")+" have not reported yet")
		s.Assumed = true
		return append(out, s)
	}
	routes, resolvers := map[netip.Prefix][]string{}, map[netip.Addr][]string{}
	for _, n := range f.Reports {
		for _, r := range n.Status.Routes {
			routes[r.Prefix] = append(routes[r.Prefix], n.Name)
		}
		for _, r := range n.Status.Resolvers {
			resolvers[r.Addr] = append(resolvers[r.Addr], n.Name)
		}
	}
	return slices.Concat(out, reported("route of nodes", routes), reported("name server of nodes", resolvers))
}

// factStatement returns a fact as a plan shows it.
func factStatement[T any](what string, f Fact[T]) Statement {
	return Statement{What: what, Value: Known(cmp.Or(fmt.Sprint(f.Value), "unknown")), Reason: f.Source, Assumed: f.Assumed}
}

// reported returns what the agents of nodes report, by value.
func reported[T interface {
	comparable
	Compare(T) int
	String() string
}](what string, nodes map[T][]string) (out []Statement) {
	for _, value := range slices.SortedFunc(maps.Keys(nodes), T.Compare) {
		slices.Sort(nodes[value])
		out = append(out, known(what, value.String(), "reported by the agents of "+strings.Join(slices.Compact(nodes[value]), ", ")))
	}
	return out
}
