package peering

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// With --keep-failed, a new peering that fails keeps its objects, without planes, until the next command.
func TestKeepFailed(t *testing.T) {
	kit.NotShort(t)
	for _, next := range []string{"peer", "unpeer"} {
		t.Run(next, func(t *testing.T) {
			t.Parallel()
			a, b := TwoSites(t)
			ctx, cancel := context.WithCancel(t.Context())
			_, err := Peer(ctx, a.Cluster, b.Cluster, engine.Options{KeepFailed: true}, Steps{"Waiting until packets pass": cancel})
			kit.CheckError(t, "a peer that is interrupted", err, "the failed peering is kept without a data path")
			for _, w := range []*Site{a, b} {
				entry := kubetest.ReadLedger(t, w.Cluster).Spec.Peers[0]
				p := List[v1alpha1.PeeringList](t, w).Items[0]
				gateways := List[appsv1.DeploymentList](t, w).Items
				kit.ErrorIf(t, entry.Phase != v1alpha1.PeerReserved || !p.Incomplete() || len(gateways) == 0,
					"%s: phase %s, planes %v, %d gateways", w.Name, entry.Phase, p.Spec.Planes, len(gateways))
			}
			if next == "unpeer" {
				_, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{})
				kit.NoError(t, err)
				LeavesNothing(t, a, b)
				return
			}
			kit.Must(Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}))(t)
			Settled(t, a, b, engine.Options{})
		})
	}
}

// Other commands leave a failed peering that was kept as it is.
func TestKeptUntilPeerOrUnpeer(t *testing.T) {
	kit.NotShort(t)
	for next, fails := range map[string]string{
		"upgrade": "", "rotate-keys": "that has ever worked", "expose-host": "that has ever worked",
	} {
		t.Run(next, func(t *testing.T) {
			t.Parallel()
			a, b := TwoSites(t)
			ctx, cancel := context.WithCancel(t.Context())
			_, err := Peer(ctx, a.Cluster, b.Cluster, engine.Options{KeepFailed: true}, Steps{"Waiting until packets pass": cancel})
			kit.CheckError(t, "a peer that is interrupted", err, "the failed peering is kept without a data path")
			err = Next[next](t.Context(), a.Cluster, b.Cluster, nil)
			kit.ErrorIf(t, (err == nil) != (fails == "") || err != nil && !strings.Contains(err.Error(), fails), "got %v", err)
			for _, w := range []*Site{a, b} {
				entry, all := kubetest.ReadLedger(t, w.Cluster).Spec.Peers[0], List[v1alpha1.PeeringList](t, w).Items
				kit.ErrorIf(t, entry.Phase != v1alpha1.PeerReserved || len(all) != 1 || !all[0].Incomplete(), "%s: phase %s, %d Peerings", w.Name, entry.Phase, len(all))
			}
		})
	}
}

// A hint is not about objects that the rollback has removed.
func TestNoHintAboutRemovedObjects(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	// The time of the bubble passes only while everything waits, so the command reaches the wait for the gateway on any machine.
	synctest.Test(t, func(t *testing.T) {
		a, b := TwoSites(t)
		a.Late = "gateway-b-0"
		_, err := Peer(kit.Timeout(t, 3*time.Second), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{})
		e := (*kube.Error)(nil)
		if !errors.As(err, &e) || strings.Contains(e.Hint, v1alpha1.Namespace) || !strings.Contains(e.Hint, "--keep-failed") {
			t.Errorf("got %v", err)
		}
		LeavesNothing(t, a, b)
	})
}
