package nodes_test

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/nodes"
)

func TestAddresses(t *testing.T) {
	n := &corev1.Node{}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "n1"},
		{Type: corev1.NodeInternalIP, Address: "172.18.0.2"},
		{Type: corev1.NodeExternalIP, Address: "203.0.113.2"},
		{Type: corev1.NodeInternalIP, Address: "fd00::2"},
	}
	want := []netip.Addr{netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("fd00::2")}
	if got := nodes.Addresses(n, corev1.NodeInternalIP); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	if !nodes.HasAddress(n, netip.MustParseAddr("203.0.113.2")) || nodes.HasAddress(n, netip.MustParseAddr("203.0.113.3")) {
		t.Error("HasAddress")
	}
	if nodes.IsReady(n) {
		t.Error("ready without a condition")
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	if nodes.IsReady(n) {
		t.Error("ready with an unknown condition")
	}
	n.Status.Conditions[0].Status = corev1.ConditionTrue
	if !nodes.IsReady(n) {
		t.Error("not ready with the condition")
	}
}
