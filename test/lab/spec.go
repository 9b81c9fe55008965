package lab

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	"sigs.k8s.io/yaml"
)

// ProxyMode is how kube-proxy implements Services.
type ProxyMode string

// The modes of kube-proxy that the lab knows.
const (
	ProxyIPTables ProxyMode = "iptables"
	ProxyNFTables ProxyMode = "nftables"
)

// ClusterSpec says what a cluster is like. Only the name has to be given. The names in JSON are the keys of ParseClusterSpec.
type ClusterSpec struct {
	// Name of the cluster, and of its context in the kubeconfig: a DNS label
	// of at most 40 characters.
	Name string `json:"name"`
	// Workers is the number of nodes that run pods. Default: 2.
	Workers int `json:"workers"`
	// PodCIDR is divided among the workers. Clusters may have the same.
	// Default: 10.244.0.0/16; with NetworkCalico 192.168.0.0/16.
	PodCIDR netip.Prefix `json:"pods"`
	// NodeCIDRMaskSize is the length of each worker's part of PodCIDR.
	// Default: 24, or 4 more than PodCIDR's if that is above 22.
	NodeCIDRMaskSize int `json:"nodemask"`
	// NoNodeCIDRs is for clusters whose network plugin has its own addresses:
	// Kubernetes gives no Node a part of PodCIDR (spec.podCIDR). The workers' pods
	// have the same addresses as otherwise.
	NoNodeCIDRs bool `json:"nonodecidrs"`
	// ServiceCIDR holds the Services' addresses. Default: 10.96.0.0/16.
	ServiceCIDR netip.Prefix `json:"services"`
	// NodeGrace is for how long a node counts as ready whose Lease nobody renews. Default: that of
	// Kubernetes.
	NodeGrace time.Duration `json:"nodegrace"`
	// NodeSubnet holds the addresses of the nodes; no two clusters of a lab
	// may overlap here. Its first address is the router's, its second the
	// control plane's, workers begin at the 11th. Default: the first free of
	// 172.18.1.0/24, 172.18.2.0/24 and so on; with NetworkEKS of 100.64.0.0/22,
	// 100.65.0.0/22 and so on.
	NodeSubnet netip.Prefix `json:"subnet"`
	// MTU of the nodes' links, and of the pods. Default: 1500.
	MTU int `json:"mtu"`
	// ProxyMode is kube-proxy's. Default: ProxyIPTables.
	ProxyMode ProxyMode `json:"proxy"`
	// Network is how the pods are connected. Default: NetworkBridge. With
	// NetworkEKS PodCIDR is not used.
	Network Network `json:"cni"`
}

// DefaultClusters are two clusters with the same pod and service CIDRs.
func DefaultClusters() []ClusterSpec {
	return []ClusterSpec{{Name: "cluster-a"}, {Name: "cluster-b"}}
}

// withDefaults returns the specification with all defaults filled in but the
// NodeSubnet, which depends on the lab's other clusters.
func (s ClusterSpec) withDefaults() ClusterSpec {
	s.Workers, s.Network = cmp.Or(s.Workers, 2), cmp.Or(s.Network, NetworkBridge)
	if !s.PodCIDR.IsValid() {
		s.PodCIDR = s.Network.podCIDR()
	}
	if s.NodeCIDRMaskSize == 0 {
		s.NodeCIDRMaskSize = 24
		if s.PodCIDR.Bits() > 22 {
			s.NodeCIDRMaskSize = s.PodCIDR.Bits() + 4
		}
	}
	if !s.ServiceCIDR.IsValid() {
		s.ServiceCIDR = netip.MustParsePrefix("10.96.0.0/16")
	}
	s.MTU, s.ProxyMode = cmp.Or(s.MTU, 1500), cmp.Or(s.ProxyMode, ProxyIPTables)
	return s
}

// firstWorker is the place of the first worker's address in the node subnet.
const firstWorker = 11

