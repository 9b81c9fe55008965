package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// draft is a cluster's plan under construction.
type draft struct {
	input *input
	decisions
	offer Offer
	peer  *Offer
	// plan holds what does not depend on the peer's decisions.
	plan ClusterPlan
}

// beginDraft decides everything that does not depend on the peer.
func beginDraft(own Facts, intent Intent, peerID string) (d *draft, err error) {
	d = &draft{input: &input{own, intent}}
	if d.decisions, err = d.input.decideLocal(); err == nil {
		d.offer, err = d.input.offer(peerID, &d.decisions)
	}
	return d, err
}

// newDraft decides everything that does not depend on the peer's decisions about this cluster.
func newDraft(own Facts, intent Intent, peer *Offer) (*draft, error) {
	d, err := beginDraft(own, intent, peer.ClusterID)
	if err != nil {
		return nil, err
	}
	f := d.input
	d.peer = peer
	if err := f.decide(&d.offer, peer, &d.decisions); err != nil {
		return nil, err
	}
	agents, _ := f.agents()
	agents.Ready = f.facts.Installed.Image != "" && len(f.facts.Unreported()) == 0
	d.plan = ClusterPlan{
		Cluster: f.facts.Network.Name, ClusterID: f.facts.Network.ClusterID, Peer: peer.Name, NodeAgents: agents,
		Facts: f.facts.statements(), Warnings: append(slices.Clone(f.facts.Network.Warnings), f.facts.leftOutRoutes()...),
		SingleGatewayReason: cmp.Or(d.offer.Planes.SingleGatewayReason, peer.Planes.SingleGatewayReason),
	}
	if agents.Agents.Version != f.Version {
		addNote(&d.plan.Notes, "the agents of %s stay at version %s, while this command has %s: to replace them, run kubectl liqonet upgrade %s",
			d.plan.Cluster, agents.Agents.Version, f.Version, failure.Quote(d.plan.Cluster))
	}
	if single := d.offer.Planes.SingleGatewayReason; single != "" {
		addNote(&d.plan.Notes, "the peering has one plane: no packets pass while its gateway or the gateway's node fails, since %s", single)
	}
	if f.facts.PodsInferred != "" {
		addNote(&d.plan.Notes, "%s", f.facts.PodsInferred)
	}
	if err := d.plan.planLedger(f, peer); err != nil {
		return d, err
	}
	return d, d.plan.planServices(f, peer, d.services)
}

// planLedger plans the ledger, with an entry for the peer and the ranges by which this cluster knows it.
func (c *ClusterPlan) planLedger(own *input, peer *Offer) error {
	internal, internalReason, err := own.facts.InternalCIDR()
	if err != nil {
		return err
	}
	cn := cmp.Or(own.facts.ledger().DeepCopy(), NewLedger(c.ClusterID, internal))
	entry, reason, nameReason := Allocation(cn, peer.ClusterID), "as before", "as before"
	if entry == nil {
		a, err := NewAllocation(cn, peer.ClusterID, peer.Name)
		if err != nil {
			return own.facts.wrapError("claim an entry of the ledger", err)
		}
		cn.Spec.Peers = append(cn.Spec.Peers, a)
		entry, reason, nameReason = &cn.Spec.Peers[len(cn.Spec.Peers)-1], "the lowest free one", "after the name of the peer"
	}
	got, err := own.facts.rangesFor(cn, entry, peer)
	if err != nil {
		return err
	}
	setRanges(entry, got)
	entry.Phase = v1alpha1.PeerActive
	c.Ledger = cn
	key, keyReason := own.overlayKey()
	cn.Spec.OverlayKey = key
	s := statement("key of the overlay", secretRef(manifests.OverlaySecretName(key.Generation)), keyReason)
	s.DuringRun = keyReason != "as before"
	c.Keys = append(c.Keys, s)
	assumed := len(own.facts.Unreported()) > 0
	pods := "pods of " + peer.Name
	c.Ranges = []RangePlan{{Subject: "overlay addresses of nodes and gateways", Real: internal, Mapped: internal, Reason: internalReason}}
	if peer.PodsUnknown != "" {
		c.Ranges = append(c.Ranges, RangePlan{Subject: pods, Reason: "reported by the agents of " + peer.Name, DuringRun: true})
	}
	for _, r := range got.Pods {
		c.Ranges = append(c.Ranges, RangePlan{Subject: pods, Real: r.Real, Mapped: r.Mapped, Reason: r.Reason, Assumed: assumed})
	}
	public := lo.FilterMap(got.Pods, func(r ipam.Range, _ int) (string, bool) { return r.Mapping.String(), !ipam.IsPrivate(r.Real) })
	if len(public) > 0 {
		addNote(&c.Notes, "%s knows pods of %s whose addresses are not private (RFC 1918, RFC 6598) as: %s; "+
			"such a range is mapped to a private one, unless --map %s=RANGE=RANGE says otherwise",
			own.facts.Network.Name, peer.Name, strings.Join(public, ", "), peer.Name)
	}
	c.Ranges = append(c.Ranges, RangePlan{
		Subject: "nodes and single addresses of " + peer.Name, Real: peer.InternalCIDR, Mapped: got.External,
		Reason: got.ExternalReason, Assumed: assumed,
	})
	c.Choices = append(c.Choices,
		statement("name of the peering", entry.Name, nameReason),
		statement("index of the peering", fmt.Sprint(entry.Index), reason+"; interface names, VNIs and gateways' addresses derive from it"),
	)
	return nil
}

