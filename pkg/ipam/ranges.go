package ipam

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"

	"github.com/samber/lo"
	"go4.org/netipx"
)

const (
	// InternalBits is the length of a cluster's internal CIDR: the addresses of its nodes and gateways in the overlay.
	InternalBits = 19
	// ExternalBits is the length of a cluster's external CIDR, as peers know it.
	ExternalBits = 18
)

// Usage is a prefix in use, and its user, as errors and reasons show it.
type Usage struct {
	Prefix netip.Prefix
	// Owner completes "used by …", e.g. "the pods of this cluster".
	Owner string
}

func (u Usage) String() string { return u.Prefix.String() + " (" + u.Owner + ")" }

// MinRouteBits is the length of the widest route of a node that no range of a peer may overlap with.
const MinRouteBits = 8

// DefaultPools returns the private ranges of RFC 1918, from which mapped ranges are chosen.
func DefaultPools() []netip.Prefix { return prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16") }

// IsPrivate reports whether all addresses of a prefix are for private networks: those of RFC 1918, RFC 6598 (shared,
// which clouds give to pods) and RFC 4193. Only such a range of a peer is kept. All other addresses belong to other
// networks, to which nodes and pods may connect.
func IsPrivate(p netip.Prefix) bool {
	return slices.ContainsFunc(privateRanges, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
}

// IsPrivateAddr reports the same for one address.
func IsPrivateAddr(a netip.Addr) bool {
	a = a.Unmap()
	return IsPrivate(netip.PrefixFrom(a, a.BitLen()))
}

var privateRanges = append(DefaultPools(), prefixes("100.64.0.0/10", "fc00::/7")...)

// DefaultInternal returns the preferred internal CIDR of a cluster.
func DefaultInternal() netip.Prefix { return netip.MustParsePrefix("10.80.0.0/19") }

// Reserved returns the ranges to which nothing is ever mapped.
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

// CommonRanges returns ranges that clusters have by default. They are allocated to another cluster only if nothing else
// is free, so that a later peer that has one of them can keep it.
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

// SplitExternal splits an external CIDR: the lower half maps 1:1 to the cluster's internal CIDR, the upper half is for
// addresses that are allocated one by one.
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

// ExternalMapping maps a cluster's internal CIDR to the lower half of its external CIDR: the addresses by which a peer
// knows the nodes and gateways.
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

// HostAddr returns the address by which a peer knows the host with number n, 1 to MaxHost: in the upper half of the
// external CIDR.
func HostAddr(external netip.Prefix, n int) (netip.Addr, error) {
	_, hosts, err := SplitExternal(external)
	if err != nil {
		return netip.Addr{}, err
	}
	return numbered(hosts, n, "host", n, 1, MaxHost)
}

// HostNumber returns a free number for a host's address. It prefers the same one each time, so a host that is exposed
// again keeps its mapped address. It returns an error if all are taken.
func HostNumber(host netip.Addr, taken func(n int) bool) (int, error) {
	for i := range MaxHost {
		if n := (hash(host.AsSlice())+i)%MaxHost + 1; !taken(n) {
			return n, nil
		}
	}
	return 0, fmt.Errorf("all %d addresses for hosts are taken", MaxHost)
}

// MaxHost is the highest number of a host outside the cluster.
const MaxHost = 1<<numberBits - 2

// unroutable returns the ranges that no pod can have: the kernel does not route them.
func unroutable() []netip.Prefix {
	return prefixes("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "::/127", "fe80::/10", "ff00::/8")
}

func prefixes(ss ...string) []netip.Prefix {
	return lo.Map(ss, func(s string, _ int) netip.Prefix { return netip.MustParsePrefix(s) })
}

// The internal CIDR of a cluster is divided by number: node numbers count up from its start, gateway numbers down from
// its end.
const (
	// MaxNode is the highest number of a node; the lowest is 1.
	MaxNode = 6143
	// MaxGateway is the highest number of a gateway; the lowest is 0.
	MaxGateway = (MaxPeering+1)*Planes - 1
	// Planes is the maximum number of planes of a peering.
	Planes = 4
	// MaxPeering is the highest index of a peering of one cluster; the lowest is 0. An internal range would have room for
	// all but one of the gateways of another peering.
	MaxPeering = 510

	gatewayZero = 1<<numberBits - 2
	// numberBits is the number of address bits for numbers, in either family.
	numberBits = 32 - InternalBits
	// nodeBits is the number of VNI bits for the node's number.
	nodeBits = 13
)

// NodeAddr returns the overlay address of the node with number n, 1 to MaxNode.
func NodeAddr(internal netip.Prefix, n int) (netip.Addr, error) {
	return numbered(internal, n, "node", n, 1, MaxNode)
}

// GatewayAddr returns the overlay address of the gateway with number g, 0 to MaxGateway.
func GatewayAddr(internal netip.Prefix, g int) (netip.Addr, error) {
	return numbered(internal, gatewayZero-g, "gateway", g, 0, MaxGateway)
}

// NodeNumber is the inverse of NodeAddr.
func NodeNumber(internal netip.Prefix, addr netip.Addr) (int, error) {
	if err := checkInternal(internal); err != nil {
		return 0, err
	}
	b := addr.AsSlice()
	if internal.Contains(addr) {
		if n := int(binary.BigEndian.Uint16(b[len(b)-2:])) % (1 << numberBits); n >= 1 && n <= MaxNode {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%s is not a node's address in %s", addr, internal)
}

// GatewayNumber returns the number of the gateway of one plane of a peering: index 0 to MaxPeering, plane 0 to Planes-1.
func GatewayNumber(index, plane int) (int, error) {
	if index < 0 || index > MaxPeering || plane < 0 || plane >= Planes {
		return 0, fmt.Errorf("peering index %d, plane %d has no gateway number", index, plane)
	}
	return index*Planes + plane, nil
}

// VNI returns the 24-bit identifier of the link between a gateway and a node. It differs for each pair, so it is unique
// on both ends.
func VNI(gateway, node int) (uint32, error) {
	if gateway < 0 || gateway > MaxGateway || node < 1 || node > MaxNode {
		return 0, fmt.Errorf("gateway %d and node %d have no VNI", gateway, node)
	}
	return uint32(gateway)<<nodeBits | uint32(node), nil
}

func checkInternal(internal netip.Prefix) error {
	if internal.Addr().BitLen()-internal.Bits() != numberBits || internal != internal.Masked() {
		return fmt.Errorf("internal CIDR %s is not a range of %d bits, which is a /%d of IPv4", internal, numberBits, InternalBits)
	}
	return nil
}

// numbered returns the address at an offset in a range of numberBits. It is for the object of a kind with number n, which
// must be between first and last.
func numbered(internal netip.Prefix, offset int, kind string, n, first, last int) (netip.Addr, error) {
	if n < first || n > last {
		return netip.Addr{}, fmt.Errorf("%s number %d is not between %d and %d", kind, n, first, last)
	}
	if err := checkInternal(internal); err != nil {
		return netip.Addr{}, err
	}
	b := internal.Addr().AsSlice()
	end := b[len(b)-2:]
	binary.BigEndian.PutUint16(end, binary.BigEndian.Uint16(end)|uint16(offset))
	addr, _ := netip.AddrFromSlice(b)
	return addr, nil
}

// NodeCandidate returns the i-th number that a node tries, from 0. The numbers depend only on the node's name, so that it
// gets the same one again if possible. The step between them differs by node. With the same step for all, nodes of a
// large cluster would try the same numbers one after the other.
func NodeCandidate(name string, i int) int {
	h := hash([]byte(name))
	step := 1 + h/MaxNode%(MaxNode-1) // MaxNode is prime, so all are tried
	return (h+i*step)%MaxNode + 1
}

func hash(name []byte) int {
	h := fnv.New32a()
	h.Write(name)
	return int(h.Sum32())
}

// Mapping translates the addresses of one prefix 1:1 to those of another one of the same length: it replaces the network
// bits and keeps the host bits.
type Mapping struct {
	// Real is the prefix in its own cluster.
	Real netip.Prefix `json:"real"`
	// Mapped is the prefix by which the other cluster knows it.
	Mapped netip.Prefix `json:"mapped"`
}

// Validate returns an error unless both prefixes are valid, without host bits, and of one family and length. The error
// matches ErrInvalid.
func (m Mapping) Validate() error {
	return cmp.Or(checkPrefix(m.Real), checkPrefix(m.Mapped), sameShape(m.Real, m.Mapped))
}

// Translate returns the mapped address of a real one. It reports false for an address outside Real, and for an invalid
// mapping.
func (m Mapping) Translate(addr netip.Addr) (netip.Addr, bool) {
	from, to := m.Real, m.Mapped
	// Contains is false for addresses with a zone and for the other family, including IPv4-mapped IPv6 addresses.
	if !from.Contains(addr) || !to.IsValid() || from.Bits() != to.Bits() || from.Addr().BitLen() != to.Addr().BitLen() {
		return netip.Addr{}, false
	}
	network, out := to.Addr().AsSlice(), addr.AsSlice()
	for i, mask := range net.CIDRMask(to.Bits(), addr.BitLen()) {
		out[i] = network[i]&mask | out[i]&^mask
	}
	return netip.AddrFromSlice(out)
}

// Reverse returns the real address of a mapped one. It reports false for an address outside Mapped, and for an invalid
// mapping.
func (m Mapping) Reverse(addr netip.Addr) (netip.Addr, bool) { return m.inverse().Translate(addr) }

func (m Mapping) inverse() Mapping { return Mapping{Real: m.Mapped, Mapped: m.Real} }

// String returns "real" or "real -> mapped".
func (m Mapping) String() string {
	return m.Real.String() + lo.Ternary(m.Real == m.Mapped, "", " -> "+m.Mapped.String())
}

// Mappings are the mappings of several ranges of one cluster.
type Mappings []Mapping

// Translate returns the mapped address of a real one, or reports false if no real prefix contains it.
func (ms Mappings) Translate(addr netip.Addr) (netip.Addr, bool) {
	for _, m := range ms {
		if a, ok := m.Translate(addr); ok {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// Reverse returns the real address of a mapped one, or reports false if no mapped prefix contains it.
func (ms Mappings) Reverse(addr netip.Addr) (netip.Addr, bool) {
	return Mappings(lo.Map(ms, func(m Mapping, _ int) Mapping { return m.inverse() })).Translate(addr)
}

// Mapped returns the mapped prefixes, in the order of ms.
func (ms Mappings) Mapped() []netip.Prefix {
	return lo.Map(ms, func(m Mapping, _ int) netip.Prefix { return m.Mapped })
}

// checkPrefix returns why p cannot be used as a range.
func checkPrefix(p netip.Prefix) error {
	switch {
	case !p.IsValid():
		return errorf(ErrInvalid, "the given range is not a prefix")
	case p != p.Masked():
		return errorf(ErrInvalid, "%s has host bits; did you mean %s?", p, p.Masked())
	case p.Addr().Is4In6():
		return errorf(ErrInvalid, "%s is an IPv4 range written as IPv6", p)
	}
	return nil
}

// sameShape returns why to cannot be the mapped prefix of from.
func sameShape(from, to netip.Prefix) error {
	if from.Addr().Is4() != to.Addr().Is4() {
		return errorf(ErrInvalid, "%s and %s are of different families", to, from)
	}
	if from.Bits() != to.Bits() {
		return errorf(ErrInvalid, "%s and %s have different lengths: translation is 1:1, so both must be a /%d", to, from, from.Bits())
	}
	return nil
}

// Translation holds the addresses by which a peer knows a cluster: its pods, its nodes by their overlay addresses, and
// single hosts outside.
type Translation struct {
	Pods  Mappings `json:"pods"`
	Nodes Mapping  `json:"nodes"`
	Hosts Mappings `json:"hosts,omitempty"`
}

func (t Translation) all() Mappings { return slices.Concat(t.Pods, Mappings{t.Nodes}, t.Hosts) }

// Translate returns the address by which the peer knows an address of the cluster. It reports false for one that the peer
// does not know.
func (t Translation) Translate(addr netip.Addr) (netip.Addr, bool) { return t.all().Translate(addr) }

// Reverse returns the real address behind one by which the peer knows something in the cluster.
func (t Translation) Reverse(addr netip.Addr) (netip.Addr, bool) { return t.all().Reverse(addr) }

// Errors about a range match one of these.
var (
	// ErrInvalid means that a prefix is not valid for its purpose.
	ErrInvalid = errors.New("invalid range")
	// ErrTooLarge means that a peer has more addresses than it may.
	ErrTooLarge = errors.New("too many addresses")
	// ErrConflict means that a wish cannot be met because the range is in use.
	ErrConflict = errors.New("range in use")
	// ErrExhausted means that the pools have no free range of a length.
	ErrExhausted = errors.New("no free range")
)

// rangeError is an error with a text for the user that matches one of the errors above.
type rangeError struct {
	kind error
	text string
}

func (e *rangeError) Error() string { return e.text }

func (e *rangeError) Unwrap() error { return e.kind }

func errorf(kind error, format string, args ...any) error {
	return &rangeError{kind, fmt.Sprintf(format, args...)}
}
