package gateway

import (
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/liqonet/liqonet/agent/logs"
	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// newBuilder makes clients of an API with objects. A Peering is found by its name.
func newBuilder(t *testing.T, objs ...client.Object) *fake.ClientBuilder {
	t.Helper()
	p := &v1alpha1.Peering{}
	return fake.NewClientBuilder().WithScheme(kit.Must(fakeapi.Scheme())(t)).WithObjects(objs...).WithStatusSubresource(p).
		WithIndex(p, "metadata.name", func(o client.Object) []string { return []string{o.GetName()} })
}

// If the kernel refuses one node's link, the other nodes are still served and the tunnel is still probed.
func TestReconcileDespiteFailure(t *testing.T) {
	ns := netns.New(t, "gateway")
	ns.Output(t, "sh", "-ec", `ip link add eth0 type bridge; ip link set eth0 up; ip addr add 10.244.1.9/24 dev eth0
		ip route add default via 10.244.1.1; ip link add loqn2 type bridge; ip link set loqn2 alias theirs`)
	p := peering(t, v1alpha1.Server, newKey(t))
	p.Spec.Overlay, p.Spec.Planes[0].WireGuard = "VXLAN", v1alpha1.WireGuardBackend(tunnel.Userspace)
	one, two := node("n1", "10.80.0.1", "192.0.2.1", 1450), node("n2", "10.80.0.2", "192.0.2.2", 1450)
	a := &agent{
		recorder: quiet(), cfg: Config{Peering: p.Name, PodIPs: []netip.Addr{addr("10.244.1.9")}, Log: slog.New(slog.DiscardHandler), Level: &logs.Level{}},
		view:  &watch.View{Reader: newBuilder(t, p, &one, &two).Build()},
		local: local{key: newKey(t), underlay: "eth0", underlayMTU: 1500}, shown: published{metrics: metrics.New(metrics.Gateway, "")},
	}
	t.Cleanup(func() { a.device.close(a.cfg.Log) })
	var (
		inSync bool
		err    error
	)
	ns.Do(t, func() error {
		if a.kernel, err = overlay.New(); err == nil {
			inSync, err = a.Reconcile(t.Context(), true)
		}
		return nil
	})
	if a.kernel != nil {
		defer a.kernel.Close()
	}
	kit.ErrorIf(t, err == nil || !strings.Contains(err.Error(), "loqn2") || inSync, "link of others: in sync %v, error %v", inSync, err)
	kit.ErrorIf(t, a.applied.generation != p.Generation || a.peer.prober == nil || a.applied.desired.mtu == 0,
		"generation %d was applied, MTU %d, prober %v", a.applied.generation, a.applied.desired.mtu, a.peer.prober)
	ns.Output(t, "ip", "link", "show", "loqn1")
	a.Status("")
	ns.Do(t, func() error {
		s, err := a.shown.read(a.kernel)
		if len(s.Planes) != 1 || s.Planes[0].Traffic == nil || s.Planes[0].MTU != a.applied.desired.mtu || len(s.Drops) == 0 || s.Drops[0].Link != s.Planes[0].Link {
			t.Errorf("metrics: %+v", s)
		}
		return err
	})
	a.peering = nil
	if a.Status(""); a.shown.plane.Load() != nil {
		t.Error("metrics of a Peering that is gone")
	}
}

// A gateway waits for a Peering that no command has completed, and opens nothing.
func TestReconcileIncomplete(t *testing.T) {
	p := peering(t, v1alpha1.Server, newKey(t))
	p.Spec.Planes = nil
	a := &agent{
		cfg: Config{Peering: p.Name, Log: slog.New(slog.DiscardHandler), Level: &logs.Level{}}, view: &watch.View{Reader: newBuilder(t, p).Build()},
	}
	if inSync, err := a.Reconcile(t.Context(), true); !inSync || err != nil || a.peering != nil || a.device.Device != nil {
		t.Errorf("in sync %t, error %v, Peering %v, device %v", inSync, err, a.peering, a.device)
	}
}

// A device whose interface cannot be removed is closed only once, since its file descriptors may be reused.
func TestDeviceIsClosedOnce(t *testing.T) {
	ns := netns.New(t, "gateway")
	ns.Output(t, "sh", "-ec", "ip link add wg0 type bridge; ip link set wg0 alias theirs")
	log, d := slog.New(slog.DiscardHandler), device{backend: v1alpha1.WireGuardBackend(tunnel.Kernel)}
	ns.Do(t, func() (err error) {
		// wireguard-go looks for it in the process's own namespace, and reports that.
		d.Device, err = tunnel.Open(tunnel.Userspace, "wg9", func(error) {})
		return err
	})
	for range 3 {
		ns.Do(t, func() error {
			if _, err := d.open(log, v1alpha1.WireGuardBackend(tunnel.Userspace)); err == nil || !strings.Contains(err.Error(), "not ours") {
				t.Errorf("an interface of others: %v", err)
			}
			return nil
		})
		kit.FatalIf(t, d.Device != nil, "the agent keeps a device that it has closed")
	}
	if links := ns.Output(t, "ip", "link"); strings.Contains(links, "wg9") {
		t.Errorf("it was not closed:\n%s", links)
	}
}

// Name servers are asked over TCP, so that the gateway does not have to let in UDP from their port.
func TestNameServersAreAskedByTCP(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	kit.NoError(t, err)
	defer func() { _ = l.Close() }()
	r := &net.Resolver{}
	resolveOverTCP(r)
	c, err := r.Dial(t.Context(), "udp", l.Addr().String())
	kit.NoError(t, err)
	defer func() { _ = c.Close() }()
	if _, ok := c.(*net.TCPConn); !ok || !r.PreferGo {
		t.Errorf("they are asked by %T", c)
	}
}
