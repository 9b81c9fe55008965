package schema_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
)

var definitions = sync.OnceValues(func() (map[string]*schema.Kind, error) { return schema.Kinds(context.Background()) })

// kinds are the definitions. An API server takes them, with the costs of all rules.
func kinds(t *testing.T) map[string]*schema.Kind {
	t.Helper()
	out := kit.Must(definitions())(t)
	kit.FatalIf(t, len(out) != len(schema.Examples()), "%d kinds", len(out))
	return out
}

// object is what an API server stores of a valid object.
func object(t *testing.T, k *schema.Kind, obj client.Object) map[string]any {
	t.Helper()
	// The object takes the place of itself: rules about changes do not apply.
	stored, err := k.Store(t.Context(), encode(t, obj), kit.Must(schema.Unstructured(obj))(t))
	kit.FatalIf(t, err != nil, "%s is refused: %v", k.Name, err)
	return stored
}

// What is written by us is taken.
func TestOwnObjects(t *testing.T) {
	kinds := kinds(t)
	for name, obj := range schema.Examples() {
		object(t, kinds[name], obj)
	}
	for _, obj := range planned(t) {
		object(t, kinds[obj.GetObjectKind().GroupVersionKind().Kind], obj)
	}
	for _, name := range []string{"kind-a", "arn:aws:eks:eu-west-1:1:cluster/x", "kubernetes-admin@kubernetes", "/home/u/my kubeconfig", "./c.yaml#ctx", "größe"} {
		p := schema.Examples()["Peering"].(*v1alpha1.Peering)
		p.Spec.Remote.Name = name
		object(t, kinds["Peering"], p)
	}
	empty := schema.Examples()["NodeNetwork"].(*v1alpha1.NodeNetwork)
	empty.Status = v1alpha1.NodeNetworkStatus{}
	object(t, kinds["NodeNetwork"], empty)
	begun := schema.Examples()["ClusterNetwork"].(*v1alpha1.ClusterNetwork)
	begun.Spec.Peers = []v1alpha1.PeerAllocation{{ClusterID: "1", Name: "b", Phase: v1alpha1.PeerReserved}}
	object(t, kinds["ClusterNetwork"], begun)
}

// lost says what of an object that was stored is not what was read of it, "" if all is.
func lost(at string, stored, read any) string {
	switch stored := stored.(type) {
	case map[string]any:
		got, _ := read.(map[string]any)
		for name, v := range stored {
			if out := lost(at+"."+name, v, got[name]); out != "" {
				return out
			}
		}
		return ""
	case []any:
		got, _ := read.([]any)
		if len(got) != len(stored) {
			return fmt.Sprintf("%s: %d of %d items", at, len(got), len(stored))
		}
		for i := range stored {
			if out := lost(fmt.Sprint(at, i), stored[i], got[i]); out != "" {
				return out
			}
		}
		return ""
	case string:
		got, ok := read.(string)
		if got == stored || !ok && (stored == "" || sameTime(stored, noTime)) || sameTime(got, stored) || sameAddress(got, stored) {
			return ""
		}
	case bool:
		if got, _ := read.(bool); got == stored {
			return ""
		}
	default: // a number
		if fmt.Sprint(read) == fmt.Sprint(stored) || read == nil && fmt.Sprint(stored) == "0" {
			return ""
		}
	}
	return fmt.Sprintf("%s: %#v became %#v", at, stored, read)
}

// noTime is how Go writes that there is none.
const noTime = "0001-01-01T00:00:00Z"

func sameTime(a, b string) bool {
	x, errX := time.Parse(time.RFC3339, a)
	y, errY := time.Parse(time.RFC3339, b)
	return errX == nil && errY == nil && x.Equal(y.Truncate(time.Second))
}

func sameAddress(a, b string) bool {
	if x, err := netip.ParseAddr(a); err == nil {
		y, err := netip.ParseAddr(b)
		return err == nil && x == y
	}
	x, errX := netip.ParsePrefix(a)
	y, errY := netip.ParsePrefix(b)
	return errX == nil && errY == nil && x == y
}

