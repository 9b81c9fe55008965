package manifests

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// A gateway with a pre-shared key mounts only this key. One without is the same as before pre-shared keys existed, so it
// need not restart.
func TestPresharedKeyIsMounted(t *testing.T) {
	without := Gateway{Peering: "b", KeyGeneration: 1}
	with := without
	with.PresharedKey = 3
	_, plain := without.Objects()
	_, deployment := with.Objects()
	pod := &deployment.Spec.Template.Spec
	i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "preshared" })
	kit.FatalIf(t, i < 0 || pod.Volumes[i].Secret.SecretName != "gateway-b-0-psk-3" || *pod.Volumes[i].Secret.DefaultMode != 0o400,
		"volumes are %+v", pod.Volumes)
	c := &pod.Containers[0]
	kit.ErrorIf(t, !slices.Contains(c.Args, "--preshared-key=/etc/liqonet/preshared/presharedkey"), "arguments are %q", c.Args)
	kit.ErrorIf(t, !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "preshared" && m.ReadOnly }),
		"mounts are %+v", c.VolumeMounts)
	if before := &plain.Spec.Template.Spec; len(before.Volumes)+1 != len(pod.Volumes) || strings.Contains(strings.Join(before.Containers[0].Args, " "), "preshared") {
		t.Errorf("without a key, volumes are %+v and arguments %q", before.Volumes, before.Containers[0].Args)
	}
	secret := with.PresharedSecret([]byte("key"))
	if secret.Name != "gateway-b-0-psk-3" || !*secret.Immutable || secret.Labels[v1alpha1.LabelPeering] != "b" || string(secret.Data[v1alpha1.PresharedKeyFile]) != "key" {
		t.Errorf("the Secret is %+v", secret)
	}
	one, other := secret.Annotations[v1alpha1.AnnotationFingerprint], Fingerprint([]byte("other"))
	kit.ErrorIf(t, one != Fingerprint([]byte("key")) || len(one) != 24 || one == other, "fingerprints are %q and %q", one, other)
	none := with.PresharedSecret(nil)
	kit.ErrorIf(t, none.Data != nil || none.Annotations[v1alpha1.AnnotationFingerprint] != "", "a Secret without a key is %+v", none)
	// The schema refuses a key of generation 0.
	u := ToApply(Peering("b", v1alpha1.PeeringSpec{Planes: []v1alpha1.Plane{{}}}))
	planes, _, _ := unstructured.NestedSlice(u.Object, "spec", "planes")
	_, has := planes[0].(map[string]any)["presharedKey"]
	kit.ErrorIf(t, has, "a Peering without a key has one: %v", planes)
}
