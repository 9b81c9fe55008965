package gateway

import (
	"errors"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/rekey"
)

// missing is how many probes in a row have to be unanswered until the peer may have started anew.
const missing = 2

// keys is this gateway's side of the agreement on fresh pre-shared keys.
type keys struct {
	machine *rekey.Machine
	tunnel  rekey.Tunnel
	// applied says that WireGuard has the machine's key.
	applied bool
	// said is what the peer was told last, fresh that the key is one that was agreed on.
	said  []byte
	fresh bool
	// replied is when the last answer came, looked when the machine was last told; another says that a handshake with another
	// key should follow soon.
	replied, looked time.Time
	another         bool
}

// prepareKeys begins with the base key if the tunnel is another one than before, or the role.
func (a *agent) prepareKeys(p *v1alpha1.Peering, plane *v1alpha1.Plane) {
	peer, err := wgtypes.ParseKey(plane.RemotePublicKey)
	if err != nil {
		return // the tunnel cannot be configured either, and that says why
	}
	calls := plane.Role == v1alpha1.Client
	t := rekey.Tunnel{Base: rekey.Key(a.base), Plane: a.local.plane, Client: a.local.key.PublicKey(), Server: peer}
	if !calls {
		t.Client, t.Server = t.Server, t.Client
	}
	if a.keys.machine == nil || a.keys.tunnel != t {
		a.keys = keys{machine: rekey.New(t, calls, time.Now()), tunnel: t}
		a.local.preshared = a.base
	}
	a.keys.machine.SetAge(time.Duration(p.Spec.PresharedKeyAgeSeconds) * time.Second)
}

// agreeOnKeys passes on what the peer has said and what was seen, and does what follows.
func (a *agent) agreeOnKeys(received bool) {
	m, now := a.keys.machine, time.Now()
	if m == nil {
		return
	}
	if said := a.channel.HeardOfKeys(); said != nil {
		if err := m.Hear(said, now); err != nil {
			a.Log.Debug("no agreement on a pre-shared key", "error", err)
		}
	}
	asked := a.askedByPeer.Load()
	m.Look(now, rekey.Seen{
		Answered: a.probes.LastReply.After(a.keys.replied), Asked: asked != nil && asked.After(a.keys.looked), Received: received,
		Missing: a.probes.Unanswered >= missing, RTT: a.redialer.rtt, Handshake: a.tunnel.LastHandshake,
	})
	a.keys.replied, a.keys.looked = a.probes.LastReply, now
	if a.useKey(); !a.keys.applied {
		return // the peer is told when WireGuard has it
	}
	if m.Renew(now) {
		if err := a.device.Renew(); err != nil {
			a.Log.Error("the session is replaced later", "error", err)
		}
		a.prober.Probe() // the packet that a new session begins with
	}
	if say := m.Say(); say != nil {
		a.keys.said = say
		a.channel.SayOfKeys(say)
	}
	if fresh := !m.State(now).Agreed.IsZero(); fresh != a.keys.fresh {
		a.keys.fresh = fresh
		if fresh {
			a.Log.Info("the tunnel has a fresh pre-shared key")
		} else {
			a.Log.Info("the tunnel has the pre-shared key of the Secret again")
		}
	}
}

// useKey has WireGuard use the key of the machine.
func (a *agent) useKey() {
	key := wgtypes.Key(a.keys.machine.Key())
	if a.keys.applied && key == a.local.preshared {
		return
	}
	a.local.preshared, a.desired.tunnel.PresharedKey = key, key
	_, err := a.device.Configure(a.desired.tunnel)
	stats, unknown := a.device.Stats()
	if a.keys.applied = err == nil && unknown == nil; !a.keys.applied {
		a.Log.Error("cannot change the pre-shared key", "error", errors.Join(err, unknown))
		return
	}
	a.keys.machine.Applied(rekey.Key(key), stats.LastHandshake)
}

// tryKeys takes the next key for a handshake that is about to be started anew.
func (a *agent) tryKeys() {
	if a.keys.machine != nil {
		a.keys.another = a.keys.machine.Redial()
		a.useKey()
	}
}
