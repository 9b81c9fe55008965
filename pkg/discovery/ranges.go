package discovery

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
)

// inference infers a cluster's network, f, from what was read. Facts in f come from the user, or were inferred before.
type inference struct {
	*snapshot
	f *plan.Network
}

func (s *inference) podsUnknown() error {
	unread := ""
	if len(s.unreadable) > 0 {
		unread = " (could not be read: " + strings.Join(s.unreadable, ", ") + ")"
	}
	command := cmp.Or(map[string]string{
		ProviderEKS: "aws ec2 describe-subnets --query 'Subnets[].CidrBlock' --filters " +
			"Name=vpc-id,Values=$(aws eks describe-cluster --name NAME --query cluster.resourcesVpcConfig.vpcId --output text)",
		ProviderAKS: "az aks show -g GROUP -n NAME --query '[networkProfile.podCidrs, agentPoolProfiles[].[podSubnetId, vnetSubnetId]]', " +
			"and for a subnet: az network vnet subnet show --ids ID --query addressPrefix",
		ProviderGKE: "gcloud container clusters describe NAME --format='value(clusterIpv4Cidr, nodePools[].networkConfig.podIpv4CidrBlock)'",
	}[s.f.Provider.Value], "look for --cluster-cidr among the arguments of kube-controller-manager, and compare with kubectl get pods -A -o wide")
	return fmt.Errorf("cluster %q: the range of the pods is %w: no object names it, and the nodes have no podCIDR%s; "+
		"give --pod-cidr %s=RANGE[,RANGE] (to find it: %s)", s.f.Name, ErrUnknown, unread, s.f.Name, command)
}

// kubernetesPods returns the configuration of Kubernetes' own IPAM. A source counts only if it contains all of the nodes'
// ranges: otherwise it is outdated.
func (s *inference) kubernetesPods() plan.Ranges {
	nodes := s.nodePodCIDRs()
	sources := []plan.Ranges{
		s.customRanges(kindOpenShiftNet, "status.clusterNetwork[*].cidr"),
		s.podFlag("kube-controller-manager", "cluster-cidr"),
		s.nodeArgs("cluster-cidr"),
		s.configMapRanges("kube-system/kubeadm-config", "ClusterConfiguration", "networking", "podSubnet"),
		s.configMapRanges("kube-system/kube-proxy", "config.conf", "clusterCIDR"),
		s.podFlag("kube-proxy", "cluster-cidr"),
	}
	if s.f.Provider.Value == ProviderK3s || s.f.Provider.Value == ProviderRKE2 {
		usual := []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}
		sources = append(sources, assumed(usual, "the default of "+s.f.Provider.Value+", as no node-args annotation has a cluster-cidr"))
	}
	for _, found := range sources {
		has := func(n netip.Prefix) bool {
			return slices.ContainsFunc(found, func(r plan.Range) bool { return contains(r.Value, n) })
		}
		if len(found) > 0 && lo.EveryBy(nodes, has) {
			return found
		}
	}
	source := fmt.Sprintf("from the podCIDRs of %d nodes, rounded up, as nodes that join later get other parts of it; "+
		"give --pod-cidr %s=RANGE if it is wrong", len(s.f.Nodes), s.f.Name)
	return assumed(ipam.Estimate(nodes, s.otherRanges()), source)
}

// otherRanges returns the ranges that an inferred pod range should not overlap.
func (s *inference) otherRanges() []netip.Prefix {
	return slices.Concat(s.f.ServiceCIDRs, s.f.NodeCIDRs).Prefixes()
}

// flannelPods reads Flannel's net-conf.json, which Canal has as well.
func (s *inference) flannelPods() plan.Ranges {
	for _, name := range slices.Sorted(maps.Keys(s.configMaps)) {
		var c struct{ Network, IPv6Network string }
		if json.Unmarshal([]byte(s.configMap(name)["net-conf.json"]), &c) == nil {
			return parseRanges(c.Network+","+c.IPv6Network, "from Flannel's net-conf.json in ConfigMap "+name)
		}
	}
	return nil
}

