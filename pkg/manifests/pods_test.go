package manifests

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// Agents have only these files: their keys, and those for calls to their API server. The token lasts a day, is only for
// the API server, and no pod gets one unless it requests it.
func TestTokensAndMounts(t *testing.T) {
	want := map[string]map[string]string{
		v1alpha1.NodeAgentName: {accountDir: "account", OverlayDir: "Secret liqonet-overlay-1"},
		"gateway-b-0":          {accountDir: "account", OverlayDir: "Secret gateway-b-0-overlay-1", KeyDir: "Secret gateway-b-0-0"},
		"gateway-c-3":          {accountDir: "account", OverlayDir: "Secret gateway-c-3-overlay-1", KeyDir: "Secret gateway-c-3-0", "/dev/net/tun": "host /dev/net/tun"},
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
				kit.Check(t, p.name+": generations", OverlayKeys(&p.Spec), []int32{1})
				for _, source := range v.Projected.Sources {
					sources[v.Name] += "Secret " + source.Secret.Name
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

// The PodMonitor selects gateways, and node agents where they can be reached.
func TestPodMonitor(t *testing.T) {
	var monitor struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Selector            metav1.LabelSelector
			PodMetricsEndpoints []struct{ Port, Path, Interval string }
		}
	}
	raw := kit.Must(os.ReadFile("../../docs/monitoring/podmonitor.yaml"))(t)
	kit.NoError(t, yaml.UnmarshalStrict(raw, &monitor))
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	kit.FatalIf(t, err != nil || len(monitor.Spec.PodMetricsEndpoints) != 1 || monitor.Namespace != v1alpha1.Namespace,
		"%+v: %v", monitor, err)
	port := func(pod corev1.PodTemplateSpec) (at int32) {
		for _, p := range pod.Spec.Containers[0].Ports {
			if p.Name == monitor.Spec.PodMetricsEndpoints[0].Port && selector.Matches(labels.Set(pod.Labels)) {
				at = p.ContainerPort
			}
		}
		return at
	}
	_, gateway := Gateway{Peering: "b"}.Objects()
	_, hidden := NodeAgent(Agents{Image: "image"}, []int32{1})
	_, shown := NodeAgent(Agents{Image: "image"}, []int32{1})
	ExposeNodeMetrics(shown)
	got := map[string]int32{"gateway": port(gateway.Spec.Template), "node agent": port(hidden.Spec.Template), "shown": port(shown.Spec.Template)}
	kit.Check(t, "result", got, map[string]int32{"gateway": v1alpha1.MetricsPort, "node agent": 0, "shown": v1alpha1.MetricsPort})
	for ds, want := range map[*appsv1.DaemonSet]bool{hidden: false, shown: true} {
		kit.Check(t, fmt.Sprintf("metrics are shown: %v", !want), ExposesNodeMetrics(ds), want)
	}
}

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
