package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// Facts are what was read from one cluster. They are a value: what was read later makes another one.
type Facts struct {
	Network
	// APIServer are the addresses of the cluster's API server, as its own pods reach it.
	APIServer []netip.Addr
	// Kubeconfig is the API server's address by which the user reaches it, invalid where
	// that is a name.
	Kubeconfig netip.Addr
	// Reports are those of the node agents.
	Reports []v1alpha1.NodeNetwork
	// Ledger as it was read last, nil where liqonet is not installed.
	Ledger *v1alpha1.ClusterNetwork
	// Existing is the Peering with the peer as it is in the cluster, nil if there is
	// none, or if it is not complete.
	Existing *v1alpha1.Peering
	// Owner is the UID of the Peering, complete or not, empty if there is none.
	Owner types.UID
	// OtherPeerings are the Peerings with other peers.
	OtherPeerings []v1alpha1.Peering
	// OverlayKeys are the generations of the overlay's keys that node agents are given, LostOverlayKey one
	// whose Secret is gone, 0 if there is none.
	OverlayKeys    []int32
	LostOverlayKey int32
	// NewestOverlayKey is the latest generation of which there is a Secret, 0 if there is none. A number is not given to another key.
	NewestOverlayKey int32
	// Installed are the node agents that are there, without an image if there are none. Their version is empty if it is not known.
	Installed manifests.Agents
	// NodeMetrics says that these show their metrics at their nodes' own addresses.
	NodeMetrics bool
	// Service exposes the gateways to the peer, nil if there is none.
	Service *corev1.Service
	// Planes are what there is of the gateways to the peer, by the plane's index.
	Planes map[int32]PlaneFacts
	// PodsConcluded says that, and from what, PodCIDRs were concluded; empty where an
	// object of the cluster names them, or the user.
	PodsConcluded string
}

// Intent is what is wanted of one cluster in this run.
type Intent struct {
	// Version is that of this command, DefaultImage the agents' image of that version.
	Version, DefaultImage string
	// Overrides are what the user overrules.
	Overrides Overrides
	// Temporary asks for a plane that packets take while the gateways of another one are replaced.
	Temporary bool
	// KeepOverlayKey leaves the key that the ledger names: the agents have been given it, or it is replaced later.
	KeepOverlayKey bool
	// Upgrade replaces agents of another version.
	Upgrade bool
	// Renew are planes whose gateways get other keys.
	Renew map[int32]Renewal
}

// Renewal is which other keys the gateway of a plane gets.
type Renewal struct {
	// OverlayKey is the generation of the overlay's key that its links are to have, 0 to decide.
	OverlayKey int32
	// PresharedKey asks for another pre-shared key.
	PresharedKey bool
}

// sheet is a cluster with what is wanted of it.
type sheet struct {
	Facts
	Intent
}

// PlaneFacts are what a cluster has for the gateway of one plane.
type PlaneFacts struct {
	// PublicKey of the gateway, empty while it is not known.
	PublicKey string
	// KeyGeneration says which Secret has the gateway's key, 0 while that is not known.
	KeyGeneration int32
	// KeyUnreadable says that the user may not read Secrets.
	KeyUnreadable bool
	// KeyTime is when the gateway's key was made, by the clock of its API server.
	KeyTime metav1.Time
	// PresharedKey is the one that the gateway has, the zero value if it has none, or if
	// the one that the Peering names is not there.
	PresharedKey v1alpha1.PresharedKey
}

// Overrides are what the user may overrule for one cluster.
type Overrides struct {
	// Image of the agents. Empty: that of the agents which run, if they are of this
	// version, or else the default.
	Image string
	// Overlay is "Geneve", "VXLAN", or "auto" or empty to decide.
	Overlay string
	// WireGuard is "Kernel", "UserSpace", or "auto" or empty to decide.
	WireGuard string
	// ServiceType is "NodePort", "LoadBalancer", "ClusterIP", or "auto" or empty to
	// decide.
	ServiceType string
	// NodePort is the one to ask for, 0 for any.
	NodePort int32
	// Planes is how many planes the peering is to have, 0 to decide.
	Planes int
	// Server says that the peer's gateway calls this cluster's one.
	Server bool
	// Endpoints are where the gateway can be called, as host:port, where that is not
	// what the Service says: behind a NAT or a load balancer.
	Endpoints []string
	// AutoEndpoints takes back what Endpoints said in an earlier command.
	AutoEndpoints bool
	// Map are the ranges by which peers are to know this cluster's pods. Real may be
	// left out where the cluster has one pod range of that length.
	Map ipam.Mappings
	// MapNodes is the /18 by which peers are to know this cluster's nodes.
	MapNodes netip.Prefix
	// LimitNew and LimitRate are the cluster's limits for its peer (see v1alpha1.Limits). Nil
	// keeps what there is, 0 takes it away.
	LimitNew, LimitRate *int64
	// PlanesMode says by how many planes nodes send. Empty keeps what there is. It is the same for both clusters.
	PlanesMode v1alpha1.PlanesMode
	// Gateways says on which nodes the gateways run. A list that is nil keeps what was chosen
	// before, an empty one takes it back.
	Gateways v1alpha1.GatewayPlacement
	// NodeMetrics is where node agents show their metrics, MetricsLoopback or MetricsNode. Empty keeps it.
	NodeMetrics string
}

