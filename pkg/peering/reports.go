package peering

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// takeOverReports has node agents own what ones from before v0.1.0 have reported. These wrote it by an update, and an agent that
// applies takes nothing back that an update has written as well: unpeer would wait for ever.
func (c *Cluster) takeOverReports(ctx context.Context, reports []v1alpha1.NodeNetwork) error {
	for i := range reports {
		n := &reports[i]
		if _, updaters := writers(n); updaters.Len() == 0 {
			continue
		}
		err := retryOnConflict(func() error {
			now, err := get[v1alpha1.NodeNetwork](ctx, c, "", n.Name)
			if now == nil || err != nil {
				return err
			}
			agent, updaters := writers(now)
			if agent == "" || updaters.Len() == 0 {
				return nil
			}
			patch, err := csaupgrade.UpgradeManagedFieldsPatch(now, updaters, agent, csaupgrade.Subresource("status"))
			if err == nil && patch != nil {
				err = c.Client.Patch(ctx, now, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(v1alpha1.FieldManager))
			}
			return c.fail("take over what agents from before v0.1.0 have reported, in NodeNetwork "+n.Name, err)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// writers returns who has written the report: the agent that applies it, and those that have updated it.
func writers(n *v1alpha1.NodeNetwork) (agent string, updaters sets.Set[string]) {
	updaters = sets.New[string]()
	for _, m := range n.ManagedFields {
		switch {
		case m.Subresource != "status":
		case m.Operation == metav1.ManagedFieldsOperationApply:
			agent = m.Manager
		default:
			updaters.Insert(m.Manager)
		}
	}
	return agent, updaters
}
