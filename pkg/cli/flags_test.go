package cli

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

func TestOverridesOfOneCluster(t *testing.T) {
	clusters := []*kube.Cluster{{Name: "a", ID: "1"}, {Name: "b", ID: "2"}}
	real, mapped, nodes := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.60.0.0/16"), netip.MustParsePrefix("10.61.0.0/18")
	tests := []struct {
		args string
		want map[string]engine.ClusterOptions
		// server, and the values for all clusters.
		server, all string
		err         string
	}{
		{args: "", want: map[string]engine.ClusterOptions{}},
		{args: "--map a=10.60.0.0/16", want: map[string]engine.ClusterOptions{"1": {Map: ipam.Mappings{{Mapped: mapped}}}}},
		{
			args: "--map a.conf=10.244.0.0/16=10.60.0.0/16,nodes=10.61.0.0/18",
			want: map[string]engine.ClusterOptions{"1": {Map: ipam.Mappings{{Real: real, Mapped: mapped}}, MapNodes: nodes}},
		},
		{args: "--map 10.60.0.0/16", err: "CLUSTER=VALUE"},
		{args: "--map c=10.60.0.0/16", err: `"c" is none of the clusters`},
		{args: "--map a=10.60.0.1/16", err: "did you mean 10.60.0.0/16"},
		{args: "--map a=10.244.0.0/17=10.60.0.0/16", err: "both must be a /17"},
		{args: "--map a=nodes=10.61.0.0/16", err: "has to be a /18"},
		{args: "--map a=x", err: "x"},
		{args: "--server b", server: "2"},
		{args: "--server a.conf", server: "1"},
		{args: "--server c", err: `"c" is none of the clusters`},
		{
			args: "--endpoint a=203.0.113.5:31820,[2001:db8::1]:5000,nat.example.com:1",
			want: map[string]engine.ClusterOptions{"1": {Endpoints: []string{"203.0.113.5:31820", "[2001:db8::1]:5000", "nat.example.com:1"}}},
		},
		{args: "--endpoint b=auto", want: map[string]engine.ClusterOptions{"2": {AutoEndpoints: true}}},
		{args: "--endpoint a=203.0.113.5", err: "is not ADDRESS:PORT"},
		{args: "--endpoint a=203.0.113.5:0", err: "not a port"},
		{args: "--endpoint a=203.0.113.5:70000", err: "not a port"},
		{args: "--endpoint a=203.0.113.500:5000", err: "neither an address nor a host name"},
		{args: "--endpoint a=a_b:5000", err: "neither an address nor a host name"},
		{args: "--endpoint a=0.0.0.0:5000", err: "gateways of other clusters cannot reach"},
		{args: "--endpoint a=127.0.0.1:5000", err: "gateways of other clusters cannot reach"},
		{args: "--endpoint 203.0.113.5:5000", err: "CLUSTER=VALUE"},
		{args: "--service-type LoadBalancer", all: "LoadBalancer"},
		{
			args: "--service-type loadbalancer --service-type b=NodePort:31820", all: "LoadBalancer",
			want: map[string]engine.ClusterOptions{"2": {ServiceType: "NodePort", NodePort: 31820}},
		},
		{args: "--service-type NodePort:31820", err: "for one cluster"},
		{args: "--service-type a=NodePort:0", err: "not a port"},
		{args: "--service-type a=LoadBalancer:80", err: "must be one of"},
		{args: "--service-type c=NodePort", err: `"c" is none of the clusters`},
		{args: "--overlay a=vxlan --wireguard b=kernel", want: map[string]engine.ClusterOptions{"1": {Overlay: "VXLAN"}, "2": {WireGuard: "Kernel"}}},
		{args: "--overlay a=gre", err: "must be one of"},
		{args: "--reserve a=10.0.0.1/8", err: "did you mean 10.0.0.0/8"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			isolate(t)
			// Invalid values are detected when the flag is set, or once the names of the clusters are known.
			f, err := parse(t, "peer", append([]string{"a", "b"}, strings.Fields(tt.args)...)...)
			var o engine.Options
			if err == nil {
				o, err = peerOptions(f, []string{"a.conf", "b"}, clusters)
			}
			if tt.err != "" {
				kit.ErrorIf(t, err == nil || !strings.Contains(err.Error(), tt.err), "want %q, got %v", tt.err, err)
				return
			}
			kit.NoError(t, err)
			maps.DeleteFunc(o.Clusters, func(_ string, c engine.ClusterOptions) bool { return reflect.ValueOf(c).IsZero() })
			kit.Check(t, "Clusters", o.Clusters, tt.want, cmpopts.EquateComparable(netip.Prefix{}), cmpopts.EquateEmpty())
			kit.ErrorIf(t, o.Server != tt.server || o.ServiceType != tt.all && (tt.all != "" || o.ServiceType != "auto"),
				"server %q, service type %q", o.Server, o.ServiceType)
		})
	}
}

