package v1alpha1_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

func TestPodOutside(t *testing.T) {
	p := &v1alpha1.Peering{}
	p.Spec.Local.InternalCIDR = cidr("10.80.0.0/19")
	p.Spec.Local.Pods = []v1alpha1.CIDRMapping{{Real: cidr("10.50.0.0/16"), Mapped: cidr("10.50.0.0/16")}}
	p.Spec.Remote.Name = "b"
	node := func(podCIDRs []v1alpha1.CIDR, podIPs ...v1alpha1.IP) v1alpha1.NodeNetwork {
		n := v1alpha1.NodeNetwork{}
		n.Name, n.Status.PodCIDRs, n.Status.PodIPs = "n1", podCIDRs, podIPs
		return n
	}
	for _, tt := range []struct {
		name  string
		nodes []v1alpha1.NodeNetwork
		want  string
	}{
		{name: "nothing reported", nodes: []v1alpha1.NodeNetwork{node(nil)}},
		{name: "inside", nodes: []v1alpha1.NodeNetwork{node([]v1alpha1.CIDR{cidr("10.50.3.0/24")}, ip("10.50.9.1"))}},
		{name: "a pod", nodes: []v1alpha1.NodeNetwork{node(nil, ip("10.50.9.1"), ip("10.51.0.7"))}, want: "pod 10.51.0.7 of node n1"},
		{name: "a range of a node that is not used", nodes: []v1alpha1.NodeNetwork{node([]v1alpha1.CIDR{cidr("10.244.0.0/24")}, ip("10.50.9.1"))}},
		{
			name: "a range of a later node", want: "the range 10.51.0.0/24 of node n1",
			nodes: []v1alpha1.NodeNetwork{node([]v1alpha1.CIDR{cidr("10.50.3.0/24")}), node([]v1alpha1.CIDR{cidr("10.51.0.0/24")})},
		},
		{name: "a range around it", nodes: []v1alpha1.NodeNetwork{node([]v1alpha1.CIDR{cidr("10.50.0.0/16")}), node([]v1alpha1.CIDR{cidr("10.48.0.0/12")})}, want: "10.48.0.0/12"},
		{name: "the other family", nodes: []v1alpha1.NodeNetwork{node(nil, ip("fd00::1"), v1alpha1.IP{})}},
	} {
		got := p.OutsidePodMessage(tt.nodes)
		kit.ErrorIf(t, (got == "") != (tt.want == "") || !strings.Contains(got, tt.want),
			"%s: got %q, want %q in it", tt.name, got, tt.want)
		if got != "" && (!strings.Contains(got, "kubectl liqonet peer THIS-CLUSTER b --pod-cidr THIS-CLUSTER=10.50.0.0/16,RANGE-OF-10.") || strings.Contains(got, "/32")) {
			t.Errorf("%s: got %q", tt.name, got)
		}
	}
}

func TestReadyCondition(t *testing.T) {
	const isTrue, isFalse, unknown = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	for _, tt := range []struct{ connected, degraded, want metav1.ConditionStatus }{
		{isTrue, isFalse, isTrue},
		{isTrue, isTrue, isFalse},
		{isTrue, unknown, unknown},
		{isFalse, isFalse, isFalse},
		{isFalse, unknown, isFalse},
		{unknown, isFalse, unknown},
		{unknown, isTrue, unknown},
	} {
		decides := v1alpha1.ConditionDegraded
		if tt.connected != isTrue {
			decides = v1alpha1.ConditionConnected
		}
		want := metav1.Condition{Type: v1alpha1.ConditionReady, Status: tt.want, Reason: "Of" + decides, Message: "m", ObservedGeneration: 3}
		got := v1alpha1.ReadyCondition([]metav1.Condition{
			{Type: v1alpha1.ConditionDegraded, Status: tt.degraded, Reason: "OfDegraded", Message: "m", ObservedGeneration: 3},
			{Type: v1alpha1.ConditionConnected, Status: tt.connected, Reason: "OfConnected", Message: "m", ObservedGeneration: 3},
		})
		kit.ErrorIf(t, got != want, "Connected %s, Degraded %s: got %+v, want %+v", tt.connected, tt.degraded, got, want)
	}
}
