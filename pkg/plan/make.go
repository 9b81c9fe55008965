package plan

import (
	"fmt"
	"slices"

	"github.com/samber/lo"
)

// Both plans two clusters, each from the other's offer.
func Both(own [2]Facts, intents [2]Intent) (*Plan, error) { return together(own, intents, Make) }

// together lets two clusters read each other's offers twice, and then makes the plans from the second ones.
func together(own [2]Facts, intents [2]Intent, planned func(Facts, Intent, Offer) ([]ClusterPlan, error)) (*Plan, error) {
	first, err := Offers(own, intents)
	if err != nil {
		return nil, err
	}
	var second [2]Offer
	for i := range own {
		if second[i], err = Answer(own[i], intents[i], first[1-i]); err != nil {
			return nil, err
		}
	}
	var plans [2][]ClusterPlan
	for i := range own {
		if plans[i], err = planned(own[i], intents[i], second[1-i]); err != nil {
			return nil, err
		}
	}
	return pair(plans), nil
}

// pair joins the plans of two clusters, in the order to try them.
func pair(plans [2][]ClusterPlan) (p *Plan) {
	for i, a := range slices.Backward(plans[0]) {
		p = &Plan{[2]ClusterPlan{a, plans[1][i]}, p}
	}
	return p
}

// Offers returns the first offers of two clusters.
func Offers(own [2]Facts, intents [2]Intent) (out [2]Offer, err error) {
	for i := range own {
		if out[i], err = Introduce(own[i], intents[i], own[1-i].Network.ClusterID); err != nil {
			return out, err
		}
	}
	return out, nil
}

// Introduce makes the offer of a cluster that knows only the ID of the reader.
func Introduce(own Facts, intent Intent, readerID string) (Offer, error) {
	f := &input{own, intent}
	d, err := f.decideLocal()
	if err != nil {
		return Offer{}, err
	}
	return f.offer(readerID, &d)
}

// Answer makes the offer of a cluster that has read the peer's offer. It includes the decisions about the peer.
func Answer(own Facts, intent Intent, peer Offer) (Offer, error) {
	d, err := begin(own, intent, &peer)
	if err != nil {
		return Offer{}, err
	}
	entry := Allocation(d.plan.Ledger, peer.ClusterID)
	reader := &ReaderOffer{Index: entry.Index, Pods: entry.Pods, ExternalCIDR: entry.ExternalCIDR.Prefix}
	service := d.own.service(entry.Name, d.planes)
	for _, plane := range d.planes {
		has := own.Planes[plane]
		g := GatewayOffer{Plane: plane, PublicKey: Known(has.PublicKey), KeyUnreadable: has.KeyUnreadable}
		if has.PublicKey == "" {
			g.PublicKey = Later("public key in " + secret(own.Gateway(entry.Name, plane).SecretName()) + " of " + own.Network.Name)
		}
		g.Endpoints = lo.Map(d.own.plannedEndpoints(plane, service), func(e Statement, _ int) Value { return e.Value })
		reader.Gateways = append(reader.Gateways, g)
	}
	d.mine.Reader = reader
	return d.mine, nil
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
	if peer.Reader == nil {
		return nil, own.fail("plan", fmt.Errorf("the offer of %q does not contain the ranges by which it knows this cluster: "+
			"it must answer an offer of this cluster", peer.Name))
	}
	d, err := begin(own, intent, &peer)
	if err != nil {
		return nil, err
	}
	return lo.MapErr(d.roles, func(role Statement, _ int) (ClusterPlan, error) { return d.candidate(role) })
}
