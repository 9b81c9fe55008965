package peering

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// planesTo returns the planes of the Peering with a cluster.
func (w *Site) planesTo(t *testing.T, peer *Site) []v1alpha1.Plane {
	t.Helper()
	for _, p := range List[v1alpha1.PeeringList](t, w).Items {
		if p.Spec.Remote.ClusterID == peer.ID {
			return p.Spec.Planes
		}
	}
	return nil
}

// keysOf returns everything that identifies the keys of a cluster's planes.
func (w *Site) keysOf(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, p := range w.planesTo(t, w.Peer) {
		out[fmt.Sprint("key ", p.Index)] = p.RemotePublicKey
		out[fmt.Sprint("pre-shared ", p.Index)] = p.PresharedKey.Fingerprint
		out[fmt.Sprint("overlay ", p.Index)] = fmt.Sprint(p.OverlayKeyGeneration)
	}
	return out
}

// withoutGenerations returns the names of all objects, those of keys without generations.
func (w *Site) withoutGenerations(t *testing.T) (out []string) {
	t.Helper()
	for name := range w.contents(t) {
		if strings.HasPrefix(name, "Secret ") {
			name = strings.TrimRight(name, "0123456789")
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// rotated fails the test unless exactly these keys differ from before.
func rotated(t *testing.T, before, after map[string]string, kinds ...string) {
	t.Helper()
	got, want := slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before))
	kit.ErrorIf(t, !slices.Equal(got, want), "there are keys %v, before %v", got, want)
	for name := range before {
		kind, _, _ := strings.Cut(name, " ")
		kit.ErrorIf(t, (before[name] != after[name]) != slices.Contains(kinds, kind), "%s was %s, and is %s", name, before[name], after[name])
	}
}

// pairOf returns two peered clusters with so many nodes.
func pairOf(t *testing.T, nodes int) (a, b *Site) {
	t.Helper()
	a, b = unpeeredPair(t, nodes)
	MustPeer(t, a, b, engine.Options{})
	return a, b
}

func unpeeredPair(t *testing.T, nodes int) (a, b *Site) {
	t.Helper()
	a, b = TwoSites(t)
	for i, w := range []*Site{a, b} {
		for n := 1; n < nodes; n++ {
			kit.NoError(t, w.Raw.Create(t.Context(), kubetest.Node(fmt.Sprintf("%s-%d", w.Name, n+1), true, fmt.Sprintf("172.%d.1.%d", 18+i, 11+n))))
		}
	}
	return a, b
}

// All keys are replaced, the former ones deleted, and nothing else changes, with two planes as well as with one,
// which gets a temporary one.
func TestRotate(t *testing.T) {
	kit.Play(t)
	for planes := 1; planes <= 2; planes++ {
		for _, o := range []Rotation{{}, {PresharedOnly: true}} {
			t.Run(fmt.Sprintf("%d planes, %+v", planes, o), func(t *testing.T) {
				t.Parallel()
				a, b := pairOf(t, planes)
				var keys [2]map[string]string
				var names [2][]string
				for i, w := range []*Site{a, b} {
					keys[i], names[i] = w.keysOf(t), w.withoutGenerations(t)
				}
				kit.FatalIf(t, len(keys[0]) != 3*planes, "%v", keys)
				kit.Must(Rotate(t.Context(), a.Cluster, b.Cluster, o, kube.Quiet{}))(t)
				kinds := []string{"key", "pre-shared", "overlay"}
				if o.PresharedOnly {
					kinds = kinds[1:2]
				}
				for i, w := range []*Site{a, b} {
					rotated(t, keys[i], w.keysOf(t), kinds...)
					kit.Check(t, fmt.Sprintf("objects of %s", w.Name), w.withoutGenerations(t), names[i])
				}
				Settled(t, a, b, engine.Options{})
			})
		}
	}
}

// A third cluster's links keep their key until its own peering gets new ones.
func TestRotateBesideAnother(t *testing.T) {
	kit.Play(t)
	a, b := Peered(t)
	c := a.PeeredWith(t, "c", "10.244.0.0/16", "172.18.3.11")
	a.Peer, b.Peer = b, a
	overlays := func() (out []string) {
		for name := range a.contents(t) {
			if _, generation, is := strings.Cut(name, "liqonet-overlay-"); is {
				out = append(out, generation)
			}
		}
		slices.Sort(out)
		return out
	}
	for _, step := range []struct {
		with *Site
		want []string
	}{{b, []string{"1", "2"}}, {b, []string{"1", "3"}}, {c, []string{"3", "4"}}, {b, []string{"4", "5"}}} {
		a.Peer, step.with.Peer = step.with, a
		kit.Must(Rotate(t.Context(), a.Cluster, step.with.Cluster, Rotation{}, kube.Quiet{}))(t)
		kit.Check(t, fmt.Sprintf("after %s", step.with.Name), overlays(), step.want)
		for _, w := range []*Site{b, c} {
			a.Peer, w.Peer = w, a
			Settled(t, a, w, engine.Options{})
		}
	}
}

// If a plane does not work with new keys, it gets its former keys back, and nothing of the new ones remains.
func TestRotateFails(t *testing.T) {
	kit.Play(t)
	a, b := pairOf(t, 2)
	before := []map[string]string{a.keysOf(t), b.keysOf(t)}
	names := [][]string{a.withoutGenerations(t), b.withoutGenerations(t)}
	_, err := Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{PresharedOnly: true}, Steps{"Replacing the keys of plane 1": func() { a.failing = a.Writes + 8 }})
	kit.FatalIf(t, !errors.Is(err, ErrInjected), "%v", err)
	for i, w := range []*Site{a, b} {
		for name, key := range w.keysOf(t) {
			kit.ErrorIf(t, (key == before[i][name]) != !strings.HasPrefix(name, "pre-shared 0"), "%s: %s", w.Name, name)
		}
		kit.Check(t, fmt.Sprintf("objects of %s", w.Name), w.withoutGenerations(t), names[i])
	}
}

