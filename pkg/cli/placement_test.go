package cli

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
)

// The nodes of gateways are chosen for all clusters, or for one. An empty value resets a choice, unlike no value.
func TestPlacementFlags(t *testing.T) {
	type placement = v1alpha1.GatewayPlacement
	type labels = map[string]string
	type tolerations = []corev1.Toleration
	clusters := []*kube.Cluster{{Name: "a", ID: "1"}, {Name: "b", ID: "2"}}
	for _, tt := range []struct {
		args     []string
		all, ofA placement
		err      string
	}{
		{},
		{args: []string{"--gateway-node-selector", "pool=gateways"}, all: placement{NodeSelector: labels{"pool": "gateways"}}},
		{
			args: []string{"--gateway-node-selector", "a=pool=gateways,topology.kubernetes.io/zone=z1"},
			ofA:  placement{NodeSelector: labels{"pool": "gateways", "topology.kubernetes.io/zone": "z1"}},
		},
		{args: []string{"--gateway-node-selector", "node-role.kubernetes.io/gateway="}, all: placement{NodeSelector: labels{"node-role.kubernetes.io/gateway": ""}}},
		{args: []string{"--gateway-node-selector", "a.conf=role="}, ofA: placement{NodeSelector: labels{"role": ""}}},
		{args: []string{"--gateway-node-selector", "pool=x", "--gateway-node-selector", "a="}, all: placement{NodeSelector: labels{"pool": "x"}}, ofA: placement{NodeSelector: labels{}}},
		{args: []string{"--gateway-node-selector", ""}, all: placement{NodeSelector: labels{}}},
		{args: []string{"--gateway-toleration", ""}, all: placement{Tolerations: tolerations{}}},
		{args: []string{"--gateway-toleration", "a="}, ofA: placement{Tolerations: tolerations{}}},
		{
			args: []string{"--gateway-toleration", "dedicated=gateways:NoSchedule", "--gateway-toleration", "spot", "--gateway-toleration", "a=example.com/k:NoExecute,x=y"},
			all:  placement{Tolerations: tolerations{{Key: "dedicated", Operator: "Equal", Value: "gateways", Effect: "NoSchedule"}, {Key: "spot", Operator: "Exists"}}},
			ofA:  placement{Tolerations: tolerations{{Key: "example.com/k", Operator: "Exists", Effect: "NoExecute"}, {Key: "x", Operator: "Equal", Value: "y"}}},
		},
		{args: []string{"--gateway-node-selector", "pool=x,pool=y"}, err: "no node has both pool=x and pool=y"},
		{args: []string{"--gateway-node-selector", "pool"}, err: `"pool" is not KEY=VALUE`},
		{args: []string{"--gateway-node-selector", "a=pool"}, err: `"pool" is not KEY=VALUE`},
		{args: []string{"--gateway-node-selector", "c=pool=x"}, err: "c=pool=x is invalid"},
		{args: []string{"--gateway-node-selector", "pool=a b"}, err: "is invalid"},
		{args: []string{"--gateway-node-selector", "=x"}, err: "is invalid"},
		{args: []string{"--gateway-toleration", ":NoSchedule"}, err: "is invalid"},
		{args: []string{"--gateway-toleration", "k:Always"}, err: `effect "Always" must be one of NoSchedule, PreferNoSchedule, NoExecute`},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			isolate(t)
			f := kit.Must(parse(t, "peer", append([]string{"a", "b"}, tt.args...)...))(t)
			o, err := peerOptions(f, []string{"a.conf", "b"}, clusters)
			if tt.err != "" {
				kit.ErrorIf(t, err == nil || !strings.Contains(err.Error(), tt.err), "want %q, got %v", tt.err, err)
				return
			}
			kit.NoError(t, err)
			// Nil keeps the current choice, unlike an empty list.
			kit.Check(t, "result", []placement{o.Gateways, o.Clusters["1"].Gateways, o.Clusters["2"].Gateways}, []placement{tt.all, tt.ofA, {}})
		})
	}
}

// A selector that matches no node is an error at once. When a node has left, status reports it in a message, but not by its exit code.
func TestPlacementAndKeyOfCommands(t *testing.T) {
	isolate(t)
	hub, _, file := hubAndSpokes(t, 1)
	t.Setenv("KUBECONFIG", file)
	for _, dry := range []string{"--dry-run=false", "--dry-run"} {
		code, _, stderr := run(t, "peer", "hub", "spoke-1", "--gateway-node-selector", "hub=pool=gateways", dry)
		if code != ExitUsage || !strings.Contains(stderr, "no node that runs agents has the labels pool=gateways\n  kubectl label node NODE pool=gateways; or") {
			t.Errorf("%s: exit code %d, %s", dry, code, stderr)
		}
	}
	command(t, "peer", "hub", "spoke-1", "--gateway-node-selector", "hub=kubernetes.io/os=linux").ends(ExitOK)
	if _, stdout, _ := run(t, "peer", "hub", "spoke-1", "--dry-run"); !strings.Contains(stdout, "kubernetes.io/os=linux") || !strings.Contains(stdout, "nothing would be changed") {
		t.Errorf("the plan says\n%s", stdout)
	}
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
