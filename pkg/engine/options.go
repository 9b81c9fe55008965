package engine

import (
	"cmp"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/plan"
)

// Options are what the user may overrule. The zero value decides by itself, and
// keeps what was decided before.
type Options struct {
	// Image of the agents. Empty: the one that the cluster's agents have already, if
	// they are of this version, or else the Cluster's DefaultImage.
	Image string
	// Overlay, WireGuard and ServiceType are for clusters for which Clusters says
	// nothing.
	Overlay     string
	WireGuard   string
	ServiceType string
	// Gateways are the nodes that gateways run on, where Clusters does not say.
	Gateways v1alpha1.GatewayPlacement
	// NodeMetrics is where node agents show their metrics, where Clusters does not say.
	NodeMetrics string
	// Planes is how many pairs of gateways a peering has, 0 to decide.
	Planes int
	// PlanesMode says by how many planes nodes send: see plan.Overrides.
	PlanesMode v1alpha1.PlanesMode
	// Server is the ID of the cluster whose gateway is called by the other's. Empty
	// to decide.
	Server string
	// Patience is how long one gateway calls the other in vain before it is tried
	// the other way round, where nobody has said who calls. 0 for the default.
	Patience time.Duration
	// KeepOverlayKey leaves the overlay's key as it is, also where nodes that know it have left: it is replaced later.
	KeepOverlayKey bool
	// Replace lets a cluster take the place of one that was peered, without a key of it.
	Replace bool
	// AdoptNamespace takes over a namespace liqonet-system that somebody else has made.
	AdoptNamespace bool
	// Clusters are what is overruled for one cluster, by its ID.
	Clusters map[string]ClusterOptions
	// Facts are those that the user knows better, by the cluster's ID.
	Facts map[string]discovery.Overrides
}

// ClusterOptions are what the user may overrule for one cluster.
type ClusterOptions = plan.Overrides

// Of returns what is overruled for the cluster.
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
