package cli

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/test/kit"
)

// A selector that matches no node is an error at once. When a node has left, status reports it in a message, but not by its exit code.
func TestPlacementAndKeyOfCommands(t *testing.T) {
	hub, _, _ := hubAndSpokes(t, 1)
	for _, dry := range []string{"--dry-run=false", "--dry-run"} {
		command(t, "peer", "hub", "spoke-1", "--gateway-node-selector", "hub=pool=gateways", dry).ends(ExitUsage).
			warns("no node that runs agents has the labels pool=gateways\n  kubectl label node NODE pool=gateways; or")
	}
	command(t, "peer", "hub", "spoke-1", "--gateway-node-selector", "hub=kubernetes.io/os=linux").ends(ExitOK)
	command(t, "peer", "hub", "spoke-1", "--dry-run").prints("kubernetes.io/os=linux", "nothing would be changed")
	// A node with the same name but another UID is a different node.
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "hub-1"}}
	kit.NoError(t, hub.Client.Get(t.Context(), client.ObjectKeyFromObject(n), n))
	kit.NoError(t, hub.Client.Delete(t.Context(), n))
	n.UID, n.ResourceVersion = "another", ""
	kit.NoError(t, hub.Client.Create(t.Context(), n))
	const warning = "hub → spoke-1: nodes that have left know the overlay's key (1): kubectl liqonet peer hub spoke-1 creates another one\n"
	command(t, "status", "hub").ends(ExitOK).prints(warning)
	command(t, "peer", "hub", "spoke-1").ends(ExitOK)
	command(t, "status", "hub").ends(ExitOK).stdoutLacks("→")
}
