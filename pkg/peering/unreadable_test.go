package peering

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// An invalid Peering does not prevent peerings with others, and peer rewrites it.
func TestSecurity_01_PeerMendsAPeeringThatCannotBeRead(t *testing.T) {
	kit.Slow(t)
	a, b := TwoSites(t)
	MustPeer(t, a, b, engine.Options{})
	was := a.peering(t).Spec
	unreadable := a.peering(t)
	unreadable.Spec = v1alpha1.PeeringSpec{} // as it is decoded
	other := &v1alpha1.Peering{}
	other.Name = "other"
	if err := errors.Join(a.Raw.Update(t.Context(), unreadable), a.Raw.Create(t.Context(), other)); err != nil {
		t.Fatal(err)
	}
	MustPeer(t, a, b, engine.Options{Replace: true})
	if err := a.Raw.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	now := a.peering(t).Spec
	// The former pre-shared key could no longer be checked for equality.
	if k := now.Planes[0].PresharedKey; k.Fingerprint == "" || k == was.Planes[0].PresharedKey {
		t.Errorf("pre-shared key %+v", k)
	}
	was.Planes[0].PresharedKey = now.Planes[0].PresharedKey
	if diff := cmp.Diff(was, now, kubetest.Compare); diff != "" {
		t.Error(diff)
	}
}
