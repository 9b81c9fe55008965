package doctor

import "github.com/liqonet/liqonet/pkg/check"

// Plugins is what was read of how network plugins are set.
type Plugins struct {
	// Cilium is what its ConfigMap has, nil where there is none.
	Cilium map[string]string
	// CalicoBPF says that Calico's FelixConfiguration turns its eBPF data plane on.
	CalicoBPF bool
	// ProxyMode is that of kube-proxy, empty if it is not known.
	ProxyMode string
	// DataplaneV2 says that GKE's agent of that name runs.
	DataplaneV2 bool
}

// SettingsOf returns those that hurt. All but IPVS let packets pass by the kernel's netfilter, so that our rules do not see them:
// https://docs.cilium.io/en/stable/operations/performance/tuning/#ebpf-host-routing, https://docs.tigera.io/calico/latest/operations/ebpf/.
func SettingsOf(p Plugins) (out []check.Finding) {
	const why = "packets of pods pass by netfilter, and our rules do not see them: the plugin itself has to masquerade the gateways' packets"
	const try = "try packets before you rely on it: kubectl "
	found := func(is bool, what, why, hint string) {
		if is {
			out = append(out, check.Finding{Result: check.Warning, What: what, Evidence: why, Hint: hint})
		}
	}
	found(p.Cilium["enable-bpf-masquerade"] == "true" && p.Cilium["enable-host-legacy-routing"] != "true", "Cilium routes pods' packets by eBPF",
		"enable-host-legacy-routing is not true in ConfigMap kube-system/cilium-config: "+why,
		"set it, and restart Cilium: kubectl -n kube-system edit configmap cilium-config")
	found(p.ProxyMode == "ipvs", "kube-proxy uses IPVS",
		"mode is ipvs in ConfigMap kube-system/kube-proxy: services with endpoints of peers were not tried with it",
		try+"-n kube-system get configmap kube-proxy -o yaml")
	found(p.CalicoBPF, "Calico's data plane is eBPF",
		"bpfEnabled is true in FelixConfiguration default: "+why, try+"get felixconfigurations default -o yaml")
	found(p.DataplaneV2, "GKE Dataplane V2 carries pods' packets",
		"DaemonSet kube-system/anetd: "+why, try+"-n kube-system get daemonset anetd")
	return out
}
