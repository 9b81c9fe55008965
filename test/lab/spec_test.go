package lab

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/test/kit"
)

func TestParseClusterSpec(t *testing.T) {
	for _, tc := range []struct {
		text    string
		want    ClusterSpec
		wantErr string
	}{
		{text: "name=a", want: ClusterSpec{Name: "a"}},
		{
			text: "name=b,workers=3,pods=10.10.0.0/20,nodemask=26,services=10.20.0.0/24," +
				"subnet=192.168.7.0/24,mtu=1400,proxy=nftables,cni=flannel",
			want: ClusterSpec{
				Name: "b", Workers: 3, PodCIDR: netip.MustParsePrefix("10.10.0.0/20"), NodeCIDRMaskSize: 26,
				ServiceCIDR: netip.MustParsePrefix("10.20.0.0/24"),
				NodeSubnet:  netip.MustParsePrefix("192.168.7.0/24"), MTU: 1400, ProxyMode: ProxyNFTables,
				Network: NetworkFlannel,
			},
		},
		{text: "name=a,nodecidrs=no", want: ClusterSpec{Name: "a", NoNodeCIDRs: true}},
		{text: "name=a,nodecidrs=yes", want: ClusterSpec{Name: "a"}},
		{text: "name=a,nodecidrs=1", wantErr: "nodecidrs: "},
		{text: "workers=1", wantErr: `name ""`},
		{text: "name=A", wantErr: `name "A"`},
		{text: "name=a,name=b", wantErr: "name is given twice"},
		{text: "name=a,colour=red", wantErr: "colour: unknown key"},
		{text: "name=a,workers", wantErr: "want KEY=VALUE"},
		{text: "name=a,workers=0", wantErr: "workers: "},
		{text: "name=a,pods=10.0.0.1/16", wantErr: "10.0.0.1/16 is not an IPv4 network"},
		{text: "name=a,pods=fd00::/64", wantErr: "is not an IPv4 network"},
		{text: "name=a,pods=10.96.0.0/12", wantErr: "pods 10.96.0.0/12 and services 10.96.0.0/16 overlap"},
		{text: "name=a,pods=10.8.0.0/23,nodemask=24,workers=3", wantErr: "has room for 2"},
		{text: "name=a,pods=10.8.0.0/24,nodemask=16", wantErr: "does not divide"},
		{text: "name=a,subnet=192.168.7.0/28,workers=5", wantErr: "no room for 5 workers"},
		{text: "name=a,mtu=100", wantErr: "mtu: 100"},
		{text: "name=a,proxy=ipvs", wantErr: `proxy: "ipvs"`},
		{text: "name=a,cni=calico", wantErr: `cni: "calico", want one of bridge, routed, flannel, calico-like`},
		{text: "name=a,cni=calico-like,pods=10.8.0.0/24,workers=5", wantErr: "no room for 5 blocks"},
		{text: "name=a,cni=eks-like,subnet=10.1.0.0/24,workers=5", wantErr: "no room for the pods of 5 workers"},
	} {
		t.Run(tc.text, func(t *testing.T) {
			got, err := ParseClusterSpec(tc.text)
			if tc.wantErr != "" {
				kit.CheckError(t, tc.text, err, tc.wantErr)
				return
			}
			kit.NoError(t, err)
			kit.Check(t, "specification", got, tc.want)
		})
	}
}

func TestComplete(t *testing.T) {
	subnet := func(text string) ClusterSpec { return ClusterSpec{Name: "x", NodeSubnet: netip.MustParsePrefix(text)} }
	named := func(name string, s ClusterSpec) ClusterSpec { s.Name = name; return s }
	for _, tc := range []struct {
		name        string
		specs, have []ClusterSpec
		want        []string // node subnets
		wantErr     string
	}{
		{name: "defaults", specs: DefaultClusters(), want: []string{"172.18.1.0/24", "172.18.2.0/24"}},
		{
			name:  "a default does not take what another asks for",
			specs: []ClusterSpec{{Name: "a"}, named("b", subnet("172.18.1.0/24"))},
			want:  []string{"172.18.2.0/24", "172.18.1.0/24"},
		},
		{
			name: "nor what is there", specs: []ClusterSpec{{Name: "b"}}, have: []ClusterSpec{named("a", subnet("172.18.0.0/23"))},
			want: []string{"172.18.2.0/24"},
		},
		{
			name:  "nor the cluster's own pods",
			specs: []ClusterSpec{{Name: "a", PodCIDR: netip.MustParsePrefix("172.18.0.0/17")}},
			want:  []string{"172.18.128.0/24"},
		},
		{
			name: "subnets overlap", specs: []ClusterSpec{named("a", subnet("10.1.0.0/16")), named("b", subnet("10.1.2.0/24"))},
			wantErr: `subnet 10.1.2.0/24 overlaps 10.1.0.0/16 of cluster "a"`,
		},
		{
			name: "VPCs share no /16", specs: []ClusterSpec{{Name: "a", Network: NetworkEKS}, {Name: "b", Network: NetworkEKS}, {Name: "c"}},
			want: []string{"100.64.0.0/22", "100.65.0.0/22", "172.18.1.0/24"},
		},
		{name: "names are equal", specs: []ClusterSpec{{Name: "a"}, {Name: "a"}}, wantErr: "has one of that name"},
		{name: "a name is taken", specs: []ClusterSpec{{Name: "a"}}, have: []ClusterSpec{subnet("10.1.0.0/16"), {Name: "a"}}, wantErr: "has one of that name"},
		{name: "bad", specs: []ClusterSpec{{Name: "a", Workers: -1}}, wantErr: "workers: -1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := complete(tc.specs, tc.have)
			if tc.wantErr != "" {
				kit.CheckError(t, tc.name, err, tc.wantErr)
				return
			}
			kit.NoError(t, err)
			kit.Check(t, "subnets", lo.Map(got, func(s ClusterSpec, _ int) string { return s.NodeSubnet.String() }), tc.want)
		})
	}
}

func TestDefaultNodeMask(t *testing.T) {
	for pods, want := range map[string]int{"10.0.0.0/16": 24, "10.0.0.0/22": 24, "10.0.0.0/24": 28} {
		s := ClusterSpec{PodCIDR: netip.MustParsePrefix(pods)}.WithDefaults()
		kit.Check(t, "node mask of pods "+pods, s.NodeCIDRMaskSize, want)
	}
}

func TestWorkerCIDR(t *testing.T) {
	s := ClusterSpec{PodCIDR: netip.MustParsePrefix("10.244.128.0/17"), NodeCIDRMaskSize: 24}
	for number, want := range map[int]string{1: "10.244.128.0/24", 2: "10.244.129.0/24", 128: "10.244.255.0/24"} {
		kit.Check(t, fmt.Sprint("worker ", number), s.workerCIDR(number).String(), want)
	}
}
