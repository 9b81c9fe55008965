package peering

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
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
)

// The key exchange is that of the connection, by HTTP/1.1 and HTTP/2 of the transport that commands have.
func TestKeyExchange(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		// server is nil for plain HTTP.
		server *tls.Config
		http2  bool
		want   KeyExchange
	}{
		{"as Go negotiates", &tls.Config{}, false, Hybrid},
		{"as Go negotiates", &tls.Config{}, true, Hybrid},
		{"ML-KEM beside P-256", &tls.Config{CurvePreferences: []tls.CurveID{tls.SecP256r1MLKEM768}}, true, Hybrid},
		{"ML-KEM beside P-384", &tls.Config{CurvePreferences: []tls.CurveID{tls.SecP384r1MLKEM1024}}, true, Hybrid},
		{"X25519 only", &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}, false, Classical},
		{"X25519 only", &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}, true, Classical},
		{"P-256 only", &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP256}}, true, Classical},
		{"TLS 1.2", &tls.Config{MaxVersion: tls.VersionTLS12}, true, Classical},
		{"no TLS", nil, false, UnknownKeyExchange},
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
			cfg.Wrap(Patient)
			cfg.Wrap(WatchKeyExchange)
			c, err := rest.HTTPClientFor(cfg)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second one is by the same connection
				var got KeyExchange
				req, err := http.NewRequestWithContext(WithKeyExchange(t.Context(), &got), http.MethodGet, s.URL, nil)
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

// Of a request that is repeated, the response counts that was accepted.
func TestKeyExchangeOfRepeatedRequest(t *testing.T) {
	state := func(group tls.CurveID) *tls.ConnectionState { return &tls.ConnectionState{CurveID: group} }
	for _, tt := range []struct {
		name    string
		answers []*http.Response
		want    KeyExchange
	}{
		{"a better one follows", []*http.Response{{StatusCode: 500, TLS: state(tls.X25519)}, nil, {StatusCode: 201, TLS: state(tls.X25519MLKEM768)}}, Hybrid},
		{"a worse one follows", []*http.Response{{StatusCode: 503, TLS: state(tls.X25519MLKEM768)}, {StatusCode: 201, TLS: state(tls.X25519)}}, Classical},
		{"one that is not known follows", []*http.Response{{StatusCode: 503, TLS: state(tls.X25519)}, {StatusCode: 201}}, UnknownKeyExchange},
		{"a key that a certificate's encrypts", []*http.Response{{StatusCode: 201, TLS: state(0)}}, UnknownKeyExchange},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answers := append([]*http.Response{{StatusCode: 200, TLS: state(tls.X25519)}}, tt.answers...)
				c := &http.Client{Transport: WatchKeyExchange(Patient(roundTripper(func(*http.Request) (*http.Response, error) {
					answer := answers[0]
					if answers = answers[1:]; answer == nil {
						return nil, errors.New("refused")
					}
					answer.Body = http.NoBody
					return answer, nil
				})))}
				var got KeyExchange
				for _, ctx := range []context.Context{t.Context(), WithKeyExchange(t.Context(), &got)} {
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

// Of several keys the one counts that is protected least, and none where there is none.
func TestExchangeOfPeering(t *testing.T) {
	for _, tt := range []struct {
		planes []KeyExchange // of which there is a Secret
		want   KeyExchange
	}{
		{nil, ""},
		{[]KeyExchange{Hybrid}, Hybrid},
		{[]KeyExchange{Hybrid, Hybrid}, Hybrid},
		{[]KeyExchange{Hybrid, ""}, UnknownKeyExchange},
		{[]KeyExchange{"", Hybrid}, UnknownKeyExchange},
		{[]KeyExchange{"anything", Hybrid}, UnknownKeyExchange},
		{[]KeyExchange{Classical, Hybrid}, Classical},
		{[]KeyExchange{"", Classical, Hybrid}, Classical},
	} {
		p := manifests.Peering("b", v1alpha1.PeeringSpec{Planes: []v1alpha1.Plane{{Index: 7}}}) // one without a key
		exchanges := map[string]KeyExchange{"gateway-b-0-psk-1": Classical}                     // of a key that is not named
		for i, by := range tt.planes {
			p.Spec.Planes = append(p.Spec.Planes, v1alpha1.Plane{Index: int32(i), PresharedKey: v1alpha1.PresharedKey{Generation: 2}})
			exchanges[fmt.Sprintf("gateway-b-%d-psk-2", i)] = by
		}
		if got := exchangeOfPeering(p, exchanges); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.planes, got, tt.want)
		}
	}
}

// exchanged fails if the result or status says something else of how the keys reached the two clusters.
func exchanged(t *testing.T, a, b *site, r Result, ofA, ofB KeyExchange) {
	t.Helper()
	for i, want := range []KeyExchange{ofA, ofB} {
		w := []*site{a, b}[i]
		views, err := w.Views(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := []KeyExchange{r.Views[i].PresharedKeyExchange, views[0].PresharedKeyExchange}; got[0] != want || got[1] != want {
			t.Errorf("of %s, the command says %q and status %q, want %q", w.Name, got[0], got[1], want)
		}
	}
}

// How keys reached each cluster is what peer, rotate-keys and status say.
func TestKeyExchangeIsStored(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := twoSites(t)
	a.tls, b.tls = Hybrid, Classical
	exchanged(t, a, b, mustPeer(t, a, b, Options{}), Hybrid, Classical)
	b.tls = Hybrid // that the connection is another one by now says nothing of keys that are there
	exchanged(t, a, b, mustPeer(t, a, b, Options{}), Hybrid, Classical)
	r, err := Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{PresharedOnly: true}, Silent{})
	if err != nil {
		t.Fatal(err)
	}
	exchanged(t, a, b, r, Hybrid, Hybrid)
	if len(r.Notes) > 0 {
		t.Errorf("it says %q", r.Notes)
	}
	samePreshared(t, a, b, 2, 2)
	// Who may not list Secrets is told the rest.
	c := *a.Cluster
	c.Client = interceptor.NewClient(a.Client, interceptor.Funcs{List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if kindName(list) == "Secret" {
			return apierrors.NewForbidden(corev1.Resource("secrets"), "", errors.New("no"))
		}
		return api.List(ctx, list, opts...)
	}})
	if views, err := c.Views(t.Context()); err != nil || views[0].PresharedKeyExchange != UnknownKeyExchange || views[0].State != Connected {
		t.Errorf("got %+v, %v", views, err)
	}
}

