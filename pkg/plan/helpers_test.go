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

// newFacts returns a cluster with pods and services, and one node.
func newFacts(name string, pods []string, services, nodes string) *input {
	if len(pods) == 0 {
		pods = []string{"10.1.0.0/16"}
	}
	f := Network{ClusterID: "id-of-" + name, Name: name, PodCIDRs: facts(pods...)}
	if services != "" {
		f.ServiceCIDRs = facts(services)
	}
	if nodes != "" {
		f.NodeCIDRs = facts(nodes)
		f.Nodes = []Node{{Name: name + "-1", UID: "uid-of-" + name, InternalIPs: []netip.Addr{prefix(nodes).Addr().Next().Next()}, Ready: true, RunsAgents: true}}
	}
	return &input{facts: Facts{
		Network: f, Planes: map[int32]PlaneFacts{0: {PublicKey: "public key of " + name}}, Ledger: NewLedger("", ipam.DefaultInternal()),
	}}
}

// values returns the facts and the intents of both clusters.
func values(a, b *input) ([2]Facts, [2]Intent) {
	return [2]Facts{a.facts, b.facts}, [2]Intent{a.Intent, b.Intent}
}

// makeBoth plans both clusters.
func makeBoth(a, b *input) (*Plan, error) { return MakePair(values(a, b)) }

// chooseBoth plans both clusters without the lists of objects, which are large.
func chooseBoth(a, b *input) (*Plan, error) {
	own, intents := values(a, b)
	return exchangeOffers(own, intents, choose)
}

// decideBoth makes the decisions for both clusters.
func decideBoth(a, b *input) (out [2]decisions, err error) {
	offers, err := Offers(values(a, b))
	for i, f := range []*input{a, b} {
		if err == nil {
			out[i], err = f.decideLocal()
		}
		if err == nil {
			err = f.decide(&offers[i], &offers[1-i], &out[i])
		}
	}
	return out, err
}

// check returns an error if two clusters cannot be peered.
func check(a, b *input) error {
	return kit.Err(decideBoth(a, b))
}

// offerTo returns the first offer of one cluster to another one, which must succeed.
func (f *input) offerTo(reader *input) Offer {
	o, err := FirstOffer(f.facts, f.Intent, reader.facts.Network.ClusterID)
	if err != nil {
		panic(err)
	}
	return o
}

// allocate allocates ranges to the peer.
func allocate(own, peer *input) (changed bool, err error) {
	offer, err := FirstOffer(peer.facts, peer.Intent, own.facts.Network.ClusterID)
	if err != nil {
		return false, err
	}
	return Allocate(own.facts.Ledger, own.facts, offer)
}

// withEntry gives the cluster's ledger an entry for the peer.
func (f *input) withEntry(peer *input, index int32) *v1alpha1.PeerAllocation {
	f.facts.Ledger.Spec.Peers = append(f.facts.Ledger.Spec.Peers, v1alpha1.PeerAllocation{ClusterID: peer.facts.Network.ClusterID, Name: ObjectName(peer.facts.Network.Name), Index: index})
	return &f.facts.Ledger.Spec.Peers[len(f.facts.Ledger.Spec.Peers)-1]
}

func report(nodeName, address string, kernel *v1alpha1.KernelFacts) v1alpha1.NodeNetwork {
	return v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status:     v1alpha1.NodeNetworkStatus{Address: v1alpha1.IP{Addr: netip.MustParseAddr(address)}, Kernel: kernel},
	}
}

// kindOf returns the Kind of err, and fails the test if err is no Error.
func kindOf(t *testing.T, err error) failure.Kind {
	t.Helper()
	e := (*failure.Error)(nil)
	kit.FatalIf(t, !errors.As(err, &e), "want an Error, got %T: %v", err, err)
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
