package services

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
)

// The names of objects tell which service they are of, and other names are no service's.
func TestNamesOfObjects(t *testing.T) {
	longest := strings.Repeat("a", 63)
	for _, k := range []Key{{"default", "web"}, {"a", "b"}, {"0", "1"}, {"a-b", "c-d"}, {"kube", "x"}, {"kubernetes", "x"}, {"liqonet", "x"}, {"default", "web-kubernetes"}, {longest, longest}} {
		got, reason := CheckKey(k.ObjectName())
		kit.ErrorIf(t, got != k || reason != "", "%q is parsed as %v, %s", k.ObjectName(), got, reason)
		peering, got, isValid := ParseReceived(k.ReceivedName("b"))
		kit.ErrorIf(t, peering != "b" || got != k || !isValid, "%q is parsed as %s and %v, %v", k.ReceivedName("b"), peering, got, isValid)
		kit.ErrorIf(t, !regexp.MustCompile(`^derived-[0-9a-v]{10}$`).MatchString(k.DerivedName()), "%s is derived from %s", k.DerivedName(), k)
	}
	for _, bad := range []string{"", "b", "b.default", ".default.web", "b..web", "b.default.", "b.default.web.x", "b.default.Web", "b.-a.web", "b." + longest + "a.web"} {
		_, _, isValid := ParseReceived(bad)
		kit.ErrorIf(t, isValid, "%q is parsed", bad)
	}
}

// A hash is one that the definition of ReceivedService allows, and depends on everything that a peer learns.
func TestHashesOfRecords(t *testing.T) {
	r := exporter("own", 0, "http:80").Record
	hash := Hash(r)
	kit.ErrorIf(t, !regexp.MustCompile(`^[a-z2-7]{26}$`).MatchString(hash), "the hash is %q", hash)
	r.Slices[0].Endpoints[0].NodeName = "another"
	kit.Check(t, "the hash of a record with another node", Hash(r), hash)
	r.Slices[0].Endpoints[0].Terminating = true
	kit.ErrorIf(t, Hash(r) == hash, "it is the same for an endpoint that terminates")
}

