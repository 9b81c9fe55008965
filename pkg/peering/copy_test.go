package peering_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// In a cluster that was restored from the backup of another one, commands say so and write nothing: its agents would use the
// keys of the other one. Only unpeer works, and removes nothing from the peer.
func TestCommandsInACopy(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	a, b := peering.Peered(t)
	ofOriginal := kubetest.ReadLedger(t, a.Cluster)
	b.ID = "id-of-the-copy"
	commands := map[string]func(ctx context.Context) error{
		"peer --dry-run": func(ctx context.Context) error {
			return kit.Err(peering.PlanAll(ctx, []peering.Pair{{a.Cluster, b.Cluster}}, engine.Options{}, kube.Quiet{}))
		},
		"upgrade": func(ctx context.Context) error {
			return kit.Err(peering.UpgradeAll(ctx, []*kube.Cluster{b.Cluster}, peering.Newer(), kube.Quiet{}))
		},
		"doctor --fix": func(ctx context.Context) error { return fix(ctx, a.Cluster, b.Cluster) },
		"peer --replace": func(ctx context.Context) error {
			return kit.Err(peering.Peer(ctx, a.Cluster, b.Cluster, engine.Options{Replace: true}, kube.Quiet{}))
		},
	}
	for _, name := range []string{"peer", "expose-host"} {
		commands[name] = func(ctx context.Context) error { return peering.Next[name](ctx, b.Cluster, a.Cluster, nil) }
	}
	a.Writes, b.Writes = 0, 0
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		err := commands[name](t.Context())
		e := (*kube.Error)(nil)
		if !errors.As(err, &e) || e.Kind != kube.Identity || e.Cluster != "b" || !strings.Contains(err.Error(), "id-of-b") || !strings.Contains(e.Hint, "unpeer b --peer a") {
			t.Errorf("%s: got %v", name, err)
		}
		kit.FatalIf(t, a.Writes+b.Writes > 0, "%s has written", name)
	}
	views := kit.Must(status.Views(t.Context(), b.Cluster))(t)
	status.MarkOrphans(views, []string{a.ID})
	if v := views[0]; v.State != status.Disconnected || v.CopiedFrom != "id-of-b" || !strings.Contains(v.Message, "unpeer b --peer a") {
		t.Errorf("status: %+v", v)
	}
	inCopy, inPeer, err := peering.Unpeer(t.Context(), b.Cluster, a.Cluster, kube.Quiet{})
	kit.ErrorIf(t, err != nil || inPeer.Peering, "unpeer of the copy: %+v %+v %v", inCopy, inPeer, err)
	kit.ErrorIf(t, len(b.Ours(t)) > 0, "unpeer has left %v", b.Ours(t))
	kit.Check(t, "the ledger of the peer", kubetest.ReadLedger(t, a.Cluster).Spec, ofOriginal.Spec, cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{}, v1alpha1.CIDR{}, v1alpha1.IP{}))
	kit.ErrorIf(t, len(kit.Must(status.Views(t.Context(), a.Cluster))(t)) != 1, "the peer has lost the original's peering")
}