// candidate completes the plan for one of the roles, with the gateways and the Peering.
func (d *draft) candidate(role Statement) (ClusterPlan, error) {
	c := d.plan
	c.Role = v1alpha1.Role(role.Value.String())
	c.Choices, c.Keys, c.Notes = slices.Clone(c.Choices), slices.Clone(c.Keys), slices.Clone(c.Notes)
	entry := Allocation(c.Ledger, d.peer.ClusterID)
	_, image := d.input.agents()
	c.Choices = append(append(c.Choices, role, d.planesStatement, d.overlay, d.wireguard, image), d.placementStatements...)
	if c.Role == v1alpha1.Server {
		c.Service = d.input.service(entry.Name, d.planes)
	}
	if len(d.permanent) > 1 {
		c.Budget = manifests.SetOwner(manifests.GatewayBudget(entry.Name), entry.Name, d.input.facts.Owner)
	}
	for _, plane := range d.planes {
		g, preshared := d.input.facts.Gateway(entry.Name, plane), d.presharedKey(plane)
		g.Agents, g.Role, g.WireGuard = c.NodeAgents.Agents, c.Role, v1alpha1.WireGuardBackend(d.wireguard.Value.String())
		g.OverlayKey, g.Placement = d.input.linkKey(plane, OverlayKey(c.Ledger)), d.placement
		g.Planes, g.Temporary = len(d.permanent), !slices.Contains(d.permanent, plane)
		g.PresharedKey, g.Services = preshared.Generation, d.services
		addr, _ := GatewayAddress(c.Ledger.Spec.InternalCIDR.Prefix, entry.Index, plane)
		const why = "by the index, from the end of the overlay's range"
		c.Choices = append(c.Choices, statement("overlay address of the gateway", addr.String(), why))
		key := statement("WireGuard key of the gateway", secretRef(g.SecretName()), "as before")
		if d.input.facts.Planes[plane].PublicKey == "" {
			key.Reason, key.DuringRun = "created during the run, and never shown", true
		}
		c.Keys = append(c.Keys, key, presharedStatement(g, preshared))
		if c.Service != nil {
			c.Endpoints = append(c.Endpoints, d.input.plannedEndpoints(plane, c.Service)...)
		}
		c.Gateways = append(c.Gateways, g)
	}
	links := lo.Map(c.Gateways, func(g manifests.Gateway, _ int) int32 { return g.OverlayKey })
	c.NodeAgents.OverlayKeys = d.input.overlayKeys(c.Ledger, links...)
	c.Choices = append(c.Choices,
		pending("address and node of the gateway's pod", "assigned by the cluster", "the pod does not exist before the run"),
		pending("MTU", "agreed by the gateways", "they measure what both clusters' networks can carry"),
	)
	if c.Role == v1alpha1.Server {
		c.Choices = append(c.Choices, d.serviceType)
	}
	c.Choices = slices.Concat(c.Choices, d.input.limitStatements(), modeStatements(d.mode, d.input.Overrides.PlanesMode))
	if c.NodeAgents.NodeMetrics || d.input.facts.NodeMetrics {
		where := lo.Ternary(c.NodeAgents.NodeMetrics, "at the nodes' own addresses", "at 127.0.0.1")
		c.Choices = append(c.Choices, statement("metrics of node agents", where,
			flagReason(d.input.Overrides.NodeMetrics != "", "--node-metrics")))
	}
	c.Notes = append(c.Notes, d.input.omissionNotes(c.Service)...)
	err := d.planPeering(&c)
	return c, err
}

