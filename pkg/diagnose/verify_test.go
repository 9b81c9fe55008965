package diagnose

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/verify"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// played returns a cluster with one node that is peered with another cluster. Its probes report answer for each call.
func played(t *testing.T, name, peer string, number int, pods, peerPods string, refuse func(*batchv1.Job) bool, answer func(probe.Call) probe.Answer) *kube.Cluster {
	t.Helper()
	overlay := fmt.Sprintf("10.8%d.0.1", number)
	external, peerExternal := fmt.Sprintf("10.7%d.0.0/18", number), fmt.Sprintf("10.7%d.0.0/18", 3-number)
	spec := v1alpha1.PeeringSpec{Overlay: "Geneve", Planes: []v1alpha1.Plane{{RemoteAddress: v1alpha1.IP{Addr: netip.MustParseAddr(fmt.Sprintf("10.7%d.31.254", 3-number))}}}}
	spec.Local = v1alpha1.LocalNetwork{Pods: []v1alpha1.CIDRMapping{kubetest.Mapping(pods, pods)}, InternalCIDR: kubetest.Cidr(fmt.Sprintf("10.8%d.0.0/19", number)), ExternalCIDR: kubetest.Cidr(external)}
	spec.Remote = v1alpha1.RemoteNetwork{ClusterID: "id-of-" + peer, Name: peer, Pods: []v1alpha1.CIDRMapping{kubetest.Mapping(peerPods, peerPods)}, ExternalCIDR: kubetest.Cidr(peerExternal)}
	p := manifests.Peering(peer, spec)
	p.Status.Planes = []v1alpha1.PlaneStatus{{NodeName: name + "-1", MTU: 1440, Connected: true}}
	r := kubetest.Report(name+"-1", overlay, nil)
	r.Status.Gateways = []v1alpha1.NodeGateway{{PeeringName: peer, Ready: true, Active: true}}
	base := netip.MustParsePrefix(pods).Addr().As4()
	next := byte(1)
	var mu sync.Mutex
	tasks := map[string]probe.Task{}
	c := podsOfJobs(t, "", func(pod *corev1.Pod) client.Object {
		task, err := probe.Parse(pod.Spec.Containers[0].Args[1])
		kit.CheckNoError(t, err)
		mu.Lock()
		defer mu.Unlock()
		tasks[pod.Name] = task
		next++
		base[3] = next
		pod.Status.PodIPs = []corev1.PodIP{{IP: netip.AddrFrom4(base).String()}}
		if refuse != nil && refuse(&batchv1.Job{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: pod.Spec}}}) {
			return &corev1.Event{
				ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, Type: corev1.EventTypeWarning,
				Reason: "FailedCreate", Message: "violates PodSecurity",
			}
		}
		return running(pod)
	}, manifests.Namespace(), p, &r, kubetest.Node(name+"-1", true, fmt.Sprintf("172.18.%d.11", number)))
	c.Name, c.ID = name, "id-of-"+name
	c.Logs = func(_ context.Context, pod string) (io.ReadCloser, error) {
		mu.Lock()
		task := tasks[pod]
		mu.Unlock()
		said, to := io.Pipe()
		go func() {
			out := json.NewEncoder(to)
			_ = out.Encode(probe.Line{Ready: true})
			var result probe.Result
			for _, call := range task.Calls {
				a := answer(call)
				a.ID = call.ID
				result.Answers = append(result.Answers, a)
			}
			if task.Watch != nil {
				result.Counters = &probe.Counters{ToPeer: 9, TunnelOut: 9, TunnelIn: 9}
			}
			_ = out.Encode(probe.Line{Result: &result})
			_ = to.Close()
		}()
		return said, nil
	}
	return c
}

// answers returns the answers in a working peering, except that packets of the sizes in lost are lost.
func answers(lost ...int) func(probe.Call) probe.Answer {
	peersPods := []netip.Prefix{kubetest.Prefix("10.61.0.0/16"), kubetest.Prefix("10.62.0.0/16")}
	return func(c probe.Call) probe.Answer {
		a := probe.Answer{Answered: true, Tries: 1, Source: netip.MustParseAddr("192.0.2.1")}
		switch {
		case c.DontFragment && c.Size > 1440:
			return probe.Answer{Refusal: &probe.Refusal{Type: 3, Code: 4, MTU: 1440}}
		case slices.Contains(lost, c.Size) || !slices.ContainsFunc(peersPods, func(p netip.Prefix) bool { return p.Contains(c.To.Addr()) }):
			return probe.Answer{Error: "no answer", Tries: 7}
		}
		return a
	}
}

// Verify runs probes and makes a report of their results.
func TestVerify(t *testing.T) {
	tests := []struct {
		name   string
		refuse func(*batchv1.Job) bool
		lost   []int
		result check.Result
		checks map[string]check.Result
	}{
		{"full packets are lost", nil, []int{1440}, check.Failed, map[string]check.Result{
			verify.PodsTCP: check.Passed, verify.PodsMTU: check.Failed, verify.PodsTooLarge: check.Passed, verify.Planes: check.Passed, verify.Encrypted: check.Passed,
		}},
		{"nodes' own probes are refused", func(j *batchv1.Job) bool { return j.Spec.Template.Spec.HostNetwork }, nil, check.Failed, map[string]check.Result{
			verify.PodsTCP: check.Passed, verify.Planes: check.Skipped, verify.NodesToPods: check.Skipped, verify.Encrypted: check.Skipped,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := played(t, "a", "b", 1, "10.61.0.0/16", "10.62.0.0/16", tt.refuse, answers(tt.lost...))
			b := played(t, "b", "a", 2, "10.62.0.0/16", "10.61.0.0/16", tt.refuse, answers(tt.lost...))
			report := kit.Must(Verify(t.Context(), a, b, false, kube.Quiet{}))(t)
			if report.Result != tt.result { // the source addresses are wrong in all cases
				t.Errorf("it is %s, want %s", report.Result, tt.result)
			}
			for _, c := range report.Checks {
				if want := tt.checks[c.Name]; want != "" && c.Result != want {
					t.Errorf("%s → %s: %s, want %s: %s %+v", c.Name, c.To, c.Result, want, c.Message, c.Findings)
				}
			}
			kit.ErrorIf(t, len(report.Notes) == 0 || !strings.Contains(report.Notes[0], "there is only one node"),
				"the notes are %q", report.Notes)
			nothingIsLeft(t, a, b)
		})
	}
}

// If no pod starts, nothing is verified, and the error says why.
func TestVerifyWithoutPods(t *testing.T) {
	all := func(*batchv1.Job) bool { return true }
	a := played(t, "a", "b", 1, "10.61.0.0/16", "10.62.0.0/16", nil, answers())
	b := played(t, "b", "a", 2, "10.62.0.0/16", "10.61.0.0/16", all, answers())
	kubetest.Fails(t, kit.Err(Verify(t.Context(), a, b, false, kube.Quiet{})), kube.NotReady, "violates PodSecurity")
	nothingIsLeft(t, a, b)
}
