package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

const (
	// skewed is the difference of clocks that causes a warning, far the one that causes a failure.
	skewed, far = 30 * time.Second, 5 * time.Minute
)

func apiAnswers(x *examination) {
	if x.API.Unreachable != "" {
		x.failed("", "the API server does not answer", x.API.Unreachable, x.API.Hint)
	}
}

func apiAccepts(x *examination) {
	switch {
	case x.API.Refused != "":
		x.failed("", "the API server does not accept the credentials", x.API.Refused, x.API.Hint)
	case x.API.Unreachable != "":
		x.skipped("", "the API server does not answer")
	}
}

func definitions(x *examination) {
	if !x.Ours.Installed {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(x.Ours.Definitions)) {
		if why := x.Ours.Definitions[name]; why != "" {
			x.failed("", fmt.Sprintf("the definition %s %s", name, why), "objects of this kind cannot be read or written", x.peerAgain())
		}
	}
}

func userPermissions(x *examination) {
	if len(x.API.MissingPermissions) > 0 {
		x.add(check.Finding{
			Result: check.Skipped, What: "you may not " + listed(x.API.MissingPermissions), Evidence: strings.Join(x.API.MissingPermissions, ", "),
			Hint: "peer and unpeer need another user: " + x.Kubectl + " auth can-i --list",
		})
	}
}

// isAccess reports whether an object grants the agents permissions.
func isAccess(o plan.ObjectPlan) bool {
	return slices.Contains([]string{"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"}, o.Kind)
}

// state describes how an object differs from the one that peer creates.
func state(o plan.ObjectPlan) string {
	if o.Action == plan.Create {
		return o.Kind + " " + o.Name + " is gone"
	}
	return o.Kind + " " + o.Name + " was changed"
}

func agentPermissions(x *examination) {
	for _, o := range x.Ours.Drift {
		if isAccess(o) {
			what := "the agents lack permissions: " + state(o)
			x.failed("", what, cmp.Or(o.Reason, "it differs from the one that peer creates"), x.fix()).Pairs = x.allPairs()
		}
	}
}

func drift(x *examination) {
	for _, entry := range x.Ledger.DeletedByHand(x.Peerings) {
		x.failed("", "Peering "+entry.Name+" was deleted by hand", "the ledger has its entry",
			fmt.Sprintf("%s recreates it, %s --peer %s removes the rest", x.liqonet("peer", entry.Name), x.liqonet("unpeer"), entry.Name))
	}
	for _, o := range x.Ours.Drift {
		if isAccess(o) || o.Kind == "Secret" || o.Kind == "CustomResourceDefinition" {
			continue
		}
		f := x.failed("", state(o), o.Reason, x.fix())
		if f.Pairs = x.allPairs(); o.Action != plan.Create {
			f.Result = check.Warning
		}
	}
}

// tokens finds pods that are older than their ServiceAccount: the API server does not accept tokens of a previous account.
func tokens(x *examination) {
	accounts := lo.KeyBy(x.Ours.Accounts.Items, func(a corev1.ServiceAccount) string { return a.Name })
	late := map[string][]string{}
	for _, p := range lo.ToSlicePtr(x.Ours.Pods) {
		account := p.Spec.ServiceAccountName
		if a, has := accounts[account]; has && isAgent(p) && p.CreationTimestamp.Before(&a.CreationTimestamp) {
			late[account] = append(late[account], p.Name)
		}
	}
	for _, account := range slices.Sorted(maps.Keys(late)) {
		x.failed("", "tokens of agents are not accepted: ServiceAccount "+account+" was recreated",
			fmt.Sprintf("it was created at %s, after the pods %s", accounts[account].CreationTimestamp.UTC().Format(time.RFC3339), listed(late[account])),
			x.kubectl("delete pods %s", strings.Join(late[account], " ")))
	}
}