// label is a DNS label (RFC 1123).
var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// validate says why there cannot be such a cluster. What the kernel or a program of Kubernetes refuses is not repeated here.
func (s ClusterSpec) validate() error {
	ranges := []netip.Prefix{s.PodCIDR, s.ServiceCIDR, s.NodeSubnet}
	for i, p := range ranges {
		if !p.IsValid() || !p.Addr().Is4() || p != p.Masked() {
			return fmt.Errorf("%s is not an IPv4 network", p)
		}
		if slices.ContainsFunc(ranges[:i], p.Overlaps) {
			return fmt.Errorf("%s overlaps with another of its ranges", p)
		}
	}
	switch {
	case len(s.Name) > 40 || !label.MatchString(s.Name):
		return errors.New("name: want at most 40 lower case letters, digits and dashes")
	case s.Workers < 1:
		return fmt.Errorf("workers: %d, want at least 1", s.Workers)
	case !slices.Contains(Networks(), s.Network):
		return fmt.Errorf("cni: %q, want one of %v", s.Network, Networks())
	case s.NodeCIDRMaskSize < s.PodCIDR.Bits() || s.NodeCIDRMaskSize > 30 || !s.PodCIDR.Contains(s.workerCIDR(s.Workers).Addr()):
		return fmt.Errorf("pods: %s has no room for a /%d for each of %d workers", s.PodCIDR, s.NodeCIDRMaskSize, s.Workers)
	case !s.NodeSubnet.Contains(nth(s.NodeSubnet, firstWorker+s.Workers)):
		return fmt.Errorf("subnet: %s has no room for %d workers", s.NodeSubnet, s.Workers)
	case s.Network == NetworkCalico && (s.PodCIDR.Bits() > blockBits || s.Workers > s.maxBlocks()):
		return fmt.Errorf("pods: %s has no room for %d blocks, each a /%d", s.PodCIDR, s.Workers, blockBits)
	case s.Network == NetworkEKS && (s.NodeSubnet.Bits() >= sharedBits || s.Workers > maxWorkers(s)):
		return fmt.Errorf("subnet: the upper half of %s has no room for the pods of %d workers, each a /%d", s.NodeSubnet, s.Workers, sharedBits)
	}
	return nil
}

// complete fills in the defaults of specifications that join a lab with the
// given clusters, and refuses what cannot be in one lab.
func complete(specs, have []ClusterSpec) ([]ClusterSpec, error) {
	out := lo.Map(specs, func(s ClusterSpec, _ int) ClusterSpec { return s.withDefaults() })
	for i := range out {
		s := &out[i]
		for n := 1; n <= 255 && !s.NodeSubnet.IsValid(); n++ {
			// No default takes what another cluster has, or asks for.
			taken := []netip.Prefix{s.PodCIDR, s.ServiceCIDR}
			for _, other := range slices.Concat(have, out) {
				taken = append(taken, other.NodeSubnet)
			}
			if p := s.Network.nodeSubnet(n); !slices.ContainsFunc(taken, p.Overlaps) {
				s.NodeSubnet = p
			}
		}
	}
	for i, s := range out {
		if err := s.validate(); err != nil {
			return nil, fmt.Errorf("cluster %q: %w", s.Name, err)
		}
		for _, other := range slices.Concat(have, out[:i]) {
			if other.Name == s.Name || other.NodeSubnet.Overlaps(s.NodeSubnet) {
				return nil, fmt.Errorf("cluster %q with subnet %s: the lab has cluster %q with subnet %s", s.Name, s.NodeSubnet, other.Name, other.NodeSubnet)
			}
		}
	}
	return out, nil
}

// ParseClusterSpec reads a specification such as
//
//	name=a,workers=2,pods=10.244.0.0/16,nodemask=24,services=10.96.0.0/16,subnet=172.18.1.0/24,mtu=1500,proxy=iptables,cni=bridge
//
// of which only the name is needed.
func ParseClusterSpec(text string) (s ClusterSpec, err error) {
	lines := strings.NewReplacer("=", ": ", ",", "\n").Replace(text)
	if err := yaml.UnmarshalStrict([]byte(lines), &s); err != nil {
		return s, fmt.Errorf("cluster %q: want KEY=VALUE,...: %w", text, err)
	}
	return s, nil
}

// nth returns the n-th address after the prefix's own, which may lie outside.
func nth(p netip.Prefix, n int) netip.Addr {
	a := p.Masked().Addr().As4()
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])+uint32(n))
	return netip.AddrFrom4(a)
}

func asNumber(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

// workerCIDR is the part of the pods' range for a worker, counted from 1.
func (s ClusterSpec) workerCIDR(number int) netip.Prefix {
	return block(s.PodCIDR, s.NodeCIDRMaskSize, number-1, false)
}
