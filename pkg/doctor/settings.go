package doctor

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
func SettingsOf(p Plugins) (out []Setting) {
	const why = "packets of pods pass by netfilter, and our rules do not see them: the plugin itself has to masquerade the gateways' packets"
	if p.Cilium["enable-bpf-masquerade"] == "true" && p.Cilium["enable-host-legacy-routing"] != "true" {
		out = append(out, Setting{
			What: "Cilium routes pods' packets by eBPF", Why: "enable-host-legacy-routing is not true in ConfigMap kube-system/cilium-config: " + why,
			Hint: "set it, and restart Cilium: kubectl -n kube-system edit configmap cilium-config",
		})
	}
	if p.ProxyMode == "ipvs" {
		out = append(out, Setting{
			What: "kube-proxy uses IPVS", Why: "mode is ipvs in ConfigMap kube-system/kube-proxy: services with endpoints of peers were not tried with it",
			Hint: "try packets before you rely on it: kubectl -n kube-system get configmap kube-proxy -o yaml",
		})
	}
	if p.CalicoBPF {
		out = append(out, Setting{
			What: "Calico's data plane is eBPF", Why: "bpfEnabled is true in FelixConfiguration default: " + why,
			Hint: "try packets before you rely on it: kubectl get felixconfigurations default -o yaml",
		})
	}
	if p.DataplaneV2 {
		out = append(out, Setting{
			What: "GKE Dataplane V2 carries pods' packets", Why: "DaemonSet kube-system/anetd: " + why, Hint: "try packets before you rely on it: kubectl -n kube-system get daemonset anetd",
		})
	}
	return out
}
