package services

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

func ip(s string) v1alpha1.IP { return v1alpha1.IP{Addr: netip.MustParseAddr(s)} }

var now = time.Unix(2e9, 0)

func TestNames(t *testing.T) {
	k := Key{"default", "web"}
	sum := sha256.Sum256([]byte("default/web"))
	want := "derived-" + strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))[:10]
	kit.Check(t, "derived name", k.DerivedName(), want)
	peering, got, isValid := ParseReceived(k.ReceivedName("cluster-b"))
	kit.ErrorIf(t, peering != "cluster-b" || got != k || !isValid, "%q is parsed as %s and %v, %v", k.ReceivedName("cluster-b"), peering, got, isValid)
	for _, bad := range []string{"", "web", ".web", "default.", "a.b.c", "Default.web", "default.we_b", strings.Repeat("a", 64) + ".web"} {
		_, reason := CheckKey(bad)
		kit.Check(t, fmt.Sprintf("%q", bad), reason, RefusedName)
	}
	for _, reserved := range []string{"kube-system.x", "kube-public.x", "kube-node-lease.x", "kube-other.x", "liqonet-system.x", "default.kubernetes"} {
		_, reason := CheckKey(reserved)
		kit.Check(t, reserved, reason, RefusedNamespace)
	}
}

// peering returns the two sides of a peering. Pods of both clusters have 10.244.0.0/16, and are known as 10.61 and 10.62.
func peering() (a, b *v1alpha1.Peering) {
	side := func(own, peer string) *v1alpha1.Peering {
		p := &v1alpha1.Peering{ObjectMeta: metav1.ObjectMeta{Name: "peer"}}
		p.Spec.Local.InternalCIDR = kit.CIDR("10.80.0.0/19")
		p.Spec.Local.Pods = []v1alpha1.CIDRMapping{kit.Mapping("10.244.0.0/16", "10."+own+".0.0/16")}
		p.Spec.Local.Hosts = []v1alpha1.AddressMapping{{Real: ip("192.168.1.50"), Mapped: ip("10.7" + own[1:] + ".40.1")}}
		p.Spec.Remote.Pods = []v1alpha1.CIDRMapping{kit.Mapping("10.244.0.0/16", "10."+peer+".0.0/16")}
		p.Spec.Remote.ExternalCIDR = kit.CIDR("10.7" + peer[1:] + ".0.0/18")
		return p
	}
	return side("61", "62"), side("62", "61")
}

func TestPeersLearnTheirOwnAddresses(t *testing.T) {
	a, b := peering()
	r := &v1alpha1.ServiceRecord{Type: v1alpha1.HeadlessService, Created: metav1.NewTime(now), Slices: []v1alpha1.RecordSlice{{ID: "x", Endpoints: []v1alpha1.RecordEndpoint{
		{Address: ip("10.244.1.5"), NodeName: "n", Ready: true}, {Address: ip("192.168.1.50")}, {Address: ip("172.18.0.2")}, {Address: ip("203.0.113.9")}, {Address: ip("10.62.1.1")},
	}}}}
	out, left := ToPeer(r, a, map[netip.Addr]bool{netip.MustParseAddr("172.18.0.2"): true})
	got := lo.Map(out.Slices[0].Endpoints, func(e v1alpha1.RecordEndpoint, _ int) string { return e.Address.String() + e.NodeName })
	kit.Check(t, "addresses", got, []string{"10.61.1.5", "10.71.40.1"})
	kit.Check(t, "left out", left, Unreachable{HostNetwork: 1, NotExposed: 2})
	kit.Check(t, "the record itself", r.Slices[0].Endpoints[0].Address.String(), "10.244.1.5")
	used, refused, err := FromPeer(out, b)
	kit.NoError(t, err)
	kit.Check(t, "refused", refused, 0)
	kit.Check(t, "used", Hash(used), Hash(out))
	// Anything else is refused: nodes, which are in the lower half of the external range, other ranges, and own addresses.
	for _, foreign := range []string{"10.71.0.1", "10.71.31.254", "10.62.1.1", "10.244.1.5", "10.80.0.1", "8.8.8.8"} {
		out.Slices[0].Endpoints[0].Address = ip(foreign)
		used, refused, err := FromPeer(out, b)
		kit.NoError(t, err)
		kit.ErrorIf(t, refused != 1 || len(used.Slices[0].Endpoints) != 1, "%s: %d are refused, and %d used", foreign, refused, len(used.Slices[0].Endpoints))
	}
}