func secrets(x *examination) {
	wanted := func(name, what, hint string, about func(*check.Finding)) {
		if !x.Ours.Secrets[name] {
			about(x.failed("", fmt.Sprintf("the Secret %s is gone, with %s", name, what), "running pods are not affected, but new ones cannot mount it", hint))
		}
	}
	if x.Ours.DaemonSet != nil {
		for _, g := range manifests.OverlayKeys(&x.Ours.DaemonSet.Spec.Template.Spec) {
			wanted(manifests.OverlaySecretName(g), "the overlay's key", x.peerAgain(), func(*check.Finding) {})
		}
	}
	for _, g := range x.gateways() {
		m := manifests.Gateway{Peering: g.peering.Name, Plane: g.Index, KeyGeneration: g.KeyGeneration, PresharedKey: g.PresharedKey.Generation}
		wanted(m.SecretName(), "the key of a gateway", x.liqonet("peer", g.peer()), g.about)
		if m.PresharedKey > 0 {
			wanted(m.PresharedSecretName(), "a pre-shared key", x.liqonet("peer", g.peer()), g.about)
		}
	}
}

func serverClock(x *examination) {
	if off := x.API.ClockAhead.Abs(); off > skewed && x.API.Unreachable == "" {
		x.warned("", fmt.Sprintf("the API server's clock is %s this machine's", ahead(x.API.ClockAhead)),
			"according to the Date header of its responses", "set the clock that is wrong: timedatectl")
	}
}

func agentClocks(x *examination) {
	for _, name := range slices.Sorted(maps.Keys(x.Beats)) {
		b := x.Beats[name]
		if b.ClockAhead.Abs() <= skewed {
			continue
		}
		agent, node := x.agent(name)
		f := x.warned(node, fmt.Sprintf("the clock of %s is %s its API server's", agent, ahead(b.ClockAhead)),
			"Lease "+name+" has both times", "set the node's clock: timedatectl")
		if b.ClockAhead.Abs() > far {
			f.Result = check.Failed
		}
	}
}

// ahead describes a difference of clocks.
func ahead(d time.Duration) string {
	if d < 0 {
		return d.Abs().Round(time.Second).String() + " behind"
	}
	return d.Round(time.Second).String() + " ahead of"
}

func versions(x *examination) {
	agents := map[string][]string{}
	for name, b := range x.Beats {
		if b.Version != "" && b.Version != x.all.Version && b.Age != nil && *b.Age < time.Hour {
			agent, _ := x.agent(name)
			agents[b.Version] = append(agents[b.Version], agent)
		}
	}
	for _, v := range slices.Sorted(maps.Keys(agents)) {
		x.warned("", fmt.Sprintf("agents have version %s, and this command has %s", v, x.all.Version), listed(agents[v]), x.liqonet("upgrade"))
	}
}

func leftovers(x *examination) {
	if len(x.Ours.Leftovers) > 0 {
		x.warned("", "objects of liqonet are left over: "+listed(x.Ours.Leftovers), strings.Join(x.Ours.Leftovers, ", "), x.fix())
	}
}

func locks(x *examination) {
	for _, l := range x.Locks {
		if l.IsExpired {
			age := x.Now.Sub(l.Lease.CreationTimestamp.Time).Round(time.Second)
			x.warned("", l.By+", does not renew its lock", fmt.Sprintf("Lease kube-system/%s was created %s ago", l.Lease.Name, age),
				fmt.Sprintf("the next command takes it over; to delete it: %s -n kube-system delete lease %s", x.Kubectl, l.Lease.Name))
		}
	}
}

func otherProjects(x *examination) {
	for _, o := range x.Others.Projects {
		x.warned("", o+" is installed", "it also connects clusters, and may route or masquerade the same ranges", x.Kubectl+" get crds,namespaces")
	}
}