// MetricsLoopback has node agents show their metrics on 127.0.0.1, MetricsNode at their nodes' own addresses.
const (
	MetricsLoopback = "loopback"
	MetricsNode     = "node"
)

// nodeMetrics says whether node agents are to show their metrics at their nodes' own addresses.
func (f *sheet) nodeMetrics() bool {
	return f.Overrides.NodeMetrics == MetricsNode || f.Overrides.NodeMetrics == "" && f.NodeMetrics
}

// automatic says that the planner is to decide.
func automatic(override string) bool { return override == "" || override == "auto" }

// AnnotationEndpoints of the gateways' Service keeps what the user gave by
// --endpoint.
const AnnotationEndpoints = "liqonet.io/endpoints"

// givenEndpoints are those that the user gave for the gateway, now or in an earlier command. They
// are one gateway's, so there is one plane then.
func (f *sheet) givenEndpoints() []string {
	if len(f.Overrides.Endpoints) > 0 || f.Overrides.AutoEndpoints {
		return f.Overrides.Endpoints
	}
	return endpointsOf(f.Service)
}

// endpointsOf are those in the annotation of a Service, nil if there are none.
func endpointsOf(svc *corev1.Service) []string {
	if svc == nil || svc.Annotations[AnnotationEndpoints] == "" {
		return nil
	}
	return strings.Split(svc.Annotations[AnnotationEndpoints], ",")
}

// PlaneIndexes are the indexes of the planes that the cluster has gateways for, without temporary ones: one,
// with the index 0, while there is none.
func (f *Facts) PlaneIndexes() []int32 {
	permanent := lo.FilterMap(f.existingPlanes(), func(p v1alpha1.Plane, _ int) (int32, bool) { return p.Index, !p.Temporary })
	if len(permanent) == 0 {
		return []int32{0}
	}
	return permanent
}

// keyGeneration says which key the gateway of a plane has, or will have.
func (f *Facts) keyGeneration(plane int32) int32 {
	existing, _ := f.existingPlane(plane)
	return max(1, cmp.Or(f.Planes[plane].KeyGeneration, existing.KeyGeneration))
}

// existingPlanes are those of the Peering that is there.
func (f *Facts) existingPlanes() []v1alpha1.Plane {
	return lo.FromPtr(f.Existing).Spec.Planes
}

// existingPlane is the one of that index.
func (f *Facts) existingPlane(plane int32) (p v1alpha1.Plane, exists bool) {
	return lo.Find(f.existingPlanes(), func(p v1alpha1.Plane) bool { return p.Index == plane })
}

// Gateway names what there is of the gateway of a plane.
func (f *Facts) Gateway(peering string, plane int32) manifests.Gateway {
	preshared, _ := f.NamedPresharedKey(plane)
	return manifests.Gateway{
		Peering: peering, Owner: f.Owner, Plane: plane, KeyGeneration: f.keyGeneration(plane), PresharedKey: preshared.Generation,
	}
}

// role is what was decided before, empty if nothing was.
func (f *Facts) role() v1alpha1.Role { return lo.FirstOrEmpty(f.existingPlanes()).Role }

// peerings are those with all peers.
func (f *Facts) peerings() []v1alpha1.Peering {
	if f.Existing == nil {
		return f.OtherPeerings
	}
	return append(slices.Clone(f.OtherPeerings), *f.Existing)
}

// ledger is the one that is there, nil if it is being removed.
func (f *Facts) ledger() *v1alpha1.ClusterNetwork {
	if f.Ledger == nil || !f.Ledger.DeletionTimestamp.IsZero() {
		return nil
	}
	return f.Ledger
}

// InternalCIDR is the range of the overlay's addresses: the one that the cluster
// has, or one that is free in it.
func (f *Facts) InternalCIDR() (netip.Prefix, string, error) {
	if cn := f.ledger(); cn != nil {
		return cn.Spec.InternalCIDR.Prefix, "as before", nil
	}
	got, err := ipam.Allocate(append(f.ownRanges(), f.called()...), ipam.InternalRequest(f.ClusterID, f.Name))
	if err != nil {
		return netip.Prefix{}, "", &failure.Error{Kind: failure.Ranges, Cluster: f.Name, Doing: "find a range for the overlay", Err: err}
	}
	return got[0].Prefix, got[0].Reason, nil
}

