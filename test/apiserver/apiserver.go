// Package apiserver starts a real kube-apiserver with its etcd for tests that need its answers and no
// cluster behind it. It runs in a network namespace, where nothing but the test reaches it.
package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/netns"
)

// Server is a kube-apiserver with its etcd, and no cluster behind it.
type Server struct {
	NS *netns.NS
	// Admin may do everything.
	Admin client.WithWatch

	programs, dir string
}

const (
	url   = "https://127.0.0.1:6443"
	token = "admin"
)

// Start starts one in a network namespace, until the end of the test. The programs are
// the lab's.
func Start(t *testing.T, flags ...string) *Server {
	t.Helper()
	l := kit.Must(lab.New(lab.Options{Log: os.Stdout}))(t)
	programs := kit.Must(l.Build(t.Context()))(t)
	s := &Server{NS: netns.New(t, "api"), programs: programs, dir: t.TempDir()}
	signing := s.file(t, "accounts.key", kit.Must(keyutil.MakeEllipticPrivateKeyPEM())(t))
	const etcd = "http://127.0.0.1:2379"
	s.start(t, "etcd", "--data-dir="+filepath.Join(s.dir, "etcd"), "--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls=http://127.0.0.1:2380", "--unsafe-no-fsync", "--log-level=error")
	s.start(t, "kube-apiserver", append(flags, "--etcd-servers="+etcd, "--cert-dir="+filepath.Join(s.dir, "serving"), "--secure-port=6443",
		"--bind-address=127.0.0.1", "--advertise-address=192.0.2.1", "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC",
		"--token-auth-file="+s.file(t, "tokens", []byte(token+",admin,admin,system:masters\n")), "--service-account-issuer=https://attack",
		"--service-account-key-file="+signing, "--service-account-signing-key-file="+signing, "--profiling=false")...)
	s.Admin = s.Client(t, token)
	Wait(t, "the API server answers", func() error {
		return s.Admin.Get(t.Context(), client.ObjectKey{Name: "kube-system"}, &corev1.Namespace{})
	})
	return s
}

// StartControllers starts the kube-controller-manager with those controllers only.
func (s *Server) StartControllers(t *testing.T, names string) {
	t.Helper()
	config := s.file(t, "kubeconfig", fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: x, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: x, user: {token: %q}}]
contexts: [{name: x, context: {cluster: x, user: x}}]
current-context: x
`, url, token))
	s.start(t, "kube-controller-manager", "--kubeconfig="+config, "--controllers="+names, "--leader-elect=false",
		"--bind-address=127.0.0.1", "--cert-dir="+filepath.Join(s.dir, "controllers"), "--kube-api-qps=200", "--kube-api-burst=400", "--profiling=false")
}

// file writes one that is gone with the test.
func (s *Server) file(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(s.dir, name)
	kit.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

// start starts a program that ends with the test, whatever becomes of this process.
func (s *Server) start(t *testing.T, program string, args ...string) {
	t.Helper()
	cmd, log := exec.Command("sh", append([]string{"-c", `"$0" "$@" </dev/null & read -r _; kill -9 $!`, filepath.Join(s.programs, program)}, args...)...), &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = log, log
	alive, err := cmd.StdinPipe()
	if err == nil {
		err = s.NS.Start(cmd)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = alive.Close()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said at last:\n%s", program, log.Bytes()[max(0, log.Len()-2000):])
		}
	})
}

// Client is one with a token. It can tell the key exchange of a response.
func (s *Server) Client(t *testing.T, token string) client.WithWatch {
	t.Helper()
	scheme, err := fakeapi.Scheme()
	if err == nil {
		err = authenticationv1.AddToScheme(scheme)
	}
	if err != nil {
		t.Fatal(err)
	}
	config := &rest.Config{
		Host: url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1,
		Dial: func(ctx context.Context, network, address string) (c net.Conn, err error) {
			err = s.NS.Run(func() error {
				c, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return c, err
		},
	}
	config.Wrap(kube.RetryTransport)
	return kit.Must(client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: Mapper(scheme)}))(t)
}

// Agent is a client with the token that an account's pod has, or with one of no pod.
func (s *Server) Agent(t *testing.T, account string, pod *corev1.Pod) client.Client {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	of := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: account}}
	kit.NoError(t, s.Admin.SubResource("token").Create(t.Context(), of, request))
	return s.Client(t, request.Status.Token)
}

// Wait asks until there is no reason against it any more.
func Wait(t *testing.T, what string, reason func() error) {
	t.Helper()
	kit.Eventually(t, time.Minute, what, reason)
}

// Mapper knows which kinds are of the whole cluster.
func Mapper(scheme *runtime.Scheme) meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for kind := range scheme.AllKnownTypes() {
		scope := meta.RESTScopeNamespace
		if slices.Contains([]string{
			"Namespace", "Node", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
			"MutatingWebhookConfiguration", "ClusterNetwork", "Peering", "NodeNetwork", "ExportedService", "ReceivedService", "SelfSubjectAccessReview",
		}, kind.Kind) {
			scope = meta.RESTScopeRoot
		}
		m.Add(kind, scope)
	}
	return m
}
