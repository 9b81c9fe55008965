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

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
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

// changesOf returns the objects that a plan would change.
func changesOf(p *plan.Plan) (out []string) {
	for _, c := range p.Clusters {
		for _, o := range c.Objects {
			if o.Action != plan.Keep {
				out = append(out, fmt.Sprint(c.Cluster, ": ", o.Action, " ", o.Kind, " ", o.Name))
			}
		}
	}
	return out
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
	if got, want := slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)); !slices.Equal(got, want) {
		t.Errorf("there are keys %v, before %v", got, want)
	}
	for name := range before {
		kind, _, _ := strings.Cut(name, " ")
		if (before[name] != after[name]) != slices.Contains(kinds, kind) {
			t.Errorf("%s was %s, and is %s", name, before[name], after[name])
		}
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
			if err := w.Raw.Create(t.Context(), kubetest.Node(fmt.Sprintf("%s-%d", w.Name, n+1), true, fmt.Sprintf("172.%d.1.%d", 18+i, 11+n))); err != nil {
				t.Fatal(err)
			}
		}
	}
	return a, b
}

// All keys are replaced, the former ones deleted, and nothing else changes, with two planes as well as with one,
// which gets a temporary one.
func TestRotate(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
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
				if len(keys[0]) != 3*planes {
					t.Fatal(keys)
				}
				if _, err := Rotate(t.Context(), a.Cluster, b.Cluster, o, kube.Quiet{}); err != nil {
					t.Fatal(err)
				}
				kinds := []string{"key", "pre-shared", "overlay"}
				if o.PresharedOnly {
					kinds = kinds[1:2]
				}
				for i, w := range []*Site{a, b} {
					rotated(t, keys[i], w.keysOf(t), kinds...)
					if diff := cmp.Diff(names[i], w.withoutGenerations(t)); diff != "" {
						t.Errorf("objects of %s: %s", w.Name, diff)
					}
				}
				if plan := DryRun(t, a, b, engine.Options{}); plan.Changes() > 0 {
					t.Errorf("the next peer would change: %v", changesOf(plan))
				}
			})
		}
	}
}

// A third cluster's links keep their key until its own peering gets new ones.
func TestRotateBesideAnother(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := pairOf(t, 1)
	c := NewSite(t, "c", "10.244.0.0/16", "172.18.3.11")
	a.Peer, c.Peer = c, a
	MustPeer(t, a, c, engine.Options{})
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
		if _, err := Rotate(t.Context(), a.Cluster, step.with.Cluster, Rotation{}, kube.Quiet{}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, overlays()); diff != "" {
			t.Errorf("after %s: %s", step.with.Name, diff)
		}
		for _, w := range []*Site{b, c} {
			a.Peer, w.Peer = w, a
			if plan := DryRun(t, a, w, engine.Options{}); plan.Changes() > 0 {
				t.Errorf("after %s, the next peer with %s would change: %v", step.with.Name, w.Name, changesOf(plan))
			}
		}
	}
}

// If a plane does not work with new keys, it gets its former keys back, and nothing of the new ones remains.
func TestRotateFails(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := pairOf(t, 2)
	before := []map[string]string{a.keysOf(t), b.keysOf(t)}
	names := [][]string{a.withoutGenerations(t), b.withoutGenerations(t)}
	_, err := Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{PresharedOnly: true}, Steps{"Replacing the keys of plane 1": func() { a.failing = a.Writes + 8 }})
	if !errors.Is(err, ErrInjected) {
		t.Fatal(err)
	}
	for i, w := range []*Site{a, b} {
		for name, key := range w.keysOf(t) {
			if (key == before[i][name]) != !strings.HasPrefix(name, "pre-shared 0") {
				t.Errorf("%s: %s", w.Name, name)
			}
		}
		if diff := cmp.Diff(names[i], w.withoutGenerations(t)); diff != "" {
			t.Errorf("objects of %s: %s", w.Name, diff)
		}
	}
}

// If the command is killed after any write, the next one completes it.
func TestRotateKilled(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	for _, planes := range []int{1, 2} {
		a, b := pairOf(t, planes)
		a.Writes, b.Writes = 0, 0
		if _, err := Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{}); err != nil {
			t.Fatal(err)
		}
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
			if strings.HasPrefix(left.Name, manifests.Journal("").Name) {
				t.Errorf("%s: it has left Secret %s", w.Name, left.Name)
			}
		}
	}
	if _, err := Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{}); err != nil {
		t.Fatal(err)
	}
	for i, w := range []*Site{a, b} {
		rotated(t, before[i], w.keysOf(t), "key", "pre-shared", "overlay")
	}
	if plan := DryRun(t, a, b, engine.Options{}); plan.Changes() > 0 {
		t.Errorf("the next peer would change %v", changesOf(plan))
	}
}

// A node that has left does not know the next key. It is then removed from the ledger, and the next command creates no key.
func TestRotateForgetsNodes(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := withGuest(t)
	first := a.overlayKey(t, "liqonet-overlay-1")
	a.leave(t, "guest")
	if _, err := Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, kube.Quiet{}); err != nil {
		t.Fatal(err)
	}
	if second := a.overlayKey(t, "liqonet-overlay-2"); bytes.Equal(first, second) {
		t.Error("it knows the key still")
	}
	if says := a.says(t); says != "" {
		t.Errorf("status says %q", says)
	}
	if plan := DryRun(t, a, b, engine.Options{}); plan.Changes() > 0 {
		t.Errorf("the next peer would change %v", changesOf(plan))
	}
}

// Commands that replace keys of a cluster run one at a time: one would delete the overlay key that another has
// created, and which no link uses yet.
func TestRotateTogether(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := pairOf(t, 2)
	c := NewSite(t, "c", "10.244.0.0/16", "172.18.3.11")
	if err := c.Raw.Create(t.Context(), kubetest.Node("c-2", true, "172.18.3.12")); err != nil {
		t.Fatal(err)
	}
	a.Peer, c.Peer = c, a
	MustPeer(t, a, c, engine.Options{})
	a.checkMounts(t)
	second := make(chan error, 1)
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("interrupted"))
	defer cancel()
	_, err := Rotate(t.Context(), a.Cluster, b.Cluster, Rotation{}, Steps{
		"Replacing the keys of plane 0": func() {
			_, err := Rotate(ctx, c.Cluster, a.Cluster, Rotation{}, kube.Quiet{})
			second <- err
			a.checkMounts(t)
		},
		"Replacing the keys of plane 1": func() { a.checkMounts(t) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-second; kubetest.KindOf(t, err) != kube.Busy || !strings.Contains(err.Error(), "rotate-keys of ") {
		t.Errorf("the second one: %v", err)
	}
	a.checkMounts(t)
	if _, err := Rotate(t.Context(), c.Cluster, a.Cluster, Rotation{}, kube.Quiet{}); err != nil {
		t.Error(err)
	}
	a.checkMounts(t)
}