// Each value may be as large as its limit, and no larger.
func TestLimitsOfRecords(t *testing.T) {
	text := func(n int) string { return strings.Repeat("a", n) }
	pairs := func(n int) map[string]string {
		out := map[string]string{}
		for i := range n {
			out[fmt.Sprint("k", i)] = "v"
		}
		return out
	}
	endpoints := func(n int) (out []v1alpha1.RecordEndpoint) {
		for i := range n {
			out = append(out, v1alpha1.RecordEndpoint{Address: ip(fmt.Sprintf("10.61.%d.%d", i/200, 1+i%200))})
		}
		return out
	}
	type record = v1alpha1.ServiceRecord
	for name, tt := range map[string]struct {
		allowed, refused int
		set              func(r *record, n int)
	}{
		"first year": {1, 0, func(r *record, n int) { r.Created = metav1.NewTime(time.Date(n, 2, 1, 0, 0, 0, 0, time.UTC)) }},
		"last year":  {9998, 9999, func(r *record, n int) { r.Created = metav1.NewTime(time.Date(n, 2, 1, 0, 0, 0, 0, time.UTC)) }},
		"seconds":    {86400, 86401, func(r *record, n int) { r.SessionAffinitySeconds = int32(n) }},
		"no seconds": {0, -1, func(r *record, n int) { r.SessionAffinitySeconds = int32(n) }},
		"left out":   {1000000, 1000001, func(r *record, n int) { r.Omitted = int32(n) }},
		"ports": {100, 101, func(r *record, n int) {
			r.Ports = lo.Times(n, func(i int) v1alpha1.RecordPort {
				return v1alpha1.RecordPort{Name: fmt.Sprint("p", i), Protocol: "UDP", Port: int32(1 + i)}
			})
		}},
		"least ports":      {1, 0, func(r *record, n int) { r.Ports = r.Ports[:n] }},
		"port":             {65535, 65536, func(r *record, n int) { r.Ports[0].Port = int32(n) }},
		"least port":       {1, 0, func(r *record, n int) { r.Ports[0].Port = int32(n) }},
		"port name":        {63, 64, func(r *record, n int) { r.Ports[0].Name = text(n) }},
		"app protocol":     {63, 64, func(r *record, n int) { r.Ports[0].AppProtocol = text(n) }},
		"its prefix":       {253, 254, func(r *record, n int) { r.Ports[0].AppProtocol = text(n) + "/a" }},
		"labels":           {32, 33, func(r *record, n int) { r.Labels = pairs(n) }},
		"label name":       {63, 64, func(r *record, n int) { r.Labels = map[string]string{text(n): ""} }},
		"label prefix":     {253, 254, func(r *record, n int) { r.Labels = map[string]string{text(n) + "/a": ""} }},
		"label value":      {63, 64, func(r *record, n int) { r.Labels = map[string]string{"a": text(n)} }},
		"annotations":      {32, 33, func(r *record, n int) { r.Annotations = pairs(n) }},
		"annotation value": {1024, 1025, func(r *record, n int) { r.Annotations = map[string]string{"a": text(n)} }},
		"slices": {40, 41, func(r *record, n int) {
			r.Slices = lo.Times(n, func(i int) v1alpha1.RecordSlice { return v1alpha1.RecordSlice{ID: fmt.Sprint(i)} })
		}},
		"slice ID":           {10, 11, func(r *record, n int) { r.Slices[0].ID = text(n) }},
		"least slice ID":     {1, 0, func(r *record, n int) { r.Slices[0].ID = text(n) }},
		"slice endpoints":    {100, 101, func(r *record, n int) { r.Slices[0].Endpoints = endpoints(n) }},
		"slice port":         {65535, 65536, func(r *record, n int) { r.Slices[0].Ports[0].Port = int32(n) }},
		"slice port's name":  {63, 64, func(r *record, n int) { r.Slices[0].Ports[0].Name = text(n) }},
		"ports of one slice": {100, 101, func(r *record, n int) { r.Slices[0].Ports = slicePortsOf(n) }},
		"endpoints": {1000, 1001, func(r *record, n int) {
			r.Slices = nil
			for i, part := range lo.Chunk(endpoints(n), 91) {
				r.Slices = append(r.Slices, v1alpha1.RecordSlice{ID: fmt.Sprint(i), Endpoints: part})
			}
		}},
		"host name": {63, 64, func(r *record, n int) { r.Slices[0].Endpoints[0].Hostname = text(n) }},
		"zone":      {63, 64, func(r *record, n int) { r.Slices[0].Endpoints[0].Zone = text(n) }},
	} {
		for _, n := range []int{tt.allowed, tt.refused} {
			r := exporter("b", 0, "http:80").Record
			tt.set(r, n)
			err := Validate(r)
			kit.ErrorIf(t, (err == nil) != (n == tt.allowed) || err != nil && !errors.Is(err, ErrRefused), "%s of %d: the error is %v", name, n, err)
		}
	}
}

func slicePortsOf(n int) []v1alpha1.SlicePort {
	return lo.Times(n, func(i int) v1alpha1.SlicePort {
		return v1alpha1.SlicePort{Name: fmt.Sprint("p", i), Protocol: "TCP", Port: int32(1 + i)}
	})
}

