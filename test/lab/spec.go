package lab

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ProxyMode is how kube-proxy implements Services.
type ProxyMode string

// The modes of kube-proxy that the lab knows.
const (
	ProxyIPTables ProxyMode = "iptables"
	ProxyNFTables ProxyMode = "nftables"
)

// ClusterSpec says what a cluster is like. Only the name has to be given.
type ClusterSpec struct {
	// Name of the cluster, and of its context in the kubeconfig: a DNS label
	// of at most 40 characters.
	Name string
	// Workers is the number of nodes that run pods. Default: 2.
	Workers int
	// PodCIDR is divided among the workers. Clusters may have the same.
	// Default: 10.244.0.0/16; with NetworkCalico 192.168.0.0/16.
	PodCIDR netip.Prefix
	// NodeCIDRMaskSize is the length of each worker's part of PodCIDR.
	// Default: 24, or 4 more than PodCIDR's if that is above 22.
	NodeCIDRMaskSize int
	// NoNodeCIDRs is for clusters whose network plugin has its own addresses:
	// Kubernetes gives no Node a part of PodCIDR (spec.podCIDR). The workers' pods
	// have the same addresses as otherwise.
	NoNodeCIDRs bool
	// ServiceCIDR holds the Services' addresses. Default: 10.96.0.0/16.
	ServiceCIDR netip.Prefix
	// NodeGrace is for how long a node counts as ready whose Lease nobody renews. Default: that of
	// Kubernetes.
	NodeGrace time.Duration
	// NodeSubnet holds the addresses of the nodes; no two clusters of a lab
	// may overlap here. Its first address is the router's, its second the
	// control plane's, workers begin at the 11th. Default: the first free of
	// 172.18.1.0/24, 172.18.2.0/24 and so on; with NetworkEKS of 100.64.0.0/22,
	// 100.65.0.0/22 and so on.
	NodeSubnet netip.Prefix
	// MTU of the nodes' links, and of the pods. Default: 1500.
	MTU int
	// ProxyMode is kube-proxy's. Default: ProxyIPTables.
	ProxyMode ProxyMode
	// Network is how the pods are connected. Default: NetworkBridge. With
	// NetworkEKS PodCIDR is not used.
	Network Network
}

// DefaultClusters are two clusters with the same pod and service CIDRs.
func DefaultClusters() []ClusterSpec {
	return []ClusterSpec{{Name: "cluster-a"}, {Name: "cluster-b"}}
}

// WithDefaults returns the specification with all defaults filled in but the
// NodeSubnet, which depends on the lab's other clusters.
func (s ClusterSpec) WithDefaults() ClusterSpec {
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

// Validate returns everything that is wrong with a specification whose
// defaults are filled in.
func (s ClusterSpec) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(s.Name) > 40 || !label.MatchString(s.Name) {
		bad("name %q: want at most 40 lower case letters, digits and dashes", s.Name)
	}
	if s.Workers < 1 {
		bad("workers: %d, want at least 1", s.Workers)
	}
	ranges := []struct {
		key    string
		prefix netip.Prefix
	}{{"pods", s.PodCIDR}, {"services", s.ServiceCIDR}, {"subnet", s.NodeSubnet}}
	for i, r := range ranges {
		if !r.prefix.IsValid() && r.key == "subnet" {
			continue // the lab will choose
		}
		if !r.prefix.IsValid() || !r.prefix.Addr().Is4() || r.prefix != r.prefix.Masked() {
			bad("%s: %s is not an IPv4 network", r.key, r.prefix)
			continue
		}
		for _, other := range ranges[:i] {
			if other.prefix.IsValid() && other.prefix.Overlaps(r.prefix) {
				bad("%s %s and %s %s overlap", other.key, other.prefix, r.key, r.prefix)
			}
		}
	}
	if len(errs) > 0 {
		return s.wrap(errs)
	}
	if s.ServiceCIDR.Bits() > 28 {
		bad("services: %s has no room for the cluster's own Services", s.ServiceCIDR)
	}
	switch free := s.NodeCIDRMaskSize - s.PodCIDR.Bits(); {
	case free < 0 || s.NodeCIDRMaskSize > 30:
		bad("nodemask: %d does not divide pods %s", s.NodeCIDRMaskSize, s.PodCIDR)
	case free > 16: // kube-controller-manager's own limit
		bad("nodemask: %d is more than 16 longer than pods %s", s.NodeCIDRMaskSize, s.PodCIDR)
	case free < 16 && s.Workers > 1<<free:
		bad("workers: pods %s has room for %d with nodemask %d, not for %d", s.PodCIDR, 1<<free, s.NodeCIDRMaskSize, s.Workers)
	}
	if s.NodeSubnet.IsValid() && !s.NodeSubnet.Contains(nth(s.NodeSubnet, firstWorker+s.Workers)) {
		bad("subnet: %s has no room for %d workers", s.NodeSubnet, s.Workers)
	}
	if s.MTU < 576 || s.MTU > 65535 {
		bad("mtu: %d, want 576 to 65535", s.MTU)
	}
	if s.ProxyMode != ProxyIPTables && s.ProxyMode != ProxyNFTables {
		bad("proxy: %q, want %s or %s", s.ProxyMode, ProxyIPTables, ProxyNFTables)
	}
	if err := s.validateNetwork(); err != nil {
		errs = append(errs, err)
	}
	return s.wrap(errs)
}