// Each field of a peer's record is checked.
func TestRecordsAreValidated(t *testing.T) {
	valid := func() *v1alpha1.ServiceRecord {
		return &v1alpha1.ServiceRecord{
			Type: v1alpha1.ClusterSetIP, Created: metav1.NewTime(now), Ports: []v1alpha1.RecordPort{{Name: "http", Protocol: "TCP", Port: 80}},
			Slices: []v1alpha1.RecordSlice{{ID: "x", Ports: []v1alpha1.SlicePort{{Name: "http", Protocol: "TCP", Port: 8080}}, Endpoints: []v1alpha1.RecordEndpoint{{Address: ip("10.61.1.5")}}}},
		}
	}
	kit.NoError(t, Validate(valid()))
	for name, damage := range map[string]func(r *v1alpha1.ServiceRecord){
		"type":           func(r *v1alpha1.ServiceRecord) { r.Type = "ExternalName" },
		"no port":        func(r *v1alpha1.ServiceRecord) { r.Ports = nil },
		"created":        func(r *v1alpha1.ServiceRecord) { r.Created = metav1.Time{} },
		"created late":   func(r *v1alpha1.ServiceRecord) { r.Created.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"affinity":       func(r *v1alpha1.ServiceRecord) { r.SessionAffinity = "Cookie" },
		"seconds":        func(r *v1alpha1.ServiceRecord) { r.SessionAffinitySeconds = 86401 },
		"policy":         func(r *v1alpha1.ServiceRecord) { r.InternalTrafficPolicy = "Near" },
		"distribution":   func(r *v1alpha1.ServiceRecord) { r.TrafficDistribution = "Near" },
		"omitted":        func(r *v1alpha1.ServiceRecord) { r.Omitted = -1 },
		"ports":          func(r *v1alpha1.ServiceRecord) { r.Ports = make([]v1alpha1.RecordPort, 101) },
		"same port":      func(r *v1alpha1.ServiceRecord) { r.Ports = append(r.Ports, r.Ports[0]) },
		"port name":      func(r *v1alpha1.ServiceRecord) { r.Ports[0].Name = "A" },
		"protocol":       func(r *v1alpha1.ServiceRecord) { r.Ports[0].Protocol = "ICMP" },
		"port number":    func(r *v1alpha1.ServiceRecord) { r.Ports[0].Port = 0 },
		"app protocol":   func(r *v1alpha1.ServiceRecord) { r.Ports[0].AppProtocol = "a b" },
		"label key":      func(r *v1alpha1.ServiceRecord) { r.Labels = map[string]string{"a b": ""} },
		"label value":    func(r *v1alpha1.ServiceRecord) { r.Labels = map[string]string{"a": strings.Repeat("x", 64)} },
		"annotation":     func(r *v1alpha1.ServiceRecord) { r.Annotations = map[string]string{"a": strings.Repeat("x", 1025)} },
		"slices":         func(r *v1alpha1.ServiceRecord) { r.Slices = make([]v1alpha1.RecordSlice, 41) },
		"slice ID":       func(r *v1alpha1.ServiceRecord) { r.Slices[0].ID = "a-b" },
		"same slice":     func(r *v1alpha1.ServiceRecord) { r.Slices = append(r.Slices, r.Slices[0]) },
		"endpoints":      func(r *v1alpha1.ServiceRecord) { r.Slices[0].Endpoints = make([]v1alpha1.RecordEndpoint, 101) },
		"slice port":     func(r *v1alpha1.ServiceRecord) { r.Slices[0].Ports[0].Port = 70000 },
		"slice protocol": func(r *v1alpha1.ServiceRecord) { r.Slices[0].Ports[0].Protocol = "" },
		"no address":     func(r *v1alpha1.ServiceRecord) { r.Slices[0].Endpoints[0].Address = v1alpha1.IP{} },
		"loopback":       func(r *v1alpha1.ServiceRecord) { r.Slices[0].Endpoints[0].Address = ip("127.0.0.1") },
		"host name":      func(r *v1alpha1.ServiceRecord) { r.Slices[0].Endpoints[0].Hostname = "a.b" },
		"zone":           func(r *v1alpha1.ServiceRecord) { r.Slices[0].Endpoints[0].Zone = "a b" },
	} {
		r := valid()
		damage(r)
		err := Validate(r)
		kit.ErrorIf(t, !errors.Is(err, ErrRefused), "%s: the error is %v", name, err)
	}
}

// exporter returns a cluster's export, created after so many seconds, with ports as NAME:NUMBER.
func exporter(id string, age int, ports ...string) Exporter {
	r := &v1alpha1.ServiceRecord{Type: v1alpha1.ClusterSetIP, Created: metav1.NewTime(time.Unix(1e9+int64(age), 0)), Slices: []v1alpha1.RecordSlice{{ID: "x"}}}
	for _, p := range ports {
		name, number, _ := strings.Cut(p, ":")
		var n int32
		fmt.Sscan(number, &n)
		r.Ports = append(r.Ports, v1alpha1.RecordPort{Name: name, Protocol: "TCP", Port: n})
		r.Slices[0].Ports = append(r.Slices[0].Ports, v1alpha1.SlicePort{Name: name, Protocol: "TCP", Port: n + 8000})
	}
	r.Slices[0].Endpoints = []v1alpha1.RecordEndpoint{{Address: ip("10.1.1.1"), Ready: true, Serving: true, NodeName: "n"}}
	return Exporter{ID: id, IsOwn: id == "own", Record: r, Settings: lo.Ternary(id == "own", nil, &v1alpha1.PeeringServices{})}
}

func shownPorts(m *Merged) string {
	return strings.Join(lo.Map(m.Ports, func(p v1alpha1.RecordPort, _ int) string { return fmt.Sprintf("%s:%d", p.Name, p.Port) }), " ")
}

// behind returns which ports lead to which clusters, as PORT of the import to target ports.
func behind(m *Merged) string {
	var out []string
	for _, s := range m.Slices {
		for _, p := range s.Ports {
			out = append(out, fmt.Sprintf("%s→%s:%d", p.Name, s.Cluster, p.Port))
		}
	}
	return strings.Join(out, " ")
}

func TestPortsOfSeveralExports(t *testing.T) {
	for _, tt := range []struct {
		name          string
		exports       []Exporter
		ports, behind string
		conflict      bool
	}{
		{"one", []Exporter{exporter("own", 0, "http:80")}, "http:80", "http→own:8080", false},
		{"the same", []Exporter{exporter("own", 0, "http:80"), exporter("b", 1, "http:80")}, "http:80", "http→b:8080 http→own:8080", false},
		{"union", []Exporter{exporter("own", 0, "http:80"), exporter("b", 1, "http:80", "admin:90")}, "http:80 admin:90", "http→b:8080 admin→b:8090 http→own:8080", true},
		{"another number", []Exporter{exporter("own", 0, "http:80"), exporter("b", 1, "http:81")}, "http:80", "http→own:8080", true},
		{"another name", []Exporter{exporter("own", 0, "http:80"), exporter("b", 1, "web:80")}, "http:80", "http→b:8080 http→own:8080", true},
		{"no name", []Exporter{exporter("own", 0, ":80"), exporter("b", 1, "http:81")}, ":80 http:81", "http→b:8081 →own:8080", true},
		{"the peer is older", []Exporter{exporter("own", 2, "http:80"), exporter("b", 1, "web:80")}, "web:80", "web→b:8080 web→own:8080", true},
		{"one is missing", []Exporter{exporter("own", 0, "http:80", "admin:90"), exporter("b", 1, "http:80")}, "http:80 admin:90", "http→b:8080 http→own:8080 admin→own:8090", true},
	} {
		m := Merge(Key{"default", "web"}, tt.exports, now)
		kit.Check(t, tt.name+": ports", shownPorts(m), tt.ports)
		kit.Check(t, tt.name+": behind them", behind(m), tt.behind)
		kit.Check(t, tt.name+": conflict", slices.Contains(m.Conflicts, string(mcs.ServiceExportReasonPortConflict)), tt.conflict)
	}
}

func TestConflicts(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(r *v1alpha1.ServiceRecord)
		want   string
	}{
		"type":         {func(r *v1alpha1.ServiceRecord) { r.Type = v1alpha1.HeadlessService }, "TypeConflict"},
		"affinity":     {func(r *v1alpha1.ServiceRecord) { r.SessionAffinity = corev1.ServiceAffinityClientIP }, "SessionAffinityConflict"},
		"policy":       {func(r *v1alpha1.ServiceRecord) { r.InternalTrafficPolicy = corev1.ServiceInternalTrafficPolicyLocal }, "InternalTrafficPolicyConflict"},
		"distribution": {func(r *v1alpha1.ServiceRecord) { r.TrafficDistribution = corev1.ServiceTrafficDistributionPreferClose }, "TrafficDistributionConflict"},
		"labels":       {func(r *v1alpha1.ServiceRecord) { r.Labels = map[string]string{"a": "b"} }, "LabelsConflict"},
		"annotations":  {func(r *v1alpha1.ServiceRecord) { r.Annotations = map[string]string{"a": "b"} }, "AnnotationsConflict"},
		"nothing":      {func(r *v1alpha1.ServiceRecord) { r.InternalTrafficPolicy = corev1.ServiceInternalTrafficPolicyCluster }, ""},
	} {
		own, b := exporter("own", 0, "http:80"), exporter("b", 1, "http:80")
		tt.change(b.Record)
		m := Merge(Key{"default", "web"}, []Exporter{b, own}, now)
		kit.Check(t, name, strings.Join(m.Conflicts, ","), tt.want)
		kit.Check(t, name+": the older one decides", Hash(&m.Record), Hash(&Merge(Key{"default", "web"}, []Exporter{own}, now).Record))
		if tt.want != "" {
			kit.CheckContains(t, name+": message", m.Differs[0], "oldest", " in b", " in own")
		}
		b.Settings.Precedence, own.Record.Created = v1alpha1.PrecedenceOwn, metav1.NewTime(time.Unix(1e9+9, 0))
		m = Merge(Key{"default", "web"}, []Exporter{b, own}, now)
		kit.Check(t, name+": the own one decides", m.Record.Type, own.Record.Type)
	}
}