// ovnPods reads OVN-Kubernetes' ConfigMap. OpenShift has none.
func (s *inference) ovnPods() plan.Ranges { return s.ovnConfig("net_cidr") }

// calicoPods returns Calico's IP pools. A disabled pool assigns no new addresses, and counts as long as pods have
// addresses from it.
func (s *inference) calicoPods() (out plan.Ranges) {
	// With the IPAM host-local, addresses are from the nodes' podCIDR.
	config := strings.ReplaceAll(s.configMap("kube-system/calico-config")["cni_network_config"], " ", "")
	if strings.Contains(config, `"type":"host-local"`) {
		return nil
	}
	live := s.podIPs()
	for _, pool := range lo.CoalesceSliceOrEmpty(s.objects(kindIPPool), s.objects(kindIPPoolV3)) {
		cidr, _, _ := unstructured.NestedString(pool.Object, "spec", "cidr")
		disabled, _, _ := unstructured.NestedBool(pool.Object, "spec", "disabled")
		uses, _, _ := unstructured.NestedStringSlice(pool.Object, "spec", "allowedUses")
		if len(uses) > 0 && !slices.Contains(uses, "Workload") {
			continue
		}
		source := "from Calico's IPPool " + pool.GetName()
		if disabled {
			source += ", which is disabled but still in use"
		}
		out = append(out, slices.DeleteFunc(parseRanges(cidr, source), func(r plan.Range) bool {
			return disabled && !slices.ContainsFunc(live, r.Value.Contains)
		})...)
	}
	return out
}

// ciliumPods reads the ranges from the place where Cilium's IPAM mode keeps them. In other modes, no object contains
// them.
func (s *inference) ciliumPods() (out plan.Ranges) {
	config := s.configMap("kube-system/cilium-config")
	switch config["ipam"] {
	case "multi-pool":
		return append(s.customRanges(kindCiliumPool, "spec.ipv4.cidrs"), s.customRanges(kindCiliumPool, "spec.ipv6.cidrs")...)
	case "eni":
		out = append(s.customRanges(kindCiliumNode, "status.eni.enis.*.vpc.cidrs"),
			s.customRanges(kindCiliumNode, "status.eni.enis.*.vpc.primary-cidr")...)
		return lo.CoalesceSliceOrEmpty(out, s.awsPods())
	case "cluster-pool":
	default:
		return nil
	}
	nodes := s.customRanges(kindCiliumNode, "spec.ipam.podCIDRs").Prefixes()
	pools := config["cluster-pool-ipv4-cidr"] + "," + config["cluster-pool-ipv6-cidr"]
	for _, pool := range parseRanges(pools, "from cluster-pool-ipv4-cidr of ConfigMap kube-system/cilium-config") {
		inside := lo.Filter(nodes, func(n netip.Prefix, _ int) bool { return contains(pool.Value, n) })
		// Cilium's default pool is all of 10/8. It includes services and nodes, and cannot be mapped. Nodes get their
		// parts in order from the start, so a range around these parts is enough.
		if !slices.ContainsFunc(s.otherRanges(), pool.Value.Overlaps) && (!pool.Value.Addr().Is4() || pool.Value.Bits() > 8) || len(inside) == 0 {
			out = append(out, pool)
			continue
		}
		source := fmt.Sprintf("from the CiliumNodes' podCIDRs, rounded up; "+
			"the whole pool %s, %s, is too large to be mapped or overlaps services or nodes", pool.Value, pool.Source)
		for _, p := range ipam.Estimate(inside, s.otherRanges()) {
			if !contains(pool.Value, p) {
				p = pool.Value
			}
			out = append(out, plan.Range{Value: p, Assumed: true, Source: source})
		}
	}
	return out
}

