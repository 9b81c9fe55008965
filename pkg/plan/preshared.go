package plan

import "github.com/liqonet/liqonet/pkg/api/v1alpha1"

// PresharedKeys are those that the two gateways of a plane are to have: one key, under
// two generations. Where there is no fingerprint, a new key is to be made for both. They
// are zero for a peering that works without: both gateways would have to start anew.
func PresharedKeys(own, peer *FactSheet, plane int32) (ofOwn, ofPeer v1alpha1.PresharedKey) {
	ofOwn, ofPeer = own.Planes[plane].PresharedKey, peer.Planes[plane].PresharedKey
	renew := own.Planes[plane].RenewPresharedKey
	if ofOwn.Fingerprint == ofPeer.Fingerprint && ofOwn.Fingerprint != "" && !renew {
		return ofOwn, ofPeer
	}
	ownNamed, ownHas := own.NamedPresharedKey(plane)
	peerNamed, peerHas := peer.NamedPresharedKey(plane)
	if !renew && ownHas && peerHas && ownNamed.Generation == 0 && peerNamed.Generation == 0 {
		return v1alpha1.PresharedKey{}, v1alpha1.PresharedKey{}
	}
	// A cluster that has lost its Peering may have the Secret of an earlier key still.
	next := v1alpha1.PresharedKey{Generation: max(ownNamed.Generation, peerNamed.Generation) + 1}
	return next, next
}

// NamedPresharedKey is the one that the Peering names for a plane, and whether it has that
// plane.
func (f *FactSheet) NamedPresharedKey(plane int32) (key v1alpha1.PresharedKey, isThere bool) {
	if f.Existing == nil {
		return key, false
	}
	p := f.Existing.Plane(plane)
	if p == nil {
		return key, false
	}
	return p.PresharedKey, true
}

// planPresharedKey gives the gateway its pre-shared key.
func (c *ClusterPlan) planPresharedKey(own, peer *FactSheet, g *GatewayPlan) Statement {
	g.Preshared, _ = PresharedKeys(own, peer, g.Plane)
	g.PresharedKey = g.Preshared.Generation
	s := Statement{What: "pre-shared key of the tunnel", Value: "Secret " + v1alpha1.Namespace + "/" + g.PresharedSecretName(), Reason: "as before"}
	switch {
	case g.PresharedKey == 0:
		s.Value, s.Reason = "none", "the peering works without one; rotate-keys gives it one"
	case g.Preshared.Fingerprint == "":
		s.Reason, s.DuringRun = "made during the run for both clusters, and never shown", true
	}
	return s
}
