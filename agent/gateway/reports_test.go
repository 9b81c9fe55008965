package gateway

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/kit"
)

// routesOf returns the destinations of the routes to pods and hosts through a link.
func routesOf(d desired, link string) (out []string) {
	for _, r := range d.overlay.Routes {
		if r.Dev == link && r.Table == overlay.InboundTable && r.Via.IsValid() {
			out = append(out, r.Dst.String())
		}
	}
	return out
}

// One node's report about its pods does not affect other nodes.
func TestOneNodeNetworkStopsNoOther(t *testing.T) {
	honest := node("n1", "10.80.0.1", "172.18.0.2", 0, "10.244.0.0/24")
	for _, tt := range []struct {
		name       string
		cidrs, ips []string
		want       []string
	}{
		{name: "another node's overlay address", ips: []string{"10.80.0.1"}},
		{name: "the overlay's range", cidrs: []string{"10.80.0.0/19", "10.80.0.0/25", "10.64.0.0/10"}},
		{name: "an exposed host", ips: []string{"192.0.2.7"}},
		{name: "an exposed host among the pods", ips: []string{"10.244.9.9"}},
		{name: "everything", cidrs: []string{"0.0.0.0/0", "::/0"}},
		{name: "addresses of others", cidrs: []string{"172.18.0.0/16", "10.0.0.0/12", "fd00::/8"}, ips: []string{"8.8.8.8", "10.96.0.1"}},
		{name: "more than the peering carries", cidrs: []string{"10.245.0.0/20"}, want: []string{"10.245.0.0/24"}},
		{name: "its pods", cidrs: []string{"10.244.1.0/24"}, ips: []string{"10.244.7.7"}, want: []string{"10.244.1.0/24", "10.244.7.7/32"}},
		{name: "another node's pods", cidrs: []string{"10.244.0.0/24"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := peering(t, v1alpha1.Client, newKey(t))
			p.Spec.Local.Hosts = []v1alpha1.AddressMapping{
				{Real: v1alpha1.IP{Addr: addr("192.0.2.7")}, Mapped: v1alpha1.IP{Addr: addr("10.60.32.5")}},
				{Real: v1alpha1.IP{Addr: addr("10.244.9.9")}, Mapped: v1alpha1.IP{Addr: addr("10.60.32.6")}},
			}
			liar := node("n2", "10.80.0.2", "172.18.0.3", 0, tt.cidrs...)
			for _, ip := range tt.ips {
				liar.Status.PodIPs = append(liar.Status.PodIPs, v1alpha1.IP{Addr: addr(ip)})
			}
			d, err := desire(local{key: newKey(t), node: "n1", underlay: "eth0", underlayMTU: 1450}, p, []v1alpha1.NodeNetwork{honest, liar})
			if err != nil || d.omittedNodes != nil {
				t.Fatal(err, d.omittedNodes)
			}
			keys := map[string]bool{}
			for _, r := range d.overlay.Routes {
				key := strings.Join([]string{r.Dst.String(), string(rune(r.Table)), string(rune(r.Metric))}, " ")
				kit.ErrorIf(t, keys[key], "route %s exists twice", r)
				keys[key] = true
			}
			if got := routesOf(d, "loqn2"); !slices.Equal(got, tt.want) {
				t.Errorf("the node has %v, want %v", got, tt.want)
			}
			if got, want := routesOf(d, "loqn1"), []string{"10.244.0.0/24", "192.0.2.7/32", "10.244.9.9/32"}; !slices.Equal(got, want) {
				t.Errorf("the other node has %v, want %v", got, want)
			}
		})
	}
}

// A NodeNetwork that none of our agents made does not misdirect packets to hosts.
func TestHostsByNodesThatAreLinked(t *testing.T) {
	p := peering(t, v1alpha1.Client, newKey(t))
	p.Spec.Local.Hosts = []v1alpha1.AddressMapping{{Real: v1alpha1.IP{Addr: addr("192.0.2.7")}, Mapped: v1alpha1.IP{Addr: addr("10.60.32.5")}}}
	nodes := []v1alpha1.NodeNetwork{
		node("bad-number", "10.80.0.0", "172.18.0.9", 0), node("bad-source", "10.80.0.1", "fd00::9", 0), node("n2", "10.80.0.2", "172.18.0.3", 0),
	}
	d := kit.Must(desire(local{key: newKey(t), node: "n3", underlay: "eth0", underlayMTU: 1450}, p, nodes))(t)
	if got := routesOf(d, "loqn2"); !slices.Equal(got, []string{"192.0.2.7/32"}) || d.omittedNodes == nil {
		t.Errorf("routes %v, left out: %v", got, d.omittedNodes)
	}
}