// awsPods infers the pods' ranges if pods have addresses of the VPC's subnets. The API does not contain the subnets. But
// no block of a VPC is larger than a /16, so the /16 around an address contains its block.
// (https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html)
func (s *inference) awsPods() (out plan.Ranges) {
	addrs, of := s.podIPs(), "pods' addresses"
	// With custom networking, pods are in other subnets than nodes.
	containers := lo.FromPtr(s.daemonSet("aws-node")).Spec.Template.Spec.Containers
	isCustom := corev1.EnvVar{Name: "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG", Value: "true"}
	if !slices.ContainsFunc(containers, func(c corev1.Container) bool { return slices.Contains(c.Env, isCustom) }) {
		addrs, of = append(addrs, s.internalIPs()...), "nodes' and pods' addresses"
	}
	// IPv6 clusters give each node a /80 of a subnet, which is a /64.
	blocks := lo.GroupBy(addrs, func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, lo.Ternary(a.Is6(), 64, 16)).Masked() })
	source := fmt.Sprintf("from %s: a VPC's block is never larger than a /16 (IPv6: a subnet is a /64); "+
		"give --pod-cidr %s=RANGE for the exact subnets", of, s.f.Name)
	for block, seen := range blocks {
		out = append(out, plan.Range{Value: ipam.Widen(cover(seen), block.Bits(), s.f.ServiceCIDRs.Prefixes()), Source: source, Assumed: true})
	}
	return out
}

// internalIPs returns the internal addresses of all nodes.
func (s *inference) internalIPs() []netip.Addr {
	return lo.FlatMap(s.f.Nodes, func(n plan.Node, _ int) []netip.Addr { return n.InternalIPs })
}

// azurePods reads the ranges of Azure's CNI. With an overlay or a subnet for pods there is a NodeNetworkConfig for each
// node. With the nodes' subnet, the API has only the VNet, as ranges that must not be masqueraded. Of these, the ones
// that contain pods count, or nodes if no pod runs yet.
func (s *inference) azurePods() plan.Ranges {
	if out := s.customRanges(kindNodeNetwork, "status.networkContainers[*].subnetAddressSpace"); len(out) > 0 {
		return out
	}
	seen := lo.CoalesceSliceOrEmpty(s.podIPs(), s.internalIPs())
	for _, name := range masqConfigMaps {
		for _, key := range slices.Sorted(maps.Keys(s.configMap(name))) {
			out := lo.FilterMap(s.configMapRanges(name, key, "nonMasqueradeCIDRs"), func(r plan.Range, _ int) (plan.Range, bool) {
				r.Source += " that have pods"
				return r, slices.ContainsFunc(seen, r.Value.Contains)
			})
			if len(out) > 0 {
				return out
			}
		}
	}
	return nil
}

// masqConfigMaps are the ConfigMaps in which AKS lists the ranges that its ip-masq-agent does not masquerade.
var masqConfigMaps = []string{"kube-system/azure-ip-masq-agent-config-reconciled", "kube-system/azure-ip-masq-agent-config"}

