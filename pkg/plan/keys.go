package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/samber/lo"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
)

// OverlayKey returns the lowest generation of the overlay key that links of a cluster may have, 1 without a ledger. Links
// may have later ones.
func OverlayKey(cn *v1alpha1.ClusterNetwork) int32 {
	return max(lo.FromPtr(cn).Spec.OverlayKey.Generation, 1)
}

// NextOverlayKey returns the generation of the next overlay key.
func (f *Facts) NextOverlayKey() int32 {
	return max(OverlayKey(f.ledger()), f.NewestOverlayKey, slices.Max(append([]int32{0}, f.OverlayKeys...))) + 1
}

// Departed returns the nodes that know the overlay key and are gone. nodes are the UIDs of all existing nodes.
func Departed(cn *v1alpha1.ClusterNetwork, nodes []string) []string {
	return without(lo.FromPtr(cn).Spec.OverlayKey.Nodes, nodes)
}

// RecordOverlayKey adds the planned overlay key to the ledger, before any node gets it. It keeps departed nodes: if this
// command is killed, they tell the next one to create another key.
func RecordOverlayKey(cn *v1alpha1.ClusterNetwork, planned v1alpha1.OverlayKey) (changed bool) {
	key := &cn.Spec.OverlayKey
	nodes := union(key.Nodes, planned.Nodes)
	if key.Generation >= planned.Generation && slices.Equal(nodes, key.Nodes) {
		return false
	}
	key.Generation, key.Nodes = max(key.Generation, planned.Generation), nodes
	return true
}

// ForgetNodes removes departed nodes from the ledger, once all agents have a key that these nodes do not know.
func ForgetNodes(cn *v1alpha1.ClusterNetwork, gone []string) {
	cn.Spec.OverlayKey.Nodes = without(cn.Spec.OverlayKey.Nodes, gone)
}

// overlayKey returns the overlay key that the ledger will name, and why. It is a new one if a node has left that knows
// the current one.
func (f *input) overlayKey() (key v1alpha1.OverlayKey, reason string) {
	cn, reason := f.has.ledger(), "as before"
	key = lo.FromPtr(cn).Spec.OverlayKey
	key.Generation = OverlayKey(cn)
	if f.KeepOverlayKey {
		return key, reason
	}
	agents := lo.FilterMap(f.has.Network.Nodes, func(n Node, _ int) (string, bool) { return n.UID, n.RunsAgents })
	gone := Departed(cn, f.has.Network.NodeUIDs())
	next := f.has.NextOverlayKey()
	switch {
	case len(gone) > 0:
		key.Generation = next
		reason = fmt.Sprintf("a new one: nodes that know the previous one have left (%d)", len(gone))
	case f.has.LostOverlayKey >= key.Generation:
		key.Generation = next
		reason = "a new one: the Secret of the previous one is gone"
	case f.has.Installed.Image == "":
		reason = "created during the run, and never shown"
	}
	key.Nodes = union(without(key.Nodes, gone), agents)
	return key, reason
}

// givenOverlayKeys returns the keys that node agents have and keep, the oldest first. A new key in the ledger replaces
// all earlier ones.
func (f *Facts) givenOverlayKeys(least int32) []int32 {
	return lo.CoalesceSliceOrEmpty(lo.Filter(f.OverlayKeys, func(g int32, _ int) bool { return g >= least }), []int32{least})
}

// linkKey returns the generation of the overlay key for the links of a plane's gateway. It is the current one unless the
// ledger demands a later one.
func (f *input) linkKey(plane, least int32) int32 {
	given := f.has.givenOverlayKeys(least)
	if wanted := f.Renew[plane].OverlayKey; wanted > 0 {
		return max(wanted, least)
	}
	switch existing, exists := f.has.existingPlane(plane); {
	case !exists:
		return given[len(given)-1]
	case slices.Contains(given, existing.OverlayKeyGeneration):
		return existing.OverlayKeyGeneration
	}
	return given[0] // as agents do
}

// overlayKeys returns the generations that node agents get: those that they have, and those of the links of this and
// other peerings.
func (f *input) overlayKeys(ledger *v1alpha1.ClusterNetwork, links ...int32) []int32 {
	least := OverlayKey(ledger)
	others := lo.FlatMap(f.has.OtherPeerings, func(p v1alpha1.Peering, _ int) []int32 {
		return lo.Map(p.Spec.Planes, func(plane v1alpha1.Plane, _ int) int32 { return plane.OverlayKeyGeneration })
	})
	return union(f.has.givenOverlayKeys(least), links, lo.Filter(others, func(g int32, _ int) bool { return g > least }))
}

// union returns the elements of all lists, sorted and without duplicates.
func union[T cmp.Ordered](lists ...[]T) []T { return sets.List(sets.New(slices.Concat(lists...)...)) }

// without returns the elements of all that are not in others, sorted.
func without(all, others []string) []string {
	return sets.List(sets.New(all...).Delete(others...))
}

// PresharedKeys returns the keys that the two gateways of a plane will have: the same key, with a generation for each. A
// key without a fingerprint has to be created for both. Both are zero for a peering that works without a key, because a
// new one would restart both gateways.
func PresharedKeys(own, peer Offer, plane int32) (ofOwn, ofPeer v1alpha1.PresharedKey) {
	o, p := own.keys(plane), peer.keys(plane)
	renew := o.RenewPresharedKey || p.RenewPresharedKey
	if o.PresharedKey.Fingerprint == p.PresharedKey.Fingerprint && o.PresharedKey.Fingerprint != "" && !renew {
		return o.PresharedKey, p.PresharedKey
	}
	if !renew && o.IsNamed && p.IsNamed && o.Named.Generation == 0 && p.Named.Generation == 0 {
		return v1alpha1.PresharedKey{}, v1alpha1.PresharedKey{}
	}
	// A cluster that has lost its Peering may still have the Secret of an earlier key.
	next := v1alpha1.PresharedKey{Generation: max(o.Named.Generation, p.Named.Generation) + 1}
	return next, next
}

// keys returns the description of the pre-shared key of a plane.
func (o *Offer) keys(plane int32) KeyOffer {
	keys, _ := lo.Find(o.Keys, func(k KeyOffer) bool { return k.Plane == plane })
	return keys
}

// presharedKey returns the key for the gateway of a plane, without a fingerprint if there is no key yet.
func (d *draft) presharedKey(plane int32) v1alpha1.PresharedKey {
	key, _ := PresharedKeys(d.mine, *d.peer, plane)
	return key
}

// presharedStatement describes the pre-shared key of a gateway in a plan.
func presharedStatement(g manifests.Gateway, key v1alpha1.PresharedKey) Statement {
	s := known("pre-shared key of the tunnel", secret(g.PresharedSecretName()), "as before")
	switch {
	case g.PresharedKey == 0:
		s.Value, s.Reason = Known("none"), "the peering works without one; rotate-keys gives it one"
	case key.Fingerprint == "":
		s.Reason, s.DuringRun = "created during the run for both clusters, and never shown", true
	}
	return s
}
