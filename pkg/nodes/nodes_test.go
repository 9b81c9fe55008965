package nodes_test

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/test/kit"
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
	got := nodes.Addresses(n, corev1.NodeInternalIP)
	kit.ErrorIf(t, !slices.Equal(got, want), "got %v", got)
	kit.ErrorIf(t, !nodes.HasAddress(n, netip.MustParseAddr("203.0.113.2")) || nodes.HasAddress(n, netip.MustParseAddr("203.0.113.3")),
		"HasAddress")
	kit.ErrorIf(t, nodes.IsReady(n), "ready without a condition")
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	kit.ErrorIf(t, nodes.IsReady(n), "ready with an unknown condition")
	n.Status.Conditions[0].Status = corev1.ConditionTrue
	kit.ErrorIf(t, !nodes.IsReady(n), "not ready with the condition")
}
