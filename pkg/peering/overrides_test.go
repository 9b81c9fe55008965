package peering

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

func (w *Site) peering(t *testing.T) *v1alpha1.Peering {
	t.Helper()
	var list v1alpha1.PeeringList
	err := w.Raw.List(t.Context(), &list)
	kit.FatalIf(t, err != nil || len(list.Items) != 1, "%v %v", list.Items, err)
	return &list.Items[0]
}

// services returns the types of the gateways' Services.
func (w *Site) services(t *testing.T) (out []corev1.ServiceType) {
	t.Helper()
	list := List[corev1.ServiceList](t, w)
	for _, s := range list.Items {
		if s.Namespace == v1alpha1.Namespace {
			out = append(out, s.Spec.Type)
		}
	}
	return out
}

func wishFor(id string, c engine.ClusterOptions) engine.Options {
	return engine.Options{Clusters: map[string]engine.ClusterOptions{id: c}}
}

func mapped(mappings ...ipam.Mapping) engine.ClusterOptions {
	return engine.ClusterOptions{Map: mappings}
}

// Impossible settings are rejected before anything is changed.
func TestRefusedBeforeAnythingIsChanged(t *testing.T) {
	tests := []struct {
		name string
		o    engine.Options
		want []string
	}{
		{"a range that is in use", wishFor("id-of-a", mapped(ipam.Mapping{Mapped: kubetest.Prefix("10.96.0.0/16")})), []string{`cluster "b"`, "10.96.0.0/16", "services of cluster b", "--map"}},
		{"a range of another length", wishFor("id-of-a", mapped(ipam.Mapping{Mapped: kubetest.Prefix("10.60.0.0/20")})), []string{"10.60.0.0/20", "/20"}},
		{"not a pod range", wishFor("id-of-a", mapped(ipam.Mapping{Real: kubetest.Prefix("10.1.0.0/16"), Mapped: kubetest.Prefix("10.60.0.0/16")})), []string{"10.1.0.0/16", "is not a pod range"}},
		{"reserved", wishFor("id-of-a", mapped(ipam.Mapping{Mapped: kubetest.Prefix("127.0.0.0/16")})), []string{"loopback"}},
		{"nodes' range in use", wishFor("id-of-a", engine.ClusterOptions{MapNodes: kubetest.Prefix("10.244.64.0/18")}), []string{"10.244.64.0/18", "pods of cluster b"}},
		{"two wishes that overlap", wishFor("id-of-a", engine.ClusterOptions{Map: ipam.Mappings{{Mapped: kubetest.Prefix("10.60.0.0/16")}}, MapNodes: kubetest.Prefix("10.60.0.0/18")}), []string{"10.60.0.0"}},
		{
			"an endpoint of the one that calls",
			engine.Options{Server: "id-of-b", Clusters: map[string]engine.ClusterOptions{"id-of-a": {Endpoints: []string{"203.0.113.1:1"}}}},
			[]string{"--endpoint", "--server"},
		},
		{
			"pods outside of the range given",
			engine.Options{Facts: map[string]discovery.Overrides{"id-of-a": {PodCIDRs: kubetest.Ipv4Prefixes("10.9.0.0/16")}}},
			[]string{"10.9.0.0/16", "10.244.0.7"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pod := kubetest.PodWith("10.244.0.7")
			pod.Status.Phase = corev1.PodRunning
			a, b := TwoSites(t, pod)
			_, err := Peer(t.Context(), a.Cluster, b.Cluster, tt.o, kube.Quiet{})
			kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.Usage, "want a usage error, got %v", err)
			text := err.Error()
			if e := (*kube.Error)(nil); errors.As(err, &e) {
				text += " " + e.Hint
			}
			for _, w := range tt.want {
				kit.ErrorIf(t, !strings.Contains(text, w), "%q is not in %q", w, text)
			}
			kit.ErrorIf(t, a.Writes+b.Writes > 0, "%d writes", a.Writes+b.Writes)
		})
	}
	t.Run("what the kernels of agents that are there cannot do", func(t *testing.T) {
		a, b := Peered(t)
		a.Writes, b.Writes = 0, 0
		for _, o := range []engine.Options{{Overlay: "Geneve"}, {WireGuard: "Kernel"}, wishFor("id-of-b", engine.ClusterOptions{WireGuard: "Kernel"})} {
			_, err := Peer(t.Context(), a.Cluster, b.Cluster, o, kube.Quiet{})
			kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.Usage || a.Writes+b.Writes > 0, "%+v: %d writes, %v", o, a.Writes+b.Writes, err)
		}
	})
}

