package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/agent/watch"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/pkg/services/feed"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// gateway is a Feed with a fake API.
type gateway struct {
	*Feed
	t    *testing.T
	api  client.WithWatch
	view *watch.View
}

// side returns the Peering of one side. Pods of both clusters have 10.244.0.0/16, and are known as 10.61 and 10.62.
func side(own, peer string) *v1alpha1.Peering {
	p := &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: "peer", UID: "uid", Generation: 1}}
	p.Spec.Local.InternalCIDR, p.Spec.Local.ExternalCIDR = kit.CIDR("10.80.0.0/19"), kit.CIDR("10.7"+own[1:]+".0.0/18")
	p.Spec.Local.Pods = []v1alpha1.CIDRMapping{kit.Mapping("10.244.0.0/16", "10."+own+".0.0/16")}
	p.Spec.Remote.Pods = []v1alpha1.CIDRMapping{kit.Mapping("10.244.0.0/16", "10."+peer+".0.0/16")}
	p.Spec.Remote.ExternalCIDR = kit.CIDR("10.7" + peer[1:] + ".0.0/18")
	p.Spec.Services = &v1alpha1.PeeringServices{RemoteID: "peer"}
	return p
}

// start starts a Feed without a connection.
func start(t *testing.T, p *v1alpha1.Peering, records bool, funcs interceptor.Funcs, objs ...client.Object) *gateway {
	t.Helper()
	api := kubetest.NewCluster(t, "a", funcs, objs...).Client
	g := &gateway{t: t, api: api, view: &watch.View{Reader: api, Client: api, Changed: notify.NewSignal()}}
	cfg := Config{Client: api, Log: slog.New(slog.DiscardHandler), Peering: p.Name}
	g.Feed = &Feed{cfg: cfg, done: make(chan struct{}), changed: notify.NewSignal(), left: make(chan struct{}), state: State{Peering: p, Records: records}}
	g.told, g.store = newTold(), newStore(cfg)
	g.refresh(t.Context(), g.view)
	go g.store.write(t.Context(), g.changed)
	go g.follow(t.Context(), g.view)
	return g
}

// export writes an exported service with one endpoint.
func (g *gateway) export(name, address string) {
	g.t.Helper()
	e := &v1alpha1.ExportedService{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ExportedServiceSpec{ServiceRecord: *recordOf(address)}}
	was := &v1alpha1.ExportedService{}
	if g.api.Get(g.t.Context(), client.ObjectKeyFromObject(e), was) == nil {
		was.Spec = e.Spec
		kit.NoError(g.t, g.api.Update(g.t.Context(), was))
	} else {
		kit.NoError(g.t, g.api.Create(g.t.Context(), e))
	}
	g.view.Changed.Send()
}

func recordOf(address string) *v1alpha1.ServiceRecord {
	return &v1alpha1.ServiceRecord{
		Created: metav1.NewTime(time.Unix(1e9, 0)), Type: v1alpha1.ClusterSetIP, Ports: []v1alpha1.RecordPort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		Slices: []v1alpha1.RecordSlice{{ID: "x", Endpoints: []v1alpha1.RecordEndpoint{{Address: v1alpha1.IP{Addr: netip.MustParseAddr(address)}, Ready: true}}}},
	}
}

// recorded describes the services that are recorded.
func (g *gateway) recorded() string {
	var list v1alpha1.ReceivedServiceList
	kit.NoError(g.t, g.api.List(g.t.Context(), &list))
	out := lo.Map(list.Items, func(r v1alpha1.ReceivedService, _ int) string {
		addresses := lo.FlatMap(r.Spec.Slices, func(s v1alpha1.RecordSlice, _ int) []string {
			return lo.Map(s.Endpoints, func(e v1alpha1.RecordEndpoint, _ int) string { return e.Address.String() })
		})
		return r.Name + "=" + strings.Join(addresses, ",")
	})
	slices.Sort(out)
	return strings.Join(out, " ")
}

// has waits until these services are recorded.
func (g *gateway) has(want string) {
	g.t.Helper()
	kit.Within(g.t, 10*time.Second, "record "+want, func() string {
		g.view.Changed.Send() // as the cache does after each write
		return lo.Ternary(g.recorded() == want, "", "recorded is "+g.recorded())
	})
}

// connect connects two gateways until the returned function is called.
func connect(t *testing.T, a, b *gateway) (cut func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	here, there := net.Pipe()
	ended := make(chan error, 2)
	go func() { ended <- a.use(ctx, here) }()
	go func() { ended <- b.use(ctx, there) }()
	return func() {
		cancel()
		<-ended
		<-ended
	}
}

