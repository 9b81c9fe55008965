package fakeapi

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Nodes are ready nodes of every kind, by the kind: "linux" alone runs agents. Their
// labels are those of the real ones.
func Nodes() map[string]*corev1.Node {
	out := map[string]*corev1.Node{}
	for kind, labels := range map[string]map[string]string{
		"linux":           {},
		"windows":         {corev1.LabelOSStable: "windows"},
		"liqo":            {"liqo.io/type": "virtual-node", "liqo.io/remote-cluster-id": "other"},
		"virtual-kubelet": {"type": "virtual-kubelet", "kubernetes.io/role": "agent"},
		"virtual-node":    {"type": "virtual-node"},
		"kwok":            {"type": "kwok"},
		"fargate":         {"eks.amazonaws.com/compute-type": "fargate"},
		"aci":             {"virtualization": "virtualnode2"},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: kind, Labels: labels}}
		if n.Labels[corev1.LabelOSStable] == "" {
			n.Labels[corev1.LabelOSStable] = "linux"
		}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		n.Status.NodeInfo.OperatingSystem = n.Labels[corev1.LabelOSStable]
		out[kind] = n
	}
	return out
}
