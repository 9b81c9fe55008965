package feed

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samber/lo"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/services/feed"
	"github.com/liqonet/liqonet/pkg/wire"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// cluster is one with a served API, in which a gateway runs. Both gateways have addresses of loopback, as in a tunnel.
type cluster struct {
	t      *testing.T
	api    *fakeapi.Server
	config Config
	state  State
}

// patience is how long an exchange may take on a busy machine, with a new connection.
const patience = 20 * time.Second

// pairs counts pairs of clusters. Each has addresses of its own, so that tests can run at the same time.
var pairs atomic.Int32

// twoClusters returns the clusters of a peering. The first one opens the connection.
func twoClusters(t *testing.T) (a, b *cluster) {
	t.Helper()
	n, process := byte(pairs.Add(1)), byte(64+os.Getpid()%128)
	addresses := [2]netip.Addr{netip.AddrFrom4([4]byte{127, process, n, 1}), netip.AddrFrom4([4]byte{127, process, n, 2})}
	of := func(i int, p *v1alpha1.Peering) *cluster {
		c := &cluster{t: t, api: kit.Must(fakeapi.New())(t), state: State{Peering: p, Records: true}}
		c.api.Unplayed = true
		t.Cleanup(c.api.Close)
		t.Cleanup(c.api.CloseClientConnections)
		mapper := meta.NewDefaultRESTMapper(nil)
		for _, kind := range []string{"ExportedService", "ReceivedService"} {
			mapper.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
		}
		api := &rest.Config{Host: c.api.URL, QPS: -1}
		c.config = Config{
			Client: kit.Must(client.New(api, client.Options{Scheme: kubetest.Scheme(t), Mapper: mapper}))(t), Rest: api, Log: slog.New(slog.DiscardHandler),
			Peering: p.Name, Local: addresses[i], Remote: addresses[1-i], IsInitiator: i == 0,
		}
		return c
	}
	return of(0, side("61", "62")), of(1, side("62", "61"))
}

// start starts the cluster's gateway. It ends with the test.
func (c *cluster) start() *Feed {
	f := Start(c.t.Context(), c.config, c.state)
	c.t.Cleanup(func() { f.Stop(false) })
	return f
}

func (c *cluster) export(name, address string) {
	c.t.Helper()
	kit.NoError(c.t, c.api.Client.Create(c.t.Context(), &v1alpha1.ExportedService{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ExportedServiceSpec{ServiceRecord: *recordOf(address)},
	}))
}

// has waits until the cluster has recorded these services, as NAME=ADDRESS.
func (c *cluster) has(want ...string) {
	c.t.Helper()
	kit.Within(c.t, patience, "record services", func() string {
		var list v1alpha1.ReceivedServiceList
		if err := c.api.Client.List(c.t.Context(), &list); err != nil {
			return err.Error()
		}
		got := lo.Map(list.Items, func(r v1alpha1.ReceivedService, _ int) string {
			return fmt.Sprintf("%s=%s", r.Name, r.Spec.Slices[0].Endpoints[0].Address)
		})
		slices.Sort(got)
		return lo.Ternary(slices.Equal(got, want), "", "it has "+strings.Join(got, " "))
	})
}

// Two gateways exchange services by a connection in their tunnel. The services of one that restarts stay. Those of one that leaves go.
func TestConnectedGateways(t *testing.T) {
	t.Parallel()
	a, b := twoClusters(t)
	a.export("shop.web", "10.244.1.5")
	b.export("shop.db", "10.244.1.6")
	first, other := a.start(), b.start()
	b.has("peer.shop.web=10.61.1.5")
	a.has("peer.shop.db=10.62.1.6")
	kit.Within(t, patience, "be synced", func() string {
		s := []Stats{first.Stats(), other.Stats()}
		ok := lo.EveryBy(s, func(s Stats) bool { return s.Synced && s.Told == 1 && s.Received == 1 && len(s.Refused) == 0 })
		return lo.Ternary(ok, "", fmt.Sprint(s))
	})
	first.Stop(false)
	a.export("shop.new", "10.244.1.7")
	second := a.start()
	b.has("peer.shop.new=10.61.1.7", "peer.shop.web=10.61.1.5")
	second.Stop(true)
	b.has()
	a.has("peer.shop.db=10.62.1.6") // it was not told that the peer has left
}

// A malformed message ends one connection only. What a peer told before stays.
func TestMalformedMessages(t *testing.T) {
	t.Parallel()
	_, b := twoClusters(t)
	f := b.start()
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(b.config.Remote, 0))}
	// say sends bytes on a connection of its own, and waits until the gateway ends it, if it does.
	say := func(ends bool, raw ...byte) {
		t.Helper()
		var conn net.Conn
		kit.Eventually(t, patience, "connect", func() (err error) {
			conn, err = dialer.DialContext(t.Context(), "tcp", netip.AddrPortFrom(b.config.Local, wire.ServicesPort).String())
			return err
		})
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = conn.Write(raw) // it may be a connection that the gateway does not use any more
		for ends {
			if _, _, err := feed.Read(conn); err != nil {
				return
			}
		}
	}
	put := func(key string) []byte {
		return (&feed.Message{Type: feed.TypePut, Key: key, Hash: "abc", Record: recordOf("10.61.1.5")}).Encode()
	}
	say(false, put("shop.web")...)
	b.has("peer.shop.web=10.61.1.5")
	say(true, 0xff, 0xff, 0xff, 0xff, 1, 4)
	kit.Eventually(t, patience, "record a service", func() error {
		say(true, append(put("shop.db"), 0, 0, 0, 4, 1, 4, '{', '{')...)
		return b.api.Client.Get(t.Context(), client.ObjectKey{Name: "peer.shop.db"}, &v1alpha1.ReceivedService{})
	})
	b.has("peer.shop.db=10.61.1.5", "peer.shop.web=10.61.1.5")
	kit.ErrorIf(t, f.Stats().Synced, "it has everything, although nobody has said so")
}