// readable says why our types cannot read all of what an API server has stored.
func readable(kind string, stored map[string]any) error {
	raw, err := json.Marshal(stored)
	if err != nil {
		return err
	}
	into := map[string]any{
		"Peering": &v1alpha1.Peering{}, "NodeNetwork": &v1alpha1.NodeNetwork{}, "ClusterNetwork": &v1alpha1.ClusterNetwork{},
		"ExportedService": &v1alpha1.ExportedService{}, "ReceivedService": &v1alpha1.ReceivedService{},
	}[kind]
	if err := json.Unmarshal(raw, into); err != nil {
		return err
	}
	if p, ok := into.(*v1alpha1.Peering); ok {
		if err := p.Validate(); err != nil {
			return err
		}
	}
	if raw, err = json.Marshal(into); err != nil {
		return err
	}
	var read map[string]any
	if err := utiljson.Unmarshal(raw, &read); err != nil {
		return err
	}
	for _, part := range []string{"spec", "status"} {
		if out := lost(part, stored[part], read[part]); stored[part] != nil && out != "" {
			return fmt.Errorf("%s", out)
		}
	}
	return nil
}

// Whatever the definitions let in, our types read: each field with odd values, and with random ones.
func TestWhatIsStoredIsReadable(t *testing.T) {
	kit.Slow(t)
	t.Logf("-seed %d", max(1, *schema.Seed))
	r := rand.New(rand.NewPCG(max(1, *schema.Seed), 1))
	for name, kind := range kinds(t) {
		base := object(t, kind, schema.Examples()[name])
		refused, stored := 0, 0
		fields := kind.Fields()
		try := func(at schema.Path, value any) {
			obj, ok := schema.With(base, at, value)
			kit.FatalIf(t, !ok, "%s: the valid object has nothing at %v", name, at)
			got, err := kind.Store(t.Context(), encode(t, obj), base)
			if err != nil {
				refused++
				return
			}
			stored++
			err = readable(name, got)
			kit.ErrorIf(t, err != nil, "%s: %v = %.100q is stored, and not read: %v", name, at, fmt.Sprint(value), err)
		}
		for _, f := range fields {
			for _, value := range f.Odd() {
				try(f.Path, value)
			}
			for range 6 {
				try(f.Path, schema.Random(r))
			}
		}
		t.Logf("%s: %d fields, %d objects refused, %d stored", name, len(fields), refused, stored)
		kit.ErrorIf(t, stored < len(fields) || refused < len(fields), "%s: that proves little", name)
	}
}

// refuseAll makes changes of a valid object, each of which has to be refused.
func refuseAll(t *testing.T, kind string, bad map[string]func(obj map[string]any) map[string]any) {
	t.Helper()
	k := kinds(t)[kind]
	base := object(t, k, schema.Examples()[kind])
	for name, change := range bad {
		_, err := k.Store(t.Context(), encode(t, change(base)), base)
		kit.ErrorIf(t, err == nil, "%s is taken", name)
	}
}

// set is a change of one field. A number in the path is an index.
func set(path string, value any) func(map[string]any) map[string]any {
	return func(obj map[string]any) map[string]any {
		var at schema.Path
		for step := range strings.SplitSeq(path, ".") {
			if step == "0" {
				at = append(at, 0)
			} else {
				at = append(at, step)
			}
		}
		out, ok := schema.With(obj, at, value)
		if !ok {
			panic(path)
		}
		return out
	}
}

func both(changes ...func(map[string]any) map[string]any) func(map[string]any) map[string]any {
	return func(obj map[string]any) map[string]any {
		for _, change := range changes {
			obj = change(obj)
		}
		return obj
	}
}

