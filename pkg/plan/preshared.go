package plan

import "github.com/liqonet/liqonet/pkg/api/v1alpha1"

// PresharedKeys are those that the two gateways of a plane are to have: one key, under
// two generations. Where there is no fingerprint, a new key is to be made for both. They
// are zero for a peering that works without: both gateways would have to start anew.
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

// presharedKey is what a plan says of the pre-shared key of a gateway.
func (g *GatewayPlan) presharedKey() Statement {
	s := known("pre-shared key of the tunnel", secret(g.PresharedSecretName()), "as before")
	switch {
	case g.PresharedKey == 0:
		s.Value, s.Reason = Known("none"), "the peering works without one; rotate-keys gives it one"
	case g.Preshared.Fingerprint == "":
		s.Reason, s.DuringRun = "made during the run for both clusters, and never shown", true
	}
	return s
}
