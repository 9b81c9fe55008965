// Package dataplane builds two clusters out of network namespaces, with the
// packages overlay, nat and tunnel in between, for tests with real packets.
//
// Either cluster has two nodes (the first with a bridge for its pods, the
// second with a routed interface per pod), one pod on each, and a gateway in
// the first node's pod network, without forwarding but on our own interfaces.
// Nodes masquerade, translate services, drop invalid packets and filter
// reverse paths strictly, as usual CNIs and kube-proxy do. Both clusters have
// the same real, internal and mapped ranges: the worst case.
//
// Everything is done by netlink and in Go, so that the tests also run as the
// only program of a virtual machine (see test/vm).
package dataplane
