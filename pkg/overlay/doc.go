// Package overlay keeps the links between the nodes and gateways of one cluster, with
// their routes and policy rules. It works in the network namespace of the calling thread.
//
// [Kernel.Apply] compares a [State] with the kernel and changes the difference only. It
// recognises what is ours in the kernel itself:
//
//   - links by name prefix and alias;
//   - routes by protocol and table;
//   - rules by priority, protocol and table.
//
// So a new process repairs and removes what an old one made, and nothing else.
//
// Out of scope: tunnels between clusters (package tunnel), packet filters and
// translation (package nat), and deciding what the State is.
package overlay
