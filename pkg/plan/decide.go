package plan

import (
	"errors"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// decisions are the choices for one cluster, the same for all planes.
type decisions struct {
	overlay, wireguard, serviceType, planesBy Statement
	// roles are the gateway's possible roles, in the order to try them: one if it is final.
	roles []Statement
	// permanent are the indexes of the planes, the same in both clusters. planes are these, and the temporary one if the
	// intent asks for it.
	permanent, planes []int32
	placement         *v1alpha1.GatewayPlacement
	placed            []Statement
	mode              v1alpha1.PlanesMode
}

// decideLocal makes the choices that do not depend on the peer.
func (f *input) decideLocal() (d decisions, err error) {
	if f.has.Network.PodsUnknown == nil && len(ipv4(f.has.Network.PodCIDRs)) == 0 {
		return d, f.has.refuse("find out the ranges",
			"a dual-stack cluster can be peered with its IPv4 addresses; if there is an IPv4 range, name it: "+
				"--pod-cidr "+f.has.Network.Name+"=RANGE",
			errors.New("its pods have IPv6 addresses only, and liqonet carries IPv4 only"))
	}
	if err := f.checkEndpoints(); err != nil {
		return d, err
	}
	if d.overlay, err = chooseOverlay(f); err != nil {
		return d, err
	}
	if d.wireguard, err = chooseWireGuard(f); err != nil {
		return d, err
	}
	d.serviceType = chooseServiceType(f)
	d.placement, d.placed, err = choosePlacement(f)
	return d, err
}

// decide makes the choices that both clusters must make alike: each from both offers, in the order of their IDs.
func (f *input) decide(mine, peer *Offer, d *decisions) (err error) {
	both := [2]*Offer{mine, peer}
	if peer.ClusterID < mine.ClusterID {
		both = [2]*Offer{peer, mine}
	}
	if err := f.choosePlanes(both, d); err != nil {
		return err
	}
	d.mode = planesMode(both)
	server, reason, isFinal, err := chooseServer(both)
	if err != nil {
		return err
	}
	role := func(server *Offer, reason string) Statement {
		own := lo.Ternary(server == mine, v1alpha1.Server, v1alpha1.Client)
		return known("role of the gateway", string(own), reason)
	}
	d.roles = []Statement{role(both[server], reason)}
	if !isFinal {
		d.roles = append(d.roles, role(both[1-server], both[server].Name+" cannot be reached"))
	}
	return nil
}
