package plan

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/test/kit"
)

var errUnknown = errors.New("the range of the pods is not known; give --pod-cidr a=RANGE")

// unknownPods returns a cluster with a node and pods whose range no object names. A nil report is a missing one.
func unknownPods(pods []string, r *v1alpha1.NodeNetworkStatus) *input {
	f := newFacts("a", nil, "10.96.0.0/12", "172.18.0.0/24")
	f.facts.Network.PodCIDRs, f.facts.Network.PodsUnknown = nil, errUnknown
	for _, p := range pods {
		f.facts.Network.PodAddrs = append(f.facts.Network.PodAddrs, netip.MustParseAddr(p))
	}
	if r != nil {
		r.Kernel = &v1alpha1.KernelFacts{Geneve: true}
		n := report("a-1", "10.80.0.1", nil)
		r.Address = n.Status.Address
		n.Status = *r
		f.facts.Reports = []v1alpha1.NodeNetwork{n}
	}
	return f
}

func ips(addrs ...string) (out []v1alpha1.IP) {
	for _, a := range addrs {
		out = append(out, v1alpha1.IP{Addr: netip.MustParseAddr(a)})
	}
	return out
}

func cidrs(prefixes ...string) (out []v1alpha1.CIDR) {
	for _, p := range prefixes {
		out = append(out, cidr(p))
	}
	return out
}

func TestConcludePods(t *testing.T) {
	type status = v1alpha1.NodeNetworkStatus
	pods := []string{"10.50.3.7", "10.50.9.1", "fd00::7"}
	for _, tt := range []struct {
		name   string
		pods   []string
		report *status
		setup  func(f *input)
		// want is empty if the ranges are refused, "unknown" if they are not known yet.
		want string
	}{
		{name: "agents have not reported", pods: pods, want: "unknown"},
		{name: "ranges of nodes", pods: pods, report: &status{PodCIDRs: cidrs("10.50.3.0/24", "10.50.9.0/24")}, want: "10.50.0.0/16"},
		{name: "all kinds", pods: pods, report: &status{PodIPs: ips("10.50.3.7"), Routes: cidrs("10.50.9.0/26")}, want: "10.50.0.0/16"},
		{name: "ranges of nodes in which there are no pods", pods: pods, report: &status{PodCIDRs: cidrs("10.244.0.0/24"), Routes: cidrs("10.50.0.0/20")}, want: "10.50.0.0/16"},
		{name: "an unreported pod", pods: pods, report: &status{PodIPs: ips("10.50.3.7")}},
		{name: "a route to everything", pods: pods, report: &status{Routes: cidrs("10.0.0.0/8")}},
		{name: "a route to everything, and to pods", pods: pods, report: &status{Routes: cidrs("10.0.0.0/8"), PodIPs: ips("10.50.3.7", "10.50.9.1")}, want: "10.50.0.0/16"},
		{name: "no pods", report: &status{Routes: cidrs("10.50.3.0/26")}},
		{name: "separate ranges", pods: []string{"10.50.3.7", "192.168.7.7"}, report: &status{Routes: cidrs("10.50.3.0/26", "192.168.7.0/26")}, want: "10.50.0.0/16 192.168.0.0/16"},
		{name: "services near by", pods: []string{"10.97.3.7"}, report: &status{PodIPs: ips("10.97.3.7")}},
		{
			name: "a peer near by", pods: []string{"10.50.3.7"}, report: &status{Routes: cidrs("10.50.3.0/26")}, want: "10.50.0.0/17",
			setup: func(f *input) {
				f.facts.OtherPeerings = []v1alpha1.Peering{{Spec: v1alpha1.PeeringSpec{
					Local:  v1alpha1.LocalNetwork{InternalCIDR: cidr("10.80.0.0/19")},
					Remote: v1alpha1.RemoteNetwork{Pods: []v1alpha1.CIDRMapping{mapping("10.9.0.0/17", "10.50.128.0/17")}, ExternalCIDR: cidr("10.61.0.0/18")},
				}}}
			},
		},
		{
			name: "as peers know it, though fewer pods are left", pods: []string{"10.50.3.7"}, report: &status{Routes: cidrs("10.50.3.0/26")}, want: "10.48.0.0/14",
			setup: func(f *input) {
				f.facts.OtherPeerings = []v1alpha1.Peering{{Spec: v1alpha1.PeeringSpec{
					Local: v1alpha1.LocalNetwork{
						InternalCIDR: cidr("10.80.0.0/19"), Pods: []v1alpha1.CIDRMapping{mapping("10.48.0.0/14", "10.48.0.0/14"), mapping("10.200.0.0/16", "10.200.0.0/16")},
					},
					Remote: v1alpha1.RemoteNetwork{ExternalCIDR: cidr("10.61.0.0/18")},
				}}}
			},
		},
		{
			name: "one of two agents has not reported", pods: pods, report: &status{Routes: cidrs("10.50.0.0/16")}, want: "unknown",
			setup: func(f *input) {
				f.facts.Network.Nodes = append(f.facts.Network.Nodes, Node{Name: "a-2", Ready: true, RunsAgents: true})
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := unknownPods(tt.pods, tt.report)
			if tt.setup != nil {
				tt.setup(f)
			}
			var err error
			f.facts, err = f.facts.InferPods()
			switch tt.want {
			case "":
				if e := (*failure.Error)(nil); !errors.As(err, &e) || e.Kind != failure.Ranges || !errors.Is(err, errUnknown) || !strings.Contains(err.Error(), "--pod-cidr a=") {
					t.Errorf("got %v, %v", f.facts.Network.PodCIDRs, err)
				}
				return
			case "unknown":
				kit.ErrorIf(t, err != nil || f.facts.Network.PodsUnknown == nil || len(f.facts.Network.PodCIDRs) > 0,
					"got %v, %v", f.facts.Network.PodCIDRs, err)
				return
			}
			var got []string
			for _, p := range f.facts.Network.PodCIDRs {
				got = append(got, p.Value.String())
				kit.ErrorIf(t, !p.Assumed || !strings.Contains(p.Source, "--pod-cidr a="), "%+v is not marked as inferred", p)
			}
			if strings.Join(got, " ") != tt.want || err != nil || f.facts.Network.PodsUnknown != nil || !strings.Contains(f.facts.PodsInferred, "--pod-cidr a=") {
				t.Errorf("want %s, got %v, %v", tt.want, got, err)
			}
		})
	}
}

