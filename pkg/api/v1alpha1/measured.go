package v1alpha1

import (
	"encoding/json"
	"math"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Measured is what a gateway measures that changes all the time. It is in an annotation of its Lease, which is written anyway: a status
// that holds it would be written as often as the Lease, and sent to all nodes.
//
// +kubebuilder:object:generate=false
type Measured struct {
	// JitterMicroseconds is the mean difference between the round trip times of two probes, one after the other.
	JitterMicroseconds int64 `json:"jitterMicroseconds,omitempty"`
	// SentBytes and ReceivedBytes are those of the tunnel, encrypted, since the gateway's pod has started.
	SentBytes     int64 `json:"sentBytes"`
	ReceivedBytes int64 `json:"receivedBytes"`
	// RTTMicroseconds, LossPercent and LastHandshake are newer than what the Peering's status has by the same names: a change of
	// the first two alone is not written there. LossPercent is nil of gateways that write it there. LastHandshake is by the gateway's clock.
	RTTMicroseconds int64        `json:"rttMicroseconds,omitempty"`
	LossPercent     *int32       `json:"lossPercent,omitempty"`
	LastHandshake   *metav1.Time `json:"lastHandshake,omitempty"`
}

// Newest is the status with what is newer here. m may be nil.
func (m *Measured) Newest(s PlaneStatus) PlaneStatus {
	if m != nil && m.LossPercent != nil {
		s.RTTMicroseconds, s.LossPercent, s.LastHandshake = m.RTTMicroseconds, *m.LossPercent, m.LastHandshake
	}
	return s
}

// String is the annotation's value.
func (m Measured) String() string {
	raw, _ := json.Marshal(m) // numbers can always be written
	return string(raw)
}

// ParseMeasured reads the annotation's value. It returns nil for anything else: whoever has an agent's account may write it.
func ParseMeasured(s string) *Measured {
	var m Measured
	if len(s) > 1024 || json.Unmarshal([]byte(s), &m) != nil || min(m.JitterMicroseconds, m.SentBytes, m.ReceivedBytes, m.RTTMicroseconds) < 0 ||
		max(m.JitterMicroseconds, m.RTTMicroseconds) > math.MaxInt32 || m.LossPercent != nil && (*m.LossPercent < 0 || *m.LossPercent > 100) {
		return nil
	}
	return &m
}
