package v1alpha1_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// What can be read of an object can be used: no method panics, and it is written as it was read.
func FuzzObjects(f *testing.F) {
	raw, _ := json.Marshal(somePeering())
	f.Add(raw)
	f.Add([]byte(`{"metadata":{"managedFields":[{"time":"x"}]},"status":{"address":"10.80.0.1","podIPs":["::ffff:1.2.3.4",""],"gateways":[{"peering":"b","plane":1}]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, n, c := &v1alpha1.Peering{}, &v1alpha1.NodeNetwork{}, &v1alpha1.ClusterNetwork{}
		if json.Unmarshal(raw, p) == nil {
			if p.Validate() == nil {
				for _, r := range p.RemoteRanges() {
					kit.ErrorIf(t, !r.IsValid(), "%v", p.RemoteRanges())
				}
			}
			again := &v1alpha1.Peering{}
			written, err := json.Marshal(p)
			kit.ErrorIf(t, err != nil || json.Unmarshal(written, again) != nil || (again.Validate() == nil) != (p.Validate() == nil), "written as %s, %v", written, err)
		}
		if json.Unmarshal(raw, n) == nil {
			_, _ = n.LeaseName(), n.Problem()
			_ = p.OutsidePodMessage([]v1alpha1.NodeNetwork{*n})
		}
		if json.Unmarshal(raw, c) == nil {
			_ = c.DeletedByHand([]v1alpha1.Peering{*p})
		}
	})
}

// An endpoint is a host and a port, which WireGuard's configuration can contain.
func FuzzEndpoint(f *testing.F) {
	for _, s := range []string{"192.0.2.1:1", "[2001:db8::1]:65535", "gateway.example:51840", "[fe80::1%x\nallowed_ip=0.0.0.0/0]:51840", "192.0.2.300:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, port, err := v1alpha1.SplitEndpoint(s)
		if err != nil {
			return
		}
		addr, addrErr := netip.ParseAddr(host)
		isName := !strings.ContainsFunc(host, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-", r)
		})
		kit.ErrorIf(t, port == 0 || addrErr == nil && addr.Zone() != "" || addrErr != nil && !isName, "%q is %q, %d", s, host, port)
	})
}

// Measurements that an agent wrote are in their bounds.
func FuzzMeasurements(f *testing.F) {
	f.Add(`{"rtt":7,"loss":3}`)
	f.Add(v1alpha1.Measurements{RTTMicroseconds: 1, LossPercent: new(int32(100)), SentBytes: 5}.String())
	f.Fuzz(func(t *testing.T, s string) {
		if m := v1alpha1.ParseMeasurements(s); m != nil {
			got := m.Merge(v1alpha1.PlaneStatus{})
			kit.ErrorIf(t, got.RTTMicroseconds < 0 || got.LossPercent < 0 || got.LossPercent > 100 || v1alpha1.ParseMeasurements(m.String()) == nil, "%q: %+v", s, m)
		}
	})
}
