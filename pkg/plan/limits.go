package plan

import (
	"fmt"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// limits are what the cluster takes from the peer at most, as it will be.
func (f *sheet) limits() (l v1alpha1.Limits) {
	if f.Existing != nil {
		l = f.Existing.Spec.Limits
	}
	if given := f.Overrides.LimitNew; given != nil {
		l.NewConnections = int32(*given)
	}
	if given := f.Overrides.LimitRate; given != nil {
		l.BitsPerSecond = *given
	}
	return l
}

// limitStatements say what is limited, or is not any more.
func (f *sheet) limitStatements() (out []Statement) {
	add := func(what, unit string, limit int64, flag string, given bool) {
		if limit > 0 {
			out = append(out, known(what, fmt.Sprintf("%d %s", limit, unit), byFlag(given, flag)))
		} else if given {
			out = append(out, known(what, "none", byFlag(given, flag)))
		}
	}
	l := f.limits()
	add("limit of new connections of the peer", "per second and node", int64(l.NewConnections), "--limit-new", f.Overrides.LimitNew != nil)
	add("limit of the peer's rate", "bit/s", l.BitsPerSecond, "--limit-rate", f.Overrides.LimitRate != nil)
	return out
}
