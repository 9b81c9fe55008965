package discovery

import (
	"fmt"
	"net/netip"
	"slices"
)

// check compares the ranges with the pods and services that run. Where the pods'
// ranges were not given, and no object names one in which there are pods, they are
// not known after all.
func (s *snapshot) check(f *Facts, given bool) error {
	pods := outside{ranges: f.PodCIDRs}
	named := given
	for _, p := range s.pods {
		addrs := podAddrs(p)
		if len(addrs) > 0 {
			f.PodsChecked++
		}
		for _, a := range addrs {
			pods.see("pod "+p.Namespace+"/"+p.Name, a)
			named = named || slices.ContainsFunc(f.PodCIDRs, func(r Fact[netip.Prefix]) bool { return !r.Assumed && r.Value.Contains(a) })
		}
	}
	if pods.first != "" {
		err := &OutsideError{
			Cluster: f.Name, Object: pods.first, Addr: pods.addr, More: pods.count - 1, What: "pods", Ranges: f.PodCIDRs,
			Flag:    flag("--pod-cidr", f.Name, f.PodCIDRs, pods.addr),
			Command: "kubectl get pods -A -o wide",
		}
		if named {
			return err
		}
		f.PodsUnknown, f.PodCIDRs = err, nil
	}
	services := outside{ranges: f.ServiceCIDRs}
	for _, svc := range s.services {
		for _, a := range serviceAddrs(svc) {
			services.see("service "+svc.Namespace+"/"+svc.Name, a)
		}
	}
	if services.first != "" {
		return &OutsideError{
			Cluster: f.Name, Object: services.first, Addr: services.addr, More: services.count - 1, What: "services", Ranges: f.ServiceCIDRs,
			Flag:    flag("--service-cidr", f.Name, f.ServiceCIDRs, services.addr),
			Command: "kubectl get services -A",
		}
	}
	for _, of := range []struct {
		what string
		outside
	}{{"pods", pods}, {"services", services}} {
		if a := of.otherFamily; a.IsValid() {
			f.Warnings = append(f.Warnings, fmt.Sprintf("%s have addresses as %s, too, but no range of that family was found; those are not exchanged", of.what, a))
		}
	}
	for _, p := range f.PodCIDRs {
		for _, svc := range f.ServiceCIDRs {
			if p.Value.Overlaps(svc.Value) {
				f.Warnings = append(f.Warnings, fmt.Sprintf("the pods' range %s (%s) overlaps the services' range %s (%s)", p.Value, p.Source, svc.Value, svc.Source))
			}
		}
	}
	return nil
}

// outside collects addresses that no range has.
type outside struct {
	ranges []Fact[netip.Prefix]
	first  string
	addr   netip.Addr
	count  int
	// otherFamily is an address of a family of which there is no range: a second
	// one that the cluster has beside the one that is exchanged.
	otherFamily netip.Addr
}

func (o *outside) see(object string, a netip.Addr) {
	if covers(o.ranges, a) {
		return
	}
	family := false
	for _, r := range o.ranges {
		family = family || r.Value.Addr().Is4() == a.Is4()
	}
	if !family {
		if !o.otherFamily.IsValid() {
			o.otherFamily = a
		}
		return
	}
	if o.count++; o.first == "" {
		o.first, o.addr = object, a
	}
}

// flag proposes what to give: what was found, and the range of the address.
func flag(name, cluster string, found []Fact[netip.Prefix], missing netip.Addr) string {
	s := name + " " + cluster + "="
	for _, f := range found {
		s += f.Value.String() + ","
	}
	return s + "RANGE-OF-" + missing.String()
}
