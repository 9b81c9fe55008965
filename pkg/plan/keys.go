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

// OverlayKey is the generation of the key that a cluster's overlay has at least: the first one where
// no ledger says. Links may have later ones.
func OverlayKey(cn *v1alpha1.ClusterNetwork) int32 {
	return max(lo.FromPtr(cn).Spec.OverlayKey.Generation, 1)
}

// NextOverlayKey is the generation of the next key that the overlay may get.
func (f *Facts) NextOverlayKey() int32 {
	return max(OverlayKey(f.ledger()), f.NewestOverlayKey, slices.Max(append([]int32{0}, f.OverlayKeys...))) + 1
}

// Departed are those of the nodes that know the overlay's key which are gone. nodes are the
// UIDs of all that are there.
func Departed(cn *v1alpha1.ClusterNetwork, nodes []string) []string {
	return without(lo.FromPtr(cn).Spec.OverlayKey.Nodes, nodes)
}

// NoteOverlayKey adds to the ledger what a plan says of the overlay's key: before any node is
// given it. A node that has left stays, so that a command which is killed leaves a reason for
// the next one to make another key.
func NoteOverlayKey(cn *v1alpha1.ClusterNetwork, planned v1alpha1.OverlayKey) (changed bool) {
	key := &cn.Spec.OverlayKey
	noted := union(key.Nodes, planned.Nodes)
	if key.Generation >= planned.Generation && slices.Equal(noted, key.Nodes) {
		return false
	}
	key.Generation, key.Nodes = max(key.Generation, planned.Generation), noted
	return true
}

// ForgetNodes takes nodes that have left out of the ledger, when all agents have been given
// a key that these nodes do not know.
func ForgetNodes(cn *v1alpha1.ClusterNetwork, gone []string) (changed bool) {
	key := &cn.Spec.OverlayKey
	before := len(key.Nodes)
	key.Nodes = without(key.Nodes, gone)
	return len(key.Nodes) < before
}

// NodeUIDs are those of all Nodes that are there.
func (f *Facts) NodeUIDs() []string {
	return lo.Map(f.Nodes, func(n Node, _ int) string { return n.UID })
}

// overlayKey is what the ledger will say of the overlay's key, and why. There is a new one
// where a node has left that knows the one before.
func (f *sheet) overlayKey() (key v1alpha1.OverlayKey, reason string) {
	cn, reason := f.ledger(), "as before"
	key = lo.FromPtr(cn).Spec.OverlayKey
	key.Generation = OverlayKey(cn)
	if f.KeepOverlayKey {
		return key, reason
	}
	agents := lo.FilterMap(f.Nodes, func(n Node, _ int) (string, bool) { return n.UID, n.RunsAgents })
	gone := Departed(cn, f.NodeUIDs())
	next := f.NextOverlayKey()
	switch {
	case len(gone) > 0:
		key.Generation = next
		reason = fmt.Sprintf("a new one: nodes that know the one before have left, %d in number", len(gone))
	case f.LostOverlayKey >= key.Generation:
		key.Generation = next
		reason = "a new one: the Secret with the one before is gone"
	case f.Installed.Image == "":
		reason = "made during the run, and never shown"
	}
	key.Nodes = union(without(key.Nodes, gone), agents)
	return key, reason
}

// givenOverlayKeys are those that node agents have and keep, the oldest one first: a new key of the ledger's takes the
// place of all before it.
func (f *Facts) givenOverlayKeys(least int32) []int32 {
	return lo.CoalesceSliceOrEmpty(lo.Filter(f.OverlayKeys, func(g int32, _ int) bool { return g >= least }), []int32{least})
}

// linkKey is the generation of the overlay's key that the links of a plane's gateway have: as before, as
// long as the ledger does not ask for a later one.
func (f *sheet) linkKey(plane, least int32) int32 {
	given := f.givenOverlayKeys(least)
	if wanted := f.Renew[plane].OverlayKey; wanted > 0 {
		return max(wanted, least)
	}
	switch existing, exists := f.existingPlane(plane); {
	case !exists:
		return given[len(given)-1]
	case slices.Contains(given, existing.OverlayKeyGeneration):
		return existing.OverlayKeyGeneration
	}
	return given[0] // as agents do
}

