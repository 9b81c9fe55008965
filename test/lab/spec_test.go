package lab

import (
	"net/netip"
	"testing"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/test/kit"
)

func TestParseClusterSpec(t *testing.T) {
	got := kit.Must(ParseClusterSpec("name=b,workers=3,pods=10.10.0.0/20,nodemask=26,nonodecidrs=true,services=10.20.0.0/24," +
		"subnet=192.168.7.0/24,mtu=1400,proxy=nftables,cni=flannel"))(t)
	kit.Check(t, "specification", got, ClusterSpec{
		Name: "b", Workers: 3, PodCIDR: netip.MustParsePrefix("10.10.0.0/20"), NodeCIDRMaskSize: 26, NoNodeCIDRs: true,
		ServiceCIDR: netip.MustParsePrefix("10.20.0.0/24"), NodeSubnet: netip.MustParsePrefix("192.168.7.0/24"), MTU: 1400,
		ProxyMode: ProxyNFTables, Network: NetworkFlannel,
	})
	for _, wrong := range []string{"name=a,name=b", "name=a,colour=red", "name=a,workers", "name=a,workers=x", "name=a,pods=10.0.0.1"} {
		kit.CheckError(t, wrong, kit.Err(ParseClusterSpec(wrong)), "want KEY=VALUE")
	}
}

func TestComplete(t *testing.T) {
	subnet := func(name, text string) ClusterSpec {
		return ClusterSpec{Name: name, NodeSubnet: netip.MustParsePrefix(text)}
	}
	for _, tc := range []struct {
		name        string
		specs, have []ClusterSpec
		want        []string // node subnets
		wantErr     string
	}{
		{name: "defaults", specs: DefaultClusters(), want: []string{"172.18.1.0/24", "172.18.2.0/24"}},
		{
			name: "no default takes what another asks for, or has", specs: []ClusterSpec{{Name: "a"}, subnet("b", "172.18.2.0/24")},
			have: []ClusterSpec{subnet("c", "172.18.0.0/23")}, want: []string{"172.18.3.0/24", "172.18.2.0/24"},
		},
		{
			name:  "nor the cluster's own pods",
			specs: []ClusterSpec{{Name: "a", PodCIDR: netip.MustParsePrefix("172.18.0.0/17")}},
			want:  []string{"172.18.128.0/24"},
		},
		{
			name: "VPCs share no /16", specs: []ClusterSpec{{Name: "a", Network: NetworkEKS}, {Name: "b", Network: NetworkEKS}, {Name: "c"}},
			want: []string{"100.64.0.0/22", "100.65.0.0/22", "172.18.1.0/24"},
		},
		{
			name: "subnets overlap", specs: []ClusterSpec{subnet("a", "10.1.0.0/16"), subnet("b", "10.1.2.0/24")},
			wantErr: `the lab has cluster "a" with subnet 10.1.0.0/16`,
		},
		{name: "a name is taken", specs: []ClusterSpec{{Name: "a"}}, have: []ClusterSpec{subnet("a", "10.1.0.0/16")}, wantErr: `the lab has cluster "a"`},
		{name: "a name that is a path", specs: []ClusterSpec{{Name: "../a"}}, wantErr: "name: "},
		{name: "bad", specs: []ClusterSpec{{Name: "a", Workers: -1}}, wantErr: "workers: -1"},
		{name: "no room", specs: []ClusterSpec{{Name: "a", Workers: 5, NodeSubnet: netip.MustParsePrefix("10.1.0.0/24"), Network: NetworkEKS}}, wantErr: "no room"},
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