func TestAFutureTimeDoesNotWin(t *testing.T) {
	own, b := exporter("own", 0, "http:80"), exporter("a", 0, "web:80")
	own.Record.Created, b.Record.Created = metav1.NewTime(now.Add(-time.Second)), metav1.NewTime(now.Add(time.Hour))
	kit.Check(t, "ports", shownPorts(Merge(Key{"default", "web"}, []Exporter{own, b}, now)), "http:80")
}

func TestEndpointsOfPeers(t *testing.T) {
	own, b := exporter("own", 0, "http:80"), exporter("b", 1, "http:80")
	states := func(m *Merged) string {
		return strings.Join(lo.Map(m.Slices, func(s MergedSlice, _ int) string {
			e := s.Endpoints[0]
			return fmt.Sprintf("%s:%v,%v,%v,%s", s.Cluster, e.Ready, e.Serving, e.Terminating, e.NodeName)
		}), " ")
	}
	merge := func() *Merged { return Merge(Key{"default", "web"}, []Exporter{own, b}, now) }
	kit.Check(t, "equal", states(merge()), "b:true,true,false, own:true,true,false,n")
	b.Settings.Endpoints = v1alpha1.EndpointsStandby
	kit.Check(t, "standby", states(merge()), "b:false,true,true, own:true,true,false,n")
	own.Record.Slices[0].Endpoints[0].Ready = false
	kit.Check(t, "standby without own ones", states(merge()), "b:true,true,false, own:false,true,false,n")
	b.Withdrawn = true
	kit.Check(t, "withdrawn", states(merge()), "b:false,false,false, own:false,true,false,n")
	kit.Check(t, "annotation", merge().EndpointSlices()[0].Annotations[AnnotationWithdrawn], "true")
}