// If the command is killed after any write, the next one completes it.
func TestRotateKilled(t *testing.T) {
	kit.Play(t)
	for _, planes := range []int{1, 2} {
		a, b := pairOf(t, planes)
		a.Writes, b.Writes = 0, 0
		kit.Must(Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{}))(t)
		for _, first := range kubetest.Moments(t, max(a.Writes, b.Writes), 2) {
			t.Run(fmt.Sprintf("%d planes, at write %d", planes, first), func(t *testing.T) {
				t.Parallel()
				rotateKilled(t, planes, first)
			})
		}
	}
}

func rotateKilled(t *testing.T, planes, first int) {
	a, b := pairOf(t, planes)
	before := []map[string]string{a.keysOf(t), b.keysOf(t)}
	for _, w := range []*Site{a, b} {
		w.Writes, w.DeadFrom = 0, first
	}
	_, err := Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{})
	if err == nil {
		if first < 20 { // their number varies
			t.Error("no write has failed")
		}
		return
	}
	a.DeadFrom, b.DeadFrom = 0, 0
	MustPeer(t, a, b, engine.Options{})
	for _, w := range []*Site{a, b} {
		for _, left := range List[corev1.SecretList](t, w).Items {
			kit.ErrorIf(t, strings.HasPrefix(left.Name, manifests.JournalSecret("").Name), "%s: it has left Secret %s", w.Name, left.Name)
		}
	}
	kit.Must(Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{}))(t)
	for i, w := range []*Site{a, b} {
		rotated(t, before[i], w.keysOf(t), "key", "pre-shared", "overlay")
	}
	Settled(t, a, b, engine.Options{})
}

// A node that has left does not know the next key. It is then removed from the ledger, and the next command creates no key.
func TestRotateForgetsNodes(t *testing.T) {
	kit.Play(t)
	a, b := withGuest(t)
	first := a.overlayKey(t, "liqonet-overlay-1")
	a.leave(t, "guest")
	kit.Must(Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{}))(t)
	second := a.overlayKey(t, "liqonet-overlay-2")
	kit.ErrorIf(t, bytes.Equal(first, second), "it knows the key still")
	kit.Check(t, "status", a.says(t), "")
	Settled(t, a, b, engine.Options{})
}

// Commands that replace keys of a cluster run one at a time: one would delete the overlay key that another has
// created, and which no link uses yet.
func TestRotateTogether(t *testing.T) {
	kit.Play(t)
	a, b := pairOf(t, 2)
	c := NewSite(t, "c", "10.244.0.0/16", "172.18.3.11")
	kit.NoError(t, c.Raw.Create(t.Context(), kubetest.Node("c-2", true, "172.18.3.12")))
	a.PeerAgain(t, c)
	a.checkMounts(t)
	second := make(chan error, 1)
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("interrupted"))
	defer cancel()
	kit.Must(Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, Steps{
		"Replacing the keys of plane 0": func() {
			_, err := Rotate(ctx, c.Cluster, a.Cluster, Rotation{}, kube.Quiet{})
			second <- err
			a.checkMounts(t)
		},
		"Replacing the keys of plane 1": func() { a.checkMounts(t) },
	}))(t)
	err := <-second
	kubetest.Fails(t, err, kube.Busy, "rotate-keys of ")
	a.checkMounts(t)
	_, err = Rotate(t.Context(), c.Cluster, a.Cluster, Rotation{}, kube.Quiet{})
	kit.ErrorIf(t, err != nil, "%v", err)
	a.checkMounts(t)
}
