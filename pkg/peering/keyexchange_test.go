package peering_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/diagnose"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// The key exchange is that of the connection, over HTTP/1.1 and HTTP/2, with the commands' transport.
func TestKeyExchange(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		// server is nil for plain HTTP.
		server *tls.Config
		http2  bool
		want   kube.KeyExchange
	}{
		{"as Go negotiates", &tls.Config{}, false, kube.Hybrid},
		{"as Go negotiates", &tls.Config{}, true, kube.Hybrid},
		{"ML-KEM beside P-256", &tls.Config{CurvePreferences: []tls.CurveID{tls.SecP256r1MLKEM768}}, true, kube.Hybrid},
		{"ML-KEM beside P-384", &tls.Config{CurvePreferences: []tls.CurveID{tls.SecP384r1MLKEM1024}}, true, kube.Hybrid},
		{"X25519 only", &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}, false, kube.Classical},
		{"X25519 only", &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}, true, kube.Classical},
		{"P-256 only", &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP256}}, true, kube.Classical},
		{"TLS 1.2", &tls.Config{MaxVersion: tls.VersionTLS12}, true, kube.Classical},
		{"no TLS", nil, false, kube.UnknownKeyExchange},
	} {
		t.Run(fmt.Sprintf("%s, HTTP/2: %t", tt.name, tt.http2), func(t *testing.T) {
			t.Parallel()
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if (r.ProtoMajor == 2) != tt.http2 {
					t.Errorf("it is asked by %s", r.Proto)
				}
			}))
			cfg := &rest.Config{}
			if s.EnableHTTP2 = tt.http2; tt.server == nil {
				s.Start()
			} else {
				s.TLS = tt.server
				s.StartTLS()
				cfg.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
			}
			t.Cleanup(s.Close)
			cfg.Wrap(kube.Retrying)
			cfg.Wrap(kube.WatchKeyExchange)
			c, err := rest.HTTPClientFor(cfg)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second one reuses the connection
				var got kube.KeyExchange
				req, err := http.NewRequestWithContext(kube.WithKeyExchange(t.Context(), &got), http.MethodGet, s.URL, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := c.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				if _ = resp.Body.Close(); got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
			}
		})
	}
}

// For a repeated request, the final response counts.
func TestKeyExchangeOfRepeatedRequest(t *testing.T) {
	state := func(group tls.CurveID) *tls.ConnectionState { return &tls.ConnectionState{CurveID: group} }
	for _, tt := range []struct {
		name    string
		answers []*http.Response
		want    kube.KeyExchange
	}{
		{"a better one follows", []*http.Response{{StatusCode: 500, TLS: state(tls.X25519)}, nil, {StatusCode: 201, TLS: state(tls.X25519MLKEM768)}}, kube.Hybrid},
		{"a worse one follows", []*http.Response{{StatusCode: 503, TLS: state(tls.X25519MLKEM768)}, {StatusCode: 201, TLS: state(tls.X25519)}}, kube.Classical},
		{"one that is not known follows", []*http.Response{{StatusCode: 503, TLS: state(tls.X25519)}, {StatusCode: 201}}, kube.UnknownKeyExchange},
		{"a key that a certificate's encrypts", []*http.Response{{StatusCode: 201, TLS: state(0)}}, kube.UnknownKeyExchange},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answers := append([]*http.Response{{StatusCode: 200, TLS: state(tls.X25519)}}, tt.answers...)
				c := &http.Client{Transport: kube.WatchKeyExchange(kube.Retrying(kubetest.RoundTripper(func(*http.Request) (*http.Response, error) {
					answer := answers[0]
					if answers = answers[1:]; answer == nil {
						return nil, errors.New("refused")
					}
					answer.Body = http.NoBody
					return answer, nil
				})))}
				var got kube.KeyExchange
				for _, ctx := range []context.Context{t.Context(), kube.WithKeyExchange(t.Context(), &got)} {
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://api.invalid/", http.NoBody)
					if err != nil {
						t.Fatal(err)
					}
					resp, err := c.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					_ = resp.Body.Close()
				}
				if got != tt.want || len(answers) > 0 {
					t.Errorf("got %q, want %q; %d answers are left", got, tt.want, len(answers))
				}
			})
		})
	}
}

