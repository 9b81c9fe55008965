package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
)

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