// A value that Kubernetes refuses in one of the objects would keep the whole service from being imported.
func TestValuesThatKubernetesRefuses(t *testing.T) {
	kit.NoError(t, Validate(exporter("b", 0, "http:80").Record))
	west, east := time.FixedZone("west", -3600), time.FixedZone("east", 3600)
	for name, damage := range map[string]func(r *v1alpha1.ServiceRecord){
		"two ports with one number": func(r *v1alpha1.ServiceRecord) {
			r.Ports = append(r.Ports, v1alpha1.RecordPort{Name: "web", Protocol: "TCP", Port: 80})
		},
		"an application protocol without letter": func(r *v1alpha1.ServiceRecord) { r.Ports[0].AppProtocol = "-" },
		"an application protocol's end":          func(r *v1alpha1.ServiceRecord) { r.Ports[0].AppProtocol = "example.com/a-" },
		"an application protocol's prefix":       func(r *v1alpha1.ServiceRecord) { r.Ports[0].AppProtocol = "Example.com/a" },
		"a label's prefix":                       func(r *v1alpha1.ServiceRecord) { r.Labels = map[string]string{"Example.com/a": ""} },
		"a label's value":                        func(r *v1alpha1.ServiceRecord) { r.Labels = map[string]string{"a": "b c"} },
		"an annotation's key":                    func(r *v1alpha1.ServiceRecord) { r.Annotations = map[string]string{"a/b/c": ""} },
		"two ports of a slice with one name": func(r *v1alpha1.ServiceRecord) {
			r.Slices[0].Ports = append(r.Slices[0].Ports, v1alpha1.SlicePort{Name: "http", Protocol: "UDP", Port: 53})
		},
		"a slice port's name":      func(r *v1alpha1.ServiceRecord) { r.Slices[0].Ports[0].Name = "http-" },
		"an upper-case host name":  func(r *v1alpha1.ServiceRecord) { r.Slices[0].Endpoints[0].Hostname = "Web" },
		"a host name that ends so": func(r *v1alpha1.ServiceRecord) { r.Slices[0].Endpoints[0].Hostname = "web-" },
		"a line break in a zone":   func(r *v1alpha1.ServiceRecord) { r.Slices[0].Endpoints[0].Zone = "a\n" },
		"the year 9999": func(r *v1alpha1.ServiceRecord) {
			r.Created = metav1.NewTime(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC).In(west))
		},
		"the year 0": func(r *v1alpha1.ServiceRecord) {
			r.Created = metav1.NewTime(time.Date(1, 1, 1, 0, 0, 0, -1, time.UTC).In(east))
		},
	} {
		r := exporter("b", 0, "http:80").Record
		damage(r)
		err := Validate(r)
		kit.ErrorIf(t, !errors.Is(err, ErrRefused), "%s: the error is %v", name, err)
	}
	for _, address := range []string{"0.0.0.0", "127.0.0.1", "169.254.169.254", "224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "ff02::1"} {
		r := exporter("b", 0, "http:80").Record
		r.Slices[0].Endpoints[0].Address = ip(address)
		err := Validate(r)
		kit.ErrorIf(t, !errors.Is(err, ErrRefused), "%s: the error is %v", address, err)
	}
}

// Endpoints of a peer are in its pods' ranges, or in the half of the external range that is for exposed hosts.
func TestEdgesOfRanges(t *testing.T) {
	_, b := peering() // the peer has 10.61.0.0/16 and 10.71.0.0/18
	b.Spec.Remote.Pods = append(b.Spec.Remote.Pods, kit.Mapping("fd00:1::/64", "fd00:61::/64"))
	want := map[string]bool{
		"10.60.255.255": false, "10.61.0.0": true, "10.61.255.255": true, "10.62.0.0": false,
		"10.70.255.255": false, "10.71.0.0": false, "10.71.31.255": false, "10.71.32.0": true, "10.71.63.255": true, "10.71.64.0": false,
		"::ffff:10.61.0.1": false, "fd00:61::1": false,
	}
	for _, address := range slices.Sorted(maps.Keys(want)) {
		r := exporter("b", 0, "http:80").Record
		r.Slices[0].Endpoints = append(r.Slices[0].Endpoints, v1alpha1.RecordEndpoint{Address: ip(address), Ready: true})
		r.Slices[0].Endpoints[0].Address = ip("10.61.1.1")
		used, refused, err := FromPeer(r, b)
		kit.NoError(t, err)
		got := lo.Map(used.Slices[0].Endpoints, func(e v1alpha1.RecordEndpoint, _ int) string { return e.Address.String() })
		kit.Check(t, address, got, append([]string{"10.61.1.1"}, lo.Ternary(want[address], []string{address}, nil)...))
		kit.Check(t, address+": refused", refused, lo.Ternary(want[address], 0, 1))
		kit.Check(t, address+": endpoints of the record itself", len(r.Slices[0].Endpoints), 2)
	}
	b.Spec.Remote.ExternalCIDR = v1alpha1.CIDR{}
	kit.Check(t, "ranges without an external one", UsableRanges(b), []netip.Prefix{netip.MustParsePrefix("10.61.0.0/16")})
}