// serviceRanges returns the ranges of the services' cluster IPs.
func (s *inference) serviceRanges() (plan.Ranges, error) {
	objects := lo.FlatMap(s.serviceCIDRs.Items, func(sc networkingv1.ServiceCIDR, _ int) []plan.Range {
		return parseRanges(strings.Join(sc.Spec.CIDRs, ","), "from ServiceCIDR object "+sc.Name)
	})
	if len(objects) > 0 {
		return withoutNested(objects), nil
	}
	have := s.serviceAddrs()
	for _, found := range []plan.Ranges{
		s.customRanges(kindOpenShiftNet, "status.serviceNetwork"),
		s.podFlag("kube-apiserver", "service-cluster-ip-range"),
		s.podFlag("kube-controller-manager", "service-cluster-ip-range"),
		s.configMapRanges("kube-system/kubeadm-config", "ClusterConfiguration", "networking", "serviceSubnet"),
		s.nodeArgs("service-cidr"),
		s.ovnConfig("svc_cidr"),
		s.podFlag("kube-router", "service-cluster-ip-range"),
	} {
		// A configuration that services contradict is outdated.
		if len(found) > 0 && lo.EveryBy(have, func(h addressOwner) bool { return found.Contains(h.addr) }) {
			return withoutNested(found), nil
		}
	}
	if out := s.serviceEstimate(have); len(out) > 0 {
		return withoutNested(out), nil
	}
	command := cmp.Or(map[string]string{
		ProviderEKS: "aws eks describe-cluster --name NAME --query cluster.kubernetesNetworkConfig",
		ProviderAKS: "az aks show -g GROUP -n NAME --query networkProfile.serviceCidrs",
		ProviderGKE: "gcloud container clusters describe NAME --format='value(servicesIpv4Cidr)'",
	}[s.f.Provider.Value], "kubectl get servicecidrs, or look for --service-cluster-ip-range among the arguments of kube-apiserver")
	return nil, fmt.Errorf("cluster %q: the range of the services is %w: no source names it and there is no service default/kubernetes; "+
		"give --service-cidr %s=RANGE (to find it: %s)", s.f.Name, ErrUnknown, s.f.Name, command)
}

// serviceEstimate infers the range from the cluster IPs: the first address of the range belongs to the service
// kubernetes.
func (s *inference) serviceEstimate(addrs []addressOwner) (out plan.Ranges) {
	avoid := append(s.f.NodeCIDRs.Prefixes(), s.nodePodCIDRs()...)
	for _, h := range addrs {
		if h.object != "service default/kubernetes" {
			continue
		}
		base := h.addr.Prev()
		used := lo.FilterMap(addrs, func(o addressOwner, _ int) (netip.Addr, bool) { return o.addr, o.addr.Is4() == base.Is4() })
		// The range's start limits its size. The defaults of kubeadm and GKE are known; all others are a /16 at most.
		bits := 16
		switch {
		case base == netip.MustParseAddr("10.96.0.0"):
			bits = 12
		case base == netip.MustParseAddr("34.118.224.0"):
			bits = 20
		case base.Is6():
			bits = 108
		}
		for netip.PrefixFrom(base, bits).Masked().Addr() != base {
			bits++
		}
		source := "from services' cluster IPs, rounded up; it begins at the service kubernetes, " + h.addr.String()
		out = append(out, plan.Range{Value: ipam.Widen(cover(append(used, base)), bits, avoid), Assumed: true, Source: source})
	}
	return out
}

var (
	kindIPPool       = schema.GroupVersionKind{Group: "crd.projectcalico.org", Version: "v1", Kind: "IPPool"}
	kindIPPoolV3     = schema.GroupVersionKind{Group: "projectcalico.org", Version: "v3", Kind: "IPPool"}
	kindCiliumPool   = schema.GroupVersionKind{Group: "cilium.io", Version: "v2alpha1", Kind: "CiliumPodIPPool"}
	kindCiliumNode   = schema.GroupVersionKind{Group: "cilium.io", Version: "v2", Kind: "CiliumNode"}
	kindNodeNetwork  = schema.GroupVersionKind{Group: "acn.azure.com", Version: "v1alpha", Kind: "NodeNetworkConfig"}
	kindOpenShiftNet = schema.GroupVersionKind{Group: "config.openshift.io", Version: "v1", Kind: "Network"}
)

// plugin describes how to recognize a network plugin and what to read for it.
type plugin struct {
	name string
	// daemonSets are patterns of DaemonSet names, one of which it uses.
	daemonSets []string
	// provider is the provider with which the plugin assigns addresses, empty for any. A cloud's own DaemonSets also run
	// next to a plugin that the user chose, but assign no addresses then.
	provider string
	// configMaps and kinds are read if the plugin is found.
	configMaps []string
	kinds      []schema.GroupVersionKind
	// pods returns the pod ranges from which the plugin assigns addresses. If it is nil or returns none, the plugin uses
	// the nodes' podCIDR.
	pods func(*inference) plan.Ranges
}

