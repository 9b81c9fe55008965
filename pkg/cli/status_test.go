package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/output"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/status"
	"github.com/liqonet/liqonet/test/kit"
)

func mapping(real, mapped string) ipam.Mapping {
	return ipam.Mapping{Real: netip.MustParsePrefix(real), Mapped: netip.MustParsePrefix(mapped)}
}

func views() []status.View {
	addr := netip.MustParseAddr
	return []status.View{
		{
			Name: "cluster-a", Cluster: "cluster-b", ClusterID: "id-b", Peer: "cluster-a", PeerID: "id-a", State: status.Degraded, Message: "1 of 2 nodes reach the peer",
			LocalPods: ipam.Mappings{mapping("10.244.0.0/16", "10.197.0.0/16"), mapping("10.245.0.0/16", "10.245.0.0/16")}, LocalNodes: mapping("10.80.0.0/19", "10.70.0.0/19"),
			RemotePods: ipam.Mappings{mapping("10.244.0.0/16", "10.20.0.0/16")}, Overlay: "Geneve", PresharedKeyExchange: kube.Hybrid, PlanesMode: "Spread", NodesReady: 1, NodesTotal: 2,
			Conditions: []status.ConditionView{
				{Type: "Connected", Status: "True", Reason: "ProbesAnswered", Message: "probes through the tunnel are answered"},
				{Type: "Degraded", Status: "True", Reason: "PartlyReached", Message: "the peer is not reached from node b-2", Hint: "kubectl --context cluster-b -n liqonet-system get pods -o wide"},
			},
			Planes: []status.PlaneView{{
				Role: "Server", Backend: "Kernel", Endpoint: "192.0.2.1:51840", Node: "b-1", MTU: 1390, RTT: new(1.254), LossPercent: 3,
				Jitter: new(0.04), SentBytes: new(int64(999)), ReceivedBytes: new(int64(1234567890)), Version: "v0.2.0", HandshakeAge: new(int64(83)), KeyAge: new(int64(3 * 24 * 3600)), Connected: true,
			}},
			Nodes: []status.NodeView{
				{Name: "b-1", Address: addr("10.80.0.1"), SeenAs: addr("10.70.0.1"), Ready: true, Planes: []int32{0}, PlanesInUse: []int32{0}, RTT: new(0.5), Version: "v0.2.0"},
				{Name: "b-2", Address: addr("10.80.0.2"), SeenAs: addr("10.70.0.2"), Planes: []int32{}, PlanesInUse: []int32{}, LossPercent: 100},
			},
		},
		{
			Name: "cluster-b", Cluster: "cluster-a", ClusterID: "id-a", Peer: "cluster-b", PeerID: "id-b", State: status.Unknown, Message: "the gateway has not reported yet",
			LocalPods: ipam.Mappings{mapping("10.244.0.0/16", "10.20.0.0/16")}, LocalNodes: mapping("10.80.0.0/19", "10.71.0.0/19"),
			Overlay: "VXLAN", PlanesMode: "Single", Conditions: []status.ConditionView{}, Planes: []status.PlaneView{{Role: "Client", Backend: "UserSpace", Endpoints: []string{"192.0.2.9:51840"}}}, Nodes: []status.NodeView{},
		},
	}
}

func documentOf(views ...status.View) *statusDocument {
	return &statusDocument{Peerings: append([]status.View{}, views...)}
}

func TestPrintStatus(t *testing.T) {
	for _, tt := range []struct{ format, file string }{
		{"json", "status.json"},
		{"yaml", "status.yaml"},
		{"table", "status.txt"},
		{"wide", "status-wide.txt"},
		{"name", "status-name.txt"},
		{"jsonpath={.peerings[*].planes[0].backend}", "status-jsonpath.txt"},
		{"custom-columns=PEER:.peer,MTU:.planes[0].mtu,MESSAGE:.message,NODE:{.nodes[*].name}", "status-columns.txt"},
	} {
		t.Run(tt.format, func(t *testing.T) {
			var out bytes.Buffer
			kit.NoError(t, printStatus(outputOf(t, tt.format), &out, &statusResult{doc: documentOf(views()...)}))
			golden(t, tt.file, out.String())
		})
	}
	t.Run("ranges", func(t *testing.T) {
		var out bytes.Buffer
		printRanges(outputOf(t, "table"), &out, views()...)
		golden(t, "ranges.txt", out.String())
	})
}

