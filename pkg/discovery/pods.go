package discovery

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/ipam"
)

type prefixFacts = []Fact[netip.Prefix]

// podRanges returns the ranges of the pods: what the network plugin says, since it
// gives out the addresses, and otherwise what Kubernetes was configured with.
func (s *snapshot) podRanges(o Overrides, f Facts) (prefixFacts, error) {
	if len(o.PodCIDRs) > 0 {
		return given(o.PodCIDRs, "--pod-cidr"), nil
	}
	out, err := s.pluginPods(f)
	if err != nil {
		return nil, err
	}
	if len(out) == 0 {
		out = s.kubernetesPods(f)
	}
	if len(out) == 0 {
		return nil, s.podsUnknown(f, "no source names it and the nodes have no podCIDR")
	}
	return distinct(out), nil
}

func (s *snapshot) podsUnknown(f Facts, reason string) error {
	if len(s.unread) > 0 {
		reason += " (could not be read: " + strings.Join(s.unread, ", ") + ")"
	}
	return &UnknownError{
		Cluster: f.Name, What: "range of the pods", Reason: reason,
		Flag: "--pod-cidr " + f.Name + "=RANGE[,RANGE]", Command: podCommand(f),
	}
}

// podCommand finds the pods' ranges where the API does not tell them.
func podCommand(f Facts) string {
	switch f.Provider.Value {
	case ProviderEKS:
		return "aws ec2 describe-subnets --query 'Subnets[].CidrBlock' --filters Name=vpc-id,Values=$(aws eks describe-cluster --name NAME --query cluster.resourcesVpcConfig.vpcId --output text)"
	case ProviderAKS:
		return "az aks show -g GROUP -n NAME --query '[networkProfile.podCidrs, agentPoolProfiles[].[podSubnetId, vnetSubnetId]]', and for a subnet: az network vnet subnet show --ids ID --query addressPrefix"
	case ProviderGKE:
		return "gcloud container clusters describe NAME --format='value(clusterIpv4Cidr, nodePools[].networkConfig.podIpv4CidrBlock)'"
	}
	return "look for --cluster-cidr among the arguments of kube-controller-manager, and compare with kubectl get pods -A -o wide"
}

// pluginPods asks the network plugin. Nothing and no error mean that it uses the
// nodes' podCIDR.
func (s *snapshot) pluginPods(f Facts) (prefixFacts, error) {
	switch f.CNI.Value {
	case CNIAWS:
		return s.awsPods(f)
	case CNIAzure:
		return s.azurePods(f)
	case CNIGKE:
		return s.gkePods(), nil
	case CNICalico:
		return s.calicoPods(), nil
	case CNICilium:
		return s.ciliumPods(f)
	case CNICanal, CNIFlannel:
		return s.flannelPods(), nil
	case CNIOVN, CNIOpenShift:
		if out := s.openShift("clusterNetwork"); len(out) > 0 {
			return out, nil
		}
		return s.ovnConfig("net_cidr"), nil
	case CNIWeave:
		return s.weavePods(), nil
	case CNIKindnet:
		return s.kindnetPods(), nil
	}
	return nil, nil
}

