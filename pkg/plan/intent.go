package plan

import (
	"net/netip"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
)

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
	// Overlay is "Geneve", "VXLAN", or "auto" or empty to decide.
	Overlay string
	// WireGuard is "Kernel", "UserSpace", or "auto" or empty to decide.
	WireGuard string
	// ServiceType is "NodePort", "LoadBalancer", "ClusterIP", or "auto" or empty to decide.
	ServiceType string
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
}

// MetricsLoopback lets node agents serve their metrics on 127.0.0.1, MetricsNode at their nodes' own addresses.
const (
	MetricsLoopback = "loopback"
	MetricsNode     = "node"
)

// automatic reports whether the planner decides.
func automatic(override string) bool { return override == "" || override == "auto" }

// input is what one cluster has, and what the user wants from it.
type input struct {
	has Facts
	Intent
}
