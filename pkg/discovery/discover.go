package discovery

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/ipam"
)

// Overrides are what the user says of a cluster, by flags. What is given here is
// not looked for, and is compared with the pods and services all the same.
type Overrides struct {
	// Name is what the user calls the cluster; errors and flags use it.
	Name string
	// PodCIDRs, ServiceCIDRs and NodeCIDRs replace what would be found.
	PodCIDRs     []netip.Prefix
	ServiceCIDRs []netip.Prefix
	NodeCIDRs    []netip.Prefix
	// Reserved are ranges that no peer may be given.
	Reserved []netip.Prefix
}

// Discover reads the facts of a cluster. The reader should not have a cache, and
// its scheme needs the types of client-go's scheme.
//
// These are its errors:
//   - UnknownError where a fact has to be given by the user;
//   - OutsideError where a pod or service contradicts what was found;
//   - ipam.InvalidError for overrides that are no ranges;
//   - errors of the API, wrapped, so that apierrors.IsForbidden and the like work.
//
// Where node agents may tell the ranges of the pods, Facts.PodsUnknown has the error.
func Discover(ctx context.Context, reader client.Reader, o Overrides) (Facts, error) {
	if err := o.validate(); err != nil {
		return Facts{}, err
	}
	s, err := read(ctx, reader)
	if err != nil {
		return Facts{}, err
	}
	return s.facts(o)
}

func (o Overrides) validate() error {
	for _, of := range []struct {
		flag     string
		prefixes []netip.Prefix
	}{
		{"--pod-cidr", o.PodCIDRs},
		{"--service-cidr", o.ServiceCIDRs},
		{"--node-cidr", o.NodeCIDRs},
		{"--reserve", o.Reserved},
	} {
		for _, p := range of.prefixes {
			if err := (ipam.Mapping{Real: p, Mapped: p}).Validate(); err != nil {
				return fmt.Errorf("cluster %q: %s: %w", o.Name, of.flag, err)
			}
		}
	}
	return nil
}

// facts is pure: everything was read before.
func (s *snapshot) facts(o Overrides) (Facts, error) {
	f := Facts{
		ClusterID:         string(s.kubeSystem.UID),
		Name:              o.Name,
		KubernetesVersion: s.version(),
		Nodes:             s.nodeFacts(),
		Reserved:          given(o.Reserved, "--reserve"),
		Pods:              s.podCount,
		Warnings:          s.warnings(),
	}
	f.Provider = s.provider()
	f.CNI = s.cni(f.Provider.Value)
	f.Exposure = s.exposure(f)
	f.NodeCIDRs = s.nodeRanges(o)
	var err error
	if f.ServiceCIDRs, err = s.serviceRanges(o, f); err != nil {
		return Facts{}, err
	}
	if f.PodCIDRs, err = s.podRanges(o, f); errors.Is(err, ErrUnknown) {
		f.PodsUnknown = err
	} else if err != nil {
		return Facts{}, err
	}
	if err := s.check(&f, len(o.PodCIDRs) > 0); err != nil {
		return Facts{}, err
	}
	if f.PodsUnknown != nil {
		f.PodAddrs = s.livePods()
	}
	return f, nil
}

func given(prefixes []netip.Prefix, flag string) []Fact[netip.Prefix] {
	return distinct(facts(prefixes, "given by "+flag, false))
}
