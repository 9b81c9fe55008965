package plan

import (
	"fmt"
	"slices"

	"github.com/samber/lo"
)

// Both plans two clusters, each from the other's offer.
func Both(own [2]Facts, intents [2]Intent) (*Plan, error) {
	var plans [2]*ClusterPlan
	_, err := exchange(own, intents, func(i int, peer Offer) (err error) {
		plans[i], err = Make(own[i], intents[i], peer)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Plan{[2]ClusterPlan{*plans[0], *plans[1]}}, nil
}

// Offers returns the first offers of two clusters.
func Offers(own [2]Facts, intents [2]Intent) (out [2]Offer, err error) {
	for i := range own {
		if out[i], err = Introduce(own[i], intents[i], own[1-i].ClusterID); err != nil {
			return out, err
		}
	}
	return out, nil
}

// exchange lets two clusters read each other's offers twice, and then calls do for each with the other's second offer.
func exchange(own [2]Facts, intents [2]Intent, do func(i int, peer Offer) error) (offers [2]Offer, err error) {
	first, err := Offers(own, intents)
	if err != nil {
		return first, err
	}
	for i := range own {
		if offers[i], err = Answer(own[i], intents[i], first[1-i]); err != nil {
			return offers, err
		}
	}
	for i := range own {
		if err := do(i, offers[1-i]); err != nil {
			return offers, err
		}
	}
	return offers, nil
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
	service := d.service(entry.Name, d.planes)
	for _, plane := range d.planes {
		has := own.Planes[plane]
		g := GatewayOffer{Plane: plane, PublicKey: Known(has.PublicKey), KeyUnreadable: has.KeyUnreadable}
		if has.PublicKey == "" {
			g.PublicKey = Later("public key in " + secret(own.Gateway(entry.Name, plane).SecretName()) + " of " + own.Name)
		}
		g.Endpoints = lo.Map(d.plannedEndpoints(plane, service), func(e Statement, _ int) Value { return e.Value })
		reader.Gateways = append(reader.Gateways, g)
	}
	d.mine.Reader = reader
	return d.mine, nil
}

// Make plans one cluster. The peer's offer must be an answer to an offer of this cluster.
func Make(own Facts, intent Intent, peer Offer) (*ClusterPlan, error) {
	out, err := choose(own, intent, peer)
	if err != nil {
		return nil, err
	}
	for c := out; c != nil; c = c.next {
		if err := c.planObjects(&own); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// choose makes the plan without the list of objects.
func choose(own Facts, intent Intent, peer Offer) (*ClusterPlan, error) {
	if peer.Reader == nil {
		return nil, own.fail("plan", fmt.Errorf("the offer of %q does not contain the ranges by which it knows this cluster: "+
			"it must answer an offer of this cluster", peer.Name))
	}
	d, err := begin(own, intent, &peer)
	if err != nil {
		return nil, err
	}
	var out *ClusterPlan
	for i := range slices.Backward(d.roles) {
		c, err := d.candidate(i)
		if err != nil {
			return nil, err
		}
		c.next, out = out, c
	}
	return out, nil
}
