package discovery_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
)

var pfx = netip.MustParsePrefix

// load reads a fixture's objects.
func load(t *testing.T, row string) []client.Object {
	t.Helper()
	raw := kit.Must(os.ReadFile(filepath.Join("testdata", row, "cluster.yaml")))(t)
	var out []client.Object
	for _, doc := range strings.Split(string(raw), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			t.Fatalf("%s: %v in\n%s", row, err, doc)
		}
		if len(o.Object) == 0 {
			continue
		}
		typed, err := clientgoscheme.Scheme.New(o.GroupVersionKind())
		if err != nil {
			out = append(out, o)
			continue
		}
		err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, typed, true)
		kit.FatalIf(t, err != nil, "%s: %v in\n%s", row, err, doc)
		out = append(out, typed.(client.Object))
	}
	return out
}

// cluster returns a client for a fixture. intercept can inject errors.
func cluster(t *testing.T, objects []client.Object, intercept interceptor.Funcs) client.Reader {
	t.Helper()
	scheme := runtime.NewScheme()
	kit.NoError(t, clientgoscheme.AddToScheme(scheme))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(intercept).Build()
}

// ranges returns facts as strings for a table: "prefix", or "prefix?" if it is assumed.
func ranges(facts plan.Ranges) []string {
	var out []string
	for _, f := range facts {
		s := f.Value.String()
		if f.Assumed {
			s += "?"
		}
		out = append(out, s)
	}
	return out
}