// What is not certain is not stored: then it is unknown, and the command continues.
func TestKeyExchangeIsUnknown(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	for name, funcs := range map[string]interceptor.Funcs{
		"it cannot be stored": {Patch: func(ctx context.Context, api client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if strings.Contains(obj.GetName(), "-psk-") {
				return errInjected
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
			a, b := twoSites(t)
			a.tls, b.tls = Hybrid, Hybrid
			first := *a.Cluster
			first.Client = interceptor.NewClient(a.Client, funcs)
			r, err := Peer(t.Context(), &first, b.Cluster, Options{}, Silent{})
			if err != nil {
				t.Fatal(err)
			}
			exchanged(t, a, b, r, UnknownKeyExchange, Hybrid)
			if read := a.presharedRead(); len(read) > 0 {
				t.Errorf("it has read %q", read)
			}
			samePreshared(t, a, b, 1, 1)
		})
	}
}

// left is a Secret with a pre-shared key that an interrupted command has left.
func (w *site) left(t *testing.T, key []byte) {
	t.Helper()
	if err := w.raw.Create(t.Context(), manifests.Gateway{Peering: w.peer.Name, PresharedKey: 1}.PresharedSecret(key)); err != nil {
		t.Fatal(err)
	}
}

// A key that one cluster has already is read to be copied, and only then. That is said where others may have recorded it.
func TestSecurity_23_PresharedKeyIsReadToBeCopied(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key)
	for _, tt := range []struct {
		tls    KeyExchange
		inBoth bool
		says   string // of the connection
	}{
		{Hybrid, false, ""}, {Classical, false, "is classical"}, {UnknownKeyExchange, false, "is unknown"}, {Classical, true, ""},
	} {
		t.Run(fmt.Sprintf("%s, in both: %t", tt.tls, tt.inBoth), func(t *testing.T) {
			t.Parallel()
			a, b := twoSites(t, manifests.Namespace())
			a.tls, b.tls = tt.tls, Hybrid
			a.left(t, key)
			want, ofB := []string{"gateway-b-0-psk-1"}, Hybrid
			if tt.inBoth {
				b.left(t, key)
				want, ofB = nil, UnknownKeyExchange
			}
			r := mustPeer(t, a, b, Options{})
			if got := samePreshared(t, a, b, 1, 1); !slices.Equal(got, key) {
				t.Error("it is another key")
			}
			if read := append(a.presharedRead(), b.presharedRead()...); !slices.Equal(read, want) {
				t.Errorf("it has read %q, want %q", read, want)
			}
			exchanged(t, a, b, r, UnknownKeyExchange, ofB)
			isSaid := func(n string) bool {
				return strings.Contains(n, "Secret gateway-b-0-psk-1 of a was read") && strings.Contains(n, tt.says) && strings.HasSuffix(n, "kubectl liqonet rotate-keys a b --psk-only")
			}
			if tt.says == "" && len(r.Notes) > 0 || tt.says != "" && !slices.ContainsFunc(r.Notes, isSaid) {
				t.Errorf("it says %q", r.Notes)
			}
		})
	}
}

// No command reads a pre-shared key of a peering that is there, nor one that this command makes.
func TestSecurity_23_NoPresharedKeyIsRead(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := twoSites(t)
	read := func(what string) {
		t.Helper()
		for _, w := range []*site{a, b} {
			if keys := w.presharedRead(); len(keys) > 0 {
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
	mustPeer(t, a, b, Options{})
	if !slices.Contains(a.keys, "gateway-b-0-1") {
		t.Errorf("of a, only %q were seen to be read", a.keys)
	}
	read("the first peer")
	mustPeer(t, a, b, Options{})
	read("peer")
	if p := dryRun(t, a, b, Options{}); p.Changes() > 0 {
		t.Errorf("a dry run finds %v", changes(p))
	}
	read("a dry run")
	_, err := a.Views(t.Context())
	done("status", err)
	_, err = Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, Silent{})
	done("rotate-keys", err)
	facts, err := ReadFacts(t.Context(), []*Cluster{a.Cluster, b.Cluster}, []error{nil, nil}, DoctorOptions{ObjectsOnly: true}, Silent{})
	if facts == nil {
		t.Fatal(err)
	}
	done("doctor", err)
	plans, err := PlanUpgrades(t.Context(), []*Cluster{a.Cluster, b.Cluster}, UpgradeOptions{}, Silent{})
	if err == nil && !slices.ContainsFunc(plans.Clusters[0].Objects, func(o plan.ObjectPlan) bool { return o.Kind == "Deployment" }) {
		t.Error("an upgrade is about no gateway")
	}
	done("upgrade --dry-run", err)
	_, err = UpgradeAll(t.Context(), []*Cluster{a.Cluster, b.Cluster}, UpgradeOptions{}, Silent{})
	done("upgrade", err)
	_, _, err = Unpeer(t.Context(), a.Cluster, b.Cluster, Silent{})
	done("unpeer", err)
}