// The weakest of several key exchanges counts, and none if there are no keys.
func TestExchangeOfPeering(t *testing.T) {
	for _, tt := range []struct {
		planes []kube.KeyExchange // those with a Secret
		want   kube.KeyExchange
	}{
		{nil, ""},
		{[]kube.KeyExchange{kube.Hybrid}, kube.Hybrid},
		{[]kube.KeyExchange{kube.Hybrid, kube.Hybrid}, kube.Hybrid},
		{[]kube.KeyExchange{kube.Hybrid, ""}, kube.UnknownKeyExchange},
		{[]kube.KeyExchange{"", kube.Hybrid}, kube.UnknownKeyExchange},
		{[]kube.KeyExchange{"anything", kube.Hybrid}, kube.UnknownKeyExchange},
		{[]kube.KeyExchange{kube.Classical, kube.Hybrid}, kube.Classical},
		{[]kube.KeyExchange{"", kube.Classical, kube.Hybrid}, kube.Classical},
	} {
		p := manifests.Peering("b", v1alpha1.PeeringSpec{Planes: []v1alpha1.Plane{{Index: 7}}}) // a plane without a key
		secret := func(name string, by kube.KeyExchange) metav1.PartialObjectMetadata {
			return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationKeyExchange: string(by)}}}
		}
		secrets := []metav1.PartialObjectMetadata{secret("gateway-b-0-psk-1", kube.Classical)} // of a key that the Peering does not name
		for i, by := range tt.planes {
			p.Spec.Planes = append(p.Spec.Planes, v1alpha1.Plane{Index: int32(i), PresharedKey: v1alpha1.PresharedKey{Generation: 2}})
			secrets = append(secrets, secret(fmt.Sprintf("gateway-b-%d-psk-2", i), by))
		}
		if got := status.WeakestExchange(p, secrets); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.planes, got, tt.want)
		}
	}
}

// exchanged fails unless the result and status show these key exchanges for the two clusters.
func exchanged(t *testing.T, a, b *peering.Site, r peering.Result, ofA, ofB kube.KeyExchange) {
	t.Helper()
	for i, want := range []kube.KeyExchange{ofA, ofB} {
		w := []*peering.Site{a, b}[i]
		views, err := status.Views(t.Context(), w.Cluster)
		if err != nil {
			t.Fatal(err)
		}
		if got := []kube.KeyExchange{r.Views[i].PresharedKeyExchange, views[0].PresharedKeyExchange}; got[0] != want || got[1] != want {
			t.Errorf("of %s, the command says %q and status %q, want %q", w.Name, got[0], got[1], want)
		}
	}
}

// peer, rotate-keys and status show how keys reached each cluster.
func TestKeyExchangeIsStored(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := peering.TwoSites(t)
	a.Tls, b.Tls = kube.Hybrid, kube.Classical
	exchanged(t, a, b, peering.MustPeer(t, a, b, engine.Options{}), kube.Hybrid, kube.Classical)
	b.Tls = kube.Hybrid // a new connection says nothing about existing keys
	exchanged(t, a, b, peering.MustPeer(t, a, b, engine.Options{}), kube.Hybrid, kube.Classical)
	r, err := peering.Rotate(t.Context(), a.Cluster, b.Cluster, peering.Rotation{PresharedOnly: true}, kube.Quiet{})
	if err != nil {
		t.Fatal(err)
	}
	exchanged(t, a, b, r, kube.Hybrid, kube.Hybrid)
	if len(r.Notes) > 0 {
		t.Errorf("it says %q", r.Notes)
	}
	peering.SamePreshared(t, a, b, 2, 2)
	// A user who may not list Secrets sees the rest.
	c := *a.Cluster
	c.Client = interceptor.NewClient(a.Client, interceptor.Funcs{List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if kube.KindName(list) == "Secret" {
			return apierrors.NewForbidden(corev1.Resource("secrets"), "", errors.New("no"))
		}
		return api.List(ctx, list, opts...)
	}})
	if views, err := status.Views(t.Context(), &c); err != nil || views[0].PresharedKeyExchange != kube.UnknownKeyExchange || views[0].State != status.Connected {
		t.Errorf("got %+v, %v", views, err)
	}
}

// An uncertain key exchange is not stored, so it is unknown, and the command continues.
func TestKeyExchangeIsUnknown(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	for name, funcs := range map[string]interceptor.Funcs{
		"it cannot be stored": {Patch: func(ctx context.Context, api client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if strings.Contains(obj.GetName(), "-psk-") {
				return peering.ErrInjected
			}
			return api.Patch(ctx, obj, patch, opts...)
		}},
		"the response was lost, and the request repeated": {Create: func(ctx context.Context, api client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			err := api.Create(ctx, obj, opts...)
			if err == nil && strings.Contains(obj.GetName(), "-psk-") {
				return apierrors.NewAlreadyExists(corev1.Resource("secrets"), obj.GetName())
			}
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := peering.TwoSites(t)
			a.Tls, b.Tls = kube.Hybrid, kube.Hybrid
			first := *a.Cluster
			first.Client = interceptor.NewClient(a.Client, funcs)
			r, err := peering.Peer(t.Context(), &first, b.Cluster, engine.Options{}, kube.Quiet{})
			if err != nil {
				t.Fatal(err)
			}
			exchanged(t, a, b, r, kube.UnknownKeyExchange, kube.Hybrid)
			if read := a.PresharedRead(); len(read) > 0 {
				t.Errorf("it has read %q", read)
			}
			peering.SamePreshared(t, a, b, 1, 1)
		})
	}
}

