package attack_test

import (
	"net/netip"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/pkg/rekey"
	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/dataplane"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// Attackers of a tunnel's pre-shared keys.
const (
	reader   = "reader of Secrets"
	recorder = "recorder, with the Secrets of later"
	between  = "between the gateways, with a quantum computer"
)

// keyAge is that which the gateways are told.
const keyAge = time.Hour

// gateways are the two of a tunnel, and what was recorded of what they say about keys.
type gateways struct {
	rekey.Tunnel
	client, server *rekey.Machine
	recorded       [][]byte
	now            time.Time
}

// start has both begin with the base key.
func (g *gateways) start(age time.Duration) {
	g.now = time.Now()
	g.client, g.server = rekey.New(g.Tunnel, true, g.now), rekey.New(g.Tunnel, false, g.now)
	g.client.SetAge(age)
	g.server.SetAge(age)
	g.talk(g.client, g.server)
}

// talk has two talk until they are silent. Their WireGuard makes a session whenever the key is another one.
func (g *gateways) talk(client, server *rekey.Machine) {
	for said := true; said; {
		said = false
		for _, way := range [][2]*rekey.Machine{{client, server}, {server, client}} {
			from, to := way[0], way[1]
			g.now = g.now.Add(time.Millisecond)
			from.Look(g.now, rekey.Seen{Answered: true, Handshake: g.now})
			if b := from.Say(); b != nil {
				said, g.recorded = true, append(g.recorded, b)
				_ = to.Hear(b, g.now)
			}
			from.Applied(from.Key(), g.now)
			to.Applied(to.Key(), g.now)
		}
	}
}

// agreement is that the tunnel's key is a fresh one. Without it the tunnel has the key of the Secrets. configure tells WireGuard.
func (g *gateways) agreement(configure func(t *testing.T)) *defence {
	restart := func(age time.Duration) func(*testing.T) {
		return func(t *testing.T) {
			g.start(age)
			configure(t)
		}
	}
	return &defence{name: "gateways agree on keys by ML-KEM", remove: restart(0), restore: restart(keyAge)}
}

// replays has machines of the attacker's own, which know the base key, listen to all that was said, and says whether one of them gets
// the tunnel's key.
func (g *gateways) replays() bool {
	for _, calls := range []bool{true, false} {
		own := rekey.New(g.Tunnel, calls, g.now)
		own.SetAge(keyAge)
		for _, said := range g.recorded {
			own.Look(g.now, rekey.Seen{})
			own.Say()
			_ = own.Hear(said, g.now)
			if own.Key() == g.client.Key() {
				return true
			}
		}
		if own.Key() == g.client.Key() {
			return true
		}
	}
	return false
}

// replaces has the attacker answer a client's proposals in the place of the server, and says whether the client takes its key.
func (g *gateways) replaces(knowsBefore bool) bool {
	own := gateways{Tunnel: g.Tunnel}
	own.start(0)
	if !knowsBefore {
		own.Base = rekey.Key{}
	}
	attacker := rekey.New(own.Tunnel, false, own.now)
	attacker.SetAge(keyAge)
	own.client.SetAge(keyAge)
	own.talk(own.client, attacker)
	return own.client.Key() != g.Base && own.client.Key() == attacker.Key()
}

// unnoticed says whether gateways that do not hear each other any more claim to have a fresh key, long after it is one.
func (g *gateways) unnoticed(age time.Duration) bool {
	own := gateways{Tunnel: g.Tunnel}
	own.start(keyAge)
	later := own.now.Add(keyAge + rekey.Grace + time.Second)
	for _, m := range []*rekey.Machine{own.client, own.server} {
		m.SetAge(age)
		m.Look(later, rekey.Seen{Answered: true})
		if m.State(later).Overdue {
			return false
		}
	}
	return true
}

// TestAttackKeys is what a tunnel's keys are attacked with.
func TestAttackKeys(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	keys := [2]wgtypes.Key{}
	base, err := wgtypes.GenerateKey()
	for i := range keys {
		if err == nil {
			keys[i], err = wgtypes.GeneratePrivateKey()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	// The attacker has both keys of the client's Secrets, and sends to the server.
	ends, addrs := [2]*netns.NS{netns.New(t, "server"), netns.New(t, "reader")}, [2]netip.Addr{addr("192.0.2.1"), addr("192.0.2.2")}
	netns.Veth(t, ends[0], "eth0", ends[1], "eth0")
	var tunnels [2]*dataplane.Tunnel
	configs := [2]tunnel.Config{}
	for i, ns := range ends {
		ns.Addr(t, "eth0", netip.PrefixFrom(addrs[i], 24))
		tunnels[i] = dataplane.StartTunnel(t, ns, tunnel.Userspace, tunnel.InterfaceName)
		configs[i] = tunnel.Config{
			PrivateKey: keys[i], PresharedKey: base, ListenPort: tunnel.ListenPort, MTU: 1400, Address: addr([]string{"10.80.31.254", "10.80.31.253"}[i]),
			Peer: tunnel.Peer{PublicKey: keys[1-i].PublicKey(), AllowedIPs: []netip.Prefix{netip.MustParsePrefix("10.80.0.0/19")}},
		}
	}
	configs[1].Peer.Endpoint, configs[1].Peer.Keepalive = netip.AddrPortFrom(addrs[0], tunnel.ListenPort), time.Second
	g := &gateways{Tunnel: rekey.Tunnel{Base: rekey.Key(base), Client: keys[1].PublicKey(), Server: keys[0].PublicKey()}}
	configure := func(t *testing.T) {
		configs[0].PresharedKey = wgtypes.Key(g.server.Key())
		for i := range tunnels {
			tunnels[i].Configure(t, configs[i])
		}
	}
	g.start(keyAge)
	configure(t)
	agreed, bound, said := g.agreement(configure), waive("a key is bound to the one before"), waive("gateways say that a key is overdue")
	run(t, []attack{
		{reader, "has a tunnel with the peer's gateway", agreed, func(t *testing.T) bool {
			tunnels[1].Reset(t)
			for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if !tunnels[1].Stats(t).LastHandshake.IsZero() {
					return true
				}
			}
			return false
		}},
		{recorder, "has the key of the tunnel", agreed, func(*testing.T) bool { return g.replays() }},
		{between, "has the client agree with it, and does not know the key before", &bound.defence, func(*testing.T) bool { return g.replaces(bound.is) }},
		{between, "keeps the gateways from agreeing, and nobody sees that", &said.defence, func(*testing.T) bool {
			return g.unnoticed(map[bool]time.Duration{false: keyAge, true: 0}[said.is])
		}},
	})
}
