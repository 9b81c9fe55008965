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

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// The level is what both kinds of agents see, stays with the next peer, and goes as it came.
func TestLogLevel(t *testing.T) {
	kit.Slow(t)
	isolate(t)
	_, _, file := hubAndSpokes(t, 1)
	said := func(want int, line string) string {
		t.Helper()
		code, out, errs := run(t, append(strings.Fields(line), "--kubeconfig", file)...)
		if code != want {
			t.Fatalf("%s: exit code %d\n%s%s", line, code, out, errs)
		}
		return out
	}
	said(ExitUsage, "log-level hub")
	said(ExitOK, "peer hub spoke-1")
	const asIs, debug = "node agents: default\ngateways of spoke-1: default\n", "node agents: debug\ngateways of spoke-1: debug\n"
	said(ExitUsage, "log-level hub loud")
	for _, step := range []struct{ line, want string }{
		{"log-level hub", asIs},
		{"log-level hub debug", debug},
		{"peer hub spoke-1 --limit-new hub=100", ""},
		{"log-level hub", debug},
		{"log-level hub default", asIs},
		{"log-level hub", asIs},
	} {
		if got := said(ExitOK, step.line); step.want != "" && got != step.want {
			t.Errorf("%s:\n%s", step.line, cmp.Diff(step.want, got))
		}
	}
}

// No key and no credential is in what commands say, nor in what they write but for Secrets.
func TestNoSecretIsTold(t *testing.T) {
	kit.Slow(t)
	isolate(t)
	hub, spokes, file := hubAndSpokes(t, 1)
	const token = "planted-token-of-an-administrator"
	dead := kubeconfig(t, filepath.Join(t.TempDir(), "dead"), "dead") // by HTTPS: a token is used there only
	for _, f := range []string{file, dead} {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		write(t, f, strings.ReplaceAll(string(text), "token: t}", "token: "+token+"}"))
	}
	told := map[string]string{}
	tell := func(want int, line string) {
		t.Helper()
		code, out, errs := run(t, append(strings.Fields(line), "--kubeconfig", file)...)
		if told[line] += out + errs; code != want || out+errs == "" {
			t.Errorf("%s: exit code %d, want %d\n%s%s", line, code, want, out, errs)
		}
	}
	tell(ExitOK, "peer hub spoke-1")
	for _, line := range []string{"peer hub spoke-1", "peer hub spoke-1 --dry-run", "peer hub spoke-1 --dry-run -o json", "status hub spoke-1", "status hub spoke-1 -o yaml", "status hub spoke-1 --history", "status hub --history -o json", "log-level hub debug"} {
		tell(ExitOK, line)
	}
	secrets := map[string][]byte{"token": []byte(token)}
	for _, list := range []client.ObjectList{
		&corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.EventList{}, &corev1.NamespaceList{}, &appsv1.DeploymentList{}, &appsv1.DaemonSetList{},
		&v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{}, &v1alpha1.ClusterNetworkList{},
	} {
		if err := hub.Client.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		if s, ok := list.(*corev1.SecretList); ok {
			for _, secret := range s.Items {
				for name, value := range secret.Data {
					if name != v1alpha1.KeyFilePublic {
						secrets[secret.Name+"/"+name] = value
					}
				}
			}
			continue
		}
		raw, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		told[fmt.Sprintf("%T", list)] = string(raw)
	}
	if len(secrets) < 4 {
		t.Errorf("only %d secrets were planted", len(secrets))
	}
	spokes[0].Close() // an error tells of the request
	tell(ExitUnreachable, "peer hub spoke-1 --timeout 5s")
	tell(ExitUnreachable, "status "+dead+"#dead")
	tell(ExitPartial, "unpeer hub spoke-1")
	for where, text := range told {
		for name, secret := range secrets {
			for _, form := range []string{
				string(secret), base64.StdEncoding.EncodeToString(secret), base64.URLEncoding.EncodeToString(secret), hex.EncodeToString(secret),
				strings.ToUpper(hex.EncodeToString(secret)), fmt.Sprint(secret),
			} {
				if strings.Contains(text, form) {
					t.Errorf("%s tells %s", where, name)
				}
			}
		}
	}
}
