package manifests

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// Agents have only these files: their keys, and those for calls to their API server. The token lasts a day, is only for
// the API server, and no pod gets one unless it requests it.
func TestTokensAndMounts(t *testing.T) {
	overlay := "overlay [1]"
	want := map[string]map[string]string{
		v1alpha1.NodeAgentName: {accountDir: "account", OverlayDir: overlay},
		"gateway-b-0":          {accountDir: "account", OverlayDir: overlay, KeyDir: "Secret gateway-b-0-0"},
		"gateway-c-3":          {accountDir: "account", OverlayDir: overlay, KeyDir: "Secret gateway-c-3-0", "/dev/net/tun": "host /dev/net/tun"},
	}
	for _, p := range templates(t) {
		if want[p.name] == nil {
			continue
		}
		sources := map[string]string{}
		for _, v := range p.Spec.Volumes {
			switch {
			case v.Secret != nil:
				sources[v.Name] = "Secret " + v.Secret.SecretName
			case v.HostPath != nil:
				sources[v.Name] = "host " + v.HostPath.Path
			case v.Name == "overlay":
				sources[v.Name] = fmt.Sprint("overlay ", OverlayKeys(&p.Spec))
				for _, source := range v.Projected.Sources {
					kit.ErrorIf(t, source.Secret == nil || len(source.Secret.Items) != 1, "%s: the overlay's keys are mounted with %v", p.name, source)
				}
			case v.Projected != nil:
				sources[v.Name] = "account"
				kit.Check(t, p.name, v.Projected.Sources, []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(24 * 3600))}},
					{ConfigMap: &corev1.ConfigMapProjection{
						LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
					}},
				})
			}
		}
		mounts := map[string]string{}
		for _, m := range p.Spec.Containers[0].VolumeMounts {
			mounts[m.MountPath] = sources[m.Name]
		}
		diff := cmp.Diff(want[p.name], mounts)
		kit.ErrorIf(t, diff != "" || len(mounts) != len(p.Spec.Volumes), "%s has %d volumes, and mounts:\n%s", p.name, len(p.Spec.Volumes), diff)
		a := p.Spec.AutomountServiceAccountToken
		kit.ErrorIf(t, a == nil || *a, "%s gets more by itself", p.name)
		delete(want, p.name)
	}
	kit.ErrorIf(t, len(want) > 0, "there are no pods of %v", want)
	for _, o := range all(t) {
		a, ok := o.(*corev1.ServiceAccount)
		kit.ErrorIf(t, ok && (a.AutomountServiceAccountToken == nil || *a.AutomountServiceAccountToken), "pods that name %s get a token", o.GetName())
	}
}
