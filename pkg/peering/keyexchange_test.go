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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/diagnose"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/test/fakeapi"
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
		{"ML-KEM next to P-256", &tls.Config{CurvePreferences: []tls.CurveID{tls.SecP256r1MLKEM768}}, true, kube.Hybrid},
		{"ML-KEM next to P-384", &tls.Config{CurvePreferences: []tls.CurveID{tls.SecP384r1MLKEM1024}}, true, kube.Hybrid},
		{"X25519 only", &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}, false, kube.Classical},
		{"X25519 only", &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}, true, kube.Classical},
		{"P-256 only", &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP256}}, true, kube.Classical},
		{"TLS 1.2", &tls.Config{MaxVersion: tls.VersionTLS12}, true, kube.Classical},
		{"no TLS", nil, false, kube.UnknownKeyExchange},
	} {
		t.Run(fmt.Sprintf("%s, HTTP/2: %t", tt.name, tt.http2), func(t *testing.T) {
			t.Parallel()
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				kit.ErrorIf(t, (r.ProtoMajor == 2) != tt.http2, "it is asked by %s", r.Proto)
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
			cfg.Wrap(kube.RetryTransport)
			c := kit.Must(rest.HTTPClientFor(cfg))(t)
			for range 2 { // the second one reuses the connection
				var got kube.KeyExchange
				req := kit.Must(http.NewRequestWithContext(kube.WithKeyExchange(t.Context(), &got), http.MethodGet, s.URL, nil))(t)
				resp := kit.Must(c.Do(req))(t)
				_ = resp.Body.Close()
				kit.ErrorIf(t, got != tt.want, "got %q, want %q", got, tt.want)
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
		kit.Bubble(t, tt.name, func(t *testing.T) {
			answers := append([]*http.Response{{StatusCode: 200, TLS: state(tls.X25519)}}, tt.answers...)
			c := &http.Client{Transport: kube.RetryTransport(kubetest.RoundTripper(func(*http.Request) (*http.Response, error) {
				answer := answers[0]
				if answers = answers[1:]; answer == nil {
					return nil, errors.New("refused")
				}
				answer.Body = http.NoBody
				return answer, nil
			}))}
			var got kube.KeyExchange
			for _, ctx := range []context.Context{t.Context(), kube.WithKeyExchange(t.Context(), &got)} {
				req := kit.Must(http.NewRequestWithContext(ctx, http.MethodPost, "http://api.invalid/", http.NoBody))(t)
				resp := kit.Must(c.Do(req))(t)
				_ = resp.Body.Close()
			}
			kit.ErrorIf(t, got != tt.want || len(answers) > 0, "got %q, want %q; %d answers are left", got, tt.want, len(answers))
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
		kit.Check(t, fmt.Sprint(tt.planes), status.WeakestKeyExchange(p, secrets), tt.want)
	}
}

// exchanged fails unless the result and status show these key exchanges for the two clusters.
func exchanged(t *testing.T, a, b *peering.Site, r peering.Result, ofA, ofB kube.KeyExchange) {
	t.Helper()
	for i, want := range []kube.KeyExchange{ofA, ofB} {
		w := []*peering.Site{a, b}[i]
		views := kit.Must(status.Views(t.Context(), w.Cluster))(t)
		got := []kube.KeyExchange{r.Views[i].PresharedKeyExchange, views[0].PresharedKeyExchange}
		kit.ErrorIf(t, got[0] != want || got[1] != want, "of %s, the command says %q and status %q, want %q", w.Name, got[0], got[1], want)
	}
}

// A user who may not list Secrets sees the rest.
func TestStatusWithoutSecrets(t *testing.T) {
	kit.Play(t)
	a, _ := peering.Peered(t)
	c := a.Through(func(ctx context.Context, r *fakeapi.Request) error {
		if r.Of("list", "Secret") {
			return apierrors.NewForbidden(corev1.Resource("secrets"), "", errors.New("no"))
		}
		return r.Send(ctx)
	})
	if views, err := status.Views(t.Context(), c); err != nil || views[0].PresharedKeyExchange != kube.UnknownKeyExchange || views[0].State != status.Connected {
		t.Errorf("got %+v, %v", views, err)
	}
}

// An uncertain key exchange is not stored, so it is unknown, and the command continues.
func TestKeyExchangeIsUnknown(t *testing.T) {
	kit.Play(t)
	for name, do := range map[string]func(context.Context, *fakeapi.Request) error{
		"it cannot be stored": func(ctx context.Context, r *fakeapi.Request) error {
			if r.Verb == "patch" && strings.Contains(r.Name, "-psk-") {
				return peering.ErrInjected
			}
			return r.Send(ctx)
		},
		"the response was lost, and the request repeated": func(ctx context.Context, r *fakeapi.Request) error {
			err := r.Send(ctx)
			if err == nil && r.Verb == "create" && strings.Contains(r.Name, "-psk-") {
				return apierrors.NewAlreadyExists(corev1.Resource("secrets"), r.Name)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := peering.TwoSites(t)
			a.Tls, b.Tls = kube.Hybrid, kube.Hybrid
			r := kit.Must(peering.Peer(t.Context(), a.Through(do), b.Cluster, engine.Options{}, kube.Quiet{}))(t)
			exchanged(t, a, b, r, kube.UnknownKeyExchange, kube.Hybrid)
			read := a.PresharedRead()
			kit.ErrorIf(t, len(read) > 0, "it has read %q", read)
			peering.SamePreshared(t, a, b, 1, 1)
		})
	}
}

// left is a Secret with a pre-shared key from an interrupted command.
func left(w *peering.Site, t *testing.T, key []byte) {
	t.Helper()
	kit.NoError(t, w.Raw.Create(t.Context(), manifests.Gateway{Peering: w.Peer.Name, PresharedKey: 1}.PresharedSecret(key)))
}

// A key that exists in only one cluster is read to be copied, and only then. A note says if others may have recorded it.
func TestPresharedKeyIsReadToBeCopied(t *testing.T) {
	kit.Play(t)
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
			got := peering.SamePreshared(t, a, b, 1, 1)
			kit.ErrorIf(t, !slices.Equal(got, key), "it is another key")
			read := append(a.PresharedRead(), b.PresharedRead()...)
			kit.ErrorIf(t, !slices.Equal(read, want), "it has read %q, want %q", read, want)
			exchanged(t, a, b, r, kube.UnknownKeyExchange, ofB)
			isSaid := func(n string) bool {
				return strings.Contains(n, "Secret gateway-b-0-psk-1 of a was read") && strings.Contains(n, tt.says) && strings.HasSuffix(n, "kubectl liqonet rotate-keys a b --psk-only")
			}
			kit.ErrorIf(t, tt.says == "" && len(r.Notes) > 0 || tt.says != "" && !slices.ContainsFunc(r.Notes, isSaid), "it says %q", r.Notes)
		})
	}
}

// No command reads the pre-shared keys of an existing peering, nor those that it creates.
func TestNoPresharedKeyIsRead(t *testing.T) {
	kit.Play(t)
	a, b := peering.TwoSites(t)
	read := func(what string) {
		t.Helper()
		for _, w := range []*peering.Site{a, b} {
			keys := w.PresharedRead()
			kit.ErrorIf(t, len(keys) > 0, "%s reads %q of %s", what, keys, w.Name)
		}
	}
	done := func(what string, err error) {
		t.Helper()
		kit.FatalIf(t, err != nil, "%s: %v", what, err)
		read(what)
	}
	peering.MustPeer(t, a, b, engine.Options{})
	kit.ErrorIf(t, !slices.Contains(a.Keys, "gateway-b-0-1"), "of a, only %q were seen to be read", a.Keys)
	read("the first peer")
	peering.MustPeer(t, a, b, engine.Options{})
	read("peer")
	peering.Settled(t, a, b, engine.Options{})
	read("a dry run")
	_, err := status.Views(t.Context(), a.Cluster)
	done("status", err)
	_, err = peering.Rotate(t.Context(), a.Cluster, b.Cluster, peering.Rotation{}, kube.Quiet{})
	done("rotate-keys", err)
	peering.SamePreshared(t, a, b, 2, 2)
	facts, err := diagnose.ReadFacts(t.Context(), []*kube.Cluster{a.Cluster, b.Cluster}, nil, kube.Quiet{})
	kit.FatalIf(t, facts == nil, "%v", err)
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
