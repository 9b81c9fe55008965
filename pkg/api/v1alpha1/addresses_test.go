package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

var compare = cmp.Options{cmpopts.EquateComparable(v1alpha1.CIDR{}, v1alpha1.IP{}), cmpopts.EquateEmpty()}

func cidr(s string) v1alpha1.CIDR { return v1alpha1.CIDR{Prefix: netip.MustParsePrefix(s)} }

func ip(s string) v1alpha1.IP { return v1alpha1.IP{Addr: netip.MustParseAddr(s)} }

func TestCIDR(t *testing.T) {
	for _, s := range []string{"10.244.0.0/16", "0.0.0.0/0", "192.0.2.1/32", "fd00::/64", "::/0", "::1/128", ""} {
		var c v1alpha1.CIDR
		kit.NoError(t, json.Unmarshal([]byte(`"`+s+`"`), &c), "%q", s)
		kit.ErrorIf(t, c.IsValid() != (s != ""), "%q gives %v", s, c)
		if raw, err := json.Marshal(c); err != nil || string(raw) != `"`+s+`"` {
			t.Errorf("%q became %s, %v", s, raw, err)
		}
	}
	// One bad value must not make the rest of a list unreadable.
	for _, in := range []string{`"10.244.0.1/16"`, `"fd00::1/64"`, `"10.0.0.0"`, `"10.0.0.0/33"`, `"x"`, `7`, `" 10.0.0.0/8"`, `"fe80::%eth0/64"`, `{}`, `null`} {
		c := cidr("192.0.2.0/24")
		if err := json.Unmarshal([]byte(in), &c); err != nil || c.IsValid() {
			t.Errorf("%s: got %v, %v", in, c, err)
		}
	}
}

func TestIP(t *testing.T) {
	for _, s := range []string{"10.244.0.1", "fd00::1", "::", ""} {
		var i v1alpha1.IP
		kit.NoError(t, json.Unmarshal([]byte(`"`+s+`"`), &i), "%q", s)
		if raw, err := json.Marshal(i); err != nil || string(raw) != `"`+s+`"` || i.IsValid() != (s != "") {
			t.Errorf("%q became %s, %v", s, raw, err)
		}
	}
	for _, in := range []string{`"10.0.0.0/8"`, `"10.0.0"`, `"010.0.0.1"`, `"fe80::1%eth0"`, `"x"`, `7`, `[]`, `null`} {
		i := ip("192.0.2.1")
		if err := json.Unmarshal([]byte(in), &i); err != nil || i.IsValid() {
			t.Errorf("%s: got %v, %v", in, i, err)
		}
	}
}

func TestPrefixes(t *testing.T) {
	in := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/64")}
	cidrs := append(v1alpha1.NewCIDRs(in...), v1alpha1.CIDR{}) // unreadable values
	kit.Check(t, "cidrs", v1alpha1.Prefixes(cidrs), in, cmpopts.EquateComparable(netip.Prefix{}))
}

// TestEmptyStatus checks that optional addresses are omitted and not sent as "", which the schema's pattern refuses.
func TestEmptyStatus(t *testing.T) {
	for _, o := range []any{v1alpha1.PlaneStatus{}, v1alpha1.NodeGateway{}, v1alpha1.PeerAllocation{ClusterID: "1", Name: "b"}} {
		raw, err := json.Marshal(o)
		if err != nil || strings.Contains(string(raw), "IP") || strings.Contains(string(raw), "CIDR") || strings.Contains(string(raw), "source") {
			t.Errorf("got %s, %v", raw, err)
		}
	}
}

// somePeering returns a Peering with plane 1.
func somePeering() *v1alpha1.Peering {
	return &v1alpha1.Peering{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec: v1alpha1.PeeringSpec{
			Index: 3, Local: v1alpha1.LocalNetwork{InternalCIDR: cidr("10.80.0.0/19")}, Overlay: "Geneve",
			Planes: []v1alpha1.Plane{{Index: 1, Role: v1alpha1.Client}},
			Remote: v1alpha1.RemoteNetwork{Pods: []v1alpha1.CIDRMapping{{Real: cidr("10.244.0.0/16"), Mapped: cidr("10.20.0.0/16")}}, ExternalCIDR: cidr("10.70.0.0/18")},
		},
		Status: v1alpha1.PeeringStatus{
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionConnected, Status: metav1.ConditionTrue, LastTransitionTime: metav1.Unix(1_700_000_000, 0)}},
			Planes:     []v1alpha1.PlaneStatus{{Index: 1, PodIP: ip("10.244.0.1"), NodeName: "n", MTU: 1400, Connected: true, RTTMicroseconds: 1}},
		},
	}
}

