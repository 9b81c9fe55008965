package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/flow"
)

const (
	// starved is for how much of a second a gateway may wait for a processor until packets count as lost for that reason.
	starved = 700 * time.Millisecond
	// tries are how often keys are rotated while gateways starve.
	tries = 2
)

// TestRotateKeys gives a peering new keys while packets are sent, and loses none: with two planes, with the
// pre-shared keys only, and with one plane, which gets a temporary one for that time. Nor does it lose any when a plane is
// removed, and added again.
func TestRotateKeys(t *testing.T) {
	a, b := fx.alpha, fx.beta
	begin(t)
	ctx := t.Context()
	mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", "2")
	// lossless acts while packets are sent, and none may be lost. A gateway that has to wait for a processor cannot pass
	// packets on, so losses say nothing then: it acts again.
	lossless := func(what string, act func(try int)) {
		for try := 1; ; try++ {
			fs, longest := sendEightWays(t, ctx, a, b), watchWaits(t, a, b)
			act(try)
			waited := longest()
			t.Logf("%s: a thread of a gateway waited for a processor for up to %s of a second", what, waited)
			if waited < starved || try == tries {
				if fs.lossless(t, what); t.Failed() {
					t.FailNow() // what happened is in the diagnosis
				}
				return
			}
			lost := slices.DeleteFunc(flow.End(fs...), func(r flow.Result) bool { return r.Lost == 0 })
			if len(lost) == 0 {
				return
			}
			t.Logf("%s: packets were lost; once more: %v", what, lost)
		}
	}
	has := "2"
	planes := func(n string) {
		if n == has {
			return
		}
		lossless("--planes "+n, func(try int) {
			if try > 1 {
				mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", has)
			}
			mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", n)
		})
		has = n
	}
	all := []struct {
		planes string
		flags  []string
		kinds  []string
	}{
		{"2", nil, []string{"gateway", "psk", "overlay"}},
		{"2", []string{"--psk-only"}, []string{"psk"}},
		{"1", nil, []string{"gateway", "psk", "overlay"}},
	}
	for _, i := range sample(random(t), len(all), 1) {
		tt := all[i]
		what := fmt.Sprintf("%s planes, %v", tt.planes, tt.flags)
		planes(tt.planes)
		var before map[string]string
		lossless(what, func(int) {
			before = keyHashes(t, ctx, a, b)
			r := mustLiqonet(t, ctx, append([]string{"rotate-keys", a.Name, b.Name}, tt.flags...)...)
			t.Logf("%s: %s\n%s", what, r.took, r.stderr)
			expect(t, strings.Contains(r.stdout, "over TLS 1.3 with a hybrid (post-quantum) key exchange"),
				"%s: of how keys reached the clusters it says\n%s", what, r.stdout)
			checkPair(t, ctx, a, b)
		})
		after := keyHashes(t, ctx, a, b)
		got, want := slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before))
		expect(t, slices.Equal(got, want), "%s: there are keys %v, before %v", what, got, want)
		for name := range before {
			kind := strings.Fields(name)[1]
			expect(t, (before[name] != after[name]) == slices.Contains(tt.kinds, kind),
				"%s: %s was %s, and is %s", what, name, before[name], after[name])
		}
		mustLiqonet(t, ctx, "peer", a.Name, b.Name, "--planes", tt.planes).says(t, "nothing was changed")
	}
	planes("2")
	mustLiqonet(t, ctx, "status", "-o", "wide", a.Name, b.Name).says(t, "KEY AGE")
	for _, c := range []*cluster{a, b} {
		got := jsonPath(t, ctx, c, `{.items[*].status.conditions[?(@.type=="KeysFresh")].status}`, "get", "peerings")
		expect(t, got == "True", "%s: keys are fresh: %s", c.Name, got)
	}
	mustLiqonet(t, ctx, "unpeer", a.Name, b.Name)
	liqonet(t, ctx, "", "rotate-keys", a.Name, b.Name).ends(t, 2, "kubectl liqonet peer")
}

// keyHashes are the keys of both clusters, by cluster, kind and plane, without generations.
func keyHashes(t *testing.T, ctx context.Context, clusters ...*cluster) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, c := range clusters {
		names := strings.Fields(jsonPath(t, ctx, c, `{.items[*].metadata.name}`, "-n", "liqonet-system", "get", "secrets"))
		for _, name := range names {
			if name == manifests.IdentitySecretName {
				continue // it stays
			}
			key := jsonPath(t, ctx, c, `{.data.privatekey}{.data.presharedkey}{.data.key}`, "-n", "liqonet-system", "get", "secret", name)
			kind := "gateway"
			switch {
			case strings.HasPrefix(name, "liqonet-overlay-"):
				kind = "overlay"
			case strings.Contains(name, "-psk-"):
				kind = "psk"
			}
			id := strings.TrimRight(name, "0123456789")
			expect(t, out[c.Name+" "+kind+" "+id] == "", "%s has several keys %s", c.Name, id)
			out[c.Name+" "+kind+" "+id] = key[:8]
		}
	}
	return out
}
