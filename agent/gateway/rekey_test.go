package gateway

import (
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/rekey"
)

// Both gateways know the same of their tunnel. Each begins with the Secret's key again when it gets another peer or another
// role, and with nothing else.
func TestPrepareKeys(t *testing.T) {
	keys, base := [2]wgtypes.Key{newKey(t), newKey(t)}, newKey(t)
	agents, peerings := [2]*agent{}, [2]*v1alpha1.Peering{}
	for i, role := range []v1alpha1.Role{v1alpha1.Client, v1alpha1.Server} {
		agents[i] = &agent{base: base, local: local{key: keys[i], preshared: base}}
		peerings[i] = peering(t, role, keys[1-i])
		peerings[i].Spec.PresharedKeyAgeSeconds = 3600
		agents[i].prepareKeys(peerings[i], &peerings[i].Spec.Planes[0])
	}
	if a, b := agents[0].keys.tunnel, agents[1].keys.tunnel; a != b || a.Base != rekey.Key(base) || a.Client != keys[0].PublicKey() || a.Server != keys[1].PublicKey() {
		t.Errorf("one knows %+v, the other one %+v", a, b)
	}
	a, p := agents[0], peerings[0]
	a.local.preshared = newKey(t) // it was agreed on
	for name, tt := range map[string]struct {
		change func()
		anew   bool
	}{
		"nothing":         {func() {}, false},
		"another age":     {func() { p.Spec.PresharedKeyAgeSeconds = 0 }, false},
		"a bad peer":      {func() { p.Spec.Planes[0].RemotePublicKey = "?" }, false},
		"another peer":    {func() { p.Spec.Planes[0].RemotePublicKey = newKey(t).PublicKey().String() }, true},
		"another role":    {func() { p.Spec.Planes[0].Role = v1alpha1.Server }, true},
		"other endpoints": {func() { p.Spec.Planes[0].Endpoints = []string{"192.0.2.1:1"} }, false},
	} {
		before, had := a.keys.machine, a.local.preshared
		spec := p.Spec.DeepCopy()
		tt.change()
		a.prepareKeys(p, &p.Spec.Planes[0])
		if anew := a.keys.machine != before; anew != tt.anew || (a.local.preshared == had) == tt.anew {
			t.Errorf("%s: begins anew: %t", name, anew)
		}
		p.Spec = *spec
		a.keys = keysOf(a, p)
		a.local.preshared = newKey(t)
	}
	if s := a.planeStatus(""); s.PresharedKeyTime != nil || s.PresharedKeyOverdue || a.keys.machine.State(time.Now()).Overdue {
		t.Errorf("status %+v", s)
	}
}

// keysOf are those of an agent that has begun with a Peering.
func keysOf(a *agent, p *v1alpha1.Peering) keys {
	a.keys = keys{}
	a.prepareKeys(p, &p.Spec.Planes[0])
	return a.keys
}
