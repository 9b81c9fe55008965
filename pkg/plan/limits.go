package plan

import (
	"fmt"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// limits are what the cluster takes from the peer at most, as it will be.
func (f *FactSheet) limits() (l v1alpha1.Limits) {
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

// presharedKeyAge is how old pre-shared keys may become, in seconds. Both clusters have the same: a command that was
// interrupted may have told one of them only.
func presharedKeyAge(own, peer *FactSheet) (age int32) {
	if given := own.Overrides.PresharedKeyAge; given != nil {
		return *given
	}
	for _, f := range []*FactSheet{own, peer} {
		if f.Existing != nil {
			age = max(age, f.Existing.Spec.PresharedKeyAgeSeconds)
		}
	}
	return age
}

// ageStatements say how old pre-shared keys may become, if that is said or was.
func ageStatements(own, peer *FactSheet) []Statement {
	age, given := presharedKeyAge(own, peer), own.Overrides.PresharedKeyAge != nil
	s := Statement{What: "age of pre-shared keys", Value: "at most " + (time.Duration(age) * time.Second).String() + ", then the gateways agree on others", Reason: "as before"}
	if given {
		s.Reason = "given by --psk-age"
	}
	if age == 0 {
		s.Value = "any"
	}
	if age == 0 && !given {
		return nil
	}
	return []Statement{s}
}

// limitStatements say what is limited, or is not any more.
func (f *FactSheet) limitStatements() (out []Statement) {
	add := func(what, unit string, limit int64, flag string, given bool) {
		s := Statement{What: what, Value: fmt.Sprintf("%d %s", limit, unit), Reason: "as before"}
		if given {
			s.Reason = "given by " + flag
		}
		if limit == 0 {
			s.Value = "none"
		}
		if limit > 0 || given {
			out = append(out, s)
		}
	}
	l := f.limits()
	add("limit of new connections of the peer", "per second and node", int64(l.NewConnections), "--limit-new", f.Overrides.LimitNew != nil)
	add("limit of the peer's rate", "bit/s", l.BitsPerSecond, "--limit-rate", f.Overrides.LimitRate != nil)
	return out
}