// Labels with a meaning for Kubernetes or for us are not taken from a peer, although it tells them.
func TestLabelsOfPeers(t *testing.T) {
	_, b := peering()
	r := exporter("b", 0, "http:80").Record
	r.Labels = map[string]string{"app": "x", "example.com/a": "b", "kubernetes.io/a": "b", "app.kubernetes.io/managed-by": "me", "liqonet.io/import": "true", "notliqonet.io/a": "b"}
	r.Annotations = map[string]string{"multicluster.kubernetes.io/derived-service": "x", "x.k8s.io/a": "b", "a": "b"}
	used, _, err := FromPeer(r, b)
	kit.NoError(t, err)
	kit.Check(t, "labels", used.Labels, map[string]string{"app": "x", "example.com/a": "b", "notliqonet.io/a": "b"})
	kit.Check(t, "annotations", used.Annotations, map[string]string{"a": "b"})
}

func TestImportPolicies(t *testing.T) {
	for _, tt := range []struct {
		policy       v1alpha1.ImportPolicy
		label        string
		want, absent bool
	}{
		{v1alpha1.ImportAll, "true", true, true},
		{v1alpha1.ImportAll, "false", false, true},
		{v1alpha1.ImportAll, "", true, true},
		{v1alpha1.ImportLabeled, "true", true, false},
		{v1alpha1.ImportLabeled, "false", false, false},
		{v1alpha1.ImportLabeled, "yes", false, false},
		{v1alpha1.ImportNone, "true", false, false},
		{"", "true", false, false},
	} {
		kit.Check(t, fmt.Sprintf("%s with the label %q", tt.policy, tt.label), Imports(tt.policy, map[string]string{v1alpha1.LabelImport: tt.label}), tt.want)
		kit.Check(t, fmt.Sprintf("%s without a label", tt.policy), Imports(tt.policy, nil), tt.absent)
	}
}

// randomRecord returns a valid record with endpoints in a network, such as "10.61".
func randomRecord(r *rand.Rand, network string) *v1alpha1.ServiceRecord {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	out := &v1alpha1.ServiceRecord{
		Created: metav1.NewTime(time.Unix(1e9+r.Int64N(4), 0)), Type: v1alpha1.ServiceType(pick("ClusterSetIP", "ClusterSetIP", "Headless")),
		SessionAffinity: corev1.ServiceAffinity(pick("", "None", "ClientIP")), InternalTrafficPolicy: corev1.ServiceInternalTrafficPolicy(pick("", "Cluster", "Local")),
		TrafficDistribution: pick("", "PreferClose", "PreferSameZone", "PreferSameNode"), Omitted: r.Int32N(2),
	}
	if out.SessionAffinity == corev1.ServiceAffinityClientIP {
		out.SessionAffinitySeconds = 1800 * r.Int32N(3)
	}
	if r.IntN(2) == 0 {
		out.Labels, out.Annotations = map[string]string{"app": pick("a", "b")}, map[string]string{"example.com/a": pick("a", "b c")}
	}
	names := []string{"", "http", "web", "admin", "dns"}
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for i, n := range r.Perm(4)[:1+r.IntN(4)] {
		out.Ports = append(out.Ports, v1alpha1.RecordPort{
			Name: names[i], Protocol: corev1.Protocol(pick("TCP", "TCP", "UDP", "SCTP")), Port: int32(80 + n), AppProtocol: pick("", "", "http", "kubernetes.io/h2c"),
		})
	}
	for i := range r.IntN(4) {
		s := v1alpha1.RecordSlice{ID: fmt.Sprint("s", i)}
		for _, p := range out.Ports {
			if r.IntN(4) > 0 {
				s.Ports = append(s.Ports, v1alpha1.SlicePort{Name: p.Name, Protocol: p.Protocol, Port: 8000 + p.Port})
			}
		}
		for range r.IntN(4) {
			s.Endpoints = append(s.Endpoints, v1alpha1.RecordEndpoint{
				Address: ip(fmt.Sprintf("%s.%d.%d", network, r.IntN(4), 1+r.IntN(250))), Hostname: pick("", "web-0"), Zone: pick("", "eu-1a"), NodeName: pick("n1", "n2"),
				Ready: r.IntN(2) == 0, Serving: r.IntN(2) == 0, Terminating: r.IntN(4) == 0,
			})
		}
		out.Slices = append(out.Slices, s)
	}
	return out
}

