package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// draft is a cluster's plan under construction.
type draft struct {
	own *input
	decisions
	mine Offer
	peer *Offer
	// plan holds what does not depend on the peer's decisions.
	plan ClusterPlan
}

// begin decides everything that does not depend on the peer's decisions about this cluster.
func begin(own Facts, intent Intent, peer *Offer) (d *draft, err error) {
	f := &input{own, intent}
	d = &draft{own: f, peer: peer}
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
	agents.Work = f.has.Installed.Image != "" && len(f.has.Unreported()) == 0
	d.plan = ClusterPlan{
		Cluster: f.has.Network.Name, ClusterID: f.has.Network.ClusterID, Peer: peer.Name, NodeAgents: agents,
		Facts: f.has.statements(), Warnings: slices.Clone(f.has.Network.Warnings),
		OneGateway: cmp.Or(d.mine.Planes.OneGateway, peer.Planes.OneGateway),
	}
	if agents.Agents.Version != f.Version {
		d.plan.note("the agents of %s stay at version %s: kubectl liqonet upgrade %[1]s brings them to %[3]s",
			d.plan.Cluster, agents.Agents.Version, f.Version)
	}
	if f.has.PodsInferred != "" {
		d.plan.note("%s", f.has.PodsInferred)
	}
	return d, d.plan.planLedger(f, peer)
}

// planLedger plans the ledger, with an entry for the peer and the ranges by which this cluster knows it.
func (c *ClusterPlan) planLedger(own *input, peer *Offer) error {
	internal, internalReason, err := own.has.InternalCIDR()
	if err != nil {
		return err
	}
	cn := cmp.Or(own.has.ledger().DeepCopy(), NewLedger(internal))
	entry, reason, nameReason := Allocation(cn, peer.ClusterID), "as before", "as before"
	if entry == nil {
		a, err := NewAllocation(cn, peer.ClusterID, peer.Name)
		if err != nil {
			return own.has.fail("claim an entry of the ledger", err)
		}
		cn.Spec.Peers = append(cn.Spec.Peers, a)
		entry, reason, nameReason = &cn.Spec.Peers[len(cn.Spec.Peers)-1], "the lowest free one", "after the name of the peer"
	}
	got, err := own.has.rangesFor(cn, entry, peer)
	if err != nil {
		return err
	}
	setRanges(entry, got)
	entry.Phase = v1alpha1.PeerActive
	c.Ledger = cn
	key, keyReason := own.overlayKey()
	cn.Spec.OverlayKey = key
	s := known("key of the overlay", secret(manifests.OverlaySecretName(key.Generation)), keyReason)
	s.DuringRun = keyReason != "as before"
	c.Keys = append(c.Keys, s)
	assumed := len(own.has.Unreported()) > 0
	pods := "pods of " + peer.Name
	c.Ranges = []RangePlan{{What: "overlay addresses of nodes and gateways", Real: internal, Mapped: internal, Reason: internalReason}}
	if peer.PodsUnknown != "" {
		c.Ranges = append(c.Ranges, RangePlan{What: pods, Reason: "reported by the agents of " + peer.Name, DuringRun: true})
	}
	for _, r := range got.Pods {
		c.Ranges = append(c.Ranges, RangePlan{What: pods, Real: r.Real, Mapped: r.Mapped, Reason: r.Reason, Assumed: assumed})
	}
	public := lo.FilterMap(got.Pods, func(r ipam.Range, _ int) (string, bool) { return r.Mapping.String(), !ipam.Private(r.Real) })
	if len(public) > 0 {
		c.note("%s knows pods of %s whose addresses are not private (RFC 1918, RFC 6598) as: %s; "+
			"such a range is mapped to a private one, unless --map %s=RANGE=RANGE says otherwise",
			own.has.Network.Name, peer.Name, strings.Join(public, ", "), peer.Name)
	}
	c.Ranges = append(c.Ranges, RangePlan{
		What: "nodes and single addresses of " + peer.Name, Real: peer.InternalCIDR, Mapped: got.External,
		Reason: got.ExternalReason, Assumed: assumed,
	})
	c.Choices = append(c.Choices,
		known("name of the peering", entry.Name, nameReason),
		known("index of the peering", fmt.Sprint(entry.Index), reason+"; interface names, VNIs and gateways' addresses derive from it"),
	)
	return nil
}

