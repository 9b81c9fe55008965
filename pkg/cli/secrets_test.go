package cli

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// peer keeps a log level that was set with kubectl annotate.
func TestLogLevelStays(t *testing.T) {
	kit.Slow(t)
	hub, _, _ := hubAndSpokes(t, 1)
	command(t, "peer", "hub", "spoke-1").ends(ExitOK)
	annotated := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}}, &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: "spoke-1"}},
	}
	for _, obj := range annotated {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+v1alpha1.AnnotationLogLevel+`":"debug"}}}`))
		kit.NoError(t, hub.Client.Patch(t.Context(), obj, patch, client.FieldOwner("kubectl-annotate")))
	}
	command(t, "peer", "hub", "spoke-1", "--limit-new", "hub=100").ends(ExitOK)
	for _, obj := range annotated {
		kit.NoError(t, hub.Client.Get(t.Context(), client.ObjectKeyFromObject(obj), obj))
		got := obj.GetAnnotations()[v1alpha1.AnnotationLogLevel]
		kit.ErrorIf(t, got != "debug", "%T has the level %q", obj, got)
	}
}

// Commands print no keys or credentials, and write them only to Secrets.
func TestNoSecretIsTold(t *testing.T) {
	kit.Slow(t)
	hub, spokes, file := hubAndSpokes(t, 1)
	const token = "planted-token-of-an-administrator"
	dead := kubeconfig(t, filepath.Join(t.TempDir(), "dead"), "dead") // HTTPS, as client-go sends tokens only over TLS
	for _, f := range []string{file, dead} {
		text := kit.Must(os.ReadFile(f))(t)
		write(t, f, strings.ReplaceAll(string(text), "token: t}", "token: "+token+"}"))
	}
	told := map[string]string{}
	tell := func(want int, line string) {
		t.Helper()
		o := command(t, strings.Fields(line)...).ends(want)
		o.is("some output", o.stdout+o.stderr == "")
		told[line] += o.stdout + o.stderr
	}
	tell(ExitOK, "peer hub spoke-1")
	for _, line := range []string{"peer hub spoke-1", "peer hub spoke-1 --dry-run", "peer hub spoke-1 --dry-run -o json", "status hub spoke-1", "status hub spoke-1 -o yaml", "status hub spoke-1 --history", "status hub --history -o json"} {
		tell(ExitOK, line)
	}
	secrets := map[string][]byte{"token": []byte(token)}
	for _, list := range []client.ObjectList{
		&corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.EventList{}, &corev1.NamespaceList{}, &appsv1.DeploymentList{}, &appsv1.DaemonSetList{},
		&v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{}, &v1alpha1.ClusterNetworkList{},
	} {
		kit.NoError(t, hub.Client.List(t.Context(), list))
		if s, ok := list.(*corev1.SecretList); ok {
			for _, secret := range s.Items {
				for name, value := range secret.Data {
					if name != v1alpha1.PublicKeyFile {
						secrets[secret.Name+"/"+name] = value
					}
				}
			}
			continue
		}
		raw := kit.Must(json.Marshal(list))(t)
		told[fmt.Sprintf("%T", list)] = string(raw)
	}
	kit.ErrorIf(t, len(secrets) < 4, "only %d secrets were planted", len(secrets))
	spokes[0].Close() // the error contains the request
	tell(ExitUnreachable, "peer hub spoke-1 --timeout 5s")
	tell(ExitUnreachable, "status "+dead+"#dead")
	tell(ExitPartial, "unpeer hub spoke-1")
	for where, text := range told {
		for name, secret := range secrets {
			for _, form := range []string{
				string(secret), base64.StdEncoding.EncodeToString(secret), base64.URLEncoding.EncodeToString(secret), hex.EncodeToString(secret),
				strings.ToUpper(hex.EncodeToString(secret)), fmt.Sprint(secret),
			} {
				kit.ErrorIf(t, strings.Contains(text, form), "%s tells %s", where, name)
			}
		}
	}
}
