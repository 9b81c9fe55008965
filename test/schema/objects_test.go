package schema_test

import (
	"encoding/json"
	"net/netip"
	"strconv"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
)

// encode is what a client sends.
func encode(t *testing.T, obj any) []byte {
	t.Helper()
	raw := kit.Must(json.Marshal(obj))(t)
	return raw
}

// planned are the objects of both sides of a plan.
func planned(t *testing.T) (out []client.Object) {
	t.Helper()
	var own [2]plan.Facts
	var intents [2]plan.Intent
	for i, of := range [][3]string{
		{"arn:aws:eks:eu-west-1:1:cluster/a", "10.244.0.0/16", "172.18.0.2"}, {"./my kubeconfig#kind-b", "10.244.0.0/16", "172.18.0.3"},
	} {
		name, pods, nodeIP := of[0], of[1], of[2]
		own[i] = plan.Facts{Network: plan.Network{
			ClusterID: "id-of-" + strconv.Itoa(len(name)), Name: name, PodCIDRs: plan.Ranges{{Value: netip.MustParsePrefix(pods), Source: "the test"}},
			Nodes: []plan.Node{{Name: name + "-1", UID: "1", InternalIPs: []netip.Addr{netip.MustParseAddr(nodeIP)}, Ready: true, RunsAgents: true}},
		}}
		intents[i] = plan.Intent{Version: "v0.1.0", DefaultImage: "image", Overrides: plan.Overrides{Endpoints: []string{nodeIP + ":30001"}}}
	}
	made := kit.Must(plan.MakePair(own, intents))(t)
	for _, c := range made.Clusters {
		for i := range c.Peering.Spec.Planes {
			// These come about during the run.
			plane := &c.Peering.Spec.Planes[i]
			plane.RemotePublicKey, plane.PresharedKey.Fingerprint = schema.Key, schema.Fingerprint
		}
		out = append(out, c.Peering, c.Ledger)
	}
	return out
}
