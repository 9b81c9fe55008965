// Package firewall lets the packets of peers pass the filter chains of others on a
// node: those of firewalld, Docker, kube-proxy, network plugins and administrators.
//
// A packet that one chain drops cannot be accepted by another one, at any priority.
// So in chains at the hooks input and forward that drop what no rule accepts,
// [EnsureAcceptRules] puts accept rules before the drop. Everything that those chains
// decide by other rules, such as network policies, stays as it is. Each rule has a
// comment, by which it is found again. [Monitor] tells when to look again.
//
// Chains that cannot be changed that way are reported in a [BlockedError]: tables
// that belong to one program, and iptables-legacy.
//
// Out of scope: our own tables (package nat), IPv6, and chains at other hooks.
package firewall
