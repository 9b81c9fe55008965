package v1alpha1

import (
	"encoding/json"
	"net/netip"

	"go4.org/netipx"
)

// CIDR is a prefix that reads and writes as a string, e.g. "10.244.0.0/16".
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:MaxLength=43
// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="must be a prefix without host bits, e.g. 10.244.0.0/16"
// +kubebuilder:object:generate=false
type CIDR struct{ netip.Prefix }

// NewCIDRs wraps prefixes.
func NewCIDRs(prefixes ...netip.Prefix) []CIDR {
	out := make([]CIDR, 0, len(prefixes))
	for _, p := range prefixes {
		out = append(out, CIDR{p})
	}
	return out
}

// Prefixes unwraps those that are valid.
func Prefixes(cidrs []CIDR) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(cidrs))
	for _, c := range cidrs {
		if c.IsValid() {
			out = append(out, c.Prefix)
		}
	}
	return out
}

// SetOf is what prefixes cover, those that are valid. To look up an address in it takes about as
// long for many prefixes as for few.
func SetOf(prefixes []netip.Prefix) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(p)
	}
	s, _ := b.IPSet() // the error is about prefixes that are not valid
	return s
}

// DeepCopyInto copies the value.
func (c *CIDR) DeepCopyInto(out *CIDR) { *out = *c }

// MarshalJSON writes a string, which is empty for the zero value.
func (c CIDR) MarshalJSON() ([]byte, error) { return json.Marshal(c.Prefix) }

// UnmarshalJSON reads a string. A text that is no prefix, or has host bits, becomes the
// zero value, which is not valid. So one bad value does not keep a reader from the rest of
// a list. The schema refuses such values where they are written.
func (c *CIDR) UnmarshalJSON(b []byte) error {
	var p netip.Prefix
	if json.Unmarshal(b, &p) != nil || p != p.Masked() {
		p = netip.Prefix{}
	}
	c.Prefix = p
	return nil
}

// IP is an address that reads and writes as a string. The schema's isIP refuses zones, and
// IPv4 addresses that are written as IPv6.
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:MaxLength=39
// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an address, without a zone, e.g. 10.244.0.7"
// +kubebuilder:object:generate=false
type IP struct{ netip.Addr }

// DeepCopyInto copies the value.
func (i *IP) DeepCopyInto(out *IP) { *out = *i }

// MarshalJSON writes a string, which is empty for the zero value.
func (i IP) MarshalJSON() ([]byte, error) { return json.Marshal(i.Addr) }

// UnmarshalJSON reads a string. What is no address is read as the zero value, as
// with CIDR.
func (i *IP) UnmarshalJSON(b []byte) error {
	var a netip.Addr
	if json.Unmarshal(b, &a) != nil || a.Zone() != "" {
		a = netip.Addr{}
	}
	i.Addr = a
	return nil
}