// plugins are the network plugins, the more specific ones first: a cluster may run Calico only for its policies, next
// to the plugin that assigns addresses.
var plugins = []plugin{
	{name: "amazon-vpc-cni", daemonSets: []string{"aws-node"}, pods: (*inference).awsPods},
	{
		name: "azure-cni", daemonSets: []string{"azure-cns", "azure-cns-win", "azure-cni-networkmonitor"}, provider: ProviderAKS,
		configMaps: masqConfigMaps, kinds: []schema.GroupVersionKind{kindNodeNetwork}, pods: (*inference).azurePods,
	},
	{name: "gke-vpc-native", daemonSets: []string{"netd", "anetd"}, provider: ProviderGKE},
	{
		name: "canal", daemonSets: []string{"canal", "rke2-canal"},
		configMaps: []string{"kube-system/canal-config", "kube-system/rke2-canal-config"}, pods: (*inference).flannelPods,
	},
	{
		name: "cilium", daemonSets: []string{"cilium"}, configMaps: []string{"kube-system/cilium-config"},
		kinds: []schema.GroupVersionKind{kindCiliumPool, kindCiliumNode}, pods: (*inference).ciliumPods,
	},
	{name: "ovn-kubernetes", daemonSets: []string{"ovnkube-node*"}, configMaps: []string{"ovn-kubernetes/ovn-config"}, pods: (*inference).ovnPods},
	{name: "kube-router", daemonSets: []string{"kube-router"}},
	{name: "kindnet", daemonSets: []string{"kindnet"}},
	{name: "antrea", daemonSets: []string{"antrea-agent"}},
	{
		name: "calico", daemonSets: []string{"calico-node"}, configMaps: []string{"kube-system/calico-config"},
		kinds: []schema.GroupVersionKind{kindIPPool, kindIPPoolV3}, pods: (*inference).calicoPods,
	},
	{
		name: "flannel", daemonSets: []string{"kube-flannel*"},
		configMaps: []string{"kube-flannel/kube-flannel-cfg", "kube-system/kube-flannel-cfg"}, pods: (*inference).flannelPods,
	},
}

// detectPlugin recognizes the network plugin.
func (s *snapshot) detectPlugin(provider string) (plugin, plan.Fact[string]) {
	for _, p := range plugins {
		if ds := s.daemonSet(p.daemonSets...); ds != nil && (p.provider == "" || p.provider == provider) {
			return p, plan.Fact[string]{Value: p.name, Source: "from DaemonSet " + ds.Namespace + "/" + ds.Name}
		}
	}
	for _, n := range s.nodes.Items {
		// k3s includes Flannel, without a DaemonSet.
		if t, ok := n.Annotations["flannel.alpha.coreos.com/backend-type"]; ok {
			source := "from the annotation flannel.alpha.coreos.com/backend-type=" + t + " of node " + n.Name
			return plugin{}, plan.Fact[string]{Value: "flannel", Source: source}
		}
	}
	return plugin{}, plan.Fact[string]{Source: "no network plugin recognized"}
}

// podRanges returns the ranges of the pods: those of the network plugin, as it assigns the addresses, or else those of
// Kubernetes' configuration.
func (s *inference) podRanges() plan.Ranges {
	if p, _ := s.detectPlugin(s.f.Provider.Value); p.pods != nil {
		if out := p.pods(s); len(out) > 0 {
			return withoutNested(out)
		}
	}
	return withoutNested(s.kubernetesPods())
}

