package discovery

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/liqonet/liqonet/pkg/ipam"
)

// Fact is a value and where it is from.
type Fact[T any] struct {
	Value T `json:"value"`
	// Source completes "<value>: …", e.g. "from Calico's IPPool default".
	Source string `json:"source"`
	// Assumed says that the value was concluded from other facts and not read; the
	// source says from which.
	Assumed bool `json:"assumed,omitempty"`
}

func (f Fact[T]) String() string {
	s := fmt.Sprintf("%v: %s", f.Value, f.Source)
	if f.Assumed {
		s += " (assumed)"
	}
	return s
}

// Facts is what is known of a cluster. The order of all lists is the same at every
// call while the cluster does not change.
type Facts struct {
	// ClusterID is the UID of the namespace kube-system.
	ClusterID string `json:"clusterID"`
	// Name is what the user calls the cluster.
	Name string `json:"name"`
	// KubernetesVersion is the oldest of the nodes' kubelets, e.g. "v1.34.1".
	KubernetesVersion string `json:"kubernetesVersion"`
	// PodCIDRs are the ranges of the pods. None overlaps another one. There are none
	// where PodsUnknown is set.
	PodCIDRs []Fact[netip.Prefix] `json:"podCIDRs"`
	// PodsUnknown says why no object of the cluster names the ranges of the pods: it is
	// an UnknownError or an OutsideError. What the node agents report may tell them.
	PodsUnknown error `json:"-"`
	// PodAddrs are the addresses of the pods, where PodsUnknown is set.
	PodAddrs []netip.Addr `json:"podAddrs,omitempty"`
	// ServiceCIDRs are the ranges of the services' cluster IPs.
	ServiceCIDRs []Fact[netip.Prefix] `json:"serviceCIDRs"`
	// NodeCIDRs are the subnets of the nodes. Usually assumed: the nodes' agents
	// know them. They may overlap PodCIDRs where pods have addresses of the nodes'
	// subnets (EKS, Azure CNI).
	NodeCIDRs []Fact[netip.Prefix] `json:"nodeCIDRs"`
	// Reserved are ranges that the user keeps free of peers.
	Reserved []Fact[netip.Prefix] `json:"reserved,omitempty"`
	// CNI is the network plugin, one of the constants, or "" if it is not known.
	CNI Fact[string] `json:"cni"`
	// Provider is one of the constants, or "" if it is not known.
	Provider Fact[string] `json:"provider"`
	Nodes    []Node       `json:"nodes"`
	Exposure Exposure     `json:"exposure"`
	// PodsChecked is how many pods' addresses were compared with PodCIDRs; Pods is
	// how many pods the cluster has, as far as it says so.
	PodsChecked int `json:"podsChecked"`
	Pods        int `json:"pods"`
	// Warnings are things that are not as expected but do no harm to a peering.
	Warnings []string `json:"warnings,omitempty"`
}

// Node is a node of the cluster. Virtual nodes, which have no kernel, are left out.
type Node struct {
	Name        string         `json:"name"`
	InternalIPs []netip.Addr   `json:"internalIPs"`
	ExternalIPs []netip.Addr   `json:"externalIPs,omitempty"`
	PodCIDRs    []netip.Prefix `json:"podCIDRs,omitempty"`
	Ready       bool           `json:"ready"`
	// Schedulable is false for a cordoned node and for one with a NoSchedule or
	// NoExecute taint.
	Schedulable bool `json:"schedulable"`
	// RunsAgents says that the node gets agents, once it is ready: it has Linux, and
	// a kernel of its own.
	RunsAgents    bool   `json:"runsAgents"`
	OS            string `json:"os"`
	KernelVersion string `json:"kernelVersion"`
}

// Answer to a question that the API may leave open.
type Answer string

// The answers.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "unknown"
)

// Exposure says by what a gateway can be reached from outside.
type Exposure struct {
	// LoadBalancer says whether services of type LoadBalancer get addresses.
	LoadBalancer Fact[Answer] `json:"loadBalancer"`
	// NodeExternalIPs says whether schedulable nodes have external addresses.
	NodeExternalIPs Fact[Answer] `json:"nodeExternalIPs"`
	// NodePublicIPs says whether schedulable nodes have public addresses as their
	// internal ones.
	NodePublicIPs Fact[Answer] `json:"nodePublicIPs"`
}

// The network plugins that are recognised.
const (
	CNIAntrea     = "antrea"
	CNIAWS        = "amazon-vpc-cni"
	CNIAzure      = "azure-cni"
	CNICalico     = "calico"
	CNICanal      = "canal"
	CNICilium     = "cilium"
	CNIFlannel    = "flannel"
	CNIGKE        = "gke-vpc-native"
	CNIKindnet    = "kindnet"
	CNIKubenet    = "kubenet"
	CNIKubeRouter = "kube-router"
	CNIOpenShift  = "openshift-sdn"
	CNIOVN        = "ovn-kubernetes"
	CNIWeave      = "weave"
)

// The providers that are recognised.
const (
	ProviderAKS       = "aks"
	ProviderEKS       = "eks"
	ProviderGKE       = "gke"
	ProviderK3s       = "k3s"
	ProviderKind      = "kind"
	ProviderKubeadm   = "kubeadm"
	ProviderOpenShift = "openshift"
	ProviderRKE2      = "rke2"
)

// Values returns the values of facts.
func Values[T any](facts []Fact[T]) []T {
	out := make([]T, 0, len(facts))
	for _, f := range facts {
		out = append(out, f.Value)
	}
	return out
}

// Uses returns the ranges that this cluster uses, for the ipam.Space from which
// its peers get theirs. The internal CIDR and other peers' ranges are not among
// them: the ledger has them.
func (f Facts) Uses() []ipam.Use {
	var out []ipam.Use
	for _, of := range []struct {
		facts []Fact[netip.Prefix]
		by    string
	}{
		{f.PodCIDRs, "pods of cluster " + f.Name},
		{f.ServiceCIDRs, "services of cluster " + f.Name},
		{f.NodeCIDRs, "nodes of cluster " + f.Name},
		{f.Reserved, "reserved in cluster " + f.Name},
	} {
		for _, fact := range of.facts {
			out = append(out, ipam.Use{Prefix: fact.Value, By: of.by + ", " + fact.Source})
		}
	}
	return out
}

// covers says that one of the facts' prefixes contains addr.
func covers(facts []Fact[netip.Prefix], addr netip.Addr) bool {
	return slices.ContainsFunc(facts, func(f Fact[netip.Prefix]) bool { return f.Value.Contains(addr) })
}