func TestPrintStatusOfNothing(t *testing.T) {
	nothing := &statusResult{doc: documentOf(), sides: []*side{{Cluster: &kube.Cluster{Name: "a"}}, {Cluster: &kube.Cluster{Name: "b"}}}}
	for format, want := range map[string]string{
		"table": "No peerings in a, b.\n", "yaml": "apiVersion: cli.liqonet.io/v1alpha1\nkind: Status\npeerings: []\n", "name": "",
	} {
		var out bytes.Buffer
		err := printStatus(outputOf(t, format), &out, nothing)
		kit.ErrorIf(t, err != nil || out.String() != want, "%s: got %q, %v", format, out.String(), err)
	}
}

// The table and the message below it count the same nodes.
func TestTableNodes(t *testing.T) {
	v := views()[:1]
	v[0].Nodes, v[0].NodesReady, v[0].NodesTotal = v[0].Nodes[:1], 1, 2
	var out bytes.Buffer
	if printViews(outputOf(t, "table"), &out, v); !strings.Contains(out.String(), " 1/2 ") {
		t.Errorf("got %s", out.String())
	}
}

// peeringWith returns a Peering whose gateway has not reported yet.
func peeringWith(name, id string) *v1alpha1.Peering {
	cidr := func(s string) v1alpha1.CIDR { return v1alpha1.CIDR{Prefix: netip.MustParsePrefix(s)} }
	p := &v1alpha1.Peering{}
	p.Name = name
	p.Spec.Local.InternalCIDR, p.Spec.Local.ExternalCIDR = cidr("10.80.0.0/19"), cidr("10.70.64.0/18")
	p.Spec.Remote = v1alpha1.RemoteNetwork{ClusterID: id, Name: name, ExternalCIDR: cidr("10.71.0.0/18")}
	p.Spec.Planes = []v1alpha1.Plane{{Role: v1alpha1.Server, WireGuard: "Kernel", KeyGeneration: 1}}
	return p
}

// A peer that does not respond is named and does not delay the others.
func TestOtherSidesAreAskedAtOnce(t *testing.T) {
	peers := []client.Object{peeringWith("a-silent", "1"), peeringWith("b-good", "id-of-b-good"), peeringWith("c-gone", "3"), peeringWith("d-other", "4"), peeringWith("unknown", "5")}
	back := peeringWith("hub", "id-of-hub")
	useContexts(t, "hub="+startCluster(t, "hub", peers...).URL, "a-silent="+silentServer(t).URL, "b-good="+startCluster(t, "b-good", back).URL,
		"c-gone", "d-other="+startCluster(t, "other", back).URL)
	code, stdout, stderr := run(t, "status", "-o", "json", "--timeout", "1500ms")
	kit.Check(t, "exit code", code, ExitUnhealthy)
	var doc statusDocument
	err := json.Unmarshal([]byte(stdout), &doc)
	kit.FatalIf(t, err != nil, "%v\n%s%s", err, stdout, stderr)
	var sides, lost []string
	for _, v := range doc.Peerings {
		sides = append(sides, v.Cluster+"-"+v.Peer)
	}
	for _, e := range doc.Errors {
		cluster, _, _ := strings.Cut(e, ":")
		lost = append(lost, cluster)
		kit.ErrorIf(t, !strings.Contains(stderr, "Warning: a peer's side is not shown: "+e+"\n") || !strings.Contains(e, "\n  "),
			"%q is not in %s", e, stderr)
	}
	kit.Check(t, "sides", sides, []string{"hub-a-silent", "hub-b-good", "hub-c-gone", "hub-d-other", "hub-unknown", "b-good-hub"})
	kit.Check(t, "lost", lost, []string{`cluster "a-silent"`, `cluster "c-gone"`})
}