// randomExporters returns exports of up to four clusters that differ in anything.
func randomExporters(r *rand.Rand) (out []Exporter) {
	for i := range 1 + r.IntN(4) {
		e := exporter([]string{"own", "b", "c", "d"}[i], r.IntN(3))
		e.Record.Ports, e.Record.Slices[0].Ports = nil, nil
		for _, name := range []string{"", "http", "web", "admin"} {
			if r.IntN(2) == 0 {
				n := int32(80 + r.IntN(3))
				e.Record.Ports = append(e.Record.Ports, v1alpha1.RecordPort{Name: name, Protocol: "TCP", Port: n})
				e.Record.Slices[0].Ports = append(e.Record.Slices[0].Ports, v1alpha1.SlicePort{Name: name, Protocol: "TCP", Port: n + 8000})
			}
		}
		if r.IntN(4) == 0 {
			e.Record.Type = v1alpha1.HeadlessService
		}
		e.Withdrawn = !e.IsOwn && r.IntN(4) == 0
		out = append(out, e)
	}
	return out
}

func encoded(v any) string { return string(lo.Must(json.Marshal(v))) }

func TestMergeProperties(t *testing.T) {
	r := kit.Random(t)
	for range 5000 {
		all := randomExporters(r)
		m := Merge(Key{"default", "web"}, all, now)
		shuffled := slices.Clone(all)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		kit.MustBe(t, "in another order", encoded(Merge(Key{"default", "web"}, shuffled, now)), encoded(m))
		names := lo.Map(m.Ports, func(p v1alpha1.RecordPort, _ int) string { return p.Name })
		kit.FatalIf(t, len(lo.Uniq(names)) != len(names), "two ports have one name: %v", names)
		for _, s := range m.Slices {
			e, _ := lo.Find(all, func(e Exporter) bool { return e.ID == s.Cluster })
			kit.FatalIf(t, len(lo.UniqBy(s.Ports, func(p v1alpha1.SlicePort) string { return p.Name })) != len(s.Ports), "a slice has two ports with one name: %v", s.Ports)
			for _, p := range s.Ports { // the exporter has the port that leads to it
				port, _ := lo.Find(m.Ports, func(q v1alpha1.RecordPort) bool { return q.Name == p.Name })
				has := lo.ContainsBy(e.Record.Ports, func(q v1alpha1.RecordPort) bool { return q.Protocol == port.Protocol && q.Port == port.Port })
				kit.FatalIf(t, !has || p.Port != port.Port+8000, "port %s:%d leads to %s, which has %v", p.Name, p.Port, s.Cluster, e.Record.Ports)
			}
			kit.FatalIf(t, e.Withdrawn != (s.Withdrawn && !s.Endpoints[0].Ready && !s.Endpoints[0].Serving), "withdrawn: %v", s)
		}
		// Seen from another cluster, the service and its conflicts are the same.
		other := lo.Map(all, func(e Exporter, _ int) Exporter {
			e.IsOwn = e.ID == "b"
			return e
		})
		seen := Merge(Key{"default", "web"}, other, now)
		kit.MustBe(t, "from another cluster", shownPorts(seen)+encoded(seen.Record)+encoded(seen.Conflicts), shownPorts(m)+encoded(m.Record)+encoded(m.Conflicts))
		if svc := m.DerivedService(); svc != nil {
			unnamed := lo.ContainsBy(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == "" })
			kit.FatalIf(t, unnamed && len(svc.Spec.Ports) > 1 || len(svc.Spec.Selector) > 0, "the Service is not valid: %+v", svc.Spec)
		}
	}
}