func (s *snapshot) nodeFacts() []plan.Node {
	return lo.Map(s.nodes.Items, func(n corev1.Node, _ int) plan.Node {
		return plan.Node{
			Name: n.Name, UID: string(n.UID), Labels: n.Labels, Taints: n.Spec.Taints,
			InternalIPs: nodes.Addresses(&n, corev1.NodeInternalIP), ExternalIPs: nodes.Addresses(&n, corev1.NodeExternalIP),
			Ready: nodes.IsReady(&n), RunsAgents: nodes.RunsAgents(&n),
			Schedulable: !n.Spec.Unschedulable && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
				return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
			}),
		}
	})
}

// nodeRanges infers the nodes' subnets.
func (s *inference) nodeRanges() plan.Ranges {
	around := lo.Map(s.internalIPs(), func(a netip.Addr, _ int) netip.Prefix {
		bits := 24
		switch {
		case !a.IsPrivate():
			bits = a.BitLen() // the neighbors of a public address may belong to others
		case a.Is6():
			bits = 64
		}
		return netip.PrefixFrom(a, bits).Masked()
	})
	const source = "from nodes' InternalIPs, a /24 (IPv6: /64) around each; the nodes' agents report the real subnets"
	return assumed(ipam.Merge(around), source)
}

// The recognized providers: those about which more is known, or whose clusters have their own kind of configuration.
const (
	ProviderAKS       = "aks"
	ProviderEKS       = "eks"
	ProviderGKE       = "gke"
	ProviderK3s       = "k3s"
	ProviderOpenShift = "openshift"
	ProviderRKE2      = "rke2"
)

// detectProvider recognizes the cluster's provider, by a label of its nodes or by a part of the kubelets' version.
func (s *snapshot) detectProvider() plan.Fact[string] {
	for _, n := range s.nodes.Items {
		for _, by := range []struct{ provider, label, version string }{
			{ProviderAKS, "kubernetes.azure.com/cluster", ""},
			{ProviderEKS, "eks.amazonaws.com/nodegroup", "-eks-"},
			{ProviderEKS, "eks.amazonaws.com/compute-type", ""},
			{ProviderGKE, "cloud.google.com/gke-nodepool", "-gke."},
			{ProviderOpenShift, "node.openshift.io/os_id", ""},
			{ProviderK3s, "", "+k3s"},
			{ProviderRKE2, "", "+rke2"},
		} {
			if _, ok := n.Labels[by.label]; ok {
				return plan.Fact[string]{Value: by.provider, Source: "from the label " + by.label + " of node " + n.Name}
			}
			if version := n.Status.NodeInfo.KubeletVersion; by.version != "" && strings.Contains(version, by.version) {
				return plan.Fact[string]{Value: by.provider, Source: "from the kubelet's version " + version + " of node " + n.Name}
			}
		}
	}
	return plan.Fact[string]{Source: "neither a cloud's cluster nor k3s, RKE2 or OpenShift"}
}

// snapshot holds everything that was read from a cluster, sorted by the objects' names. It leaves out virtual nodes, and
// the pods on them.
type snapshot struct {
	kubeSystem   corev1.Namespace
	nodes        corev1.NodeList
	pods         corev1.PodList
	services     corev1.ServiceList
	daemonSets   appsv1.DaemonSetList
	serviceCIDRs networkingv1.ServiceCIDRList
	// configMaps has the ConfigMaps by namespace/name.
	configMaps map[string]*corev1.ConfigMap
	// custom has the objects of foreign kinds.
	custom map[schema.GroupVersionKind]*unstructured.UnstructuredList
	// unreadable lists the optional sources that exist but could not be read, and why.
	unreadable []string
}

// configMap returns the data of a ConfigMap, nil if there is none.
func (s *snapshot) configMap(name string) map[string]string {
	return lo.FromPtr(s.configMaps[name]).Data
}

// objects returns the objects of a foreign kind.
func (s *snapshot) objects(kind schema.GroupVersionKind) []unstructured.Unstructured {
	return lo.FromPtr(s.custom[kind]).Items
}