func TestNodeMetricsFlag(t *testing.T) {
	clusters := []*kube.Cluster{{Name: "a", ID: "1"}, {Name: "b", ID: "2"}}
	for args, want := range map[string]string{
		"":                    "all , a , b ",
		"--node-metrics node": "all node, a , b ",
		"--node-metrics node --node-metrics a=loopback": "all node, a loopback, b ",
		"--node-metrics everywhere":                     `"everywhere" must be one of loopback, node`,
		"--node-metrics b=":                             `"" must be one of`,
	} {
		t.Run(args, func(t *testing.T) {
			isolate(t)
			f := kit.Must(parse(t, "peer", append([]string{"a", "b"}, strings.Fields(args)...)...))(t)
			o, err := peerOptions(f, []string{"a", "b"}, clusters)
			got := fmt.Sprintf("all %s, a %s, b %s", o.NodeMetrics, o.Clusters["1"].NodeMetrics, o.Clusters["2"].NodeMetrics)
			if err != nil {
				got = err.Error()
			}
			kit.ErrorIf(t, !strings.Contains(got, want), "got %q, want %q", got, want)
		})
	}
}

// A limit is for one cluster, or for all clusters without their own limit.
func TestLimitFlags(t *testing.T) {
	clusters := []*kube.Cluster{{Name: "a", ID: "1"}, {Name: "b", ID: "2"}}
	for args, want := range map[string]string{
		"":                                     "- - - -",
		"--limit-new 1000":                     "1000 - 1000 -",
		"--limit-new a=1 --limit-rate b=1mbit": "1 - - 1000000",
		"--limit-rate 500mbit --limit-rate a=none":  "- 0 - 500000000",
		"--limit-rate 100Gbit --limit-new 0":        "0 100000000000 0 100000000000",
		"--limit-new 1000000 --limit-rate 1500kbit": "1000000 1500000 1000000 1500000",
		"--limit-new 1000001":                       "must be none, or a whole number from 1 to 1000000",
		"--limit-new -1":                            "must be none, or a whole number from 1 to 1000000",
		"--limit-new 1.5":                           "must be none, or a whole number from 1 to 1000000",
		"--limit-new 1000/s":                        "must be none, or a whole number from 1 to 1000000",
		"--limit-new c=1":                           `"c" is none of the clusters`,
		"--limit-rate 999kbit":                      "must be none, or a whole number followed by kbit, mbit or gbit, from 1mbit to 100gbit",
		"--limit-rate 101gbit":                      "must be none, or a whole number followed by kbit, mbit or gbit, from 1mbit to 100gbit",
		"--limit-rate 9223372036854775807gbit":      "must be none, or a whole number followed by kbit, mbit or gbit, from 1mbit to 100gbit",
		"--limit-rate 500000000":                    "must be none, or a whole number followed by kbit, mbit or gbit, from 1mbit to 100gbit",
		"--limit-rate 500mbps":                      "must be none, or a whole number followed by kbit, mbit or gbit, from 1mbit to 100gbit",
		"--limit-rate mbit":                         "must be none, or a whole number followed by kbit, mbit or gbit, from 1mbit to 100gbit",
		"--limit-rate a=":                           "must be none, or a whole number followed by kbit, mbit or gbit, from 1mbit to 100gbit",
	} {
		t.Run(args, func(t *testing.T) {
			isolate(t)
			f := kit.Must(parse(t, "peer", append([]string{"a", "b"}, strings.Fields(args)...)...))(t)
			got := ""
			o, err := peerOptions(f, []string{"a", "b"}, clusters)
			if err != nil {
				got = err.Error()
			} else {
				var limits []string
				for _, id := range []string{"1", "2"} {
					for _, l := range []*int64{o.Clusters[id].LimitNew, o.Clusters[id].LimitRate} {
						text := "-"
						if l != nil {
							text = fmt.Sprint(*l)
						}
						limits = append(limits, text)
					}
				}
				got = strings.Join(limits, " ")
			}
			kit.ErrorIf(t, got != want && (err == nil || !strings.Contains(got, want)), "%q, want %q", got, want)
		})
	}
}

