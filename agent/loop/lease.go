package loop

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/applyconfigurations/coordination/v1"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/version"
)

// Lease is an agent's heartbeat.
type Lease struct {
	Client client.Client
	// Name is the object's, Holder that of the agent's pod, Manager the field manager.
	Name, Holder, Manager string
	// Owner is whom the object goes with, nil where the CLI makes and removes it.
	Owner *applymeta.OwnerReferenceApplyConfiguration
}

// Renew writes the Lease. The time is that of the agent's own clock.
func (l Lease) Renew(ctx context.Context) error {
	lease := coordination.Lease(l.Name, v1alpha1.Namespace).
		WithAnnotations(map[string]string{v1alpha1.AnnotationVersion: version.String()}).
		WithSpec(coordination.LeaseSpec().WithHolderIdentity(l.Holder).WithRenewTime(metav1.NewMicroTime(time.Now())))
	if l.Owner != nil {
		lease.WithOwnerReferences(l.Owner).WithLabels(map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager})
	}
	if err := l.Client.Apply(ctx, lease, client.FieldOwner(l.Manager), client.ForceOwnership); err != nil {
		return fmt.Errorf("renew Lease %s/%s: %w", v1alpha1.Namespace, l.Name, err)
	}
	return nil
}