// daemonSet returns the first DaemonSet with a matching name that is wanted on some node.
func (s *snapshot) daemonSet(patterns ...string) *appsv1.DaemonSet {
	found, _ := lo.Find(lo.ToSlicePtr(s.daemonSets.Items), func(ds *appsv1.DaemonSet) bool {
		named := slices.ContainsFunc(patterns, func(p string) bool {
			match, _ := path.Match(p, ds.Name)
			return match
		})
		// A plugin is often turned off by a node selector that matches no node.
		return named && ds.Status.DesiredNumberScheduled > 0
	})
	return found
}

// addressOwner is an object and an address that it has.
type addressOwner struct {
	object string
	addr   netip.Addr
}

// podAddrs returns the addresses of pods from the network plugin: of pods that have a network of their own and are
// running.
func (s *snapshot) podAddrs() (out []addressOwner) {
	for _, p := range s.pods.Items {
		if p.Spec.HostNetwork || p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
			continue
		}
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil {
				out = append(out, addressOwner{"pod " + p.Namespace + "/" + p.Name, a.Unmap()})
			}
		}
	}
	return out
}

// podIPs returns the addresses without the pods' names.
func (s *snapshot) podIPs() []netip.Addr {
	return lo.Map(s.podAddrs(), func(p addressOwner, _ int) netip.Addr { return p.addr })
}

// serviceAddrs returns the services' cluster IPs.
func (s *snapshot) serviceAddrs() (out []addressOwner) {
	for _, svc := range s.services.Items {
		for _, ip := range svc.Spec.ClusterIPs {
			// An address with a zone cannot belong to a service.
			if a, err := netip.ParseAddr(ip); err == nil && a.Zone() == "" {
				out = append(out, addressOwner{"service " + svc.Namespace + "/" + svc.Name, a})
			}
		}
	}
	return out
}

// nodePodCIDRs returns the pod ranges of each node according to Kubernetes' own IPAM, or to kube-router's annotations,
// which override it.
func (s *snapshot) nodePodCIDRs() []netip.Prefix {
	return lo.FlatMap(s.nodes.Items, func(n corev1.Node, _ int) []netip.Prefix {
		annotated := cmp.Or(n.Annotations["kube-router.io/pod-cidrs"], n.Annotations["kube-router.io/pod-cidr"])
		return parseRanges(cmp.Or(annotated, strings.Join(n.Spec.PodCIDRs, ",")), "").Prefixes()
	})
}

// podFlag looks for a flag in the system's pods that have a container with the name, e.g. kube-controller-manager.
func (s *snapshot) podFlag(container, flag string) (out plan.Ranges) {
	look := func(kind string, o metav1.ObjectMeta, spec corev1.PodSpec) {
		for _, c := range spec.Containers {
			if len(out) == 0 && o.Namespace == "kube-system" && c.Name == container {
				source := "from " + container + "'s --" + flag + " (" + kind + " " + o.Namespace + "/" + o.Name + ")"
				out = parseRanges(flagValue(slices.Concat(c.Command, c.Args), flag), source)
			}
		}
	}
	for _, p := range s.pods.Items {
		look("pod", p.ObjectMeta, p.Spec)
	}
	for _, ds := range s.daemonSets.Items {
		look("DaemonSet", ds.ObjectMeta, ds.Spec.Template.Spec)
	}
	return out
}

// nodeArgs looks for a flag of k3s and RKE2. They write their arguments, including those from their configuration file
// but without defaults, to an annotation of each node.
func (s *snapshot) nodeArgs(flag string) plan.Ranges {
	for _, n := range s.nodes.Items {
		for _, key := range []string{"k3s.io/node-args", "rke2.io/node-args"} {
			var args []string
			if json.Unmarshal([]byte(n.Annotations[key]), &args) != nil {
				continue
			}
			if out := parseRanges(flagValue(args, flag), "from --"+flag+" in the annotation "+key+" of node "+n.Name); len(out) > 0 {
				return out
			}
		}
	}
	return nil
}

