package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// exchangesServices reports whether the cluster exchanges services with any peer.
func (x *examination) exchangesServices() bool {
	return slices.ContainsFunc(x.Peerings, func(p v1alpha1.Peering) bool { return p.Spec.Services != nil })
}

func servicesController(x *examination) {
	if x.exchangesServices() && x.isSilent(v1alpha1.ServicesName) {
		x.fail("", "the controller of services does not work", "Lease "+v1alpha1.ServicesName+" is not renewed: exports and imports stay as they are",
			x.kubectl("describe deployment", v1alpha1.ServicesName))
	}
}

func servicesOfOthers(x *examination) {
	if x.exchangesServices() && x.Exchange.Refused != "" {
		x.fail("", "another program exchanges services", x.Exchange.Refused, "remove it, or disable services: kubectl liqonet services disable --help")
	}
}

func servicesUsable(x *examination) {
	for _, service := range slices.Sorted(maps.Keys(x.Exchange.Problems)) {
		problems := x.Exchange.Problems[service]
		x.warn("", "service "+service+" cannot be used as it is exported", strings.Join(problems, "; "), x.liqonet("services"))
	}
}

func servicesWithdrawn(x *examination) {
	for _, peering := range slices.Sorted(maps.Keys(x.Exchange.Withdrawn)) {
		if n := x.Exchange.Withdrawn[peering]; n > 0 {
			x.warn("", fmt.Sprintf("endpoints of %d services of %s are not used", n, peering), "the peer cannot be reached", x.liqonet("status"))
		}
	}
}