// candidate completes the plan for one of the roles, with the gateways and the Peering.
func (d *draft) candidate(role Statement) (ClusterPlan, error) {
	c := d.plan
	c.Role = v1alpha1.Role(role.Value.String())
	c.Choices, c.Keys, c.Notes = slices.Clone(c.Choices), slices.Clone(c.Keys), slices.Clone(c.Notes)
	entry := Allocation(c.Ledger, d.peer.ClusterID)
	_, image := d.own.agents()
	c.Choices = append(append(c.Choices, role, d.planesBy, d.overlay, d.wireguard, image), d.placed...)
	if c.Role == v1alpha1.Server {
		c.Service = d.own.service(entry.Name, d.planes)
	}
	if len(d.permanent) > 1 {
		c.Budget = manifests.Owned(manifests.GatewayBudget(entry.Name), entry.Name, d.own.has.Owner)
	}
	for _, plane := range d.planes {
		g, preshared := d.own.has.Gateway(entry.Name, plane), d.presharedKey(plane)
		g.Agents, g.Role, g.WireGuard = c.NodeAgents.Agents, c.Role, v1alpha1.WireGuardBackend(d.wireguard.Value.String())
		g.OverlayKey, g.Placement = d.own.linkKey(plane, OverlayKey(c.Ledger)), d.placement
		g.Planes, g.Temporary = len(d.permanent), !slices.Contains(d.permanent, plane)
		g.PresharedKey = preshared.Generation
		addr, _ := GatewayAddress(c.Ledger.Spec.InternalCIDR.Prefix, entry.Index, plane)
		const why = "by the index, from the end of the overlay's range"
		c.Choices = append(c.Choices, known("overlay address of the gateway", addr.String(), why))
		key := known("WireGuard key of the gateway", secret(g.SecretName()), "as before")
		if d.own.has.Planes[plane].PublicKey == "" {
			key.Reason, key.DuringRun = "created during the run, and never shown", true
		}
		c.Keys = append(c.Keys, key, presharedStatement(g, preshared))
		if c.Service != nil {
			c.Endpoints = append(c.Endpoints, d.own.plannedEndpoints(plane, c.Service)...)
		}
		c.Gateways = append(c.Gateways, g)
	}
	links := lo.Map(c.Gateways, func(g manifests.Gateway, _ int) int32 { return g.OverlayKey })
	c.NodeAgents.OverlayKeys = d.own.overlayKeys(c.Ledger, links...)
	c.Choices = append(c.Choices,
		later("address and node of the gateway's pod", "assigned by the cluster", "the pod does not exist before the run"),
		later("MTU", "agreed by the gateways", "they measure what both clusters' networks can carry"),
	)
	if c.Role == v1alpha1.Server {
		c.Choices = append(c.Choices, d.serviceType)
	}
	c.Choices = slices.Concat(c.Choices, d.own.limitStatements(), modeStatements(d.mode, d.own.Overrides.PlanesMode))
	if c.NodeAgents.NodeMetrics || d.own.has.NodeMetrics {
		where := lo.Ternary(c.NodeAgents.NodeMetrics, "at the nodes' own addresses", "at 127.0.0.1")
		c.Choices = append(c.Choices, known("metrics of node agents", where, byFlag(d.own.Overrides.NodeMetrics != "", "--node-metrics")))
	}
	c.Notes = append(c.Notes, d.own.omitted(c.Service)...)
	err := d.planPeering(&c)
	return c, err
}
