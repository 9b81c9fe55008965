// Package netpol enforces NetworkPolicies on nodes of the lab, whose network
// plugin does not. It does it where and how plugins with iptables do (kube-router,
// Calico): at FORWARD of the pod's node, by the pod's address and by the address
// at the other end as the node sees it, with connection tracking for answers. So
// a test of it shows what such a plugin makes of the product's packets.
//
// Out of scope: IPv6, named ports, SCTP, and pods of one node among each other,
// whose packets a bridge does not forward.
package netpol

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	// chain is the first chain of ours, and how the names of all begin.
	chain = "LAB-POLICY"
	// admitted is the mark of a packet that a rule admits.
	admitted = "0x10000/0x10000"
)

// Objects are what an engine reads from the API.
type Objects struct {
	Policies   []networkingv1.NetworkPolicy
	Pods       []corev1.Pod
	Namespaces []corev1.Namespace
}

// Node is one on which policies are enforced.
type Node interface {
	// NetCommand prepares a command in the node's network.
	NetCommand(ctx context.Context, name string, args ...string) *exec.Cmd
}

// Apply enforces the policies for the pods of a node, instead of those that were
// there before.
func Apply(ctx context.Context, n Node, name string, o Objects) error {
	rules, err := Rules(o, name)
	if err != nil {
		return err
	}
	if err := Remove(ctx, n); err != nil {
		return err
	}
	return restore(ctx, n, rules)
}

// Remove ends it, without a trace.
func Remove(ctx context.Context, n Node) error { return RemoveChains(ctx, n, chain) }

// RemoveChains removes the chains of the table filter whose names begin so, and what leads
// to them.
func RemoveChains(ctx context.Context, n Node, prefixes ...string) error {
	saved, err := n.NetCommand(ctx, "iptables-save", "-t", "filter").Output()
	if err != nil {
		return fmt.Errorf("iptables-save: %w", err)
	}
	isOurs := func(name string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	}
	var flush, remove []string
	for line := range strings.Lines(string(saved)) {
		line = strings.TrimSpace(line)
		if rule, isRule := strings.CutPrefix(line, "-A "); isRule {
			from, _, _ := strings.Cut(rule, " ")
			_, to, _ := strings.Cut(rule, " -j ")
			if isOurs(to) && !isOurs(from) {
				flush = append(flush, "-D "+rule)
			}
		}
		if name, _, _ := strings.Cut(strings.TrimPrefix(line, ":"), " "); strings.HasPrefix(line, ":") && isOurs(name) {
			flush, remove = append(flush, "-F "+name), append(remove, "-X "+name)
		}
	}
	if len(flush) == 0 {
		return nil
	}
	return restore(ctx, n, "*filter\n"+strings.Join(append(flush, remove...), "\n")+"\nCOMMIT\n")
}

func restore(ctx context.Context, n Node, rules string) error {
	cmd := n.NetCommand(ctx, "iptables-restore", "--noflush")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("iptables-restore: %w: %s\n%s", err, out, rules)
	}
	return nil
}

