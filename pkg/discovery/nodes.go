package discovery

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/nodes"
)

// sort makes the order of all lists independent of the API, and takes virtual
// nodes out, together with the pods on them.
func (s *snapshot) sort() {
	virtual := map[string]bool{}
	s.nodes = slices.DeleteFunc(s.nodes, func(n corev1.Node) bool {
		v := nodes.Virtual(&n)
		if v {
			virtual[n.Name] = true
		}
		return v
	})
	s.pods = slices.DeleteFunc(s.pods, func(p corev1.Pod) bool { return virtual[p.Spec.NodeName] })
	slices.SortFunc(s.nodes, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(s.pods, func(a, b corev1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	slices.SortFunc(s.services, func(a, b corev1.Service) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	slices.SortFunc(s.daemonSets, func(a, b appsv1.DaemonSet) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	for _, list := range s.custom {
		slices.SortFunc(list, func(a, b unstructured.Unstructured) int {
			return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
		})
	}
	slices.Sort(s.unread)
}

func (s *snapshot) nodeFacts() []Node {
	out := make([]Node, 0, len(s.nodes))
	for _, n := range s.nodes {
		f := Node{
			Name:          n.Name,
			InternalIPs:   nodes.Addresses(&n, corev1.NodeInternalIP),
			ExternalIPs:   nodes.Addresses(&n, corev1.NodeExternalIP),
			PodCIDRs:      nodePodCIDRs(n),
			Schedulable:   !n.Spec.Unschedulable,
			OS:            n.Status.NodeInfo.OperatingSystem,
			KernelVersion: n.Status.NodeInfo.KernelVersion,
			Ready:         nodes.Ready(&n),
			RunsAgents:    nodes.RunsAgents(&n),
		}
		for _, t := range n.Spec.Taints {
			if t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute {
				f.Schedulable = false
			}
		}
		out = append(out, f)
	}
	return out
}

// nodePodCIDRs returns the ranges that pods of a node get by Kubernetes' own IPAM,
// or by kube-router's annotations, which overrule it.
func nodePodCIDRs(n corev1.Node) []netip.Prefix {
	for _, key := range []string{"kube-router.io/pod-cidrs", "kube-router.io/pod-cidr"} {
		if ps := parsePrefixes(n.Annotations[key]); len(ps) > 0 {
			return ps
		}
	}
	list := n.Spec.PodCIDRs
	if len(list) == 0 {
		list = []string{n.Spec.PodCIDR}
	}
	return parsePrefixes(strings.Join(list, ","))
}

// version returns the oldest of the kubelets' versions.
func (s *snapshot) version() string {
	oldest := ""
	for _, n := range s.nodes {
		if v := n.Status.NodeInfo.KubeletVersion; oldest == "" || minor(v) < minor(oldest) {
			oldest = v
		}
	}
	return oldest
}

// minor returns 34 for "v1.34.1+k3s1".
func minor(version string) int {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(parts[1])
	return n
}

// nodeRanges returns the nodes' subnets: where a plugin has written them down, from
// there, otherwise the /24 (IPv6: /64) around each address.
func (s *snapshot) nodeRanges(o Overrides) []Fact[netip.Prefix] {
	if len(o.NodeCIDRs) > 0 {
		return given(o.NodeCIDRs, "--node-cidr")
	}
	var out []Fact[netip.Prefix]
	var rest []netip.Prefix
	for _, n := range s.nodes {
		known := nodeSubnets(n)
		out = append(out, known...)
		for _, a := range nodes.Addresses(&n, corev1.NodeInternalIP) {
			switch {
			case covers(known, a):
			case !a.IsPrivate():
				// Who has the neighbours of a public address is not known.
				rest = append(rest, around(a, 32, 128))
			default:
				rest = append(rest, around(a, 24, 64))
			}
		}
	}
	out = append(out, facts(ipam.Merge(rest), "from nodes' InternalIPs, a /24 (IPv6: /64) around each; the nodes' agents report the real subnets", true)...)
	return distinct(out)
}

// nodeSubnets returns the subnets that network plugins wrote to the node.
func nodeSubnets(n corev1.Node) []Fact[netip.Prefix] {
	var out []Fact[netip.Prefix]
	add := func(key, value string) {
		for _, p := range parsePrefixes(value) {
			// Some setups write a /32, which says nothing.
			if !p.IsSingleIP() {
				out = append(out, Fact[netip.Prefix]{Value: p, Source: "from the annotation " + key + " of node " + n.Name})
			}
		}
	}
	for _, key := range []string{"projectcalico.org/IPv4Address", "projectcalico.org/IPv6Address"} {
		add(key, n.Annotations[key])
	}
	const ovn = "k8s.ovn.org/node-primary-ifaddr"
	var addrs map[string]string
	if json.Unmarshal([]byte(n.Annotations[ovn]), &addrs) == nil {
		add(ovn, addrs["ipv4"])
		add(ovn, addrs["ipv6"])
	}
	return out
}

// provider recognises who runs the cluster.
func (s *snapshot) provider() Fact[string] {
	found := func(provider, source string) Fact[string] { return Fact[string]{Value: provider, Source: source} }
	for _, n := range s.nodes {
		version, at := n.Status.NodeInfo.KubeletVersion, " of node "+n.Name
		for _, by := range []struct {
			provider, label string
		}{
			{ProviderAKS, "kubernetes.azure.com/cluster"},
			{ProviderEKS, "eks.amazonaws.com/nodegroup"},
			{ProviderEKS, "eks.amazonaws.com/compute-type"},
			{ProviderGKE, "cloud.google.com/gke-nodepool"},
			{ProviderOpenShift, "node.openshift.io/os_id"},
		} {
			if _, ok := n.Labels[by.label]; ok {
				return found(by.provider, "from the label "+by.label+at)
			}
		}
		for _, by := range []struct {
			provider, part string
		}{
			{ProviderEKS, "-eks-"},
			{ProviderGKE, "-gke."},
			{ProviderK3s, "+k3s"},
			{ProviderRKE2, "+rke2"},
		} {
			if strings.Contains(version, by.part) {
				return found(by.provider, "from the kubelet's version "+version+at)
			}
		}
		if strings.HasPrefix(n.Spec.ProviderID, "kind://") {
			return found(ProviderKind, "from the providerID"+at)
		}
	}
	if _, ok := s.configMaps["kube-system/kubeadm-config"]; ok {
		return found(ProviderKubeadm, "from ConfigMap kube-system/kubeadm-config")
	}
	for _, n := range s.nodes {
		if _, ok := n.Annotations["kubeadm.alpha.kubernetes.io/cri-socket"]; ok {
			return found(ProviderKubeadm, "from the annotation kubeadm.alpha.kubernetes.io/cri-socket of node "+n.Name)
		}
	}
	return Fact[string]{Source: "no provider recognised"}
}

// warnings are about what was not read.
func (s *snapshot) warnings() []string {
	var out []string
	if len(s.unread) > 0 {
		out = append(out, "could not be read: "+strings.Join(s.unread, ", "))
	}
	return out
}