// odd returns a value of JSON in which something is unusual. Types stay the same, as others cannot be read.
func odd(r *rand.Rand, v any) any {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	switch v := v.(type) {
	case map[string]any:
		keys := slices.Sorted(maps.Keys(v))
		if len(keys) == 0 {
			return v
		}
		if k := pick(keys...); r.IntN(10) == 0 {
			delete(v, k)
		} else {
			v[k] = odd(r, v[k])
		}
		return v
	case []any:
		if len(v) == 0 {
			return v
		}
		if i := r.IntN(len(v)); r.IntN(6) == 0 {
			return append(v, v[i]) // twice
		} else {
			v[i] = odd(r, v[i])
		}
		return v
	case bool:
		return !v
	case float64:
		return []float64{-1, 0, 1, 80, 81, 82, 443, 8080, 65535, 65536, 86400, 86401, 1000000}[r.IntN(13)]
	}
	return pick("", "-", "a", "a-", "a b", "A", "a.b", "a/b", "-/a", "example.com/a", "Example.com/a", "\x1b[2J", strings.Repeat("a", 63), strings.Repeat("a", 64),
		"http", "web", "tcp-80", "TCP", "UDP", "ClusterSetIP", "Headless", "ClientIP", "None", "Cluster", "Local", "PreferSameNode", "PreferClose", "x.y_z",
		"10.61.0.1", "10.62.0.1", "10.71.40.1", "::ffff:10.61.0.1", "fe80::1%eth0", "fd00::1", "127.0.0.1",
		"0001-01-01T00:00:01Z", "9998-12-31T23:59:59Z", "9999-01-01T00:00:00Z", "2026-01-01T00:00:00+23:59", "2026-01-01T00:00:00.5Z")
}