// agents are those that run when the plan is carried out, and why. Agents that are there stay, unless another image is given:
// `upgrade` replaces them.
func (f *sheet) agents() (a manifests.Agents, s Statement) {
	a = manifests.Agents{Image: f.DefaultImage, Version: f.Version}
	s = Statement{What: "image of the agents", Reason: "the one of this version of the command"}
	switch has := f.Installed; {
	case f.Overrides.Image != "":
		a.Image, s.Reason = f.Overrides.Image, "given by --agent-image"
	case has.Image == "", f.Upgrade && has.Version != f.Version:
	case has.Version == "", has.Version == f.Version:
		a.Image, s.Reason = has.Image, "the one of the node agents that are there"
	default:
		a, s.Reason = has, fmt.Sprintf("the one of the node agents that are there, which are of version %s; "+
			"upgrade brings them to %s", has.Version, f.Version)
	}
	s.Value = Known(a.Image)
	return a, s
}

// ReportsByNode returns the agents' reports by the names of their nodes. One without an
// address was made by no agent, or has not been written yet, and does not count.
func ReportsByNode(reports []v1alpha1.NodeNetwork) map[string]*v1alpha1.NodeNetwork {
	return lo.FilterSliceToMap(lo.ToSlicePtr(reports), func(r *v1alpha1.NodeNetwork) (string, *v1alpha1.NodeNetwork, bool) {
		return r.Name, r, r.Status.Address.IsValid()
	})
}

// NodeGroups are the nodes that are ready and have agents, in groups whose agents are replaced one after the other.
func (f *Facts) NodeGroups() [][]string { return groups(f.agentNodes(true), true) }

// agentNodes are the nodes that have agents, sorted by name: those that are ready, or those that are not.
func (f *Facts) agentNodes(ready bool) []string {
	names := lo.FilterMap(f.Nodes, func(n Node, _ int) (string, bool) { return n.Name, n.Ready == ready && n.RunsAgents })
	slices.Sort(names)
	return names
}

// Unreported are the nodes whose agents have not said what their kernels can do.
func (f *Facts) Unreported() []string {
	reports := ReportsByNode(f.Reports)
	return slices.DeleteFunc(f.agentNodes(true), func(node string) bool {
		return reports[node] != nil && reports[node].Status.Kernel != nil
	})
}

// statements are the facts as a plan shows them.
func (f *Facts) statements() []Statement {
	var out []Statement
	if f.PodsUnknown != nil {
		out = append(out, later("pod range", "concluded from what the node agents report", fmt.Sprintf(
			"no object of the cluster names it; if the agents cannot tell either, the command fails, and takes back what it did: %v", f.PodsUnknown)))
	}
	for _, of := range f.ranges() {
		out = append(out, lo.Map(of.ranges, func(r Range, _ int) Statement { return stated(of.what, r) })...)
	}
	out = append(out, stated("network plugin", f.CNI), stated("provider", f.Provider), stated("load balancers", f.LoadBalancers))
	if missing := f.Unreported(); len(missing) > 0 {
		s := known("routes and kernels of nodes", "nothing in the way",
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

// stated is a fact as a plan shows it.
func stated[T any](what string, f Fact[T]) Statement {
	return Statement{What: what, Value: Known(cmp.Or(fmt.Sprint(f.Value), "unknown")), Reason: f.Source, Assumed: f.Assumed}
}

// reported are what the agents of nodes say, by value.
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

// rangesOf are ranges of one kind, as a plan and as an error calls them.
type rangesOf struct {
	what, by string
	ranges   Ranges
}

// ranges are all that the cluster is known to use.
func (f *Network) ranges() []rangesOf {
	return []rangesOf{
		{"pod range", "pods of", f.PodCIDRs},
		{"service range", "services of", f.ServiceCIDRs},
		{"node range", "nodes of", f.NodeCIDRs},
		{"reserved range", "reserved in", f.Reserved},
	}
}

// fail says what could not be decided for the cluster.
func (f *Facts) fail(doing string, err error) error {
	return &failure.Error{Cluster: f.Name, Doing: doing, Err: err}
}

// refuse says that what the user asks for cannot be done in the cluster, and what can.
func (f *Facts) refuse(doing, hint string, err error) error {
	return &failure.Error{Kind: failure.Usage, Cluster: f.Name, Doing: doing, Err: err, Hint: hint}
}

// WithNodeAgents returns the facts with what there is of the node agents.
func (f Facts) WithNodeAgents(ds *appsv1.DaemonSet) Facts {
	pod := &ds.Spec.Template.Spec
	f.Installed, f.NodeMetrics, f.OverlayKeys = manifests.AgentsOf(ds, pod), manifests.ShowsNodeMetrics(ds), manifests.OverlayKeys(pod)
	return f
}

// WithPlane returns the facts with what is known by now of the gateway of a plane.
func (f Facts) WithPlane(plane int32, p PlaneFacts) Facts {
	f.Planes = lo.Assign(f.Planes, map[int32]PlaneFacts{plane: p})
	return f
}