// The Peerings that stopped all nodes or all gateways.
func TestBadPeeringsAreRefused(t *testing.T) {
	refuseAll(t, "Peering", map[string]func(map[string]any) map[string]any{
		"an internal range of another size":              set("spec.local.internalCIDR", "10.80.0.0/20"),
		"an external range of another size":              set("spec.local.externalCIDR", "10.60.0.0/17"),
		"an external range of the peer of another size":  set("spec.remote.externalCIDR", "10.70.0.0/16"),
		"an external range of the peer of IPv6":          set("spec.remote.externalCIDR", "fd00::/114"),
		"a /18 of IPv6":                                  set("spec.remote.externalCIDR", "fd00::/18"),
		"an internal range of IPv6":                      set("spec.local.internalCIDR", "fd00::/115"),
		"pods mapped to a range of another size":         set("spec.local.pods.0.mapped", "10.20.0.0/17"),
		"pods of the peer mapped to one of another size": set("spec.remote.pods.0.mapped", "10.30.0.0/15"),
		"pods of the peer mapped to IPv6":                set("spec.remote.pods.0.mapped", "fd00::/16"),
		"pods mapped to all addresses":                   both(set("spec.remote.pods.0.real", "0.0.0.0/0"), set("spec.remote.pods.0.mapped", "0.0.0.0/0")),
		"only pods of the other address family":          both(set("spec.remote.pods.0.real", "fd00::/64"), set("spec.remote.pods.0.mapped", "fd00::/64")),
		"no key":                                         set("spec.planes.0.remotePublicKey", strings.Repeat("?", 44)),
		"a host that is loopback":                        set("spec.local.hosts.0.real", "127.0.0.1"),
		"a host that is link-local":                      set("spec.local.hosts.0.real", "169.254.169.254"),
		"a host that is multicast":                       set("spec.local.hosts.0.real", "224.0.0.1"),
		"a host that is all hosts":                       set("spec.local.hosts.0.real", "255.255.255.255"),
		"a host of another address family":               set("spec.local.hosts.0.real", "fd00::1"),
		"a host mapped to anywhere":                      set("spec.local.hosts.0.mapped", "192.0.2.1"),
		"a gateway of the peer that is anywhere":         set("spec.planes.0.remoteAddress", "192.0.2.1"),
		"an index that is too large":                     set("spec.index", int64(511)),
	})
	refuseAll(t, "ClusterNetwork", map[string]func(map[string]any) map[string]any{
		"an external range of another size": set("spec.peers.0.externalCIDR", "10.70.0.0/16"),
		"pods mapped to another size":       set("spec.peers.0.pods.0.mapped", "10.30.0.0/15"),
		"a host that is loopback":           set("spec.peers.0.hosts.0.address", "127.0.0.1"),
	})
}

// An address that is none made commands fail.
func TestNodeNetworkHasAnAddress(t *testing.T) {
	refuseAll(t, "NodeNetwork", map[string]func(map[string]any) map[string]any{
		"a name":               set("status.address", "not-an-address"),
		"five numbers":         set("status.address", "10.80.0.0.7"),
		"a number with a zero": set("status.address", "10.80.0.07"),
	})
}

// What a gateway or a node may write has a size.
func TestSizesOfObjects(t *testing.T) {
	long := strings.Repeat("a", 1<<20)
	list := func(n int, item func(i int) any) (out []any) {
		for i := range n {
			out = append(out, item(i))
		}
		return out
	}
	refuseAll(t, "Peering", map[string]func(map[string]any) map[string]any{
		"a message of 1 MB":           set("status.planes.0.message", long),
		"a condition's message":       set("status.conditions.0.message", strings.Repeat("a", v1alpha1.MaxMessageLength+1)),
		"a node's name":               set("status.planes.0.nodeName", long),
		"an endpoint":                 set("status.planes.0.endpoint", long),
		"an announced endpoint":       set("status.planes.0.remote.endpoints", []any{long}),
		"5 planes":                    set("status.planes", list(5, func(i int) any { return map[string]any{"index": int64(i), "connected": true} })),
		"a negative index":            set("status.planes.0.index", int64(-7)),
		"a negative MTU":              set("status.planes.0.mtu", int64(-1)),
		"a generation that overflows": set("status.planes.0.observedGeneration", 1e20),
		"4097 addresses of nodes":     set("status.planes.0.remote.nodeIPs", list(4097, func(int) any { return "192.0.2.1" })),
	})
	refuseAll(t, "NodeNetwork", map[string]func(map[string]any) map[string]any{
		"a message of 1 MB": set("status.conditions.0.message", long),
		"a kernel's name":   set("status.kernel.release", long),
		"2049 gateways": set("status.gateways", list(2049, func(i int) any {
			return map[string]any{"peering": fmt.Sprint("p", i), "plane": int64(0), "ready": true}
		})),
		"a peering's name":                set("status.gateways.0.peeringName", long),
		"a number too large for its type": set("status.gateways.0.mtu", int64(3000000000)),
	})
}

