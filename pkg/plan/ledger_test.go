package plan

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/test/kit"
)

func TestObjectName(t *testing.T) {
	tests := []struct{ in, want string }{
		{"cluster-b", "cluster-b"},
		{"../dir/file.yaml", "dir-file-yaml"},
		{"arn:aws:eks:eu-central-1:123456789012:cluster/prod-a", "prod-a"},
		{"arn:aws:eks:eu-central-1:123456789012:cluster/prod-b", "prod-b"},
		{"arn:aws-us-gov:eks:us-gov-west-1:123456789012:cluster/prod_c", "prod-c"},
		{"gke_my-project_europe-west3-a_prod-a", "prod-a"},
		{"gke_example.com:my-project_europe-west3_prod-b", "prod-b"},
		{"admin@prod-a.eu-central-1.eksctl.io", "prod-a-eu-central-1"},
		{"default/api-prod-a-example-com:6443/kube:admin", "api-prod-a-example-com"},
		{"my-very-long-cluster-name-production-eu", "my-very-lo-name-production-eu"},
		{"my-very-long-cluster-name-production-us", "my-very-lo-name-production-us"},
		{"staging-a-name-that-is-longer-than-thirty", "staging-a-longer-than-thirty"},
		{"arn:aws:eks:eu-west-1:123456789012:cluster/", "arn-aws-ek-23456789012-cluster"},
		{"thirty-characters-long-xxxxx-y", "thirty-characters-long-xxxxx-y"},
		{"a23456789-123456789-123456789--------b", "a23456789-3456789-123456789-b"},
		{"", "peer"},
		{"Zürich", "z-rich"},
		{"\xff\xfe", "peer"},
	}
	for _, tt := range tests {
		kit.Check(t, tt.in, ObjectName(tt.in), tt.want)
	}
}

func FuzzObjectName(f *testing.F) {
	for _, s := range []string{"a", "kubernetes-admin@kubernetes", "ÄÖÜ", strings.Repeat("-a", 40)} {
		f.Add(s)
	}
	valid := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	f.Fuzz(func(t *testing.T, s string) {
		got := ObjectName(s)
		kit.ErrorIf(t, !valid.MatchString(got) || len(got) > maxName || !utf8.ValidString(got), "%q gives %q", s, got)
		kit.Check(t, fmt.Sprintf("%q gives", s), ObjectName(got), got)
	})
}

func TestNewAllocation(t *testing.T) {
	entry := func(name string, index int32) v1alpha1.PeerAllocation {
		return v1alpha1.PeerAllocation{ClusterID: "id-of-" + name, Name: name, Index: index}
	}
	long := strings.Repeat("x", maxName)
	tests := []struct {
		name string
		have []v1alpha1.PeerAllocation
		peer string
		want v1alpha1.PeerAllocation
	}{
		{name: "the first one", peer: "b", want: entry("b", 0)},
		{name: "the next one", have: []v1alpha1.PeerAllocation{entry("b", 0)}, peer: "c", want: entry("c", 1)},
		{name: "a gap", have: []v1alpha1.PeerAllocation{entry("b", 2), entry("c", 0)}, peer: "d", want: entry("d", 1)},
		{
			name: "a name that is taken", have: []v1alpha1.PeerAllocation{entry("b", 0), entry("b-2", 1)}, peer: "B",
			want: v1alpha1.PeerAllocation{ClusterID: "id-of-B", Name: "b-3", Index: 2},
		},
		{
			name: "a long name that is taken", have: []v1alpha1.PeerAllocation{entry(long, 0)}, peer: long,
			want: v1alpha1.PeerAllocation{ClusterID: "id-of-" + long, Name: long[:maxName-2] + "-2", Index: 1},
		},
		{
			name: "a name that an older version gave", have: []v1alpha1.PeerAllocation{{ClusterID: "id-of-prod-a", Name: "arn-aws-eks-eu-central-1-12345"}},
			peer: "arn:aws:eks:eu-central-1:123456789012:cluster/prod-b",
			want: v1alpha1.PeerAllocation{ClusterID: "id-of-arn:aws:eks:eu-central-1:123456789012:cluster/prod-b", Name: "prod-b", Index: 1},
		},
		{
			name: "the same name in another region", have: []v1alpha1.PeerAllocation{entry("main", 0)}, peer: "arn:aws:eks:us-east-1:123456789012:cluster/main",
			want: v1alpha1.PeerAllocation{ClusterID: "id-of-arn:aws:eks:us-east-1:123456789012:cluster/main", Name: "main-123456789012-us-east-1", Index: 1},
		},
		{
			name: "the same name in another project", have: []v1alpha1.PeerAllocation{entry("main", 0)}, peer: "gke_example.com:stage_europe-west3-a_main",
			want: v1alpha1.PeerAllocation{ClusterID: "id-of-gke_example.com:stage_europe-west3-a_main", Name: "main-examp-tage-europe-west3-a", Index: 1},
		},
		{
			name: "a hyphen where it is cut", have: []v1alpha1.PeerAllocation{entry("a234567890123456789012345678-a", 0)}, peer: "a234567890123456789012345678-a",
			want: v1alpha1.PeerAllocation{ClusterID: "id-of-a234567890123456789012345678-a", Name: "a234567890123456789012345678-2", Index: 1},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cn := &v1alpha1.ClusterNetwork{Spec: v1alpha1.ClusterNetworkSpec{Peers: tt.have}}
			got := kit.Must(NewAllocation(cn, "id-of-"+tt.peer, tt.peer))(t)
			tt.want.Phase = v1alpha1.PeerReserved
			kit.Check(t, "result", got, tt.want, compare)
		})
	}
	t.Run("until it is full", func(t *testing.T) {
		cn := &v1alpha1.ClusterNetwork{}
		names := map[string]bool{}
		for i := range MaxPeers {
			a := kit.Must(NewAllocation(cn, fmt.Sprint(i), "dev"))(t)
			kit.FatalIf(t, int(a.Index) != i || names[a.Name] || len(a.Name) > maxName, "entry %d is %+v", i, a)
			for plane := range ipam.Planes {
				kit.Must(GatewayAddress(ipam.DefaultInternal(), a.Index, int32(plane)))(t)
			}
			names[a.Name] = true
			cn.Spec.Peers = append(cn.Spec.Peers, a)
		}
		_, err := NewAllocation(cn, "id-of-one-more", "one-more")
		kit.ErrorIf(t, err == nil, "the ledger accepts an entry beyond the limit")
	})
}
