package engine

import (
	"cmp"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/plan"
)

// Options are the user's overrides. The zero value means automatic decisions, which keep earlier ones.
type Options struct {
	// Image of the agents. Empty: the current image of the cluster's agents if they have this version, else the
	// Cluster's DefaultImage.
	Image string
	// Overlay, WireGuard and ServiceType are defaults for clusters without an entry in Clusters.
	Overlay     string
	WireGuard   string
	ServiceType string
	// Gateways are the nodes for gateways, unless set in Clusters.
	Gateways v1alpha1.GatewayPlacement
	// NodeMetrics is the address of node agents' metrics, unless set in Clusters.
	NodeMetrics string
	// Planes is the number of gateway pairs of a peering, 0 for automatic.
	Planes int
	// PlanesMode says how nodes use several planes: see plan.Overrides.
	PlanesMode v1alpha1.PlanesMode
	// Server is the ID of the cluster whose gateways listen. Empty for automatic.
	Server string
	// ConnectTimeout is how long one gateway may try to reach the other before the roles are swapped, unless the user chose
	// them. 0 for the default.
	ConnectTimeout time.Duration
	// KeepOverlayKey keeps the overlay's key even if departed nodes know it: it is replaced later.
	KeepOverlayKey bool
	// Replace accepts a cluster in place of one that was peered, without proof of its identity.
	Replace bool
	// AdoptNamespace accepts a namespace liqonet-system that someone else created.
	AdoptNamespace bool
	// Clusters are overrides for single clusters, by their IDs.
	Clusters map[string]ClusterOptions
	// Facts override discovered facts, by the cluster's ID.
	Facts map[string]discovery.Overrides
}

// ClusterOptions are the user's overrides for one cluster.
type ClusterOptions = plan.Overrides

// Of returns the overrides for a cluster.
func (o Options) Of(id string) plan.Overrides {
	c := o.Clusters[id]
	c.Image = cmp.Or(c.Image, o.Image)
	c.Overlay = cmp.Or(c.Overlay, o.Overlay)
	c.WireGuard = cmp.Or(c.WireGuard, o.WireGuard)
	c.ServiceType = cmp.Or(c.ServiceType, o.ServiceType)
	c.NodeMetrics = cmp.Or(c.NodeMetrics, o.NodeMetrics)
	if c.Gateways.NodeSelector == nil {
		c.Gateways.NodeSelector = o.Gateways.NodeSelector
	}
	if c.Gateways.Tolerations == nil {
		c.Gateways.Tolerations = o.Gateways.Tolerations
	}
	c.Server, c.Planes, c.PlanesMode = o.Server == id, o.Planes, o.PlanesMode
	return c
}