// The nodes of gateways are chosen by a few labels and tolerations, as Nodes have them.
func TestSizesOfThePlacement(t *testing.T) {
	const labels, tolerations = "spec.gateways.nodeSelector", "spec.gateways.tolerations"
	many := map[string]any{}
	for i := range 17 {
		many[fmt.Sprint("key-", i)] = "x"
	}
	refuseAll(t, "Peering", map[string]func(map[string]any) map[string]any{
		"17 labels":                         set(labels, many),
		"a label without a key":             set(labels, map[string]any{"": "x"}),
		"a label's key":                     set(labels, map[string]any{strings.Repeat("a", 318): "x"}),
		"a label's value":                   set(labels, map[string]any{"pool": strings.Repeat("a", 64)}),
		"a label that is a number":          set(labels, map[string]any{"pool": int64(1)}),
		"17 tolerations":                    set(tolerations, slices.Repeat([]any{map[string]any{"key": "a"}}, 17)),
		"a toleration of everything":        set(tolerations, []any{map[string]any{"operator": "Exists"}}),
		"a toleration's key":                set(tolerations+".0.key", strings.Repeat("a", 318)),
		"a toleration's value":              set(tolerations+".0.value", strings.Repeat("a", 64)),
		"an effect that there is not":       set(tolerations+".0.effect", "Always"),
		"an operator that there is not":     set(tolerations+".0.operator", "In"),
		"a time that no toleration has":     set(tolerations+".0.tolerationSeconds", int64(1)),
		"a time that is more than a number": set(tolerations+".0.tolerationSeconds", 1e20),
	})
	k, largest := kinds(t)["Peering"], schema.Examples()["Peering"].(*v1alpha1.Peering)
	largest.Spec.Gateways = &v1alpha1.GatewayPlacement{NodeSelector: map[string]string{}}
	for i := range 16 {
		key := fmt.Sprintf("%0317d", i)
		largest.Spec.Gateways.NodeSelector[key] = strings.Repeat("a", 63)
		largest.Spec.Gateways.Tolerations = append(largest.Spec.Gateways.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpEqual, Value: strings.Repeat("a", 63), Effect: corev1.TaintEffectPreferNoSchedule})
	}
	object(t, k, largest)
}

// A record of a service has a size, and addresses that endpoints can have.
func TestBadServicesAreRefused(t *testing.T) {
	const port, endpoint = "spec.ports.0", "spec.slices.0.endpoints.0"
	long := strings.Repeat("a", 64)
	of := func(n int, item map[string]any) []any { return slices.Repeat([]any{item}, n) }
	slice := func(ports, endpoints int) map[string]any {
		return map[string]any{
			"id": "abcdefghij", "ports": of(ports, map[string]any{"name": long[1:], "protocol": "TCP", "port": int64(65535)}),
			"endpoints": of(endpoints, map[string]any{"address": "10.30.1.5", "hostname": long[1:], "zone": long[1:]}),
		}
	}
	pairs := func(n, key, value int) map[string]any {
		out := map[string]any{}
		for i := range n {
			out[fmt.Sprintf("%0*d", key, i)] = strings.Repeat("a", value)
		}
		return out
	}
	for _, kind := range []string{"ExportedService", "ReceivedService"} {
		refuseAll(t, kind, map[string]func(map[string]any) map[string]any{
			"an unknown type":                 set("spec.type", "ExternalName"),
			"no time":                         set("spec.created", nil),
			"the year 9999":                   set("spec.created", "9999-12-31T00:00:00Z"),
			"an unknown affinity":             set("spec.sessionAffinity", "Cookie"),
			"an affinity of two days":         set("spec.sessionAffinitySeconds", int64(2*86400)),
			"an unknown traffic policy":       set("spec.internalTrafficPolicy", "Near"),
			"an unknown distribution":         set("spec.trafficDistribution", "PreferFar"),
			"less than nothing left out":      set("spec.omitted", int64(-1)),
			"101 ports":                       set("spec.ports", of(101, map[string]any{"protocol": "TCP", "port": int64(80)})),
			"a port's name":                   set(port+".name", long),
			"a port 0":                        set(port+".port", int64(0)),
			"an unknown protocol":             set(port+".protocol", "ICMP"),
			"a port's application":            set(port+".appProtocol", "a b"),
			"33 labels":                       set("spec.labels", pairs(33, 2, 1)),
			"a label's key":                   set("spec.labels", pairs(1, 318, 1)),
			"a label's value":                 set("spec.labels", pairs(1, 1, 64)),
			"33 annotations":                  set("spec.annotations", pairs(33, 2, 1)),
			"an annotation's key":             set("spec.annotations", pairs(1, 318, 1)),
			"an annotation's value":           set("spec.annotations", pairs(1, 1, 1025)),
			"41 slices":                       set("spec.slices", of(41, slice(1, 1))),
			"101 ports of a slice":            set("spec.slices", of(1, slice(101, 1))),
			"101 endpoints of a slice":        set("spec.slices", of(1, slice(1, 101))),
			"1001 endpoints":                  set("spec.slices", of(11, slice(1, 91))),
			"a slice without ID":              set("spec.slices.0.id", ""),
			"a slice with a long ID":          set("spec.slices.0.id", "abcdefghijk"),
			"no address":                      set(endpoint+".address", ""),
			"an address that is loopback":     set(endpoint+".address", "127.0.0.1"),
			"an address that is link-local":   set(endpoint+".address", "169.254.169.254"),
			"an address that is multicast":    set(endpoint+".address", "224.0.0.1"),
			"an address of IPv4 in IPv6":      set(endpoint+".address", "::ffff:10.30.1.5"),
			"an address with a zone":          set(endpoint+".address", "fe80::1%eth0"),
			"a host name with a dot":          set(endpoint+".hostname", "a.b"),
			"a zone that controls a terminal": set(endpoint+".zone", "\x1b[2J"),
		})
		largest := kit.Must(schema.Unstructured(schema.Examples()[kind]))(t)
		for at, value := range map[string]any{
			"spec.slices": of(40, slice(100, 25)), "spec.labels": pairs(32, 317, 63), "spec.annotations": pairs(32, 317, 1024),
			"spec.ports": of(100, map[string]any{"name": long[1:], "protocol": "SCTP", "port": int64(65535), "appProtocol": strings.Repeat("a", 317)}),
		} {
			largest = set(at, value)(largest)
		}
		_, err := kinds(t)[kind].Store(t.Context(), encode(t, largest), largest)
		kit.CheckNoError(t, err, "the largest %s", kind)
	}
	refuseAll(t, "ExportedService", map[string]func(map[string]any) map[string]any{
		"512 peers":        set("spec.peers", slices.Repeat([]any{"b"}, 512)),
		"a peer of dots":   set("spec.peers.0", "b.c"),
		"a peer's name":    set("spec.peers.0", long),
		"a peer of no one": set("spec.peers.0", ""),
	})
	refuseAll(t, "ReceivedService", map[string]func(map[string]any) map[string]any{
		"no hash":                     set("spec.hash", ""),
		"a hash that is too long":     set("spec.hash", strings.Repeat("a", 27)),
		"a hash of other characters":  set("spec.hash", "A1"),
		"a record that is not there":  set("spec", map[string]any{"hash": "a"}),
		"a service that is no object": set("spec", "x"),
	})
}

