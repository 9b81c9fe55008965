package diagnose

import (
	"context"
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/kube"
)

// examined is a cluster that is read for the doctor.
type examined struct {
	*kube.Cluster
	mu sync.Mutex
	to *doctor.Cluster
}

// DoctorOptions say what is read.
type DoctorOptions struct {
	// ObjectsOnly runs no pods.
	ObjectsOnly bool
}

// unasked says why nothing is asked of a cluster.
func (x *examined) unasked(err error) {
	x.to.Unreachable = err.Error()
	if e := (*kube.Error)(nil); errors.As(err, &e) {
		x.to.Hint = e.Hint
		if e.Kind == kube.Forbidden {
			x.to.Refused, x.to.Unreachable = err.Error(), ""
		}
	}
}

// unseen notes why a part could not be read. It returns an error only where all of the command has to end.
func (x *examined) unseen(ctx context.Context, part doctor.Part, err error) error {
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	why := err.Error()
	if status := apierrors.APIStatus(nil); apierrors.IsForbidden(err) && errors.As(err, &status) && status.Status().Details != nil {
		why = "you may not read " + status.Status().Details.Kind
	}
	x.to.Unseen[part] = why
	return nil
}