func TestPlanesModeFlag(t *testing.T) {
	for args, want := range map[string]string{
		"":                     "",
		"--planes-mode spread": "Spread",
		"--planes-mode single": "Single",
		"--planes-mode=":       "",
		"--planes-mode all":    `"all" must be one of single, spread`,
		"--planes-mode Spread": `"Spread" must be one of`,
	} {
		isolate(t)
		f, err := parse(t, "peer", append([]string{"a", "b"}, strings.Fields(args)...)...)
		if err != nil {
			kit.ErrorIf(t, want == "" || !strings.Contains(err.Error(), want), "%q: %v, want %q", args, err, want)
			continue
		}
		o, err := peerOptions(f, []string{"a", "b"}, nil)
		kit.ErrorIf(t, err != nil || string(o.PlanesMode) != want, "%q: %q and error %v, want %q", args, o.PlanesMode, err, want)
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
		{args: "a b --mesh", want: "[a - b]"},
		{args: "a b c --mesh", want: "[a - b a - c b - c]"},
		{args: "a b c d --mesh", want: "[a - b a - c a - d b - c b - d c - d]"},
		{args: "hub --spokes a,b --spokes c", want: "[hub - a hub - b hub - c]"},
		{args: "hub --spokes a", want: "[hub - a]"},
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
				home := isolate(t)
				t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(home, "kubeconfig"), "hub", "a", "b", "c", "d"))
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
	start := func(name string) string {
		s := kit.Must(fakeapi.New(fakeapi.Objects("id-of-"+name, name+"-1", "172.18.0.11", "10.244.0.0/16")...))(t)
		t.Cleanup(s.Close)
		return s.URL
	}
	home := isolate(t)
	a := start("a")
	t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(home, "kubeconfig"), "a="+a, "again="+a, "b="+start("b")))
	for _, tt := range []struct{ args, want string }{
		{"peer a a", `"a" and "a" are the same cluster`},
		{"unpeer a again", `"a" and "again" are the same cluster`},
		{"peer a again --dry-run", `"a" and "again" are the same cluster`},
		{"peer a b a --mesh", `"a" and "a" are the same cluster`},
		{"unpeer b --spokes a,again", `"a" and "again" are the same cluster`},
	} {
		command(t, strings.Fields(tt.args)...).ends(ExitUsage).stdoutIs("").warns("Error: " + tt.want + "\n  name different clusters")
	}
}

// Of several pairs, those with an unreachable cluster fail, each with its reason. If all fail, the reason determines the exit code.
func TestUnreachablePairs(t *testing.T) {
	home := isolate(t)
	t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(home, "kubeconfig"), "a=https://127.0.0.1:1", "b=https://127.0.0.1:1", "c=https://127.0.0.1:1"))
	for _, args := range []string{"peer a b c --mesh", "unpeer a --spokes b,c"} {
		code, stdout, stderr := run(t, strings.Fields(args)...)
		kit.ErrorIf(t, code != ExitUnreachable || stdout != "" || strings.Count(stderr, "Error:") != 1,
			"%s: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		for _, pair := range []string{"a - b: ", "a - c: "} {
			kit.ErrorIf(t, !strings.Contains(stderr, pair), "%s: %q is not in %q", args, pair, stderr)
		}
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
		isolate(t)
		f := kit.Must(parse(t, "peer", "a", "b", "--agent-image", image))(t)
		o, err := peerOptions(f, []string{"a", "b"}, []*kube.Cluster{{Name: "a", ID: "1"}, {Name: "b", ID: "2"}})
		kit.ErrorIf(t, (err == nil) != good || good && o.Image != image || !good && !strings.Contains(err.Error(), "--agent-image"),
			"%s: got %q, %v", image, o.Image, err)
	}
}
