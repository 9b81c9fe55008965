package attack_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/netns"
)

// apiServer is a kube-apiserver with its etcd, and no cluster behind it.
type apiServer struct {
	ns *netns.NS
	// admin may do everything.
	admin client.Client
}

// startAPIServer starts one in a network namespace, until the end of the test. The programs are
// the lab's.
func startAPIServer(t *testing.T, flags ...string) *apiServer {
	t.Helper()
	l, err := lab.New(lab.Options{Log: os.Stdout})
	if err != nil {
		t.Fatal(err)
	}
	programs, err := l.Build(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	s, dir := &apiServer{ns: netns.New(t, "api")}, t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	signing := file("accounts.key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	const token, etcd = "admin", "http://127.0.0.1:2379"
	s.start(t, filepath.Join(programs, "etcd"), "--data-dir="+filepath.Join(dir, "etcd"), "--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls=http://127.0.0.1:2380", "--unsafe-no-fsync", "--log-level=error")
	s.start(t, filepath.Join(programs, "kube-apiserver"), append(flags, "--etcd-servers="+etcd, "--cert-dir="+filepath.Join(dir, "serving"), "--secure-port=6443",
		"--bind-address=127.0.0.1", "--advertise-address=192.0.2.1", "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC",
		"--token-auth-file="+file("tokens", []byte(token+",admin,admin,system:masters\n")), "--service-account-issuer=https://attack",
		"--service-account-key-file="+signing, "--service-account-signing-key-file="+signing, "--profiling=false")...)
	s.admin = s.client(t, token)
	wait(t, "the API server answers", func() error {
		return s.admin.Get(t.Context(), client.ObjectKey{Name: "kube-system"}, &corev1.Namespace{})
	})
	return s
}

// start starts a program that ends with the test, whatever becomes of this process.
func (s *apiServer) start(t *testing.T, program string, args ...string) {
	t.Helper()
	cmd, log := exec.Command("sh", append([]string{"-c", `"$0" "$@" </dev/null & read -r _; kill -9 $!`, program}, args...)...), &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = log, log
	alive, err := cmd.StdinPipe()
	if err == nil {
		err = s.ns.Start(cmd)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = alive.Close()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said at last:\n%s", filepath.Base(program), log.Bytes()[max(0, log.Len()-2000):])
		}
	})
}

// client is one with a token. It can tell the key exchange of a response.
func (s *apiServer) client(t *testing.T, token string) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(
		admissionv1.AddToScheme(scheme), appsv1.AddToScheme(scheme), authenticationv1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme), corev1.AddToScheme(scheme),
		rbacv1.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme),
	); err != nil {
		t.Fatal(err)
	}
	config := &rest.Config{
		Host: "https://127.0.0.1:6443", BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1,
		Dial: func(ctx context.Context, network, address string) (c net.Conn, err error) {
			err = s.ns.Run(func() error {
				c, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return c, err
		},
	}
	config.Wrap(peering.WatchKeyExchange)
	c, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper(scheme)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// agent is a client with the token that an account's pod has, or with one of no pod.
func (s *apiServer) agent(t *testing.T, account string, pod *corev1.Pod) client.Client {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	of := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: account}}
	if err := s.admin.SubResource("token").Create(t.Context(), of, request); err != nil {
		t.Fatal(err)
	}
	return s.client(t, request.Status.Token)
}

// wait asks until there is no reason against it any more.
func wait(t *testing.T, what string, reason func() error) {
	t.Helper()
	const longest = time.Minute
	for end := time.Now().Add(longest); ; {
		err := reason()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s: %v", what, longest, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
