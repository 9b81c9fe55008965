package manifests

import (
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// Keys and names that a cluster returns have a fingerprint and a generation, or none.
func FuzzNames(f *testing.F) {
	f.Add(strings.Repeat("A", 43) + "=")
	f.Add(OverlaySecretName(7))
	f.Add("gateway-b-0-overlay-99999999999")
	f.Fuzz(func(t *testing.T, s string) {
		fingerprint := IdentityFingerprint(s)
		kit.ErrorIf(t, fingerprint != "" && (len(fingerprint) != 50 || !strings.HasPrefix(fingerprint, "SHA256:")), "%q: %q", s, fingerprint)
		if generation := OverlayGeneration(s); generation > 0 && strings.HasPrefix(s, clusterOwner) {
			kit.ErrorIf(t, OverlayGeneration(OverlaySecretName(generation)) != generation, "%q: generation %d", s, generation)
		}
	})
}
