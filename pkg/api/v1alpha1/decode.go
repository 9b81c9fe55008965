package v1alpha1

import (
	"encoding/json"
	"net/netip"

	"github.com/samber/lo"
	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"
)

// CIDR is a prefix with the JSON form of a string, e.g. "10.244.0.0/16".
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

// Prefixes unwraps the valid ones.
func Prefixes(cidrs []CIDR) []netip.Prefix {
	return lo.FilterMap(cidrs, func(c CIDR, _ int) (netip.Prefix, bool) { return c.Prefix, c.IsValid() })
}

// SetOf returns the addresses that the valid prefixes cover. The time to look up an address hardly depends on the number
// of prefixes.
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

// UnmarshalJSON reads a string. An invalid prefix, or one with host bits, becomes the zero value, which is not valid. So
// one bad value does not make the rest of a list unreadable. The schema refuses such values when they are written.
func (c *CIDR) UnmarshalJSON(b []byte) error {
	var p netip.Prefix
	if json.Unmarshal(b, &p) != nil || p != p.Masked() {
		p = netip.Prefix{}
	}
	c.Prefix = p
	return nil
}

// IP is an address with the JSON form of a string. The schema's isIP refuses zones, and IPv4 addresses in IPv6 form.
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

// UnmarshalJSON reads a string. An invalid address becomes the zero value, as with CIDR.
func (i *IP) UnmarshalJSON(b []byte) error {
	var a netip.Addr
	if json.Unmarshal(b, &a) != nil || a.Zone() != "" {
		a = netip.Addr{}
	}
	i.Addr = a
	return nil
}

// UnmarshalJSON reads the readable parts of a Peering (see decode).
func (p *Peering) UnmarshalJSON(b []byte) error {
	return decode(b, &p.TypeMeta, &p.ObjectMeta, &p.Spec, &p.Status)
}

// UnmarshalJSON reads the readable parts of a NodeNetwork (see decode).
func (n *NodeNetwork) UnmarshalJSON(b []byte) error {
	return decode(b, &n.TypeMeta, &n.ObjectMeta, &struct{}{}, &n.Status)
}

// decode reads an object that may contain a value, such as a time or a number, that does not fit its field. An unreadable
// object makes a whole list or watch fail, with all other objects in it. So decode keeps the readable part of such a
// status, and nothing of such a spec, which Check refuses. The schema refuses both when they are written.
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
	_ = kjson.Unmarshal(o.Status, &part) // what follows the unreadable value is left out
	*kind, *meta, *spec, *status = o.TypeMeta, o.ObjectMeta, whole, part
	return nil
}
