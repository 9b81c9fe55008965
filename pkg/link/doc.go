// Package link reads and repairs the attributes of network interfaces over
// rtnetlink, in the network namespace of the calling thread.
//
// It is the part that overlay links and tunnels have in common: alias, MTU,
// address, neighbours, forwarding, reverse path filter, ARP and offloads. Forwarding,
// rp_filter and arp_ignore are set by netlink and not by /proc/sys, because that is
// read-only in an unprivileged pod.
//
// Out of scope: creating interfaces, routes and rules.
package link
