package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

func TestNameServersAreReported(t *testing.T) {
	for text, want := range map[string][]string{
		"": nil,
		"search a b\nnameserver 10.20.0.10\n  nameserver\t192.0.2.53 # comment\noptions ndots:5\n": {"10.20.0.10", "192.0.2.53"},
		"nameserver 2001:db8::53\nnameserver ::ffff:10.0.0.2":                                      {"2001:db8::53", "10.0.0.2"},
		// These are on this node or its link.
		"nameserver 127.0.0.53\nnameserver 169.254.169.253\nnameserver fe80::1%eth0\nnameserver ::1\nnameserver 0.0.0.0": nil,
		"nameserver\nnameserver x\n#nameserver 10.0.0.1\nNAMESERVER 10.0.0.1\nnameserver 2001:db8::1%eth0":               nil,
		strings.Repeat("nameserver 10.0.0.1\n", 100):                                                                     slices.Repeat([]string{"10.0.0.1"}, maxResolvers),
	} {
		file := filepath.Join(t.TempDir(), "resolv.conf")
		kit.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		var got []string
		for _, ip := range readResolvers(file) {
			got = append(got, ip.String())
		}
		kit.ErrorIf(t, !slices.Equal(got, want), "%q: got %v, want %v", text, got, want)
	}
	if got := readResolvers(filepath.Join(t.TempDir(), "missing")); got != nil {
		t.Errorf("without a file: %v", got)
	}
}

// If peers' nodes have more addresses in ranges of peers than a node has room for, each peering has an equal share.
// Addresses that are called come first. Omissions are reported, and the node stays Ready.
func TestMoreEndsThanRoom(t *testing.T) {
	large := peering("b", 1, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.0.0.0/15", "10.30.0.0/15"), "10.70.0.0/18")
	small := peering("c", 2, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.0.0.0/16", "10.40.0.0/16"), "10.71.0.0/18")
	const share = maxEndpoints / 2
	next := addr("10.30.0.0")
	var addrs []v1alpha1.IP
	for range share {
		addrs = append(addrs, v1alpha1.IP{Addr: next})
		next = next.Next()
	}
	called, other := addr("10.31.255.255"), addr("10.40.0.9")
	large.Spec.Remote.NodeIPs, large.Status.Planes[0].Endpoint = addrs, called.String()+":51840"
	large.Status.Planes[0].Remote = &v1alpha1.RemoteAnnouncement{NodeIPs: addrs} // the same addresses again
	small.Spec.Remote.NodeIPs = []v1alpha1.IP{{Addr: other}, {}}
	got, err := desire(local{name: "n1", address: addr("10.80.0.7")}, []v1alpha1.Peering{large, small})
	if err != nil || len(got.leftOut) != 1 || !strings.HasPrefix(got.leftOut[0], "peering b: 1 addresses of its nodes") {
		t.Errorf("left out: %q, error %v", got.leftOut, err)
	}
	a := newAgent(t)
	a.applied.want = got
	s, _ := a.Status("")
	if c := s.Conditions[0]; c.Status != metav1.ConditionTrue || c.Reason != "AppliedWithProblems" || !strings.HasPrefix(c.Message, got.leftOut[0]) {
		t.Errorf("one peer decides that the node is %+v", c)
	}
	endpoints := got.nat.Endpoints
	if len(endpoints) != share+1 || !slices.Contains(endpoints, called) || !slices.Contains(endpoints, other) {
		t.Errorf("%d addresses, with %s: %v, with %s: %v", len(endpoints), called, slices.Contains(endpoints, called), other, slices.Contains(endpoints, other))
	}
	large.Spec.Remote.NodeIPs, large.Status.Planes[0].Remote = addrs[1:], nil
	if got, err = desire(local{name: "n1", address: addr("10.80.0.7")}, []v1alpha1.Peering{large, small}); err != nil || len(got.nat.Endpoints) != share+1 || got.leftOut != nil {
		t.Errorf("with as many as allowed: %d, %q, %v", len(got.nat.Endpoints), got.leftOut, err)
	}
}

// Stripping Peerings does not change what a node agent does.
func TestStrippedPeerings(t *testing.T) {
	full := func() v1alpha1.Peering {
		p := peering("b", 1, mapping("10.244.0.0/16", "10.20.0.0/16"), mapping("10.0.0.0/15", "10.30.0.0/15"), "10.70.0.0/18")
		p.Status.Conditions = []metav1.Condition{{Message: "long"}}
		s := &p.Status.Planes[0]
		s.Message, s.RTTMicroseconds, s.LossPercent, s.LastHandshake = "long", 500, 3, new(metav1.Unix(1e9, 0))
		p.Status.Planes[0].Remote = &v1alpha1.RemoteAnnouncement{NodeIPs: []v1alpha1.IP{{Addr: addr("10.30.0.1")}}}
		return p
	}
	stripped := full()
	strip(&stripped)
	if s := stripped.Status.Planes[0]; s.RTTMicroseconds+int64(s.LossPercent) > 0 || s.LastHandshake != nil {
		t.Errorf("not stripped: %+v", s)
	}
	if text := fmt.Sprintf("%+v", stripped); strings.Contains(text, "long") {
		t.Errorf("not stripped: %s", text)
	}
	me := local{name: "n1", address: addr("10.80.0.7")}
	want, wantErr := desire(me, []v1alpha1.Peering{full()})
	got, err := desire(me, []v1alpha1.Peering{stripped})
	if diff := cmp.Diff(want, got, append(compare, cmp.AllowUnexported(desired{}))); diff != "" || err != nil || wantErr != nil {
		t.Error(diff, err, wantErr)
	}
}
