// Package dataplane builds two clusters from network namespaces, connected by the packages overlay, nat and tunnel, for
// tests with real packets.
//
// Each cluster has two nodes, with one pod each. The first node has a bridge for its pods, the second a routed
// interface per pod. A gateway is in the first node's pod network, and forwards only on our own interfaces. Nodes
// masquerade, translate services, drop invalid packets and filter reverse paths strictly, as usual CNIs and kube-proxy
// do. Both clusters have the same real, internal and mapped ranges, which is the worst case.
//
// All of it uses netlink and Go only, so that the tests also run as the only program of a virtual machine (see
// test/vm).
package dataplane