// settings finds settings of plugins that break peerings. With all except IPVS, packets bypass netfilter, so our rules do not see them:
// https://docs.cilium.io/en/stable/operations/performance/tuning/#ebpf-host-routing, https://docs.tigera.io/calico/latest/operations/ebpf/.
func settings(x *examination) {
	const why = "packets of pods bypass netfilter, so our rules do not see them: the plugin itself has to masquerade the gateways' packets"
	const try = "test with packets before you rely on it: kubectl "
	p := x.Others
	found := func(is bool, what, why, hint string) {
		if is {
			x.warned("", what, why, hint)
		}
	}
	found(p.Cilium["enable-bpf-masquerade"] == "true" && p.Cilium["enable-host-legacy-routing"] != "true", "Cilium routes pods' packets by eBPF",
		"enable-host-legacy-routing is not true in ConfigMap kube-system/cilium-config: "+why,
		"set it, and restart Cilium: kubectl -n kube-system edit configmap cilium-config")
	found(p.ProxyMode == "ipvs", "kube-proxy uses IPVS",
		"mode is ipvs in ConfigMap kube-system/kube-proxy: services with endpoints of peers were not tested with it",
		try+"-n kube-system get configmap kube-proxy -o yaml")
	found(p.CalicoBPF, "Calico's data plane is eBPF",
		"bpfEnabled is true in FelixConfiguration default: "+why, try+"get felixconfigurations default -o yaml")
	found(p.DataplaneV2, "GKE Dataplane V2 carries pods' packets",
		"DaemonSet kube-system/anetd: "+why, try+"-n kube-system get daemonset anetd")
}

func plans(x *examination) {
	if x.Plan != "" {
		x.failed("", "a peering cannot be planned: "+x.Plan, "reported by peer --dry-run", x.peerAgain()+" --dry-run")
	}
}

func udpPaths(x *examination) {
	for _, w := range x.all.UDPTests {
		switch {
		case w.From != x.Cluster.Name || w.Answered:
		case w.Unseen != "":
			x.skipped("", w.Unseen)
		default:
			x.failed("", fmt.Sprintf("UDP from its nodes does not reach %s", w.To), "no answer from "+w.Address,
				"allow UDP to "+w.Address+"; then: "+x.liqonet("doctor", w.To))
		}
	}
}

func ranges(x *examination) {
	for _, node := range slices.Sorted(maps.Keys(x.Reports)) {
		for _, p := range lo.ToSlicePtr(x.Peerings) {
			for _, c := range plan.RouteConflicts(x.Reports[node], &p.Spec) {
				x.failed(node, c, "reported by the node's agent", x.peerAgain())
			}
		}
	}
}

func podsOutside(x *examination) {
	reports := lo.MapToSlice(x.Reports, func(_ string, r *v1alpha1.NodeNetwork) v1alpha1.NodeNetwork { return *r })
	for _, p := range lo.ToSlicePtr(x.Peerings) {
		if outside := p.PodOutside(reports); outside != "" {
			what := strings.ReplaceAll(outside, "THIS-CLUSTER", x.Cluster.Name)
			x.failed("", what, "reported by the nodes' agents", x.liqonet("peer", p.Spec.Remote.Name)).Peering = p.Name
		}
	}
}

// capacity warns before limits are reached.
func capacity(x *examination) {
	const nearly = 90 // percent
	check := func(node, what string, count, most int) {
		if count*100 >= most*nearly {
			x.warned(node, fmt.Sprintf("there is room for only a few more %s", what), fmt.Sprintf("%d of %d", count, most), x.Kubectl+" get clusternetworks,nodenetworks")
		}
	}
	check("", "peerings", len(lo.FromPtr(x.Ledger).Spec.Peers), ipam.MaxPeering+1)
	check("", "nodes", len(x.Reports), ipam.MaxNode)
	for _, node := range slices.Sorted(maps.Keys(x.Reports)) {
		check(node, "pods outside of the ranges of node "+node, len(x.Reports[node].Status.PodIPs), v1alpha1.MaxPodIPs)
	}
}