// A named cluster that does not respond fails the command, but the others are printed.
func TestStatusOfUnreachableCluster(t *testing.T) {
	useContexts(t, "a="+startCluster(t, "a", peeringWith("gone", "3")).URL, "gone", "too")
	command(t, "status", "a", "gone", "too").ends(ExitUnreachable).prints("a         gone").warns(`Error: cluster "gone"`, `Warning: not shown: cluster "too"`)
	var doc statusDocument
	kit.NoError(t, json.Unmarshal([]byte(command(t, "status", "a", "gone", "-o", "json").ends(ExitUnreachable).stdout), &doc))
	kit.ErrorIf(t, len(doc.Peerings) != 1 || len(doc.Errors) != 1, "got %+v", doc)
	command(t, "status", "gone", "too").ends(ExitUnreachable).stdoutIs("")
}

// A watch prints again only after a state has changed. An interrupt ends it without an error.
func TestStatusIsWatched(t *testing.T) {
	p := peeringWith("b", "id-of-b")
	s := startCluster(t, "a", p)
	useContexts(t, "a="+s.URL)
	var errs lockedBuffer
	watch := func(do func(prints func(string))) (printed string) {
		ctx, interrupt := context.WithCancel(t.Context())
		var out lockedBuffer
		ended := make(chan int)
		go func() { ended <- Run(ctx, []string{"status", "a", "--watch"}, Streams{Out: &out, Err: &errs}) }()
		do(func(text string) {
			kit.Within(t, 10*time.Second, text, func() string {
				out.mu.Lock()
				defer out.mu.Unlock()
				return lo.Ternary(strings.Contains(out.String(), text), "", "it is not printed")
			})
		})
		interrupt()
		code := <-ended
		kit.ErrorIf(t, code != ExitInterrupted && code != ExitOK || errs.Len() > 0, "exit code %d, %s", code, errs.String())
		return out.String()
	}
	all := watch(func(prints func(string)) {
		prints("CLUSTER ")
		kit.NoError(t, s.Client.Delete(t.Context(), p))
		prints("No peerings in a.")
	})
	kit.ErrorIf(t, strings.Count(all, "CLUSTER ") > 1, "it was printed again while nothing changed:\n%s", all)
	// Another watch begins by saying that there is none.
	watch(func(prints func(string)) { prints("No peerings in a.") })
}

// A redrawn table replaces the previous one.
func TestRedrawn(t *testing.T) {
	draw := func(s string) string { return redraw(s, 30, 5) }
	kit.Check(t, "shown", shown(draw("one\ntwo, which is longer\nthree\n")+draw("1\n2\n")), "1\n2\n")
	// Five lines, including that of the cursor.
	kit.Check(t, "shown", shown(draw("1\n2\n3\n4\n")), "1\n2\n3\n…\n")
	kit.Check(t, "a line of three", shown(draw("1\n"+strings.Repeat("x", 61)+"\n")), "1\n…\n")
}

// quotedString matches a string in the language of Graphviz.
var quotedString = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// A graph has one edge per peering, from the worse of its two views, and escapes quotation marks in names.
func TestGraph(t *testing.T) {
	v := views()
	v[1].Cluster = `a"]; x`
	draw := func(format string) string {
		var out bytes.Buffer
		graphFormats[format](output.To(&out), v)
		return out.String()
	}
	golden(t, "graph.txt", draw("text")+draw("dot"))
	v[0].Peer, v[0].PeerID = strings.Repeat(`"`, 2000), "x"
	for line := range strings.Lines(draw("dot")) {
		rest := quotedString.ReplaceAllString(line, "")
		kit.ErrorIf(t, strings.Contains(rest, `"`), "a long name is not one string: %s", line)
	}
}

func TestInBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1 kB", 999_499: "999 kB", 999_500: "1 MB", 123_456_789: "123 MB", 1 << 62: "4.61e+03 PB"} {
		kit.Check(t, fmt.Sprintf("%d", n), formatBytes(&n), want)
	}
}

// A plan of unpeer says why it lists no objects of a cluster.
func TestPrintRemovals(t *testing.T) {
	removals := []peering.Removal{{Cluster: "b", Objects: []plan.ObjectPlan{}, Refused: "no answer within 10s"}}
	for format, want := range map[string]string{
		"":     "Cluster b: its objects are not listed: no answer within 10s.\n",
		"json": `"refused": "no answer within 10s"`,
	} {
		var out bytes.Buffer
		if err := printRemovals(outputOf(t, format), &out, removals); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v\n%s", format, err, out.String())
		}
	}
}
