package cli

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/peering"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func mapping(real, mapped string) ipam.Mapping {
	return ipam.Mapping{Real: netip.MustParsePrefix(real), Mapped: netip.MustParsePrefix(mapped)}
}

func views() []peering.View {
	addr := netip.MustParseAddr
	return []peering.View{
		{
			Cluster: "cluster-b", Peer: "cluster-a", PeerID: "id-a", State: peering.Degraded, Message: "1 of 2 nodes reach the peer",
			LocalPods: ipam.Mappings{mapping("10.244.0.0/16", "10.197.0.0/16"), mapping("10.245.0.0/16", "10.245.0.0/16")}, LocalNodes: mapping("10.80.0.0/19", "10.70.0.0/19"),
			RemotePods: ipam.Mappings{mapping("10.244.0.0/16", "10.20.0.0/16")}, Overlay: "geneve", WireGuard: "kernel", Role: "Server",
			Endpoint: "192.0.2.1:51840", Gateway: "b-1", MTU: 1390, RTT: new(1.254), LossPercent: 3, LastHandshake: new(now.Add(-83 * time.Second)), NodesReady: 1, NodesTotal: 2,
			Nodes: []peering.NodeView{
				{Name: "b-1", Address: addr("10.80.0.1"), SeenAs: addr("10.70.0.1"), Ready: true, RTT: new(0.5)},
				{Name: "b-2", Address: addr("10.80.0.2"), SeenAs: addr("10.70.0.2"), LossPercent: 100},
			},
		},
		{
			Cluster: "cluster-a", Peer: "cluster-b", PeerID: "id-b", State: peering.Unknown, Message: "the gateway has not reported yet",
			LocalPods: ipam.Mappings{mapping("10.244.0.0/16", "10.20.0.0/16")}, LocalNodes: mapping("10.80.0.0/19", "10.71.0.0/19"),
			Overlay: "vxlan", WireGuard: "userspace", Role: "Client", Nodes: []peering.NodeView{},
		},
	}
}

// What an agent writes does nothing to a terminal.
func TestPrintable(t *testing.T) {
	v := views()[:1]
	v[0].Message = "1 of 2 → é\n\x1b]0;title\a\u009b2J"
	var out bytes.Buffer
	if err := printTable(&out, v, now); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.ContainsAny(got, "\x1b\a\u009b") || !strings.Contains(got, "1 of 2 → é\n") {
		t.Errorf("%q", got)
	}
}

func TestPrintStatus(t *testing.T) {
	doc := statusDocument{Peerings: views()}
	for _, format := range []string{"json", "yaml"} {
		t.Run(format, func(t *testing.T) {
			var out bytes.Buffer
			if err := printStatus(&out, format, doc, nil); err != nil {
				t.Fatal(err)
			}
			golden(t, "status."+format, out.String())
		})
	}
	t.Run("table", func(t *testing.T) {
		var out bytes.Buffer
		if err := printTable(&out, views(), now); err != nil {
			t.Fatal(err)
		}
		golden(t, "status.txt", out.String())
	})
	t.Run("ranges", func(t *testing.T) {
		var out bytes.Buffer
		printRanges(&out, views()...)
		golden(t, "ranges.txt", out.String())
	})
}

func TestPrintStatusOfNothing(t *testing.T) {
	clusters := []*peering.Cluster{{Name: "a"}, {Name: "b"}}
	for format, want := range map[string]string{
		"table": "No peerings in a, b.\n", "json": "{\n  \"peerings\": []\n}\n", "yaml": "peerings: []\n",
	} {
		var out bytes.Buffer
		if err := printStatus(&out, format, statusDocument{Peerings: []peering.View{}}, clusters); err != nil || out.String() != want {
			t.Errorf("%s: got %q, %v", format, out.String(), err)
		}
	}
}

// TestStatusFields: all of the document's keys are written in one way.
func TestStatusFields(t *testing.T) {
	raw, err := json.Marshal(statusDocument{Peerings: views()})
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				if strings.ToUpper(k[:1]) == k[:1] {
					t.Errorf("key %q", k)
				}
				walk(x)
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(doc)
}

// TestTableNodes: the table and the message beneath it count the same nodes.
func TestTableNodes(t *testing.T) {
	v := views()[:1]
	v[0].Nodes, v[0].NodesReady, v[0].NodesTotal = v[0].Nodes[:1], 1, 2
	var out bytes.Buffer
	if err := printTable(&out, v, now); err != nil || !strings.Contains(out.String(), "1/2") {
		t.Errorf("got %v\n%s", err, out.String())
	}
}
