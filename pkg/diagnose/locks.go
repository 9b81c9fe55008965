package diagnose

import (
	"context"

	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/lock"
)

// readLocks reads who holds locks, and looks until it is known whether they renew them.
func (x *examined) readLocks(ctx context.Context) error {
	held, err := lock.Holders(ctx, x.Client, true)
	for _, h := range held {
		if h.IsExpired {
			age := x.Now().Sub(h.Lease.CreationTimestamp.Time)
			x.to.Expired = append(x.to.Expired, doctor.Expired{By: h.By, Lease: h.Lease.Name, Age: age})
		} else {
			x.to.Locks = append(x.to.Locks, h.String())
		}
	}
	return err
}