// MakePair plans two clusters, each from the other's offer.
func MakePair(own [2]Facts, intents [2]Intent) (*Plan, error) {
	return exchangeOffers(own, intents, Make)
}

// exchangeOffers lets two clusters read each other's offers twice, and then makes the plans from the second ones.
func exchangeOffers(own [2]Facts, intents [2]Intent, planned func(Facts, Intent, Offer) ([]ClusterPlan, error)) (*Plan, error) {
	first, err := Offers(own, intents)
	if err != nil {
		return nil, err
	}
	var second [2]Offer
	for i := range own {
		if second[i], err = SecondOffer(own[i], intents[i], first[1-i]); err != nil {
			return nil, err
		}
	}
	var plans [2][]ClusterPlan
	for i := range own {
		if plans[i], err = planned(own[i], intents[i], second[1-i]); err != nil {
			return nil, err
		}
	}
	return joinPlans(plans), nil
}

// joinPlans joins the plans of two clusters, in the order to try them.
func joinPlans(plans [2][]ClusterPlan) (p *Plan) {
	for i, a := range slices.Backward(plans[0]) {
		p = &Plan{[2]ClusterPlan{a, plans[1][i]}, p}
	}
	return p
}

// Offers returns the first offers of two clusters.
func Offers(own [2]Facts, intents [2]Intent) (out [2]Offer, err error) {
	for i := range own {
		if out[i], err = FirstOffer(own[i], intents[i], own[1-i].Network.ClusterID); err != nil {
			return out, err
		}
	}
	return out, nil
}

// FirstOffer returns the offer of a cluster that knows only the ID of the reader.
func FirstOffer(own Facts, intent Intent, readerID string) (Offer, error) {
	d, err := beginDraft(own, intent, readerID)
	return d.offer, err
}

// SecondOffer returns the offer of a cluster that has read the peer's offer. It includes the decisions about the peer.
func SecondOffer(own Facts, intent Intent, peer Offer) (Offer, error) {
	d, err := newDraft(own, intent, &peer)
	if err != nil {
		return Offer{}, err
	}
	entry := Allocation(d.plan.Ledger, peer.ClusterID)
	reader := &ReaderOffer{Index: entry.Index, Pods: entry.Pods, ExternalCIDR: entry.ExternalCIDR.Prefix}
	service := d.input.service(entry.Name, d.planes)
	for _, plane := range d.planes {
		has := own.Planes[plane]
		g := GatewayOffer{Plane: plane, PublicKey: Known(has.PublicKey), KeyUnreadable: has.KeyUnreadable}
		if has.PublicKey == "" {
			g.PublicKey = Pending("public key in " + secretRef(own.Gateway(entry.Name, plane).SecretName()) + " of " + own.Network.Name)
		}
		g.Endpoints = lo.Map(d.input.plannedEndpoints(plane, service), func(e Statement, _ int) Value { return e.Value })
		reader.Gateways = append(reader.Gateways, g)
	}
	d.offer.Reader = reader
	return d.offer, nil
}

// Make plans one cluster, for each possible role in the order to try them. The peer's offer must be an answer to an offer
// of this cluster.
func Make(own Facts, intent Intent, peer Offer) ([]ClusterPlan, error) {
	out, err := choose(own, intent, peer)
	for i := range out {
		out[i].planObjects(&own)
	}
	return out, err
}

// choose makes the plans without the lists of objects.
func choose(own Facts, intent Intent, peer Offer) (out []ClusterPlan, err error) {
	d, err := newDraft(own, intent, &peer)
	if err != nil {
		return nil, err
	}
	return lo.MapErr(d.roles, func(role Statement, _ int) (ClusterPlan, error) { return d.candidate(role) })
}
