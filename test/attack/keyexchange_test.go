package attack_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/apiserver"
	"github.com/liqonet/liqonet/test/kit"
)

// What a real API server negotiates: ML-KEM next to X25519 as it is, and X25519 alone where its flag says so.
func TestKeyExchangeWithAPIServer(t *testing.T) {
	kit.NotShort(t)
	for name, tt := range map[string]struct {
		flags []string
		want  kube.KeyExchange
	}{
		"as it is":    {nil, kube.Hybrid},
		"X25519 only": {[]string{"--tls-curve-preferences=29"}, kube.Classical},
	} {
		t.Run(name, func(t *testing.T) {
			s := apiserver.Start(t, tt.flags...)
			kit.NoError(t, s.Admin.Create(t.Context(), manifests.Namespace()))
			var written, read kube.KeyExchange
			secret := manifests.Gateway{Peering: "b", PresharedKey: 1}.PresharedSecret(make([]byte, 32))
			kit.NoError(t, s.Admin.Create(kube.WithKeyExchange(t.Context(), &written), secret))
			kit.NoError(t, s.Admin.Get(kube.WithKeyExchange(t.Context(), &read), client.ObjectKeyFromObject(secret), secret))
			kit.ErrorIf(t, written != tt.want || read != tt.want,
				"a key is written by a key exchange that is %s, and read by one that is %s; want %s", written, read, tt.want)
			if tt.flags == nil {
				t.Run("role", func(t *testing.T) { tryRotateRole(t, s) })
			}
		})
	}
}

// tryRotateRole makes and removes, with the role of docs/rotate-keys-role.yaml, what the gateway of a temporary plane has. The API server takes no role
// with more than its maker has, and none of another name.
func tryRotateRole(t *testing.T, s *apiserver.Server) {
	text := kit.Must(os.ReadFile("../../docs/rotate-keys-role.yaml"))(t)
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(bytes.ReplaceAll(text, []byte("PEERING"), []byte("b"))), 4096)
	for {
		obj := &unstructured.Unstructured{}
		if err := decoder.Decode(&obj.Object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		kit.NoError(t, s.Admin.Create(t.Context(), obj))
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "liqonet-rotate-keys", Name: "rotate-keys"}}
	token := &authenticationv1.TokenRequest{}
	kit.NoError(t, s.Admin.SubResource("token").Create(t.Context(), account, token))
	job := s.Client(t, token.Status.Token)
	apply := func(obj manifests.Object) error {
		u := manifests.ToApply(obj)
		return job.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership)
	}
	own, deployment := manifests.Gateway{Peering: "b", Plane: 1, KeyGeneration: 1, Agents: manifests.Agents{Image: "image"}}.Objects()
	apiserver.Wait(t, "the role has come into force", func() error { return apply(own[0]) })
	own = append(own, deployment)
	for _, obj := range own {
		kit.CheckNoError(t, apply(obj), "apply %s %s", obj.GetObjectKind().GroupVersionKind().Kind, obj.GetName())
	}
	for _, obj := range own {
		kit.CheckNoError(t, job.Delete(t.Context(), obj.(client.Object)))
	}
	others, _ := manifests.Gateway{Peering: "c"}.Objects()
	tried := 0
	for _, obj := range others {
		if obj.GetNamespace() == v1alpha1.Namespace {
			continue
		}
		tried++
		if err := apply(obj); !apierrors.IsForbidden(err) {
			t.Errorf("apply %s %s: %v", obj.GetObjectKind().GroupVersionKind().Kind, obj.GetName(), err)
		}
	}
	more := own[1].(*rbacv1.ClusterRole)
	more.Rules = append(more.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}})
	if err := apply(more); !apierrors.IsForbidden(err) || tried != 4 {
		t.Errorf("a role with more: %v; %d others were tried", err, tried)
	}
	if err := job.List(t.Context(), &corev1.SecretList{}, client.InNamespace("kube-system")); !apierrors.IsForbidden(err) {
		t.Errorf("it reads Secrets of others: %v", err)
	}
}