func TestMatrix(t *testing.T) {
	for _, c := range []struct {
		row, cni, provider    string
		pods, services, nodes []string
		source                string // of the first pod range
		loadBalancer          string
	}{
		{
			row: "bridge", pods: []string{"10.244.0.0/16?"}, services: []string{"10.96.0.0/16"}, nodes: []string{"172.30.1.0/24?"},
			source: "from the podCIDRs of 2 nodes, rounded up",
		},
		{
			row: "kubeadm", pods: []string{"10.50.0.0/17"}, services: []string{"10.96.0.0/12"}, nodes: []string{"192.168.56.0/24?"},
			source: "from kube-controller-manager's --cluster-cidr",
		},
		{
			row: "kubeadm-no-static-pods", pods: []string{"10.50.0.0/16"}, services: []string{"10.96.0.0/12"}, nodes: []string{"192.168.56.0/24?"},
			source: "from networking.podSubnet of ConfigMap kube-system/kubeadm-config",
		},
		{
			row: "kind", cni: "kindnet", pods: []string{"10.244.0.0/16"}, services: []string{"10.96.0.0/16"}, nodes: []string{"172.18.0.0/24?"},
			source: "from networking.podSubnet of ConfigMap kube-system/kubeadm-config",
		},
		{
			row: "flannel", cni: "flannel", pods: []string{"10.10.0.0/16"}, services: []string{"10.96.0.0/12"}, nodes: []string{"192.168.1.0/24?"},
			source: "from Flannel's net-conf.json in ConfigMap kube-flannel/kube-flannel-cfg",
		},
		{
			row: "canal", cni: "canal", pods: []string{"10.48.0.0/16"}, services: []string{"10.96.0.0/12"}, nodes: []string{"192.168.1.0/24?"},
			source: "from Flannel's net-conf.json in ConfigMap kube-system/canal-config",
		},
		{
			row: "calico", cni: "calico",
			pods: []string{"10.77.0.0/16", "100.100.0.0/18", "192.168.0.0/16"}, services: []string{"10.96.0.0/12"}, nodes: []string{"172.31.5.0/24?", "172.31.6.0/24?"},
			source: "from Calico's IPPool old, which is disabled but still in use",
		},
		{
			row: "calico-host-local", cni: "calico", pods: []string{"10.244.0.0/16?"}, services: []string{"10.96.0.0/12"}, nodes: []string{"172.31.5.0/24?", "172.31.6.0/24?"},
		},
		{
			row: "cilium", cni: "cilium", pods: []string{"10.12.0.0/15"}, services: []string{"10.96.0.0/12"}, nodes: []string{"192.168.1.0/24?"},
			source: "from cluster-pool-ipv4-cidr of ConfigMap kube-system/cilium-config",
		},
		{
			row: "cilium-default", cni: "cilium", pods: []string{"10.0.0.0/16?"}, services: []string{"10.96.0.0/12"}, nodes: []string{"10.7.0.0/24?"},
			source: "from the CiliumNodes' podCIDRs, rounded up",
		},
		{
			row: "cilium-multi-pool", cni: "cilium", pods: []string{"10.10.0.0/16", "10.20.0.0/16"}, services: []string{"10.96.0.0/12"}, nodes: []string{"192.168.1.0/24?"},
			source: "from spec.ipv4.cidrs of CiliumPodIPPool default",
		},
		{
			row: "cilium-eni", cni: "cilium", provider: discovery.ProviderEKS, pods: []string{"10.1.0.0/17", "100.64.0.0/18"}, services: []string{"172.20.0.0/16?"}, nodes: []string{"10.1.12.0/24?"},
			source: "from status.eni.enis.*.vpc.primary-cidr of CiliumNode ip-10-1-12-34.ec2.internal", loadBalancer: plan.Yes,
		},
		{
			row: "rke2", cni: "canal", provider: discovery.ProviderRKE2, pods: []string{"10.42.0.0/16"}, services: []string{"10.43.0.0/16?"}, nodes: []string{"192.168.1.0/24?"},
			source: "from Flannel's net-conf.json in ConfigMap kube-system/rke2-canal-config",
		},
		{
			row: "kube-router", cni: "kube-router", pods: []string{"10.32.0.0/16?"}, services: []string{"10.43.0.0/16"}, nodes: []string{"192.168.1.0/24?"},
		},
		{
			row: "k3s", cni: "flannel", provider: discovery.ProviderK3s, pods: []string{"10.42.0.0/16?"}, services: []string{"10.43.0.0/16?"}, nodes: []string{"192.168.1.0/24?"},
			source: "the default of k3s",
		},
		{
			row: "k3s-flags", cni: "flannel", provider: discovery.ProviderK3s, pods: []string{"10.4.0.0/17"}, services: []string{"10.5.0.0/16"}, nodes: []string{"192.168.1.0/24?"},
			source: "from --cluster-cidr in the annotation k3s.io/node-args of node server",
		},
		{
			row: "openshift", cni: "ovn-kubernetes", provider: discovery.ProviderOpenShift, pods: []string{"10.128.0.0/14"}, services: []string{"172.30.0.0/16"}, nodes: []string{"192.168.111.0/24?"},
			source: "from status.clusterNetwork.cidr of Network cluster",
		},
		{
			row: "ovn-kubernetes", cni: "ovn-kubernetes", pods: []string{"10.244.0.0/16"}, services: []string{"10.96.0.0/16"}, nodes: []string{"172.18.0.0/24?"},
			source: "from net_cidr of ConfigMap ovn-kubernetes/ovn-config",
		},
		{
			row: "aks-kubenet", provider: discovery.ProviderAKS, pods: []string{"10.244.0.0/16"}, services: []string{"10.0.0.0/16?"}, nodes: []string{"10.224.0.0/24?"},
			source: "from kube-proxy's --cluster-cidr (DaemonSet kube-system/kube-proxy)", loadBalancer: plan.Yes,
		},
		{
			row: "aks-azure-cni", cni: "azure-cni", provider: discovery.ProviderAKS, pods: []string{"10.224.0.0/12"}, services: []string{"10.0.0.0/16?"}, nodes: []string{"10.224.0.0/24?"},
			source: "from nonMasqueradeCIDRs of ConfigMap kube-system/azure-ip-masq-agent-config-reconciled", loadBalancer: plan.Yes,
		},
		{
			row: "aks-azure-cni-podsubnet", cni: "azure-cni", provider: discovery.ProviderAKS, pods: []string{"10.241.0.0/16"}, services: []string{"10.0.0.0/16?"}, nodes: []string{"10.240.0.0/24?"},
			source: "from status.networkContainers.subnetAddressSpace of NodeNetworkConfig aks-nodepool1-0", loadBalancer: plan.Yes,
		},
		{
			row: "aks-overlay", cni: "azure-cni", provider: discovery.ProviderAKS, pods: []string{"192.168.0.0/16"}, services: []string{"10.0.0.0/16?"}, nodes: []string{"10.224.0.0/24?"},
			source: "from status.networkContainers.subnetAddressSpace of NodeNetworkConfig aks-nodepool1-0", loadBalancer: plan.Yes,
		},
		{
			row: "eks", cni: "amazon-vpc-cni", provider: discovery.ProviderEKS, pods: []string{"192.168.0.0/16?"}, services: []string{"10.100.0.0/16?"}, nodes: []string{"192.168.12.0/24?", "192.168.80.0/24?"},
			source: "from nodes' and pods' addresses: a VPC's block is never larger than a /16", loadBalancer: plan.Yes,
		},
		{
			row: "eks-prefix-delegation", cni: "amazon-vpc-cni", provider: discovery.ProviderEKS, pods: []string{"10.1.0.0/16?"}, services: []string{"172.20.0.0/16?"}, nodes: []string{"10.1.12.0/24?"},
			source: "from nodes' and pods' addresses", loadBalancer: plan.Yes,
		},
		{
			row: "eks-custom-networking", cni: "amazon-vpc-cni", provider: discovery.ProviderEKS, pods: []string{"100.64.0.0/16?"}, services: []string{"172.20.0.0/16?"}, nodes: []string{"10.1.12.0/24?"},
			source: "from pods' addresses", loadBalancer: plan.Yes,
		},
		{
			row: "gke", cni: "gke-vpc-native", provider: discovery.ProviderGKE, pods: []string{"10.4.0.0/14"}, services: []string{"34.118.224.0/20?"}, nodes: []string{"10.132.0.0/24?"},
			source: "from kube-proxy's --cluster-cidr (pod kube-system/kube-proxy-gke-default-pool-1)", loadBalancer: plan.Yes,
		},
		{
			row: "gke-dataplane-v2", cni: "gke-vpc-native", provider: discovery.ProviderGKE, pods: []string{"10.4.0.0/16?", "10.200.0.0/16?"}, services: []string{"34.118.224.0/20?"}, nodes: []string{"10.132.0.0/24?"},
			source: "from the podCIDRs of 3 nodes", loadBalancer: plan.Yes,
		},
	} {
		t.Run(c.row, func(t *testing.T) {
			f := kit.Must(discovery.Discover(context.Background(), cluster(t, load(t, c.row), interceptor.Funcs{}), discovery.Overrides{Name: "a"}))(t)
			for what, pair := range map[string][2]any{
				"CNI":           {c.cni, f.CNI.Value},
				"provider":      {c.provider, f.Provider.Value},
				"pods":          {c.pods, ranges(f.PodCIDRs)},
				"services":      {c.services, ranges(f.ServiceCIDRs)},
				"nodes":         {c.nodes, ranges(f.NodeCIDRs)},
				"load balancer": {c.loadBalancer, f.LoadBalancers.Value},
			} {
				kit.Check(t, what, pair[1], pair[0])
			}
			got := f.PodCIDRs[0].Source
			kit.ErrorIf(t, !strings.Contains(got, c.source), "got the source %q, want %q in it", got, c.source)
			kit.ErrorIf(t, f.ClusterID == "" || len(f.Nodes) == 0 || len(f.Warnings) > 0, "incomplete: %+v", f)
			for _, r := range slices.Concat(f.PodCIDRs, f.ServiceCIDRs, f.NodeCIDRs) {
				kit.ErrorIf(t, r.Value != r.Value.Masked() || r.Source == "", "bad range %v", r)
			}
		})
	}
}

// TestEveryFixtureHasASource checks that each fixture names its documentation, and has a running pod that confirms the
// ranges.
func TestEveryFixtureHasASource(t *testing.T) {
	rows, err := filepath.Glob("testdata/*/cluster.yaml")
	kit.FatalIf(t, err != nil || len(rows) < 20, "%v %v", rows, err)
	for _, row := range rows {
		raw := kit.Must(os.ReadFile(row))(t)
		head, _, _ := strings.Cut(string(raw), "\napiVersion")
		kit.ErrorIf(t, !strings.Contains(head, "# https://"), "%s does not say where its shape is documented", row)
		kit.ErrorIf(t, !strings.Contains(string(raw), "podIPs: [{ip: "), "%s has no pod", row)
	}
}