// flagValue returns the value of --name=value or --name value among arguments. An argument may be a whole shell command
// line.
func flagValue(args []string, name string) string {
	m := regexp.MustCompile(`(?:^|\s)--?` + name + `[=\s]+(\S+)`).FindStringSubmatch(strings.Join(args, " "))
	return lo.NthOrEmpty(m, 1)
}

// configMapRanges returns the ranges in a field of a YAML document, which is the value of a key in a ConfigMap.
func (s *snapshot) configMapRanges(configMap, key string, field ...string) plan.Ranges {
	var document map[string]any
	_ = yaml.Unmarshal([]byte(s.configMap(configMap)[key]), &document) // an invalid document has no fields
	list, _, _ := unstructured.NestedFieldNoCopy(document, field...)   // a list of ranges, or a text that lists them
	return parseRanges(fmt.Sprint(list), "from "+strings.Join(field, ".")+" of ConfigMap "+configMap)
}

// customRanges returns the ranges in a field of the objects of a foreign kind. The field is a JSONPath.
func (s *snapshot) customRanges(kind schema.GroupVersionKind, path string) (out plan.Ranges) {
	field := jsonpath.New(path).AllowMissingKeys(true)
	lo.Must0(field.Parse("{." + path + "}")) // all paths are constants
	for _, o := range s.objects(kind) {
		var found strings.Builder
		_ = field.Execute(&found, o.Object) // a field of another type has no ranges
		out = append(out, parseRanges(found.String(), "from "+strings.ReplaceAll(path, "[*]", "")+" of "+kind.Kind+" "+o.GetName())...)
	}
	return withoutNested(out)
}

// ovnConfig reads a list of ranges, in which each may be followed by the length of the nodes' ranges: 10.244.0.0/16/24.
func (s *snapshot) ovnConfig(key string) (out plan.Ranges) {
	for _, e := range strings.Split(s.configMap("ovn-kubernetes/ovn-config")[key], ",") {
		parts := strings.Split(strings.TrimSpace(e), "/")
		out = append(out, parseRanges(strings.Join(parts[:min(len(parts), 2)], "/"), "from "+key+" of ConfigMap ovn-kubernetes/ovn-config")...)
	}
	return out
}

// parseRanges returns the ranges in a list, separated by commas or spaces. It drops host bits, as Kubernetes does, and
// anything that is not a prefix.
func parseRanges(list, source string) plan.Ranges {
	fields := strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(", \t\n\"'[]", r) })
	return lo.FilterMap(fields, func(s string, _ int) (plan.Range, bool) {
		p, err := netip.ParsePrefix(s)
		return plan.Range{Value: p.Masked(), Source: source}, err == nil
	})
}

// assumed returns ranges that no object contains, with a source.
func assumed(prefixes []netip.Prefix, source string) plan.Ranges {
	return lo.Map(prefixes, func(p netip.Prefix, _ int) plan.Range { return plan.Range{Value: p, Source: source, Assumed: true} })
}

// withoutNested sorts ranges by their prefix, IPv4 first, and drops those inside others.
func withoutNested(ranges plan.Ranges) plan.Ranges {
	return ipam.Outermost(ranges, func(r plan.Range) netip.Prefix { return r.Value })
}

// cover returns the smallest prefix that contains all of the addresses, which are of one family.
func cover(addrs []netip.Addr) netip.Prefix {
	single := func(a netip.Addr, _ int) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
	return lo.Reduce(lo.Map(addrs, single), func(all, p netip.Prefix, _ int) netip.Prefix { return ipam.Cover(all, p) }, single(addrs[0], 0))
}

// contains reports whether inner is inside outer.
func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}