// A limit that the kernel cannot have, or that lets nothing pass, is refused.
func TestLimitsOfPlans(t *testing.T) {
	refuseAll(t, "Peering", map[string]func(map[string]any) map[string]any{
		"negative new connections":  set("spec.limits.newConnectionsPerSecond", int64(-1)),
		"too many new connections":  set("spec.limits.newConnectionsPerSecond", int64(1000001)),
		"less than a bundle":        set("spec.limits.bitsPerSecond", int64(999999)),
		"a negative rate":           set("spec.limits.bitsPerSecond", int64(-1000000)),
		"a rate that overflows":     set("spec.limits.bitsPerSecond", int64(100000000001)),
		"a rate that is no number":  set("spec.limits.bitsPerSecond", "500mbit"),
		"an unknown mode of planes": set("spec.planesMode", "all"),
	})
}

// kubectl prints the first value of a column only, so no column may have several.
func TestColumnsHaveOneValue(t *testing.T) {
	columns := 0
	for _, crd := range slices.Concat(manifests.CRDs(), manifests.ServicesCRDs()) {
		for _, v := range crd.Spec.Versions {
			for _, c := range v.AdditionalPrinterColumns {
				columns++
				if strings.Contains(c.JSONPath, "[*]") || strings.ContainsAny(c.JSONPath, "0123456789") || strings.Contains(c.JSONPath, "..") {
					t.Errorf("%s: column %q is %s", crd.Name, c.Name, c.JSONPath)
				}
			}
		}
		if names := crd.Spec.Names; len(names.ShortNames) != 1 || len(names.Categories) != 1 {
			t.Errorf("%s has the short names %v and the categories %v", crd.Name, names.ShortNames, names.Categories)
		}
	}
	kit.ErrorIf(t, columns < 10, "there are %d columns", columns)
}

// An endpoint goes into WireGuard's configuration, which is made of lines.
func TestEndpointsAreHostAndPort(t *testing.T) {
	for _, path := range []string{"spec.planes.0.endpoints", "status.planes.0.remote.endpoints"} {
		bad := map[string]func(map[string]any) map[string]any{}
		for _, e := range []string{"[fe80::1%x\nallowed_ip=0.0.0.0/0]:51840", "[fe80::1%eth0]:51840", "host:1\nallowed_ip=0.0.0.0/0", "192.0.2.1", "a b:1", "192.0.2.1:\x1b[1m", ":1"} {
			bad[fmt.Sprintf("%s %q", path, e)] = set(path, []any{e})
		}
		refuseAll(t, "Peering", bad)
	}
}
