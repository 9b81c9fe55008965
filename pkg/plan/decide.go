package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
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

// chooseServer decides which gateway is the server: the one that can be reached, as far as that is known. It keeps a role
// that was decided before. The decision is final if it comes from the user or from a peering that has worked.
func chooseServer(clusters [2]*Offer) (server int, reason string, isFinal bool, err error) {
	for i, f := range clusters {
		switch peer := clusters[1-i]; {
		case f.Role.Asked && peer.EndpointsNow && !f.EndpointsNow:
			return 0, "", true, &failure.Error{
				Kind: failure.Usage, Cluster: peer.Name, Doing: "choose roles",
				Err:  fmt.Errorf("--endpoint says where the gateway of %q can be reached, but --server makes it the client", peer.Name),
				Hint: "give --endpoint for the cluster of --server",
			}
		case f.Role.Asked:
			return i, "given by --server", true, nil
		}
	}
	for i, f := range clusters {
		if f.EndpointsNow && !clusters[1-i].EndpointsNow {
			return i, fmt.Sprintf("--endpoint says where %s can be reached", f.Name), true, nil
		}
	}
	isFinal = slices.ContainsFunc(clusters[:], func(o *Offer) bool { return o.Role.Established || len(o.Endpoints) > 0 })
	for i, f := range clusters {
		// Two equal roles contradict each other, and are ignored.
		own, peer := f.Role.Before, clusters[1-i].Role.Before
		if own != peer && (own == v1alpha1.Server || peer == v1alpha1.Client) {
			return i, "as before", isFinal, nil
		}
	}
	first, second := clusters[0], clusters[1]
	firstReach, firstReason := first.reach(second)
	secondReach, secondReason := second.reach(first)
	switch {
	case firstReach > secondReach:
		return 0, first.Name + ": " + firstReason, isFinal, nil
	case secondReach > firstReach:
		return 1, second.Name + ": " + secondReason, isFinal, nil
	}
	reason = fmt.Sprintf("neither is known to be easier to reach, and %s has the lower ID; "+
		"if it cannot be reached, the roles are exchanged", first.Name)
	return 0, reason, isFinal, nil
}

// reach returns how likely the cluster is reachable from outside, and why.
func (o *Offer) reach(peer *Offer) (int, string) {
	switch {
	case len(o.Endpoints) > 0:
		return 3, "it has an endpoint given by --endpoint"
	case o.Role.AsksLoadBalancer && !peer.Role.AsksLoadBalancer:
		return 2, "--service-type requests a load balancer"
	}
	return o.Role.Reach, o.Role.ReachReason
}

// reach returns how likely the cluster is reachable from outside according to its facts, and why.
func (f *Network) reach() (int, string) {
	if f.LoadBalancers.Value == Yes {
		return 2, "it has load balancers, " + f.LoadBalancers.Source
	}
	reachable := func(n Node) bool { return n.Ready && n.Schedulable && n.public().IsValid() }
	if n, isThere := lo.Find(f.Nodes, reachable); isThere {
		return 1, fmt.Sprintf("node %s has %s", n.Name, n.public())
	}
	return 0, ""
}

// defaultPlanes is the number of planes of a peering if both clusters have enough nodes: one plane may fail.
const defaultPlanes = 2

// choosePlanes decides how many planes the peering has, and their indexes. Gateways of one peering run on different
// nodes. An earlier decision stays, whatever nodes there are now.
func (f *input) choosePlanes(clusters [2]*Offer, d *decisions) error {
	a, b := clusters[0].Planes, clusters[1].Planes
	planes, reason := union(a.Existing, b.Existing), "as before"
	given, single := max(a.Asked, b.Asked), cmp.Or(a.OneGateway, b.OneGateway)
	if given == len(planes) && single == "" {
		given = 0 // the number stays, even while a node is down
	}
	few := lo.MinBy(clusters[:], func(a, b *Offer) bool { return a.Planes.Carriers < b.Planes.Carriers })
	first := func(n int) []int32 { return lo.RangeFrom(int32(0), n) }
	switch {
	case given > 0:
		if err := f.checkPlanes(given, d.placement, single); err != nil {
			return err
		}
		planes, reason = first(given), "given by --planes"
	case len(planes) > 0 && (single == "" || len(planes) == 1):
	case single != "":
		planes, reason = first(1), single
	case few.Planes.Carriers < defaultPlanes:
		planes, reason = first(1), few.Name+" has fewer than two nodes that can run a gateway; --planes 2 adds a plane later"
	default:
		planes, reason = first(defaultPlanes), "one may fail; --planes chooses another number"
	}
	d.permanent, d.planes, d.planesBy = planes, slices.Clone(planes), known("planes", strconv.Itoa(len(planes)), reason)
	if temporary := lowestFree(planes); (a.Temporary || b.Temporary) && temporary < ipam.Planes {
		d.planes = append(d.planes, temporary)
	}
	return nil
}

// checkPlanes refuses a number of planes that is impossible in this cluster.
func (f *input) checkPlanes(n int, placement *v1alpha1.GatewayPlacement, single string) error {
	refused := func(kind failure.Kind, cluster string, err error, hint string) error {
		return &failure.Error{Kind: kind, Cluster: cluster, Doing: "choose the number of planes", Err: err, Hint: hint}
	}
	if n > ipam.Planes {
		return refused(failure.Usage, "", fmt.Errorf("a peering can have at most %d planes", ipam.Planes), "")
	}
	if n > 1 && single != "" {
		err := fmt.Errorf("%s, and %d planes need as many endpoints", single, n)
		return refused(failure.Usage, "", err, "leave out --planes, or the endpoint")
	}
	has := f.has.Network.carriers(placement, true)
	if len(has) >= n || n == 1 {
		return nil
	}
	few := fmt.Errorf("%d planes need as many nodes for gateways, and there are %d: %s", n, len(has), strings.Join(has, ", "))
	if absent := f.has.Network.carriers(placement, false); len(has)+len(absent) >= n {
		few = fmt.Errorf("%w; not ready: %s", few, strings.Join(absent, ", "))
		return refused(failure.NotReady, f.has.Network.Name, few, "wait until they are ready, or give a smaller number with --planes")
	}
	return refused(failure.Usage, f.has.Network.Name, few, "give a smaller number with --planes; "+
		"or let gateways run on more nodes, see --gateway-toleration and --gateway-node-selector")
}

// planesMode returns how many planes nodes use. Both clusters get the same mode: an interrupted command may have changed
// only one of them.
func planesMode(clusters [2]*Offer) v1alpha1.PlanesMode {
	spreads := slices.ContainsFunc(clusters[:], func(o *Offer) bool { return o.Planes.Mode == v1alpha1.PlanesSpread })
	before := lo.Ternary(spreads, v1alpha1.PlanesSpread, v1alpha1.PlanesSingle)
	return cmp.Or(clusters[0].Planes.AskedMode, clusters[1].Planes.AskedMode, before)
}

// modeStatements describes how many planes nodes use, if the user chose it or it is not the default.
func modeStatements(mode, given v1alpha1.PlanesMode) []Statement {
	value := "one, and another one if that fails"
	if mode == v1alpha1.PlanesSpread {
		value = "all that work, chosen by pairs of addresses"
	} else if given == "" {
		return nil
	}
	return []Statement{known("planes that a node uses", value, byFlag(given != "", "--planes-mode"))}
}
