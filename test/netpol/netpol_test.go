package netpol_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netpol"
)

func pod(name, namespace, node, ip string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{PodIP: ip},
	}
}

func TestRules(t *testing.T) {
	tests := []struct {
		name, spec string
		// want are the rules between the connection's state and the end.
		want []string
	}{
		{"nothing", "", nil},
		{"all", "ingress: [{}]", []string{"X -j MARK --set-xmark 0x10000/0x10000"}},
		{
			"a block, by port", "ingress: [{from: [{ipBlock: {cidr: 10.61.0.0/16}}], ports: [{port: 80}, {port: 90, endPort: 99, protocol: UDP}]}]",
			[]string{
				"X -s 10.61.0.0/16 -p tcp --dport 80:80 -j MARK --set-xmark 0x10000/0x10000",
				"X -s 10.61.0.0/16 -p udp --dport 90:99 -j MARK --set-xmark 0x10000/0x10000",
			},
		},
		{
			"a block with an exception", "ingress: [{from: [{ipBlock: {cidr: 10.61.0.0/16, except: [10.61.1.0/24]}}]}]",
			[]string{
				"LAB-POLICY-1 -s 10.61.1.0/24 -j RETURN",
				"LAB-POLICY-1 -j MARK --set-xmark 0x10000/0x10000",
				"X -s 10.61.0.0/16 -j LAB-POLICY-1",
			},
		},
		{"pods of this namespace", "ingress: [{from: [{podSelector: {}}]}]", []string{
			"X -s 10.244.0.2/32 -j MARK --set-xmark 0x10000/0x10000", "X -s 10.244.1.3/32 -j MARK --set-xmark 0x10000/0x10000",
		}},
		{"pods of all namespaces", "ingress: [{from: [{podSelector: {matchLabels: {app: c}}, namespaceSelector: {}}]}]", []string{
			"X -s 10.244.1.4/32 -j MARK --set-xmark 0x10000/0x10000",
		}},
		{"pods that nobody is", "ingress: [{from: [{podSelector: {matchLabels: {app: x}}}]}]", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			policy := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "one"}}
			kit.NoError(t, yaml.UnmarshalStrict([]byte("podSelector: {matchLabels: {app: a}}\npolicyTypes: [Ingress]\n"+tt.spec), &policy.Spec))
			got := kit.Must(netpol.Rules(netpol.Objects{
				Policies: []networkingv1.NetworkPolicy{policy},
				Pods: []corev1.Pod{
					pod("a", "one", "n1", "10.244.0.2"), pod("b", "one", "n2", "10.244.1.3"),
					pod("c", "two", "n2", "10.244.1.4"), pod("a", "two", "n1", "10.244.0.5"),
				},
				Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, {ObjectMeta: metav1.ObjectMeta{Name: "two"}}},
			}, "n1"))(t)
			var rules []string
			_, body, _ := strings.Cut(got, "ESTABLISHED -j RETURN\n")
			body, end, ok := strings.Cut(body, "-A LAB-POLICY-0 -p tcp -m mark ! --mark 0x10000/0x10000 -j REJECT")
			if !ok || !strings.Contains(got, "-A LAB-POLICY -d 10.244.0.2/32 -j LAB-POLICY-0\n") || !strings.HasSuffix(end, "-I FORWARD -j LAB-POLICY\nCOMMIT\n") {
				t.Fatalf("it does not reject:\n%s", got)
			}
			for line := range strings.Lines(body) {
				rules = append(rules, strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(line), "-A "), "LAB-POLICY-0 ", "X "))
			}
			kit.Check(t, "rules", rules, tt.want)
		})
	}
}

func TestRulesErrors(t *testing.T) {
	policy := networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{"Egress"}, Egress: []networkingv1.NetworkPolicyEgressRule{{Ports: []networkingv1.NetworkPolicyPort{{}}}},
	}}
	if _, err := netpol.Rules(netpol.Objects{
		Policies: []networkingv1.NetworkPolicy{policy}, Pods: []corev1.Pod{pod("a", "", "n1", "10.244.0.2")},
	}, "n1"); err == nil {
		t.Error("a port that is not understood is no error")
	}
}
