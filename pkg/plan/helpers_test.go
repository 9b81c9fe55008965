package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/test/kit"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

var cidr, mapping = kit.CIDR, kit.Mapping

func facts(prefixes ...string) Ranges {
	var out Ranges
	for _, p := range prefixes {
		out = append(out, Range{Value: prefix(p), Source: "the test"})
	}
	return out
}

// newFacts is a cluster with pods and services, and one node.
func newFacts(name string, pods []string, services, nodes string) *FactSheet {
	if len(pods) == 0 {
		pods = []string{"10.1.0.0/16"}
	}
	f := Facts{ClusterID: "id-of-" + name, Name: name, PodCIDRs: facts(pods...)}
	if services != "" {
		f.ServiceCIDRs = facts(services)
	}
	if nodes != "" {
		f.NodeCIDRs = facts(nodes)
		f.Nodes = []Node{{Name: name + "-1", UID: "uid-of-" + name, InternalIPs: []netip.Addr{prefix(nodes).Addr().Next().Next()}, Ready: true, RunsAgents: true}}
	}
	return &FactSheet{
		Facts: f, Planes: map[int32]PlaneFacts{0: {PublicKey: "public key of " + name}}, Ledger: NewLedger(ipam.DefaultInternal()),
	}
}

// withEntry gives the cluster's ledger an entry for the peer.
func (f *FactSheet) withEntry(peer *FactSheet, index int32) *v1alpha1.PeerAllocation {
	f.Ledger.Spec.Peers = append(f.Ledger.Spec.Peers, v1alpha1.PeerAllocation{ClusterID: peer.ClusterID, Name: ObjectName(peer.Name), Index: index})
	return &f.Ledger.Spec.Peers[len(f.Ledger.Spec.Peers)-1]
}

func report(nodeName, address string, kernel *v1alpha1.KernelFacts) v1alpha1.NodeNetwork {
	return v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status:     v1alpha1.NodeNetworkStatus{Address: v1alpha1.IP{Addr: netip.MustParseAddr(address)}, Kernel: kernel},
	}
}

// kindOf returns the Kind of an Error, and says if err is none.
func kindOf(t *testing.T, err error) failure.Kind {
	t.Helper()
	e := (*failure.Error)(nil)
	if !errors.As(err, &e) {
		t.Fatalf("want an Error, got %T: %v", err, err)
	}
	return e.Kind
}

func overlapping(all []ipam.Usage, p netip.Prefix) error {
	for _, u := range all {
		if u.Prefix.Overlaps(p) {
			return fmt.Errorf("%s overlaps %s", p, u)
		}
	}
	return nil
}
