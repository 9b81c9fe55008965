package schema_test

import (
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/schema"
)

// encode is what a client sends.
func encode(t *testing.T, obj any) []byte {
	t.Helper()
	raw, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// planned are the objects of both sides of a plan.
func planned(t *testing.T) (out []client.Object) {
	t.Helper()
	facts := func(name, pods, nodeIP string) plan.FactSheet {
		f := plan.FactSheet{Facts: plan.Facts{
			ClusterID: "id-of-" + strconv.Itoa(len(name)), Name: name, PodCIDRs: plan.Ranges{{Value: netip.MustParsePrefix(pods), Source: "the test"}},
			Nodes: []plan.Node{{Name: name + "-1", UID: "1", InternalIPs: []netip.Addr{netip.MustParseAddr(nodeIP)}, Ready: true, RunsAgents: true}},
		}}
		f.Overrides.Endpoints = []string{nodeIP + ":30001"}
		f.Version, f.DefaultImage = "v0.1.0", "image"
		return f
	}
	made, err := plan.Make(facts("arn:aws:eks:eu-west-1:1:cluster/a", "10.244.0.0/16", "172.18.0.2"), facts("./my kubeconfig#kind-b", "10.244.0.0/16", "172.18.0.3"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range made.Clusters {
		for i := range c.Peering.Spec.Planes {
			// These come about during the run.
			if plane := &c.Peering.Spec.Planes[i]; strings.HasPrefix(plane.RemotePublicKey, "<") {
				plane.RemotePublicKey = schema.Key
				plane.PresharedKey.Fingerprint = schema.Fingerprint
			}
		}
		out = append(out, c.Peering, c.Ledger)
	}
	return out
}