func TestServicesReachThePeer(t *testing.T) {
	a, b := start(t, side("61", "62"), true, interceptor.Funcs{}), start(t, side("62", "61"), true, interceptor.Funcs{})
	a.export("shop.web", "10.244.1.5")
	cut := connect(t, a, b)
	b.has("peer.shop.web=10.61.1.5")
	a.export("shop.web", "10.244.1.6")
	a.export("shop.db", "10.244.1.7")
	b.export("shop.web", "10.244.9.9")
	b.has("peer.shop.db=10.61.1.7 peer.shop.web=10.61.1.6")
	a.has("peer.shop.web=10.62.9.9")
	kit.NoError(t, a.api.Delete(t.Context(), &v1alpha1.ExportedService{ObjectMeta: metav1.ObjectMeta{Name: "shop.db"}}))
	a.view.Changed.Send()
	b.has("peer.shop.web=10.61.1.6")
	// What others change or delete is written again.
	kit.NoError(t, b.api.Delete(t.Context(), &v1alpha1.ReceivedService{ObjectMeta: metav1.ObjectMeta{Name: "peer.shop.web"}}))
	b.has("peer.shop.web=10.61.1.6")
	cut()
	a.export("shop.web", "10.244.1.8")
	defer connect(t, a, b)()
	b.has("peer.shop.web=10.61.1.8")
	a.leave()
	b.has("")
}

// Another gateway takes over with what is recorded, and the first one stops.
func TestAnotherGatewayRecords(t *testing.T) {
	a, b := start(t, side("61", "62"), false, interceptor.Funcs{}), start(t, side("62", "61"), true, interceptor.Funcs{})
	a.export("shop.web", "10.244.1.5")
	cut := connect(t, a, b)
	b.has("peer.shop.web=10.61.1.5")
	a.mu.Lock()
	hash := a.told.services["shop.web"].Hash
	a.mu.Unlock()
	stopped := b.state
	stopped.Records = false
	b.Set(stopped)
	kit.Within(t, 10*time.Second, "stop recording", func() string { return lo.Ternary(b.Stats().Synced, "it records", "") })
	cut()
	var writes atomic.Int32
	next := start(t, side("62", "61"), true, interceptor.Funcs{Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
		writes.Add(1)
		return c.Apply(ctx, obj, opts...)
	}}, received(b.state.Peering, services.Key{Namespace: "shop", Name: "web"}, &v1alpha1.ReceivedServiceSpec{Hash: hash, ServiceRecord: *recordOf("10.61.1.5")}))
	defer connect(t, a, next)()
	kit.Within(t, 10*time.Second, "have everything", func() string { return lo.Ternary(next.Stats().Synced, "", "it has not") })
	kit.Check(t, "writes", writes.Load(), 0)
}

// What a hostile peer tells is refused and counted, and does not keep the rest from being recorded.
func TestHostileRecords(t *testing.T) {
	failed := false
	g := start(t, side("62", "61"), true, interceptor.Funcs{Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
		if !failed {
			failed = true
			return errors.New("the API server is busy")
		}
		return c.Apply(ctx, obj, opts...)
	}})
	here, there := net.Pipe()
	go func() { _ = g.use(t.Context(), here) }()
	go func() {
		for { // what the gateway says is of no interest to the peer
			if _, _, err := feed.Read(there); err != nil {
				return
			}
		}
	}()
	send := func(key string, r *v1alpha1.ServiceRecord) {
		t.Helper()
		_, err := there.Write((&feed.Message{Type: feed.TypePut, Key: key, Hash: services.Digest([]byte(key)), Record: r}).Encode())
		kit.NoError(t, err)
	}
	send("kube-system.dns", recordOf("10.61.1.5"))
	send("liqonet-system.x", recordOf("10.61.1.5"))
	send("default.kubernetes", recordOf("10.61.1.5"))
	send("no key", recordOf("10.61.1.5"))
	send("shop.foreign", recordOf("10.62.1.5"))
	bad := recordOf("10.61.1.5")
	bad.Type = "Unheard"
	send("shop.bad", bad)
	for i := range v1alpha1.MaxPeerServices {
		send(fmt.Sprintf("many.s%d", i), recordOf("10.61.1.5"))
	}
	send("shop.good", recordOf("10.61.1.9"))
	kit.Within(t, 60*time.Second, "record what is good", func() string {
		g.view.Changed.Send()
		_, refused := g.store.numbers()
		return lo.Ternary(refused[services.RefusedNamespace] == 3 && refused[services.RefusedName] == 1 && refused[services.RefusedRecord] == 1 &&
			refused[services.RefusedAddress] == 1 && refused[services.RefusedLimit] == 2 && strings.Contains(g.recorded(), "peer.many.s0=10.61.1.5"), "", fmt.Sprint(refused))
	})
	kit.ErrorIf(t, strings.Contains(g.recorded(), "kube-system") || strings.Contains(g.recorded(), "10.62."), "%s", g.recorded())
}