func TestAccessors(t *testing.T) {
	p := somePeering()
	n := v1alpha1.NodeNetwork{Status: v1alpha1.NodeNetworkStatus{Gateways: []v1alpha1.NodeGateway{{PeeringName: "b", Plane: 1}}}}
	if p.Plane(1) != &p.Spec.Planes[0] || p.Plane(0) != nil || p.PlaneStatus(1) != &p.Status.Planes[0] || p.PlaneStatus(0) != nil {
		t.Error("planes")
	}
	kit.ErrorIf(t, n.Gateway("b", 1) != &n.Status.Gateways[0] || n.Gateway("b", 0) != nil || n.Gateway("c", 1) != nil, "gateways")
	want := []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("10.70.0.0/18")}
	kit.Check(t, "RemoteRanges", p.RemoteRanges(), want, cmpopts.EquateComparable(netip.Prefix{}))
}

// The readable rest of a partly unreadable object is kept, but not a part of its spec.
func TestWhatCanBeReadIsKept(t *testing.T) {
	p := somePeering()
	raw := kit.Must(json.Marshal(p))(t)
	for _, tt := range []struct{ good, bad string }{
		{`"mtu":1400`, `"mtu":3000000000`},
		{`"connected":true`, `"connected":"yes"`},
		{`"nodeName":"n"`, `"nodeName":{}`},
		{`"rttMicroseconds":1`, `"rttMicroseconds":1e20`},
		{`"lastTransitionTime":"`, `"lastTransitionTime":"t`},
	} {
		changed := strings.Replace(string(raw), tt.good, tt.bad, 1)
		kit.FatalIf(t, changed == string(raw), "%s is not in %s", tt.good, raw)
		got := &v1alpha1.Peering{Spec: v1alpha1.PeeringSpec{Index: 7}}
		if err := json.Unmarshal([]byte(changed), got); err != nil {
			t.Errorf("%s: %v", tt.bad, err)
		}
		diff := cmp.Diff(p.Spec, got.Spec, compare)
		kit.ErrorIf(t, diff != "" || got.Name != p.Name, "%s: the spec is another one:\n%s", tt.bad, diff)
		if s := got.PlaneStatus(1); strings.Contains(tt.good, "mtu") && (s == nil || s.PodIP != p.Status.Planes[0].PodIP || s.MTU != 0) {
			t.Errorf("%s: got %+v", tt.bad, s)
		}
	}
	for _, tt := range []struct{ good, bad string }{
		{`"index":3`, `"index":"3"`},
		{`"index":3`, `"index":3000000000`},
		{`"overlay"`, `"planes":{},"overlay"`},
		{`"role":"Client"`, `"role":[]`},
	} {
		got := &v1alpha1.Peering{}
		if err := json.Unmarshal([]byte(strings.Replace(string(raw), tt.good, tt.bad, 1)), got); err != nil || got.Validate() == nil || got.Spec.Overlay != "" {
			t.Errorf("%s: %v, %+v", tt.bad, err, got.Spec)
		}
		kit.ErrorIf(t, got.Name != p.Name || len(got.Status.Planes) != 1, "%s: got %+v", tt.bad, got)
	}
	// A value that is not an object is an error as before.
	if err := json.Unmarshal([]byte(`[]`), &v1alpha1.Peering{}); err == nil {
		t.Error("a list is accepted as a Peering")
	}
}

func TestSplitEndpoint(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1:1": "192.0.2.1 1", "[2001:db8::1]:65535": "2001:db8::1 65535", "Gateway.example:51840": "Gateway.example 51840",
		"192.0.2.1": "", "192.0.2.1:0": "", "192.0.2.1:65536": "", "[fe80::1%eth0]:1": "", "[fe80::1%x\nallowed_ip=0.0.0.0/0]:51840": "", "a b:1": "", "192.0.2.300:1": "", ":1": "", "a:http": "",
	} {
		host, port, err := v1alpha1.SplitEndpoint(in)
		got := fmt.Sprint(host, " ", port)
		kit.ErrorIf(t, (err == nil) != (want != "") || err == nil && got != want, "%q: got %s, %v", in, got, err)
	}
}
