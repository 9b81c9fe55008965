package discovery_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/discovery"
)

var pfx = netip.MustParsePrefix

// load reads a fixture's objects.
func load(t *testing.T, row string) []client.Object {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", row, "cluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
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
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, typed, true); err != nil {
			t.Fatalf("%s: %v in\n%s", row, err, doc)
		}
		out = append(out, typed.(client.Object))
	}
	return out
}

// cluster returns a client of a fixture. With intercept errors can be put in.
func cluster(t *testing.T, objects []client.Object, intercept interceptor.Funcs) client.Reader {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(intercept).Build()
}

// ranges shows facts in a way that a table can have: "prefix" or "prefix?" where it
// is assumed.
func ranges(facts []discovery.Fact[netip.Prefix]) []string {
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
		loadBalancer          discovery.Answer
	}{
		{
			row: "bridge", pods: []string{"10.244.0.0/16?"}, services: []string{"10.96.0.0/16"}, nodes: []string{"172.30.1.0/24?"},
			source: "from the podCIDRs of 2 nodes (10.244.0.0/23), rounded up", loadBalancer: discovery.Unknown,
		},
		{
			row: "kubeadm", provider: discovery.ProviderKubeadm, pods: []string{"10.50.0.0/17"}, services: []string{"10.96.0.0/12"}, nodes: []string{"192.168.56.0/24?"},
			source: "from kube-controller-manager's --cluster-cidr", loadBalancer: discovery.Unknown,
		},
		{
			row: "kubeadm-no-static-pods", provider: discovery.ProviderKubeadm, pods: []string{"10.50.0.0/16"}, services: []string{"10.96.0.0/12"}, nodes: []string{"192.168.56.0/24?"},
			source: "from networking.podSubnet of ConfigMap kube-system/kubeadm-config", loadBalancer: discovery.Unknown,
		},
		{
			row: "kind", cni: discovery.CNIKindnet, provider: discovery.ProviderKind, pods: []string{"10.244.0.0/16"}, services: []string{"10.96.0.0/16"}, nodes: []string{"172.18.0.0/24?"},
			source: "from POD_SUBNET of DaemonSet kube-system/kindnet", loadBalancer: discovery.Unknown,
		},
		{
			row: "flannel", cni: discovery.CNIFlannel, pods: []string{"10.10.0.0/16"}, services: []string{"10.96.0.0/12"}, nodes: []string{"192.168.1.0/24?"},
			source: "from Flannel's net-conf.json in ConfigMap kube-flannel/kube-flannel-cfg", loadBalancer: discovery.Unknown,
		},
		{
			row: "canal", cni: discovery.CNICanal, pods: []string{"10.48.0.0/16"}, services: []string{"10.96.0.0/12"}, nodes: []string{"192.168.1.0/24?"},
			source: "from Flannel's net-conf.json in ConfigMap kube-system/canal-config", loadBalancer: discovery.Unknown,
		},
		{
			row: "calico", cni: discovery.CNICalico, provider: discovery.ProviderKubeadm,
			pods: []string{"10.77.0.0/16", "100.100.0.0/18", "192.168.0.0/16"}, services: []string{"10.96.0.0/12"}, nodes: []string{"172.31.0.0/20"},
			source: "from Calico's IPPool old, which is disabled and still in use", loadBalancer: discovery.Unknown,
		},
		{
			row: "calico-host-local", cni: discovery.CNICalico, pods: []string{"10.244.0.0/16?"}, services: []string{"10.96.0.0/12"}, nodes: []string{"172.31.5.0/24?", "172.31.6.0/24?"},
			loadBalancer: discovery.Unknown,
		},
		{
			row: "weave", cni: discovery.CNIWeave, provider: discovery.ProviderKubeadm, pods: []string{"10.32.0.0/13"}, services: []string{"10.96.0.0/12"}, nodes: []string{"192.168.1.0/24?"},
			source: "from IPALLOC_RANGE of DaemonSet kube-system/weave-net", loadBalancer: discovery.Unknown,
		},
		{
			row: "weave-default", cni: discovery.CNIWeave, provider: discovery.ProviderKubeadm, pods: []string{"10.32.0.0/12?"}, services: []string{"10.96.0.0/12"}, nodes: []string{"192.168.1.0/24?"},
			source: "Weave's default", loadBalancer: discovery.Unknown,
		},
		{
			row: "cilium", cni: discovery.CNICilium, pods: []string{"10.12.0.0/15"}, services: []string{"10.96.0.0/12"}, nodes: []string{"192.168.1.0/24?"},
			source: "from cluster-pool-ipv4-cidr of ConfigMap kube-system/cilium-config", loadBalancer: discovery.Unknown,
		},
		{
			row: "cilium-default", cni: discovery.CNICilium, pods: []string{"10.0.0.0/16?"}, services: []string{"10.96.0.0/12"}, nodes: []string{"10.7.0.0/24?"},
			source: "from the CiliumNodes' podCIDRs (10.0.0.0/23), rounded up", loadBalancer: discovery.Unknown,
		},
		{
			row: "cilium-multi-pool", cni: discovery.CNICilium, pods: []string{"10.10.0.0/16", "10.20.0.0/16"}, services: []string{"10.96.0.0/12"}, nodes: []string{"192.168.1.0/24?"},
			source: "from CiliumPodIPPool default", loadBalancer: discovery.Unknown,
		},
		{
			row: "cilium-eni", cni: discovery.CNICilium, provider: discovery.ProviderEKS, pods: []string{"10.1.0.0/17", "100.64.0.0/18"}, services: []string{"172.20.0.0/16?"}, nodes: []string{"10.1.12.0/24?"},
			source: "from the VPC of CiliumNode ip-10-1-12-34.ec2.internal's interfaces", loadBalancer: discovery.Yes,
		},
		{
			row: "rke2", cni: discovery.CNICanal, provider: discovery.ProviderRKE2, pods: []string{"10.42.0.0/16"}, services: []string{"10.43.0.0/16?"}, nodes: []string{"192.168.1.0/24?"},
			source: "from Flannel's net-conf.json in ConfigMap kube-system/rke2-canal-config", loadBalancer: discovery.Unknown,
		},
		{
			row: "kube-router", cni: discovery.CNIKubeRouter, pods: []string{"10.32.0.0/16?"}, services: []string{"10.43.0.0/16"}, nodes: []string{"192.168.1.0/24?"},
			loadBalancer: discovery.Unknown,
		},
		{
			row: "k3s", cni: discovery.CNIFlannel, provider: discovery.ProviderK3s, pods: []string{"10.42.0.0/16?"}, services: []string{"10.43.0.0/16?"}, nodes: []string{"192.168.1.0/24?"},
			source: "the default of k3s", loadBalancer: discovery.Unknown,
		},
		{
			row: "k3s-flags", cni: discovery.CNIFlannel, provider: discovery.ProviderK3s, pods: []string{"10.4.0.0/17"}, services: []string{"10.5.0.0/16"}, nodes: []string{"192.168.1.0/24?"},
			source: "from --cluster-cidr in the annotation k3s.io/node-args of node server", loadBalancer: discovery.Unknown,
		},
		{
			row: "openshift", cni: discovery.CNIOVN, provider: discovery.ProviderOpenShift, pods: []string{"10.128.0.0/14"}, services: []string{"172.30.0.0/16"}, nodes: []string{"192.168.111.0/24"},
			source: "from status.clusterNetwork of OpenShift's Network cluster", loadBalancer: discovery.Unknown,
		},
		{
			row: "ovn-kubernetes", cni: discovery.CNIOVN, pods: []string{"10.244.0.0/16"}, services: []string{"10.96.0.0/16"}, nodes: []string{"172.18.0.0/16"},
			source: "from net_cidr of ConfigMap ovn-kubernetes/ovn-config", loadBalancer: discovery.Unknown,
		},
		{
			row: "aks-kubenet", cni: discovery.CNIKubenet, provider: discovery.ProviderAKS, pods: []string{"10.244.0.0/16"}, services: []string{"10.0.0.0/16?"}, nodes: []string{"10.224.0.0/24?"},
			source: "from kube-proxy's --cluster-cidr (DaemonSet kube-system/kube-proxy)", loadBalancer: discovery.Yes,
		},
		{
			row: "aks-azure-cni", cni: discovery.CNIAzure, provider: discovery.ProviderAKS, pods: []string{"10.224.0.0/12"}, services: []string{"10.0.0.0/16?"}, nodes: []string{"10.224.0.0/24?"},
			source: "from nonMasqueradeCIDRs of ConfigMap kube-system/azure-ip-masq-agent-config-reconciled", loadBalancer: discovery.Yes,
		},
		{
			row: "aks-azure-cni-podsubnet", cni: discovery.CNIAzure, provider: discovery.ProviderAKS, pods: []string{"10.241.0.0/16"}, services: []string{"10.0.0.0/16?"}, nodes: []string{"10.240.0.0/24?"},
			source: "from subnetAddressSpace of NodeNetworkConfig kube-system/aks-nodepool1-0", loadBalancer: discovery.Yes,
		},
		{
			row: "aks-overlay", cni: discovery.CNIAzure, provider: discovery.ProviderAKS, pods: []string{"192.168.0.0/16"}, services: []string{"10.0.0.0/16?"}, nodes: []string{"10.224.0.0/24?"},
			source: "from subnetAddressSpace of NodeNetworkConfig kube-system/aks-nodepool1-0", loadBalancer: discovery.Yes,
		},
		{
			row: "eks", cni: discovery.CNIAWS, provider: discovery.ProviderEKS, pods: []string{"192.168.0.0/16?"}, services: []string{"10.100.0.0/16?"}, nodes: []string{"192.168.12.0/24?", "192.168.80.0/24?"},
			source: "from nodes' and pods' addresses: a VPC's block is never larger than a /16", loadBalancer: discovery.Yes,
		},
		{
			row: "eks-prefix-delegation", cni: discovery.CNIAWS, provider: discovery.ProviderEKS, pods: []string{"10.1.0.0/16?"}, services: []string{"172.20.0.0/16?"}, nodes: []string{"10.1.12.0/24?"},
			source: "from nodes' and pods' addresses", loadBalancer: discovery.Yes,
		},
		{
			row: "eks-custom-networking", cni: discovery.CNIAWS, provider: discovery.ProviderEKS, pods: []string{"100.64.0.0/16?"}, services: []string{"172.20.0.0/16?"}, nodes: []string{"10.1.12.0/24?"},
			source: "from pods' addresses (custom networking by ENIConfigs)", loadBalancer: discovery.Yes,
		},
		{
			row: "gke", cni: discovery.CNIGKE, provider: discovery.ProviderGKE, pods: []string{"10.4.0.0/14"}, services: []string{"34.118.224.0/20?"}, nodes: []string{"10.132.0.0/24?"},
			source: "from kube-proxy's --cluster-cidr (pod kube-system/kube-proxy-gke-default-pool-1)", loadBalancer: discovery.Yes,
		},
		{
			row: "gke-dataplane-v2", cni: discovery.CNIGKE, provider: discovery.ProviderGKE, pods: []string{"10.4.0.0/16?", "10.200.0.0/16?"}, services: []string{"34.118.224.0/20?"}, nodes: []string{"10.132.0.0/24?"},
			source: "from the podCIDRs of 3 nodes", loadBalancer: discovery.Yes,
		},
	} {
		t.Run(c.row, func(t *testing.T) {
			f, err := discovery.Discover(context.Background(), cluster(t, load(t, c.row), interceptor.Funcs{}), discovery.Overrides{Name: "a"})
			if err != nil {
				t.Fatal(err)
			}
			for what, pair := range map[string][2]any{
				"CNI":           {c.cni, f.CNI.Value},
				"provider":      {c.provider, f.Provider.Value},
				"pods":          {c.pods, ranges(f.PodCIDRs)},
				"services":      {c.services, ranges(f.ServiceCIDRs)},
				"nodes":         {c.nodes, ranges(f.NodeCIDRs)},
				"load balancer": {c.loadBalancer, f.Exposure.LoadBalancer.Value},
			} {
				if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", what, diff)
				}
			}
			if got := f.PodCIDRs[0].Source; !strings.Contains(got, c.source) {
				t.Errorf("got the source %q, want %q in it", got, c.source)
			}
			if f.ClusterID == "" || f.KubernetesVersion == "" || f.PodsChecked == 0 || len(f.Nodes) == 0 || len(f.Warnings) > 0 {
				t.Errorf("incomplete: %+v", f)
			}
			for _, u := range f.Uses() {
				if u.Prefix != u.Prefix.Masked() || u.By == "" {
					t.Errorf("bad use %v", u)
				}
			}
		})
	}
}

// TestEveryFixtureHasASource keeps the documentation beside the fixtures.
func TestEveryFixtureHasASource(t *testing.T) {
	rows, err := filepath.Glob("testdata/*/cluster.yaml")
	if err != nil || len(rows) < 20 {
		t.Fatal(rows, err)
	}
	for _, row := range rows {
		raw, err := os.ReadFile(row)
		if err != nil {
			t.Fatal(err)
		}
		if head, _, _ := strings.Cut(string(raw), "\napiVersion"); !strings.Contains(head, "# https://") {
			t.Errorf("%s does not say where its shape is documented", row)
		}
	}
}
