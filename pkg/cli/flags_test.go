package cli

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/samber/lo"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/test/kit"
)

// optionsOf returns what peer does with the clusters a and b, given these flags.
func optionsOf(t *testing.T, args ...string) (engine.Options, error) {
	t.Helper()
	isolate(t)
	// Invalid values are detected when the flag is set, or once the names of the clusters are known.
	f, err := parse(t, "peer", append([]string{"a", "b"}, args...)...)
	if err != nil {
		return engine.Options{}, err
	}
	return peerOptions(f, []string{"a.conf", "b"}, []*kube.Cluster{{Name: "a", ID: "1"}, {Name: "b", ID: "2"}})
}

// Flags are for one cluster, or for all clusters without their own value.
func TestPeerOptions(t *testing.T) {
	type options = engine.Options
	type overrides = map[string]engine.ClusterOptions
	type placement = v1alpha1.GatewayPlacement
	type labels = map[string]string
	type tolerations = []corev1.Toleration
	real, mapped, nodes := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.60.0.0/16"), netip.MustParsePrefix("10.61.0.0/18")
	of := func(id string, c engine.ClusterOptions) options { return options{Clusters: overrides{id: c}} }
	both := func(c engine.ClusterOptions) options { return options{Clusters: overrides{"1": c, "2": c}} }
	ofA := func(p placement) options { return of("1", engine.ClusterOptions{Gateways: p}) }
	for _, tt := range []struct {
		args string
		want options
		err  string
	}{
		{args: ""},
		{args: "--map a=10.60.0.0/16", want: of("1", engine.ClusterOptions{Map: ipam.Mappings{{Mapped: mapped}}})},
		{
			args: "--map a.conf=10.244.0.0/16=10.60.0.0/16,nodes=10.61.0.0/18",
			want: of("1", engine.ClusterOptions{Map: ipam.Mappings{{Real: real, Mapped: mapped}}, MapNodes: nodes}),
		},
		{args: "--map 10.60.0.0/16", err: "CLUSTER=VALUE"},
		{args: "--map c=10.60.0.0/16", err: `"c" is none of the clusters`},
		{args: "--map a=10.60.0.1/16", err: "did you mean 10.60.0.0/16"},
		{args: "--map a=10.244.0.0/17=10.60.0.0/16", err: "both must be a /17"},
		{args: "--map a=nodes=10.61.0.0/16", err: "has to be a /18"},
		{args: "--server b", want: options{Server: "2"}},
		{args: "--server a.conf", want: options{Server: "1"}},
		{args: "--server c", err: `"c" is none of the clusters`},
		{
			args: "--endpoint a=203.0.113.5:31820,[2001:db8::1]:5000,nat.example.com:1",
			want: of("1", engine.ClusterOptions{Endpoints: []string{"203.0.113.5:31820", "[2001:db8::1]:5000", "nat.example.com:1"}}),
		},
		{args: "--endpoint b=auto", want: of("2", engine.ClusterOptions{AutoEndpoints: true})},
		{args: "--endpoint a=203.0.113.5", err: "is not ADDRESS:PORT"},
		{args: "--endpoint a=203.0.113.5:70000", err: "not a port"},
		{args: "--endpoint a=203.0.113.500:5000", err: "neither an address nor a host name"},
		{args: "--endpoint a=a_b:5000", err: "neither an address nor a host name"},
		{args: "--endpoint a=0.0.0.0:5000", err: "gateways of other clusters cannot reach"},
		{args: "--endpoint a=127.0.0.1:5000", err: "gateways of other clusters cannot reach"},
		{
			args: "--service-type loadbalancer --service-type b=NodePort:31820",
			want: options{ServiceType: "LoadBalancer", Clusters: overrides{"2": {ServiceType: "NodePort", NodePort: 31820}}},
		},
		{args: "--service-type NodePort:31820", err: "for one cluster"},
		{args: "--service-type a=NodePort:0", err: "not a port"},
		{args: "--service-type a=LoadBalancer:80", err: "must be one of"},
		{args: "--overlay a=VXLAN --wireguard b=kernel", want: options{Clusters: overrides{"1": {Overlay: "VXLAN"}, "2": {WireGuard: "Kernel"}}}},
		{args: "--overlay a=gre", err: "must be one of"},
		{
			args: "--pod-cidr a=10.0.0.0/16,10.1.0.0/16 --pod-cidr a=10.3.0.0/16 --reserve b=10.4.0.0/16",
			want: options{Facts: map[string]discovery.Overrides{
				"1": {PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.3.0.0/16")}},
				"2": {Reserved: []netip.Prefix{netip.MustParsePrefix("10.4.0.0/16")}},
			}},
		},
		{args: "--reserve a=10.0.0.1/8", err: "did you mean 10.0.0.0/8"},
		{args: "--planes-mode spread", want: options{PlanesMode: v1alpha1.PlanesSpread}},
		{args: "--planes-mode single", want: options{PlanesMode: v1alpha1.PlanesSingle}},
		{args: "--planes-mode="},
		{args: "--planes-mode Spread", err: `"Spread" must be one of single, spread`},
		{
			args: "--node-metrics node --node-metrics a=loopback",
			want: options{NodeMetrics: "node", Clusters: overrides{"1": {NodeMetrics: "loopback"}}},
		},
		{args: "--node-metrics everywhere", err: `"everywhere" must be one of loopback, node`},
		{args: "--node-metrics b=", err: `"" must be one of`},
		{args: "--limit-new 1000000 --limit-rate 1500kbit", want: both(engine.ClusterOptions{LimitNew: new(int64(1e6)), LimitRate: new(int64(1.5e6))})},
		{
			args: "--limit-new a=1 --limit-rate b=1mbit",
			want: options{Clusters: overrides{"1": {LimitNew: new(int64(1))}, "2": {LimitRate: new(int64(1e6))}}},
		},
		{
			args: "--limit-rate 500mbit --limit-rate a=none",
			want: options{Clusters: overrides{"1": {LimitRate: new(int64(0))}, "2": {LimitRate: new(int64(5e8))}}},
		},
		{args: "--limit-rate 100Gbit --limit-new 0", want: both(engine.ClusterOptions{LimitNew: new(int64(0)), LimitRate: new(int64(1e11))})},
		{args: "--limit-new 1000001", err: "must be none, or a whole number from 1 to 1000000"},
		{args: "--limit-new 1.5", err: "must be none, or a whole number from 1 to 1000000"},
		{args: "--limit-rate 999kbit", err: "must be none, or a whole number followed by kbit, mbit or gbit, from 1mbit to 100gbit"},
		{args: "--limit-rate 101gbit", err: "from 1mbit to 100gbit"},
		{args: "--limit-rate 9223372036854775807gbit", err: "from 1mbit to 100gbit"},
		{args: "--limit-rate 500000000", err: "from 1mbit to 100gbit"},
		{args: "--limit-rate a=", err: "from 1mbit to 100gbit"},
		{args: "--gateway-node-selector pool=gateways", want: options{Gateways: placement{NodeSelector: labels{"pool": "gateways"}}}},
		{
			args: "--gateway-node-selector a=pool=gateways,topology.kubernetes.io/zone=z1",
			want: ofA(placement{NodeSelector: labels{"pool": "gateways", "topology.kubernetes.io/zone": "z1"}}),
		},
		{args: "--gateway-node-selector a.conf=role/gateway=", want: ofA(placement{NodeSelector: labels{"role/gateway": ""}})},
		// An empty value resets a choice, unlike no value.
		{
			args: "--gateway-node-selector pool=x --gateway-node-selector a=",
			want: options{Gateways: placement{NodeSelector: labels{"pool": "x"}}, Clusters: overrides{"1": {Gateways: placement{NodeSelector: labels{}}}}},
		},
		{args: "--gateway-node-selector=", want: options{Gateways: placement{NodeSelector: labels{}}}},
		{args: "--gateway-toleration=", want: options{Gateways: placement{Tolerations: tolerations{}}}},
		{args: "--gateway-toleration a=", want: ofA(placement{Tolerations: tolerations{}})},
		{
			args: "--gateway-toleration dedicated=gateways:NoSchedule --gateway-toleration spot",
			want: options{Gateways: placement{Tolerations: tolerations{
				{Key: "dedicated", Operator: "Equal", Value: "gateways", Effect: "NoSchedule"}, {Key: "spot", Operator: "Exists"},
			}}},
		},
		{
			args: "--gateway-toleration a=example.com/k:NoExecute,x=y",
			want: ofA(placement{Tolerations: tolerations{{Key: "example.com/k", Operator: "Exists", Effect: "NoExecute"}, {Key: "x", Operator: "Equal", Value: "y"}}}),
		},
		{args: "--gateway-node-selector pool=x,pool=y", err: "no node has both pool=x and pool=y"},
		{args: "--gateway-node-selector a=pool", err: `"pool" is not KEY=VALUE`},
		{args: "--gateway-node-selector c=pool=x", err: "c=pool=x is invalid"},
		{args: "--gateway-node-selector =x", err: "is invalid"},
		{args: "--gateway-toleration :NoSchedule", err: "is invalid"},
		{args: "--gateway-toleration k:Always", err: `effect "Always" must be one of NoSchedule, PreferNoSchedule, NoExecute`},
	} {
		t.Run(tt.args, func(t *testing.T) {
			got, err := optionsOf(t, strings.Fields(tt.args)...)
			if tt.err != "" {
				kit.CheckError(t, "options", err, tt.err)
				return
			}
			kit.NoError(t, err)
			maps.DeleteFunc(got.Clusters, func(_ string, c engine.ClusterOptions) bool { return reflect.ValueOf(c).IsZero() })
			maps.DeleteFunc(got.Facts, func(_ string, o discovery.Overrides) bool { return reflect.ValueOf(o).IsZero() })
			tt.want.Clusters, tt.want.Facts = lo.Assign(tt.want.Clusters), lo.Assign(tt.want.Facts) // not nil
			kit.Check(t, "options", got, tt.want)
		})
	}
}

// Each value of these flags maps to a value in the schema, and each value in the schema has a flag value.
func TestFlagsHaveTheValuesOfTheSchema(t *testing.T) {
	crds := manifests.CRDs()
	at := slices.IndexFunc(crds, func(c *apiextensionsv1.CustomResourceDefinition) bool { return c.Spec.Names.Kind == "Peering" })
	spec := crds[at].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
	flags := kit.Must(parse(t, "peer", "a", "b"))(t)
	for flag, field := range map[string]apiextensionsv1.JSONSchemaProps{
		"overlay": spec["overlay"], "planes-mode": spec["planesMode"], "wireguard": spec["planes"].Items.Schema.Properties["wireguard"],
	} {
		var got, want []string
		for _, value := range flags.Lookup(flag).Value.(interface{ Completions() []cobra.Completion }).Completions() {
			if value != "auto" {
				got = append(got, fmt.Sprintf("%q", apiValue(value)))
			}
		}
		for _, value := range field.Enum {
			want = append(want, string(value.Raw))
		}
		kit.Check(t, fmt.Sprintf("--%s", flag), got, want)
	}
}

func TestPairs(t *testing.T) {
	tests := []struct {
		args string
		want string
		err  string
	}{
		{args: "a b", want: "[a - b]"},
		{args: "a b c d --mesh", want: "[a - b a - c a - d b - c b - d c - d]"},
		{args: "hub --spokes a,b --spokes c", want: "[hub - a hub - b hub - c]"},
		{args: "a", err: "name two clusters; got 1"},
		{args: "a b c", err: "more than 2 clusters need --mesh or --spokes"},
		{args: "a --mesh", err: "at least 2"},
		{args: "a b --spokes c", err: "name one cluster; got 2"},
		{args: "--spokes c", err: "name one cluster; got 0"},
		{args: "a --spokes=", err: "name two clusters; got 1"},
		{args: "a --mesh --spokes b", err: "cannot be combined"},
	}
	for _, name := range []string{"peer", "unpeer"} {
		for _, tt := range tests {
			t.Run(name+" "+tt.args, func(t *testing.T) {
				useContexts(t, "hub", "a", "b", "c", "d")
				cmd, _, err := NewCommand(Streams{}).Find([]string{name})
				kit.NoError(t, err)
				kit.NoError(t, cmd.ParseFlags(strings.Fields(tt.args)))
				args := cmd.Flags().Args()
				err = cmd.Args(cmd, args)
				if tt.err != "" {
					kit.ErrorIf(t, err == nil || !strings.Contains(err.Error(), tt.err), "want %q, got %v", tt.err, err)
					return
				}
				kit.NoError(t, err)
				// None of the clusters responds.
				refs, hub := parseMembers(cmd.Flags(), args)
				_, pairs, err := (&globals{}).connectPairs(t.Context(), refs, hub)
				can, failed := splitFailed(pairs, func(p peering.Pair) error { return p[1].SkipReason })
				var got []peering.Pair
				for _, f := range failed {
					got = append(got, f.Pair)
				}
				kit.ErrorIf(t, fmt.Sprint(got) != tt.want || err != nil || len(can) > 0, "want %s, got %s, %v, %v", tt.want, got, can, err)
			})
		}
	}
}

// A cluster must not be named twice, even under different names.
func TestSameCluster(t *testing.T) {
	a, b := startCluster(t, "a"), startCluster(t, "b")
	useContexts(t, "a="+a.URL, "again="+a.URL, "b="+b.URL)
	for _, tt := range []struct{ args, want string }{
		{"peer a a", `"a" and "a" are the same cluster`},
		{"peer a again --dry-run", `"a" and "again" are the same cluster`},
		{"peer a b a --mesh", `"a" and "a" are the same cluster`},
		{"unpeer b --spokes a,again", `"a" and "again" are the same cluster`},
	} {
		command(t, strings.Fields(tt.args)...).ends(ExitUsage).stdoutIs("").warns("Error: " + tt.want + "\n  name different clusters")
	}
}

func TestFailures(t *testing.T) {
	a, b, c := &kube.Cluster{Name: "a"}, &kube.Cluster{Name: "b"}, &kube.Cluster{Name: "c"}
	failed := &kube.Error{Kind: kube.NotReady, Cluster: "c", Op: "wait", Hint: "look there"}
	outcomes := func(errs ...error) (out []peering.Outcome) {
		pairs := []peering.Pair{{a, b}, {a, c}, {b, c}}
		for i, err := range errs {
			out = append(out, peering.Outcome{Pair: pairs[i], Err: err})
		}
		return out
	}
	for _, tt := range []struct {
		name string
		errs []error
		code int
		text string
	}{
		{"one pair", []error{failed}, ExitNotReady, `cluster "c": wait`},
		{"none", []error{nil, nil, nil}, ExitOK, ""},
		{"some", []error{nil, failed, nil}, ExitPartial, "1 of 3 pairs failed\n  a - c: cluster \"c\": wait\n    look there"},
		{"all", []error{failed, failed, failed}, ExitNotReady, "3 of 3 pairs failed\n  a - b: cluster \"c\": wait"},
	} {
		err := pairFailures(outcomes(tt.errs...))
		code := ExitCode(t.Context(), err)
		kit.ErrorIf(t, code != tt.code, "%s: exit code %d, want %d", tt.name, code, tt.code)
		kit.ErrorIf(t, tt.text != "" && !strings.HasPrefix(err.Error(), tt.text), "%s: %v", tt.name, err)
	}
}

// An image with a digest is passed on unchanged. An invalid digest is an error before any cluster is contacted.
func TestImagesByDigest(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0123456789abcdef", 4)
	for image, good := range map[string]bool{
		"ghcr.io/liqonet/liqonet-agent" + digest: true, "registry.example.com:5000/agent:v1" + digest: true, "agent:v1": true,
		"agent" + digest[:20]: false, "agent" + strings.ToUpper(digest): false, "agent@md5:0123": false, "agent:v1" + digest + digest: false,
	} {
		o, err := optionsOf(t, "--agent-image", image)
		kit.ErrorIf(t, (err == nil) != good || good && o.Image != image || !good && !strings.Contains(err.Error(), "--agent-image"),
			"%s: got %q, %v", image, o.Image, err)
	}
}
