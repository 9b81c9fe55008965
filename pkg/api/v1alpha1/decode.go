package v1alpha1

import (
	stdjson "encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
)

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
		ObjectMeta      metav1.ObjectMeta  `json:"metadata"`
		Spec            stdjson.RawMessage `json:"spec"`
		Status          stdjson.RawMessage `json:"status"`
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return err
	}
	var whole S
	var part T
	if json.Unmarshal(o.Spec, &whole) != nil {
		whole = *new(S)
	}
	_ = json.Unmarshal(o.Status, &part) // what follows the value that cannot be read is left out
	*kind, *meta, *spec, *status = o.TypeMeta, o.ObjectMeta, whole, part
	return nil
}