func (s ClusterSpec) wrap(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("cluster %q: %w", s.Name, errors.Join(errs...))
}

// complete fills in the defaults of specifications that join a lab with the
// given clusters, and refuses what cannot be in one lab.
func complete(specs, have []ClusterSpec) ([]ClusterSpec, error) {
	all := append([]ClusterSpec{}, have...)
	taken := func(p netip.Prefix) *ClusterSpec {
		i := slices.IndexFunc(all, func(s ClusterSpec) bool { return s.NodeSubnet.IsValid() && s.NodeSubnet.Overlaps(p) })
		if i < 0 {
			return nil
		}
		return &all[i]
	}
	var out []ClusterSpec
	for _, s := range specs {
		s = s.WithDefaults()
		if err := s.Validate(); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(other ClusterSpec) bool { return other.Name == s.Name }) {
			return nil, fmt.Errorf("cluster %q: the lab has one of that name", s.Name)
		}
		if other := taken(s.NodeSubnet); s.NodeSubnet.IsValid() && other != nil {
			return nil, fmt.Errorf("cluster %q: subnet %s overlaps %s of cluster %q", s.Name, s.NodeSubnet, other.NodeSubnet, other.Name)
		}
		all, out = append(all, s), append(out, s)
	}
	// Last, so that no default takes what another cluster asks for.
	first := len(have)
	for i := range out {
		for n := 1; !out[i].NodeSubnet.IsValid(); n++ {
			if n > 255 {
				return nil, fmt.Errorf("cluster %q: no node subnet is left of %s and so on: give one", out[i].Name, out[i].Network.nodeSubnet(1))
			}
			p := out[i].Network.nodeSubnet(n)
			if taken(p) == nil && !p.Overlaps(out[i].PodCIDR) && !p.Overlaps(out[i].ServiceCIDR) {
				out[i].NodeSubnet, all[first+i].NodeSubnet = p, p
			}
		}
		if err := out[i].Validate(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ParseClusterSpec reads a specification such as
//
//	name=a,workers=2,pods=10.244.0.0/16,nodemask=24,services=10.96.0.0/16,subnet=172.18.1.0/24,mtu=1500,proxy=iptables,cni=bridge
//
// of which only the name is needed.
func ParseClusterSpec(text string) (ClusterSpec, error) {
	var s ClusterSpec
	seen := map[string]bool{}
	for field := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(field, "=")
		if !ok || value == "" {
			return s, fmt.Errorf("cluster %q: %q: want KEY=VALUE", text, field)
		}
		if seen[key] {
			return s, fmt.Errorf("cluster %q: %s is given twice", text, key)
		}
		seen[key] = true
		var err error
		switch key {
		case "name":
			s.Name = value
		case "workers":
			s.Workers, err = positive(value)
		case "pods":
			s.PodCIDR, err = netip.ParsePrefix(value)
		case "nodemask":
			s.NodeCIDRMaskSize, err = positive(value)
		case "nodecidrs":
			if value != "yes" && value != "no" {
				err = fmt.Errorf("%q is neither yes nor no", value)
			}
			s.NoNodeCIDRs = value == "no"
		case "services":
			s.ServiceCIDR, err = netip.ParsePrefix(value)
		case "subnet":
			s.NodeSubnet, err = netip.ParsePrefix(value)
		case "mtu":
			s.MTU, err = positive(value)
		case "proxy":
			s.ProxyMode = ProxyMode(value)
		case "cni":
			s.Network = Network(value)
		default:
			err = errors.New("unknown key: want name, workers, pods, nodemask, nodecidrs, services, subnet, mtu, proxy or cni")
		}
		if err != nil {
			return s, fmt.Errorf("cluster %q: %s: %w", text, key, err)
		}
	}
	return s, s.WithDefaults().Validate()
}

func positive(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is not a number above 0", text)
	}
	return n, nil
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
