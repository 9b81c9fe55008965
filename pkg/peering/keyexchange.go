package peering

import (
	"context"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/status"
)

// readExchanges adds the key exchanges of pre-shared keys to the views.
func (p *run) readExchanges(ctx context.Context) {
	_ = p.forEachSide(ctx, func(ctx context.Context, s, _ *engine.Side) error {
		p.result.Views[s.Index].PresharedKeyExchange = status.WeakestExchange(p.planOf(s).Peering, status.Secrets(ctx, s.Cluster, kube.PeeringLabels(p.planOf(s).Peering.Name)))
		return nil
	})
}