// left is a Secret with a pre-shared key from an interrupted command.
func left(w *peering.Site, t *testing.T, key []byte) {
	t.Helper()
	if err := w.Raw.Create(t.Context(), manifests.Gateway{Peering: w.Peer.Name, PresharedKey: 1}.PresharedSecret(key)); err != nil {
		t.Fatal(err)
	}
}

// A key that exists in only one cluster is read to be copied, and only then. A note says if others may have recorded it.
func TestSecurity_23_PresharedKeyIsReadToBeCopied(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	key := make([]byte, engine.KeyBytes)
	_, _ = rand.Read(key)
	for _, tt := range []struct {
		tls    kube.KeyExchange
		inBoth bool
		says   string // of the connection
	}{
		{kube.Hybrid, false, ""}, {kube.Classical, false, "is classical"}, {kube.UnknownKeyExchange, false, "is unknown"}, {kube.Classical, true, ""},
	} {
		t.Run(fmt.Sprintf("%s, in both: %t", tt.tls, tt.inBoth), func(t *testing.T) {
			t.Parallel()
			a, b := peering.TwoSites(t, manifests.Namespace())
			a.Tls, b.Tls = tt.tls, kube.Hybrid
			left(a, t, key)
			want, ofB := []string{"gateway-b-0-psk-1"}, kube.Hybrid
			if tt.inBoth {
				left(b, t, key)
				want, ofB = nil, kube.UnknownKeyExchange
			}
			r := peering.MustPeer(t, a, b, engine.Options{})
			if got := peering.SamePreshared(t, a, b, 1, 1); !slices.Equal(got, key) {
				t.Error("it is another key")
			}
			if read := append(a.PresharedRead(), b.PresharedRead()...); !slices.Equal(read, want) {
				t.Errorf("it has read %q, want %q", read, want)
			}
			exchanged(t, a, b, r, kube.UnknownKeyExchange, ofB)
			isSaid := func(n string) bool {
				return strings.Contains(n, "Secret gateway-b-0-psk-1 of a was read") && strings.Contains(n, tt.says) && strings.HasSuffix(n, "kubectl liqonet rotate-keys a b --psk-only")
			}
			if tt.says == "" && len(r.Notes) > 0 || tt.says != "" && !slices.ContainsFunc(r.Notes, isSaid) {
				t.Errorf("it says %q", r.Notes)
			}
		})
	}
}

// No command reads the pre-shared keys of an existing peering, nor those that it creates.
func TestSecurity_23_NoPresharedKeyIsRead(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := peering.TwoSites(t)
	read := func(what string) {
		t.Helper()
		for _, w := range []*peering.Site{a, b} {
			if keys := w.PresharedRead(); len(keys) > 0 {
				t.Errorf("%s reads %q of %s", what, keys, w.Name)
			}
		}
	}
	done := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		read(what)
	}
	peering.MustPeer(t, a, b, engine.Options{})
	if !slices.Contains(a.Keys, "gateway-b-0-1") {
		t.Errorf("of a, only %q were seen to be read", a.Keys)
	}
	read("the first peer")
	peering.MustPeer(t, a, b, engine.Options{})
	read("peer")
	if p := peering.DryRun(t, a, b, engine.Options{}); p.Changes() > 0 {
		t.Errorf("a dry run finds %v", peering.Changes(p))
	}
	read("a dry run")
	_, err := status.Views(t.Context(), a.Cluster)
	done("status", err)
	_, err = peering.Rotate(t.Context(), a.Cluster, b.Cluster, peering.Rotation{}, kube.Quiet{})
	done("rotate-keys", err)
	facts, err := diagnose.ReadFacts(t.Context(), []*kube.Cluster{a.Cluster, b.Cluster}, nil, kube.Quiet{})
	if facts == nil {
		t.Fatal(err)
	}
	done("doctor", err)
	plans, err := peering.PlanUpgrades(t.Context(), []*kube.Cluster{a.Cluster, b.Cluster}, peering.UpgradeOptions{}, kube.Quiet{})
	if err == nil && !slices.ContainsFunc(plans.Clusters[0].Objects, func(o plan.ObjectPlan) bool { return o.Kind == "Deployment" }) {
		t.Error("an upgrade is about no gateway")
	}
	done("upgrade --dry-run", err)
	_, err = peering.UpgradeAll(t.Context(), []*kube.Cluster{a.Cluster, b.Cluster}, peering.UpgradeOptions{}, kube.Quiet{})
	done("upgrade", err)
	_, _, err = peering.Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{})
	done("unpeer", err)
}
