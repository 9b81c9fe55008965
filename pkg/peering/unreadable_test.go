package peering

import (
	"errors"
	"testing"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/test/kit"
)

// An invalid Peering does not prevent peerings with others, and peer rewrites it.
func TestPeerReplacesAPeeringThatCannotBeRead(t *testing.T) {
	kit.Slow(t)
	a, b := Peered(t)
	was := a.peering(t).Spec
	unreadable := a.peering(t)
	unreadable.Spec = v1alpha1.PeeringSpec{} // as it is decoded
	other := &v1alpha1.Peering{}
	other.Name = "other"
	kit.NoError(t, errors.Join(a.Raw.Update(t.Context(), unreadable), a.Raw.Create(t.Context(), other)))
	MustPeer(t, a, b, engine.Options{Replace: true})
	kit.NoError(t, a.Raw.Delete(t.Context(), other))
	now := a.peering(t).Spec
	// The former pre-shared key could no longer be checked for equality.
	k := now.Planes[0].PresharedKey
	kit.ErrorIf(t, k.Fingerprint == "" || k == was.Planes[0].PresharedKey, "pre-shared key %+v", k)
	was.Planes[0].PresharedKey = now.Planes[0].PresharedKey
	kit.Check(t, "now", now, was, kit.Compare)
}