func TestRecordsOfServices(t *testing.T) {
	export := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now)}}
	export.Spec.ExportedLabels = map[string]string{"app": "x", "kubernetes.io/a": "b", "a.k8s.io/x": "y", "liqonet.io/x": "y", "example.com/a": "b"}
	svc := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	var all []*discoveryv1.EndpointSlice
	for s := range 12 {
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", s)}, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(8080))}}}
		for e := range 150 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("10.244.%d.%d", s, e+1)}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To((s+e)%2 == 0)},
			})
		}
		all = append(all, slice)
	}
	all = append(all, &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv6, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"fd00::1"}}}})
	r := NewRecord(export, svc, all)
	kit.NoError(t, Validate(r))
	kit.Check(t, "labels", r.Labels, map[string]string{"app": "x", "example.com/a": "b"})
	kit.Check(t, "left out", int(r.Omitted), 800)
	serving := lo.SumBy(r.Slices, func(s v1alpha1.RecordSlice) int { return lo.CountBy(s.Endpoints, isServing) })
	kit.Check(t, "endpoints that serve", serving, 900)
	slices.Reverse(all)
	for _, s := range all {
		slices.Reverse(s.Endpoints)
	}
	kit.Check(t, "in another order", Hash(NewRecord(export, svc, all)), Hash(r))
	few := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.5"}}}}
	svc.Spec.ClusterIP = corev1.ClusterIPNone
	e := NewRecord(export, svc, []*discoveryv1.EndpointSlice{few}).Slices[0].Endpoints[0]
	kit.ErrorIf(t, e.Hostname != "10-244-1-5" || !e.Ready || !e.Serving || e.Terminating, "an endpoint without conditions is %+v", e)
}