// Before agents run, the plan says that the range becomes known during the run; ranges near pods are not allocated.
func TestPlanWithUnknownPods(t *testing.T) {
	a, b := unknownPods([]string{"10.80.3.7"}, nil), newFacts("b", []string{"10.80.0.0/17"}, "", "")
	a.facts.Ledger, b.facts.Ledger = nil, nil
	a.Overrides.ServiceType = string(corev1.ServiceTypeNodePort)
	p := kit.Must(makeBoth(a, b))(t)
	i := slices.IndexFunc(p.Clusters[0].Facts, func(s Statement) bool { return s.Subject == "pod range" })
	kit.ErrorIf(t, i < 0 || !p.Clusters[0].Facts[i].DuringRun, "facts are %v", p.Clusters[0].Facts)
	i = slices.IndexFunc(p.Clusters[1].Ranges, func(r RangePlan) bool { return r.Subject == "pods of a" })
	kit.ErrorIf(t, i < 0 || !p.Clusters[1].Ranges[i].DuringRun || p.Clusters[1].Ranges[i].Mapped.IsValid(),
		"ranges are %v", p.Clusters[1].Ranges)
	pod := netip.MustParseAddr("10.80.3.7")
	for _, r := range p.Clusters[0].Ranges {
		kit.ErrorIf(t, r.Mapped.Contains(pod), "%s gets %s, which has the pod %s", r.Subject, r.Mapped, pod)
	}
	// No range is allocated while the pods' ranges are unknown.
	a.facts.Ledger = p.Clusters[0].Ledger
	_, err := allocate(a, b)
	kit.ErrorIf(t, !errors.Is(err, errUnknown), "ranges were allocated: %v", err)
}
