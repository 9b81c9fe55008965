package gateway

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/netns"
)

func TestBroken(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, tc := range map[string]struct {
		reply      time.Time
		unanswered uint64
		heard      time.Time
		want       bool
	}{
		"never answered":                     {time.Time{}, 1, now, true},
		"answered":                           {ago(time.Second), 0, ago(time.Second), false},
		"one probe was lost":                 {ago(2800 * time.Millisecond), 2, ago(2800 * time.Millisecond), false},
		"many were":                          {ago(2800 * time.Millisecond), 10, ago(2800 * time.Millisecond), true},
		"many in a short time":               {ago(2 * time.Second), 10, ago(2 * time.Second), false},
		"this process was held up":           {ago(time.Minute), 2, ago(time.Minute), false},
		"many, but other packets come":       {ago(2800 * time.Millisecond), 10, ago(100 * time.Millisecond), false},
		"packets come, and none is answered": {ago(6 * time.Second), 40, now, true},
	} {
		if got := broken(tunnel.ProbeStats{LastReply: tc.reply, Unanswered: tc.unanswered}, tc.heard, now); got != tc.want {
			t.Errorf("%s: broken is %v, want %v", name, got, tc.want)
		}
	}
}

func TestDue(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, tc := range map[string]struct {
		never                bool
		broken, reset, heard time.Time
		want                 bool
	}{
		"the first time":                             {never: true, broken: now, want: true},
		"never answered, too early":                  {never: true, broken: ago(200 * time.Millisecond), reset: ago(200 * time.Millisecond)},
		"never answered":                             {never: true, broken: ago(300 * time.Millisecond), reset: ago(300 * time.Millisecond), want: true},
		"far away: more time than the first attempt": {never: true, broken: ago(1800 * time.Millisecond), reset: ago(500 * time.Millisecond)},
		"for a long time":                            {never: true, broken: ago(time.Hour), reset: ago(1900 * time.Millisecond)},
		"for a long time, and again":                 {never: true, broken: ago(time.Hour), reset: ago(2 * time.Second), want: true},
		"the handshake is answered":                  {never: true, broken: ago(3 * time.Second), reset: ago(1500 * time.Millisecond), heard: ago(time.Second)},
		"the handshake was answered, and no more":    {never: true, broken: ago(5 * time.Second), reset: ago(3 * time.Second), heard: ago(2 * time.Second), want: true},
		"something came before":                      {never: true, broken: ago(time.Second), reset: ago(400 * time.Millisecond), heard: ago(500 * time.Millisecond), want: true},
		"worked before, too early":                   {broken: ago(900 * time.Millisecond), reset: ago(900 * time.Millisecond)},
		"worked before":                              {broken: now, reset: ago(time.Hour), heard: ago(2500 * time.Millisecond), want: true},
		"packets come all the time, by one way":      {broken: now, reset: ago(time.Hour), heard: now, want: true},
		"the same, just after":                       {broken: ago(3 * time.Second), reset: ago(3 * time.Second), heard: now},
	} {
		if got := due(tc.never, tc.broken, tc.reset, tc.heard, now); got != tc.want {
			t.Errorf("%s: due is %v, want %v", name, got, tc.want)
		}
	}
}

// A node's link that the kernel refuses keeps no other node from being served, nor
// the tunnel from being probed.
func TestReconcileDespiteFailure(t *testing.T) {
	ns := netns.New(t, "gateway")
	ns.Output(t, "sh", "-ec", `ip link add eth0 type bridge; ip link set eth0 up; ip addr add 10.244.1.9/24 dev eth0
		ip route add default via 10.244.1.1; ip link add lqn2 type bridge; ip link set lqn2 alias theirs`)
	p := peering(t, v1alpha1.Server, newKey(t))
	p.Spec.Overlay, p.Spec.Planes[0].WireGuard = "vxlan", v1alpha1.WireGuardBackend(tunnel.Userspace)
	one, two := node("n1", "10.80.0.1", "192.0.2.1", 1450), node("n2", "10.80.0.2", "192.0.2.2", 1450)
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	a := &agent{
		Config:  Config{Peering: p.Name, PodIPs: []netip.Addr{addr("10.244.1.9")}, Log: slog.New(slog.DiscardHandler)},
		view:    &watch.View{Reader: fake.NewClientBuilder().WithScheme(s).WithObjects(p, &one, &two).Build()},
		machine: machine{key: newKey(t), underlay: "eth0", underlayMTU: 1500},
		echo:    true, // there, it would answer in the test's own namespace
	}
	t.Cleanup(a.close)
	var err error
	ns.Do(t, func() error {
		if a.kernel, err = overlay.New(); err == nil {
			err = a.reconcile(t.Context())
		}
		return nil
	})
	if a.kernel != nil {
		defer a.kernel.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "lqn2") || a.sound {
		t.Errorf("link of others: sound %v, error %v", a.sound, err)
	}
	if a.applied != p.Generation || a.prober == nil || a.desired.mtu == 0 {
		t.Errorf("generation %d was applied, MTU %d, prober %v", a.applied, a.desired.mtu, a.prober)
	}
	ns.Output(t, "ip", "link", "show", "lqn1")
}
