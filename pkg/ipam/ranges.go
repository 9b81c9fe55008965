package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/samber/lo"
	"go4.org/netipx"
)

const (
	// InternalBits is the length of a cluster's internal CIDR: the addresses of
	// its nodes and gateways in the overlay.
	InternalBits = 19
	// ExternalBits is the length of a cluster's external CIDR, as peers know it.
	ExternalBits = 18
)

// Usage is a prefix that is in use, and by whom: what an error and a reason show.
type Usage struct {
	Prefix netip.Prefix
	// Owner completes "used by …", e.g. "the pods of this cluster".
	Owner string
}

func (u Usage) String() string { return u.Prefix.String() + " (" + u.Owner + ")" }

// DefaultPools are the private ranges of RFC 1918, from which mapped ranges are
// taken.
func DefaultPools() []netip.Prefix {
	return prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
}

// Private says that all addresses of a prefix are for private networks: those of RFC 1918,
// RFC 6598 (shared, which clouds give to pods) and RFC 4193. Only such a range of a peer is
// kept as it is. All other addresses are somebody else's, whom nodes and pods may call.
func Private(p netip.Prefix) bool {
	return slices.ContainsFunc(privateRanges, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
}

// PrivateAddr says the same of one address.
func PrivateAddr(a netip.Addr) bool {
	a = a.Unmap()
	return Private(netip.PrefixFrom(a, a.BitLen()))
}

var privateRanges = append(DefaultPools(), prefixes("100.64.0.0/10", "fc00::/7")...)

// DefaultInternal is the wish for a cluster's internal CIDR.
func DefaultInternal() netip.Prefix { return netip.MustParsePrefix("10.80.0.0/19") }

// Reserved are the ranges that nothing is ever mapped to.
func Reserved() []Usage {
	return []Usage{
		{netip.MustParsePrefix("0.0.0.0/8"), "reserved: this network, RFC 791"},
		{netip.MustParsePrefix("127.0.0.0/8"), "reserved: loopback, RFC 1122"},
		{netip.MustParsePrefix("169.254.0.0/16"), "reserved: link-local and clouds' metadata, RFC 3927"},
		{netip.MustParsePrefix("192.0.0.0/24"), "reserved: protocol assignments, RFC 6890"},
		{netip.MustParsePrefix("224.0.0.0/4"), "reserved: multicast, RFC 5771"},
		{netip.MustParsePrefix("240.0.0.0/4"), "reserved: class E and broadcast, RFC 1112"},
		{netip.MustParsePrefix("::/127"), "reserved: unspecified and loopback, RFC 4291"},
		{netip.MustParsePrefix("::ffff:0:0/96"), "reserved: IPv4-mapped, RFC 4291"},
		{netip.MustParsePrefix("64:ff9b::/96"), "reserved: NAT64, RFC 6052"},
		{netip.MustParsePrefix("fe80::/10"), "reserved: link-local, RFC 4291"},
		{netip.MustParsePrefix("ff00::/8"), "reserved: multicast, RFC 4291"},
	}
}

// CommonRanges are ranges that clusters have where nobody chose otherwise. They
// are not given to another cluster as long as there is something else, so that a
// peer that comes later and has one of them can keep it.
func CommonRanges() []netip.Prefix {
	return prefixes(
		"10.0.0.0/16",     // VPCs of AWS, AKS's services, Cilium's first nodes
		"10.32.0.0/12",    // Weave; 10.42 and 10.43 of k3s are inside
		"10.70.0.0/16",    // Liqo's external CIDR
		"10.80.0.0/16",    // internal CIDR
		"10.96.0.0/12",    // kubeadm's services; EKS's 10.100 is inside
		"10.128.0.0/14",   // OpenShift's pods, subnets of GCP
		"10.152.183.0/24", // MicroK8s' services
		"10.224.0.0/12",   // VNets of AKS
		"10.244.0.0/16",   // Flannel, kind, AKS
		"172.17.0.0/16",   // Docker
		"172.18.0.0/16",   // kind
		"172.20.0.0/16",   // EKS's services
		"172.30.0.0/16",   // OpenShift's services
		"172.31.0.0/16",   // AWS's default VPC
		"192.168.0.0/16",  // Calico, eksctl's VPC, homes and offices
	)
}

// SplitExternal splits an external CIDR: the lower half is 1:1 the internal CIDR
// of the cluster, the upper half is for addresses that are given out singly.
func SplitExternal(external netip.Prefix) (nodes, singles netip.Prefix, err error) {
	if err := checkPrefix(external); err != nil {
		return nodes, singles, err
	}
	if external.Bits() >= external.Addr().BitLen() {
		return nodes, singles, errorf(ErrInvalid, "%s has one address only and cannot be split", external)
	}
	bits := external.Bits() + 1
	return netip.PrefixFrom(external.Addr(), bits), netip.PrefixFrom(netipx.PrefixLastIP(external), bits).Masked(), nil
}

// ExternalMapping maps a cluster's internal CIDR to the lower half of its external
// CIDR: the addresses by which a peer knows the nodes and gateways.
func ExternalMapping(internal, external netip.Prefix) (Mapping, error) {
	nodes, _, err := SplitExternal(external)
	if err != nil {
		return Mapping{}, err
	}
	m := Mapping{Real: internal, Mapped: nodes}
	if err := m.Validate(); err != nil {
		return Mapping{}, fmt.Errorf("map the internal CIDR %s to the lower half of the external CIDR %s: %w", internal, external, err)
	}
	return m, nil
}

// HostAddr returns the address by which a peer knows the host with number n, 1 to
// MaxHost: in the upper half of the external CIDR.
func HostAddr(external netip.Prefix, n int) (netip.Addr, error) {
	if n < 1 || n > MaxHost {
		return netip.Addr{}, fmt.Errorf("host number %d is not between 1 and %d", n, MaxHost)
	}
	_, hosts, err := SplitExternal(external)
	if err != nil {
		return netip.Addr{}, err
	}
	return offset(hosts, n)
}

// HostNumber chooses a number for a host's address that is not taken. It is the same one
// each time if that is free, so a host that is exposed again keeps its mapped address.
// It returns an error if all are taken.
func HostNumber(host netip.Addr, taken func(n int) bool) (int, error) {
	for i := range MaxHost {
		if n := (hash(host.AsSlice())+i)%MaxHost + 1; !taken(n) {
			return n, nil
		}
	}
	return 0, fmt.Errorf("all %d addresses for hosts are taken", MaxHost)
}

// MaxHost is the highest number of a host outside of the cluster.
const MaxHost = 1<<numberBits - 2

// neverPods are the ranges that no pod can have: the kernel does not route them.
func neverPods() []netip.Prefix {
	return prefixes("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "::/127", "fe80::/10", "ff00::/8")
}

func prefixes(ss ...string) []netip.Prefix {
	return lo.Map(ss, func(s string, _ int) netip.Prefix { return netip.MustParsePrefix(s) })
}

// The errors of this package match one of these, where they are about a range.
var (
	// ErrInvalid is a prefix that cannot be what it was given as.
	ErrInvalid = errors.New("invalid range")
	// ErrTooLarge says that a peer has more addresses than it may.
	ErrTooLarge = errors.New("too many addresses")
	// ErrConflict is a wish that cannot be met because something uses the range.
	ErrConflict = errors.New("range in use")
	// ErrExhausted says that the pools have no free range of a length.
	ErrExhausted = errors.New("no free range")
)

// rangeError is a text for the user, which matches one of the errors above.
type rangeError struct {
	kind error
	text string
}

func (e *rangeError) Error() string { return e.text }

func (e *rangeError) Unwrap() error { return e.kind }

func errorf(kind error, format string, args ...any) error {
	return &rangeError{kind, fmt.Sprintf(format, args...)}
}
