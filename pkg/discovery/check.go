package discovery

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/plan"
)

// holder is an object and an address that it has.
type holder struct {
	object string
	addr   netip.Addr
}

// check compares the ranges with the pods and services that run. Where the pods'
// ranges were not given, and no object names one in which there are pods, they are
// not known after all.
func (s *snapshot) check(f *plan.Network, given bool) error {
	pods := s.podAddrs()
	if err := compare(f, "pods", f.PodCIDRs, pods, "--pod-cidr", "kubectl get pods -A -o wide"); err != nil {
		named := lo.Filter(f.PodCIDRs, func(r plan.Range, _ int) bool { return !r.Assumed })
		if given || slices.ContainsFunc(pods, func(p holder) bool { return named.Contain(p.addr) }) {
			return err
		}
		f.PodsUnknown, f.PodCIDRs = err, nil
	}
	if err := compare(f, "services", f.ServiceCIDRs, s.serviceAddrs(), "--service-cidr", "kubectl get services -A"); err != nil {
		return err
	}
	for _, p := range f.PodCIDRs {
		for _, svc := range f.ServiceCIDRs {
			if p.Value.Overlaps(svc.Value) {
				warn(f, "the pods' range %s (%s) overlaps the services' range %s (%s)", p.Value, p.Source, svc.Value, svc.Source)
			}
		}
	}
	return nil
}

// compare returns an error if objects have addresses outside of the ranges found. Those of
// a family without any range are not exchanged: a warning names the first one.
func compare(f *plan.Network, what string, found plan.Ranges, have []holder, flag, command string) error {
	var outside []holder
	warned := len(found) == 0
	for _, h := range have {
		sameFamily := func(r plan.Range) bool { return r.Value.Addr().Is4() == h.addr.Is4() }
		switch {
		case found.Contain(h.addr):
		case slices.ContainsFunc(found, sameFamily):
			outside = append(outside, h)
		case !warned:
			warn(f, "%s have addresses as %s, too, but no range of that family was found; those are not exchanged", what, h.addr)
			warned = true
		}
	}
	if len(outside) == 0 {
		return nil
	}
	first, others := outside[0], ""
	if more := len(outside) - 1; more > 0 {
		others = fmt.Sprintf(" (and %d more)", more)
	}
	var sources, all []string
	for _, r := range found {
		assumed := lo.Ternary(r.Assumed, " (assumed)", "")
		sources, all = append(sources, r.Value.String()+": "+r.Source+assumed), append(all, r.Value.String())
	}
	all = append(all, "RANGE-OF-"+first.addr.String())
	return fmt.Errorf("cluster %q: %s has the address %s%s, which is %w for %s [%s]; give all of them by %s %s=%s (to see the addresses: %s)",
		f.Name, first.object, first.addr, others, ErrOutside, what, strings.Join(sources, "; "), flag, f.Name, strings.Join(all, ","), command)
}

func warn(f *plan.Network, format string, args ...any) {
	f.Warnings = append(f.Warnings, fmt.Sprintf(format, args...))
}
