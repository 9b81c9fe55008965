// Package nat keeps our own nftables tables in the network namespace of the calling
// thread.
//
//   - On a gateway they translate the addresses of its own cluster, without connection
//     tracking, and shut the peer out of everything but pods and nodes.
//   - On a node they choose the sources of packets to peers, shut peers out of the node,
//     and clamp the segment size of TCP.
//
// [ApplyGateway] and [ApplyNode] compute the tables as a value, compare it with what the
// kernel has, and send the difference in one transaction. Every rule has a comment that
// ends with a hash of the rule, so that a changed one is found.
//
// Out of scope: tables of others (package firewall), which prefixes are translated to
// which (package ipam), and routes (package overlay).
package nat
