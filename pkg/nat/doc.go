// Package nat keeps the one nftables table of ours in the network namespace of
// the calling thread: on a gateway the stateless translation of the own
// cluster's addresses and the isolation from the peer, on a node the sources
// of packets towards peers, isolation, and the clamping of TCP's segment size.
//
// [ApplyGateway] and [ApplyNode] compute the table as a value, compare it with
// what the kernel has, and send one transaction with the difference, or
// nothing. Every rule has a comment that ends with a hash of the rule, by which
// a changed one is found. Other tables are never touched, but by [EnsurePasses]:
// it has forward and input chains of others, which cannot be overruled, accept
// what peers need.
//
// Out of scope: which prefixes are translated to which (package ipam), and routes
// (package overlay).
package nat