func TestWishedRanges(t *testing.T) {
	kit.Slow(t)
	a, b := TwoSites(t)
	o := wishFor("id-of-a", engine.ClusterOptions{Map: ipam.Mappings{{Mapped: kubetest.Prefix("10.60.0.0/16")}}, MapNodes: kubetest.Prefix("10.61.0.0/18")})
	MustPeer(t, a, b, o)
	check := func() {
		t.Helper()
		if got := b.peering(t).Spec.Remote; got.Pods[0] != kubetest.Mapping("10.244.0.0/16", "10.60.0.0/16") || got.ExternalCIDR != kubetest.Cidr("10.61.0.0/18") {
			t.Errorf("b knows a as %+v", got)
		}
		if got := a.peering(t).Spec.Local; got.Pods[0] != kubetest.Mapping("10.244.0.0/16", "10.60.0.0/16") || got.ExternalCIDR != kubetest.Cidr("10.61.0.0/18") {
			t.Errorf("a says that it is known as %+v", got)
		}
	}
	check()
	MustPeer(t, a, b, engine.Options{})
	check() // the setting is kept
	MustPeer(t, a, b, wishFor("id-of-a", mapped(ipam.Mapping{Real: kubetest.Prefix("10.244.0.0/16"), Mapped: kubetest.Prefix("10.62.0.0/16")})))
	kit.Check(t, "another wish: b knows a as", b.peering(t).Spec.Remote.Pods[0], kubetest.Mapping("10.244.0.0/16", "10.62.0.0/16"))
}

func TestServerAndEndpoint(t *testing.T) {
	kit.NotShort(t)
	a, b := TwoSites(t)
	roles := func() string { return string(a.peering(t).Spec.Planes[0].Role + b.peering(t).Spec.Planes[0].Role) }
	MustPeer(t, a, b, engine.Options{})
	if roles() != "ServerClient" {
		t.Fatal(roles())
	}
	MustPeer(t, a, b, engine.Options{Server: "id-of-b"})
	if roles() != "ClientServer" || len(a.services(t)) != 0 || len(b.services(t)) != 1 {
		t.Errorf("--server b: %s, services %v, %v", roles(), a.services(t), b.services(t))
	}
	MustPeer(t, a, b, engine.Options{})
	kit.Check(t, "it is not kept", roles(), "ClientServer")
	endpoints := []string{"203.0.113.5:31820", "nat.example.com:31820"}
	MustPeer(t, a, b, wishFor("id-of-a", engine.ClusterOptions{Endpoints: endpoints, ServiceType: "NodePort", NodePort: 31820}))
	for range 2 {
		if diff := cmp.Diff(endpoints, b.peering(t).Spec.Planes[0].Endpoints); roles() != "ServerClient" || diff != "" {
			t.Errorf("--endpoint a: %s\n%s", roles(), diff)
		}
		svc := &corev1.Service{}
		err := a.Raw.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.GatewayServiceName("b")}, svc)
		kit.ErrorIf(t, err != nil || svc.Spec.Ports[0].NodePort != 31820, "ports %+v, %v", svc.Spec.Ports, err)
		MustPeer(t, a, b, engine.Options{}) // it is kept
	}
	MustPeer(t, a, b, wishFor("id-of-a", engine.ClusterOptions{AutoEndpoints: true}))
	kit.Check(t, "--endpoint a=auto", b.peering(t).Spec.Planes[0].Endpoints, []string{"172.18.1.11:31820"})
	if _, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{}); err != nil || len(a.Ours(t))+len(b.Ours(t)) > 0 {
		t.Errorf("unpeer leaves %v, %v: %v", a.Ours(t), b.Ours(t), err)
	}
}

// impatient cancels the wait with that number after some time.
type impatient struct {
	after int
	time.Duration
}

func (i *impatient) Step(ctx context.Context, name string, do func(context.Context) error) error {
	if name == "Waiting until packets pass" {
		if i.after--; i.after == 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, i.Duration)
			defer cancel()
		}
	}
	return do(ctx)
}

// The side that can be reached is the server, whichever was tried first.
func TestUnreachableServer(t *testing.T) {
	kit.NotShort(t)
	t.Run("one", func(t *testing.T) {
		a, b := TwoSites(t)
		a.unreachable = true
		MustPeer(t, a, b, engine.Options{ConnectTimeout: 10 * time.Millisecond})
		if a.peering(t).Spec.Planes[0].Role != v1alpha1.Client || len(a.services(t)) != 0 {
			t.Errorf("%+v, services %v", a.peering(t).Spec.Planes[0], a.services(t))
		}
	})
	t.Run("both", func(t *testing.T) {
		a, b := TwoSites(t)
		a.unreachable, b.unreachable = true, true
		_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{ConnectTimeout: 50 * time.Millisecond}, &impatient{3, time.Millisecond})
		if kubetest.KindOf(t, err) != kube.NotReady || !strings.Contains(err.Error(), "b tried a at 172.18.1.11:30001 (NodePort)") ||
			!strings.Contains(err.Error(), "a tried b at 172.18.2.11:30001 (NodePort)") {
			t.Error(err)
		}
		if len(a.Ours(t))+len(b.Ours(t)) > 0 {
			t.Errorf("it leaves %v, %v", a.Ours(t), b.Ours(t))
		}
	})
	t.Run("the one that the user named", func(t *testing.T) {
		a, b := TwoSites(t)
		a.unreachable = true
		_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Server: "id-of-a", ConnectTimeout: 10 * time.Millisecond}, &impatient{1, 3 * time.Second})
		if kubetest.KindOf(t, err) != kube.NotReady || strings.Contains(err.Error(), "a tried b") || !strings.Contains(err.Error(), "b tried a") {
			t.Error(err)
		}
	})
}