// kubernetesPods returns what Kubernetes' own IPAM was configured with. Each source
// counts only if it has all of the nodes' ranges: otherwise it is an old one.
func (s *snapshot) kubernetesPods(f Facts) prefixFacts {
	var nodes []netip.Prefix
	for _, n := range f.Nodes {
		nodes = append(nodes, n.PodCIDRs...)
	}
	sources := []prefixFacts{
		s.podFlag("kube-controller-manager", "cluster-cidr"),
		s.nodeArgs("cluster-cidr"),
		s.kubeadm("podSubnet"),
		s.kubeProxy(),
		s.podFlag("kube-proxy", "cluster-cidr"),
	}
	if f.Provider.Value == ProviderK3s || f.Provider.Value == ProviderRKE2 {
		sources = append(sources, facts(parsePrefixes("10.42.0.0/16"), "the default of "+f.Provider.Value+", as no node-args annotation has a cluster-cidr", true))
	}
	for _, found := range sources {
		if len(found) > 0 && containAll(Values(found), nodes) {
			return found
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	guess := ipam.Estimate(nodes, valuesOf(f.ServiceCIDRs, f.NodeCIDRs))
	return facts(guess, fmt.Sprintf("from the podCIDRs of %d nodes (%s), rounded up, as later nodes get other parts of it; give --pod-cidr %s=RANGE if it is another one",
		len(f.Nodes), some(ipam.Merge(nodes)), f.Name), true)
}

// some shows the first prefixes.
func some(prefixes []netip.Prefix) string {
	const shown = 3
	var parts []string
	for _, p := range prefixes[:min(shown, len(prefixes))] {
		parts = append(parts, p.String())
	}
	if len(prefixes) > shown {
		parts = append(parts, "…")
	}
	return strings.Join(parts, ", ")
}

// kubeProxy returns clusterCIDR of kube-proxy's configuration.
func (s *snapshot) kubeProxy() prefixFacts {
	var c struct {
		ClusterCIDR string `json:"clusterCIDR"`
	}
	if yaml.Unmarshal([]byte(s.configMaps["kube-system/kube-proxy"]["config.conf"]), &c) != nil {
		return nil
	}
	return facts(parsePrefixes(c.ClusterCIDR), "from clusterCIDR of ConfigMap kube-system/kube-proxy", false)
}

// flannelPods reads Flannel's net-conf.json, which Canal has as well.
func (s *snapshot) flannelPods() prefixFacts {
	for _, name := range []string{"kube-flannel/kube-flannel-cfg", "kube-system/kube-flannel-cfg", "kube-system/canal-config", "kube-system/rke2-canal-config"} {
		var c struct{ Network, IPv6Network string }
		if json.Unmarshal([]byte(s.configMaps[name]["net-conf.json"]), &c) != nil {
			continue
		}
		if ps := parsePrefixes(c.Network + "," + c.IPv6Network); len(ps) > 0 {
			return facts(ps, "from Flannel's net-conf.json in ConfigMap "+name, false)
		}
	}
	return nil
}

// weavePods reads the environment of Weave's DaemonSet.
func (s *snapshot) weavePods() prefixFacts {
	ds := s.daemonSet(func(name string) bool { return name == "weave-net" })
	if ds == nil {
		return nil
	}
	of := ds.Namespace + "/" + ds.Name
	if v, ok := env(ds.Spec.Template.Spec, "IPALLOC_RANGE"); ok {
		return facts(parsePrefixes(v), "from IPALLOC_RANGE of DaemonSet "+of, false)
	}
	return facts(parsePrefixes("10.32.0.0/12"), "Weave's default, as DaemonSet "+of+" sets no IPALLOC_RANGE", true)
}

// kindnetPods reads the environment of kind's DaemonSet.
func (s *snapshot) kindnetPods() prefixFacts {
	ds := s.daemonSet(func(name string) bool { return name == "kindnet" })
	if ds == nil {
		return nil
	}
	v, _ := env(ds.Spec.Template.Spec, "POD_SUBNET")
	return facts(parsePrefixes(v), "from POD_SUBNET of DaemonSet "+ds.Namespace+"/"+ds.Name, false)
}

// openShift reads a field of OpenShift's network configuration.
func (s *snapshot) openShift(field string) prefixFacts {
	for _, o := range s.custom[kindOpenShiftNet] {
		for _, part := range []string{"status", "spec"} {
			list, _, _ := unstructured.NestedSlice(o.Object, part, field)
			var ps []netip.Prefix
			for _, e := range list {
				switch e := e.(type) {
				case string:
					ps = append(ps, parsePrefixes(e)...)
				case map[string]any:
					cidr, _ := e["cidr"].(string)
					ps = append(ps, parsePrefixes(cidr)...)
				}
			}
			if len(ps) > 0 {
				return facts(ps, "from "+part+"."+field+" of OpenShift's Network "+o.GetName(), false)
			}
		}
	}
	return nil
}

// ovnConfig reads OVN-Kubernetes' ConfigMap, in which a cluster's range is followed
// by the length of the nodes' ranges: 10.244.0.0/16/24.
func (s *snapshot) ovnConfig(key string) prefixFacts {
	var ps []netip.Prefix
	for _, e := range strings.Split(s.configMaps["ovn-kubernetes/ovn-config"][key], ",") {
		if parts := strings.Split(strings.TrimSpace(e), "/"); len(parts) >= 2 {
			ps = append(ps, parsePrefixes(parts[0]+"/"+parts[1])...)
		}
	}
	return facts(ps, "from "+key+" of ConfigMap ovn-kubernetes/ovn-config", false)
}

// podAddrs returns the addresses of a pod that the network plugin has given it,
// none for a pod that has no network of its own or has ended.
func podAddrs(p corev1.Pod) []netip.Addr {
	if p.Spec.HostNetwork || p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
		return nil
	}
	list := make([]string, 0, 2)
	for _, ip := range p.Status.PodIPs {
		list = append(list, ip.IP)
	}
	if len(list) == 0 {
		list = append(list, p.Status.PodIP)
	}
	return parseAddrs(list)
}

// livePods returns the addresses of all pods.
func (s *snapshot) livePods() []netip.Addr {
	var out []netip.Addr
	for _, p := range s.pods {
		out = append(out, podAddrs(p)...)
	}
	return out
}