// overlayKeys are the generations that node agents are given: those that they have, and those of the links
// of this peering and of others.
func (c *ClusterPlan) overlayKeys(own *Facts) []int32 {
	least := OverlayKey(c.Ledger)
	links := lo.Map(c.Gateways, func(g manifests.Gateway, _ int) int32 { return g.OverlayKey })
	others := lo.FlatMap(own.OtherPeerings, func(p v1alpha1.Peering, _ int) []int32 {
		return lo.Map(p.Spec.Planes, func(plane v1alpha1.Plane, _ int) int32 { return plane.OverlayKeyGeneration })
	})
	return union(own.givenOverlayKeys(least), links, lo.Filter(others, func(g int32, _ int) bool { return g > least }))
}

// planOverlayKey writes the key into the ledger as it will be.
func (c *ClusterPlan) planOverlayKey(own *sheet, cn *v1alpha1.ClusterNetwork) {
	key, reason := own.overlayKey()
	cn.Spec.OverlayKey = key
	s := known("key of the overlay", secret(manifests.OverlaySecretName(key.Generation)), reason)
	s.DuringRun = reason != "as before"
	c.Keys = append(c.Keys, s)
}

// addOldOverlayKey lists what a new key of the overlay changes beside the objects of this
// peering: the gateways of others, and the Secret of the key before.
func (l *list) addOldOverlayKey(c *ClusterPlan, own *Facts) {
	before := OverlayKey(own.ledger())
	if own.Installed.Image == "" || c.Ledger.Spec.OverlayKey.Generation == before {
		return
	}
	for _, p := range own.OtherPeerings {
		for _, plane := range p.Spec.Planes {
			name := manifests.Gateway{Peering: p.Name, Plane: plane.Index}.Name()
			l.other(Change, "apps/v1", "Deployment", name, "it takes the new key of the overlay")
		}
	}
	for _, g := range own.givenOverlayKeys(before) {
		if g != own.LostOverlayKey {
			l.other(Delete, "v1", "Secret", manifests.OverlaySecretName(g), "a node that has left knows the key")
		}
	}
}

// union has what is in any of the lists, sorted and once.
func union[T cmp.Ordered](lists ...[]T) []T { return sets.List(sets.New(slices.Concat(lists...)...)) }

// without are those of all that are not among the others, sorted.
func without(all, others []string) []string {
	return sets.List(sets.New(all...).Delete(others...))
}

// PresharedKeys are those that the two gateways of a plane are to have: one key, under
// two generations. Where there is no fingerprint, a new key is to be made for both. They
// are zero for a peering that works without: both gateways would have to start again.
func PresharedKeys(own, peer Offer, plane int32) (ofOwn, ofPeer v1alpha1.PresharedKey) {
	o, p := own.keys(plane), peer.keys(plane)
	renew := o.RenewPresharedKey || p.RenewPresharedKey
	if o.PresharedKey.Fingerprint == p.PresharedKey.Fingerprint && o.PresharedKey.Fingerprint != "" && !renew {
		return o.PresharedKey, p.PresharedKey
	}
	if !renew && o.IsNamed && p.IsNamed && o.Named.Generation == 0 && p.Named.Generation == 0 {
		return v1alpha1.PresharedKey{}, v1alpha1.PresharedKey{}
	}
	// A cluster that has lost its Peering may have the Secret of an earlier key still.
	next := v1alpha1.PresharedKey{Generation: max(o.Named.Generation, p.Named.Generation) + 1}
	return next, next
}

// NamedPresharedKey is the one that the Peering names for a plane, and whether it has that
// plane.
func (f *Facts) NamedPresharedKey(plane int32) (key v1alpha1.PresharedKey, isThere bool) {
	p, isThere := f.existingPlane(plane)
	return p.PresharedKey, isThere
}

// presharedKey is the one that the gateway of a plane is to have, without a fingerprint if there is none yet.
func (d *draft) presharedKey(plane int32) v1alpha1.PresharedKey {
	key, _ := PresharedKeys(d.mine, *d.peer, plane)
	return key
}

// presharedStatement is what a plan says of the pre-shared key of a gateway.
func presharedStatement(g manifests.Gateway, key v1alpha1.PresharedKey) Statement {
	s := known("pre-shared key of the tunnel", secret(g.PresharedSecretName()), "as before")
	switch {
	case g.PresharedKey == 0:
		s.Value, s.Reason = Known("none"), "the peering works without one; rotate-keys gives it one"
	case key.Fingerprint == "":
		s.Reason, s.DuringRun = "made during the run for both clusters, and never shown", true
	}
	return s
}