// A record of a peer that is used is one that the definition of ReceivedService allows, with addresses of that peer.
func FuzzRecords(f *testing.F) {
	f.Add([]byte(encoded(exporter("b", 0, "http:80").Record)))
	f.Add([]byte(`{"type":"Headless","created":"2026-01-01T00:00:00Z","slices":[{"id":"x","endpoints":[{"address":"10.61.0.1"}]}]}`))
	_, b := peering()
	usable := UsableRanges(b)
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := &v1alpha1.ServiceRecord{}
		if json.Unmarshal(raw, r) != nil {
			return
		}
		out, _, err := FromPeer(r, b)
		if err != nil {
			kit.ErrorIf(t, !errors.Is(err, ErrRefused), "%v", err)
			return
		}
		for _, s := range out.Slices {
			for _, e := range s.Endpoints {
				kit.ErrorIf(t, !slices.ContainsFunc(usable, func(p netip.Prefix) bool { return p.Contains(e.Address.Addr) }), "%s is used", e.Address)
			}
		}
		m := Merge(Key{"default", "web"}, []Exporter{{ID: "b", Record: out}, exporter("own", 0, "http:80")}, now)
		kit.ErrorIf(t, len(m.Clusters) != 2 || cmp.Or(m.Key.Name, "") != "web", "%+v", m)
	})
}