// A peer's announced endpoint is not used unless it consists of a host and a port.
func TestOddEndpointsAreNotCalled(t *testing.T) {
	for _, odd := range []string{
		"[fe80::1%x\nallowed_ip=0.0.0.0/0]:51840", "[fe80::1%eth0]:51840", "[2001:db8::1%eth0]:51840", "host\nallowed_ip=0.0.0.0/0:1", "host.example\x00:1", "192.0.2.1:0", "192.0.2.1:99999", "a b:1", "\x1b[1m:1", ":1", "host", "", "192.0.2.1", "192.0.2.1:x",
	} {
		e := newEndpoints()
		e.lookup = func(context.Context, string, string) ([]netip.Addr, error) {
			t.Errorf("%q is looked up", odd)
			return []netip.Addr{addr("192.0.2.1")}, nil
		}
		e.set([]string{odd}, false)
		if got, err := e.current(t.Context()); err == nil {
			t.Errorf("%q is %v", odd, got)
		} else if strings.ContainsAny(err.Error(), "\n\x00\x1b") {
			t.Errorf("%q: %v", odd, err)
		}
	}
	// The same applies if the previous gateway recorded it.
	p := peering(t, v1alpha1.Client, newKey(t))
	got, _ := usableEndpoints(p, &p.Spec.Planes[0], nil, nil, v1alpha1.RemoteAnnouncement{
		Endpoints: []string{"[2001:db8::1%x\nallowed_ip=0.0.0.0/0]:51840", "[2001:db8::2]:51840"},
	})
	kit.ErrorIf(t, !slices.Equal(got.Endpoints, []string{"[2001:db8::2]:51840"}), "usable: %q", got.Endpoints)
}

// Messages are truncated: if an API server rejected one, nothing else of the status would be reported.
func TestMessagesFit(t *testing.T) {
	a := &agent{recorder: quiet(), peering: peering(t, v1alpha1.Client, newKey(t)), conditions: conditions{degraded: strings.Repeat("ü", 5000)}, dialer: dialer{endpoints: newEndpoints()}}
	s := a.planeStatus(tunnelHealth{}, strings.Repeat("ü", 5000))
	s.Connected = true
	for _, message := range []string{s.Message, a.conditions.current(a.peering, s, map[int32]bool{0: true}, &a.recorder)[1].Message} {
		if n := len([]rune(message)); n == 0 || n > v1alpha1.MaxMessageLength || !strings.HasSuffix(message, "ü…") {
			t.Errorf("%d characters, …%q", n, message[max(0, len(message)-9):])
		}
	}
}

// A compromised node reports the address of another one. It does not get that node's packets, not even while the API
// server does not answer.
func TestNoNodeTakesAnAddressByItsReport(t *testing.T) {
	victim := node("n2", "10.80.0.2", "172.18.0.3", 0)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: victim.LeaseName()}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("n2")},
	}
	asked, silent := 0, false
	a := &agent{view: &watch.View{Client: newBuilder(t, lease).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if asked++; silent {
				return context.DeadlineExceeded
			}
			return c.Get(ctx, key, obj, opts...)
		},
	}).Build()}}
	honest := []v1alpha1.NodeNetwork{node("n1", "10.80.0.1", "172.18.0.2", 0), victim, node("n3", "", "172.18.0.4", 0), node("n4", "", "172.18.0.5", 0)}
	if got := a.withoutImpostors(t.Context(), slices.Clone(honest)); len(got) != 4 || asked > 0 {
		t.Errorf("%d of four honest nodes count, after %d reads", len(got), asked)
	}
	for _, hostile := range []string{"n0", "n9"} {
		all := append(slices.Clone(honest), node(hostile, "10.80.0.2", "172.18.0.9", 0))
		for _, silent = range []bool{false, true} {
			got := a.withoutImpostors(t.Context(), slices.Clone(all))
			kit.ErrorIf(t, len(got) != 4 || slices.ContainsFunc(got, func(n v1alpha1.NodeNetwork) bool { return n.Name == hostile }),
				"%s, silent %t: %d nodes count", hostile, silent, len(got))
		}
	}
}