// Rules are what iptables-restore is given for the pods of a node. It is pure.
func Rules(o Objects, node string) (string, error) {
	t := &table{objects: o}
	for _, p := range o.Pods {
		if p.Spec.NodeName != node || p.Spec.HostNetwork || p.Status.PodIP == "" {
			continue
		}
		if err := t.pod(p); err != nil {
			return "", fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	return t.String(), nil
}

// table collects chains and rules.
type table struct {
	objects Objects
	chains  []string
	rules   []string
}

func (t *table) String() string {
	out := []string{"*filter", ":" + chain + " - [0:0]"}
	for _, c := range t.chains {
		out = append(out, ":"+c+" - [0:0]")
	}
	out = append(out, t.rules...)
	return strings.Join(append(out, "-I FORWARD -j "+chain, "COMMIT"), "\n") + "\n"
}

func (t *table) add(format string, args ...any) {
	t.rules = append(t.rules, "-A "+fmt.Sprintf(format, args...))
}

// chain makes another one.
func (t *table) chain() string {
	name := fmt.Sprintf("%s-%d", chain, len(t.chains))
	t.chains = append(t.chains, name)
	return name
}

// direction is ingress or egress: by which addresses packets are matched.
type direction struct {
	kind      networkingv1.PolicyType
	pod, peer string
}

// rule is one of a policy's, of either direction.
type rule struct {
	peers []networkingv1.NetworkPolicyPeer
	ports []networkingv1.NetworkPolicyPort
}

func (t *table) pod(p corev1.Pod) error {
	for _, d := range []direction{
		{networkingv1.PolicyTypeIngress, "-d", "-s"},
		{networkingv1.PolicyTypeEgress, "-s", "-d"},
	} {
		policies, err := selecting(t.objects.Policies, p, d.kind)
		if err != nil || len(policies) == 0 {
			if err != nil {
				return err
			}
			continue
		}
		c := t.chain()
		t.add("%s %s %s/32 -j %s", chain, d.pod, p.Status.PodIP, c)
		t.add("%s -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN", c)
		for _, policy := range policies {
			for _, r := range rulesOf(policy, d.kind) {
				if err := t.rule(c, d, policy.Namespace, r); err != nil {
					return fmt.Errorf("policy %s: %w", policy.Name, err)
				}
			}
		}
		t.add("%s -p tcp -m mark ! --mark %s -j REJECT --reject-with tcp-reset", c, admitted)
		t.add("%s -m mark ! --mark %s -j REJECT --reject-with icmp-port-unreachable", c, admitted)
		t.add("%s -j MARK --set-xmark 0x0/0x10000", c) // for the next chain
	}
	return nil
}

// selecting are the policies that isolate a pod in a direction.
func selecting(all []networkingv1.NetworkPolicy, p corev1.Pod, kind networkingv1.PolicyType) ([]networkingv1.NetworkPolicy, error) {
	var out []networkingv1.NetworkPolicy
	for _, policy := range all {
		ok, err := matches(&policy.Spec.PodSelector, p.Labels)
		if err != nil {
			return nil, err
		}
		if ok && policy.Namespace == p.Namespace && slices.Contains(policy.Spec.PolicyTypes, kind) {
			out = append(out, policy)
		}
	}
	return out, nil
}

func rulesOf(p networkingv1.NetworkPolicy, kind networkingv1.PolicyType) []rule {
	var out []rule
	if kind == networkingv1.PolicyTypeIngress {
		for _, r := range p.Spec.Ingress {
			out = append(out, rule{r.From, r.Ports})
		}
		return out
	}
	for _, r := range p.Spec.Egress {
		out = append(out, rule{r.To, r.Ports})
	}
	return out
}

// rule marks what one rule admits.
func (t *table) rule(c string, d direction, namespace string, r rule) error {
	ports := []string{""}
	if len(r.ports) > 0 {
		ports = nil
		for _, p := range r.ports {
			if p.Port == nil || p.Port.IntValue() == 0 {
				return fmt.Errorf("port %v: only numbers", p.Port)
			}
			last := int32(p.Port.IntValue())
			if p.EndPort != nil {
				last = *p.EndPort
			}
			protocol := corev1.ProtocolTCP
			if p.Protocol != nil {
				protocol = *p.Protocol
			}
			ports = append(ports, fmt.Sprintf(" -p %s --dport %d:%d", strings.ToLower(string(protocol)), p.Port.IntValue(), last))
		}
	}
	addresses := []string{""}
	if len(r.peers) > 0 {
		addresses = nil
	}
	target := "MARK --set-xmark " + admitted
	for _, peer := range r.peers {
		if b := peer.IPBlock; b != nil {
			if len(b.Except) > 0 {
				block := t.chain()
				for _, e := range b.Except {
					t.add("%s %s %s -j RETURN", block, d.peer, e)
				}
				t.add("%s -j %s", block, target)
				for _, p := range ports {
					t.add("%s %s %s%s -j %s", c, d.peer, b.CIDR, p, block)
				}
				continue
			}
			addresses = append(addresses, b.CIDR)
			continue
		}
		pods, err := t.selected(namespace, peer)
		if err != nil {
			return err
		}
		addresses = append(addresses, pods...)
	}
	for _, a := range addresses {
		if a != "" {
			a = " " + d.peer + " " + a
		}
		for _, p := range ports {
			t.add("%s%s%s -j %s", c, a, p, target)
		}
	}
	return nil
}

// selected are the addresses of the pods that a peer's selectors name: pods of
// this cluster, since its API knows no others.
func (t *table) selected(namespace string, peer networkingv1.NetworkPolicyPeer) ([]string, error) {
	in := map[string]bool{namespace: true}
	if peer.NamespaceSelector != nil {
		in = map[string]bool{}
		for _, ns := range t.objects.Namespaces {
			ok, err := matches(peer.NamespaceSelector, ns.Labels)
			if err != nil {
				return nil, err
			}
			in[ns.Name] = ok
		}
	}
	var out []string
	for _, p := range t.objects.Pods {
		ok := true
		if peer.PodSelector != nil {
			var err error
			if ok, err = matches(peer.PodSelector, p.Labels); err != nil {
				return nil, err
			}
		}
		if addr, err := netip.ParseAddr(p.Status.PodIP); err == nil && ok && in[p.Namespace] && !p.Spec.HostNetwork {
			out = append(out, netip.PrefixFrom(addr, addr.BitLen()).String())
		}
	}
	return out, nil
}

func matches(s *metav1.LabelSelector, set map[string]string) (bool, error) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return false, err
	}
	return selector.Matches(labels.Set(set)), nil
}
