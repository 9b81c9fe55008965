package v1alpha1

import (
	"encoding/json"
	"math"
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
}

// String is the annotation's value.
func (m Measured) String() string {
	raw, _ := json.Marshal(m) // numbers can always be written
	return string(raw)
}

// ParseMeasured reads the annotation's value. It returns nil for anything else: whoever has an agent's account may write it.
func ParseMeasured(s string) *Measured {
	var m Measured
	if len(s) > 1024 || json.Unmarshal([]byte(s), &m) != nil || min(m.JitterMicroseconds, m.SentBytes, m.ReceivedBytes) < 0 || m.JitterMicroseconds > math.MaxInt32 {
		return nil
	}
	return &m
}