// problems returns why an API server would not accept what becomes of a merged service.
func problems(m *Merged) (out []string) {
	require := func(errs []string, format string, args ...any) {
		if len(errs) > 0 {
			out = append(out, fmt.Sprintf(format, args...)+": "+errs[0])
		}
	}
	unless := func(ok bool) []string { return lo.Ternary(ok, nil, []string{"not valid"}) }
	port := func(of, name string, appProtocol *string) {
		require(unless(name == "" || len(validation.IsDNS1123Label(name)) == 0), "%s: port %q", of, name)
		require(unless(appProtocol == nil || len(validation.IsQualifiedName(*appProtocol)) == 0), "%s: application protocol of %q", of, name)
	}
	metadata := func(obj metav1.ObjectMeta) {
		require(validation.IsDNS1123Subdomain(obj.Name), "name %q", obj.Name)
		for k, v := range obj.Labels {
			require(append(validation.IsQualifiedName(k), validation.IsValidLabelValue(v)...), "label %s=%s of %s", k, v, obj.Name)
		}
		for k := range obj.Annotations {
			require(validation.IsQualifiedName(strings.ToLower(k)), "annotation %s of %s", k, obj.Name)
		}
	}
	metadata(m.Import(nil).ObjectMeta)
	if svc := m.DerivedService(); svc != nil {
		metadata(svc.ObjectMeta)
		require(unless(len(svc.Spec.Ports) > 0), "Service: ports")
		require(unless(len(lo.UniqBy(svc.Spec.Ports, func(p corev1.ServicePort) string { return p.Name })) == len(svc.Spec.Ports)), "Service: names of ports")
		require(unless(len(lo.UniqBy(svc.Spec.Ports, func(p corev1.ServicePort) string { return fmt.Sprint(p.Protocol, p.Port) })) == len(svc.Spec.Ports)), "Service: numbers of ports")
		for _, p := range svc.Spec.Ports {
			port("Service", p.Name, p.AppProtocol)
			require(unless(p.Name != "" || len(svc.Spec.Ports) == 1), "Service: a port without a name")
		}
		if c := svc.Spec.SessionAffinityConfig; c != nil {
			require(unless(*c.ClientIP.TimeoutSeconds > 0 && *c.ClientIP.TimeoutSeconds <= 86400), "Service: session affinity")
		}
	}
	for _, s := range m.EndpointSlices() {
		metadata(s.ObjectMeta)
		require(unless(len(lo.UniqBy(s.Ports, func(p discoveryv1.EndpointPort) string { return *p.Name })) == len(s.Ports)), "slice: names of ports")
		for _, p := range s.Ports {
			port("slice", *p.Name, p.AppProtocol)
		}
		for _, e := range s.Endpoints {
			a, err := netip.ParseAddr(e.Addresses[0])
			require(unless(err == nil && a.Is4()), "slice: address %s", e.Addresses[0])
			if e.Hostname != nil {
				require(validation.IsDNS1123Label(*e.Hostname), "slice: host name %q", *e.Hostname)
			}
			if e.Hints != nil {
				require(unless(len(e.Hints.ForZones) == 1 && len(e.Hints.ForZones[0].Name) <= 63), "slice: hints %v", e.Hints.ForZones)
			}
		}
	}
	return out
}

// What is accepted of a peer can be recorded, and what becomes of it can be written, whatever the peer tells.
func TestAcceptedRecordsCanBeWritten(t *testing.T) {
	r := kit.Random(t)
	_, b := peering()
	kind, accepted := kit.Must(schema.Kinds(t.Context()))(t)["ReceivedService"], 0
	for range 3000 {
		var raw any
		kit.NoError(t, json.Unmarshal([]byte(encoded(randomRecord(r, "10.61"))), &raw))
		for range 1 + r.IntN(3) {
			raw = odd(r, raw)
		}
		record := &v1alpha1.ServiceRecord{}
		if json.Unmarshal([]byte(encoded(raw)), record) != nil {
			continue
		}
		used, _, err := FromPeer(record, b)
		if err != nil {
			kit.MustBe(t, "it is refused", errors.Is(err, ErrRefused), true)
			continue
		}
		accepted++
		_, err = kind.Store(t.Context(), []byte(encoded(&v1alpha1.ReceivedService{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ReceivedService"},
			ObjectMeta: metav1.ObjectMeta{Name: "b.shop.web"}, Spec: v1alpha1.ReceivedServiceSpec{Hash: Hash(record), ServiceRecord: *used},
		})), nil)
		kit.FatalIf(t, err != nil, "%s is accepted: %v", encoded(raw), err)
		again, refused, err := FromPeer(used, b)
		kit.NoError(t, err)
		kit.ErrorIf(t, refused > 0 || Hash(again) != Hash(used), "%s is checked again and becomes %s, %d are refused", encoded(used), encoded(again), refused)
		m := Merge(Key{"default", "web"}, []Exporter{exporter("own", r.IntN(4), "http:80"), {ID: "b", Record: used, Settings: &v1alpha1.PeeringServices{}}}, now)
		kit.FatalIf(t, len(problems(m)) > 0, "%s is accepted, and with it %s", encoded(raw), strings.Join(problems(m), ", "))
	}
	kit.ErrorIf(t, accepted < 100, "only %d records are accepted", accepted)
}
