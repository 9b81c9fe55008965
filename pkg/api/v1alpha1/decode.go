package v1alpha1

import (
	"encoding/json"
	"net/netip"

	"github.com/samber/lo"
	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"
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
	return lo.Map(prefixes, func(p netip.Prefix, _ int) CIDR { return CIDR{p} })
}

// Prefixes unwraps those that are valid.
func Prefixes(cidrs []CIDR) []netip.Prefix {
	return lo.FilterMap(cidrs, func(c CIDR, _ int) (netip.Prefix, bool) { return c.Prefix, c.IsValid() })
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

// UnmarshalJSON reads a Peering as far as it can be read (see decode).
func (p *Peering) UnmarshalJSON(b []byte) error {
	return decode(b, &p.TypeMeta, &p.ObjectMeta, &p.Spec, &p.Status)
}

// UnmarshalJSON reads a NodeNetwork as far as it can be read (see decode).
func (n *NodeNetwork) UnmarshalJSON(b []byte) error {
	return decode(b, &n.TypeMeta, &n.ObjectMeta, &struct{}{}, &n.Status)
}

// decode reads an object of which one value, such as a time or a number, may be none that its
// field has room for. A whole list or watch fails with an object that cannot be read, and all
// other objects with it. So of such a status it keeps what was read, and of such a spec nothing,
// which Check refuses. The schema refuses both where they are written.
func decode[S, T any](b []byte, kind *metav1.TypeMeta, meta *metav1.ObjectMeta, spec *S, status *T) error {
	var o struct {
		metav1.TypeMeta `json:",inline"`
		ObjectMeta      metav1.ObjectMeta `json:"metadata"`
		Spec            json.RawMessage   `json:"spec"`
		Status          json.RawMessage   `json:"status"`
	}
	if err := kjson.Unmarshal(b, &o); err != nil {
		return err
	}
	var whole S
	var part T
	if kjson.Unmarshal(o.Spec, &whole) != nil {
		whole = *new(S)
	}
	_ = kjson.Unmarshal(o.Status, &part) // what follows the value that cannot be read is left out
	*kind, *meta, *spec, *status = o.TypeMeta, o.ObjectMeta, whole, part
	return nil
}
