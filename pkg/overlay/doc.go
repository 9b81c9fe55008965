// Package overlay keeps the links between nodes and gateways of one cluster,
// and the routes and policy rules that go with them, as they shall be in the
// network namespace of the calling thread.
//
// [Kernel.Apply] compares a [State] with the kernel and changes the difference
// only. What is ours is recognised in the kernel itself and not remembered:
// links by name prefix and alias, routes by protocol and table, rules by
// priority, protocol and table. So a new process repairs and removes what an
// old one made, and nothing else.
//
// Out of scope: tunnels between clusters (package tunnel), packet filters and
// translation (package nat), and deciding what State shall be.
package overlay
