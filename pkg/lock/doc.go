// Package lock keeps commands from changing one cluster at the same time. It uses Leases in namespace kube-system, which
// always exists, and where agents have no rights on Leases.
//
// There is one Lease per peering and one per cluster. A command on one peering holds that peering's Lease in both
// clusters. A command on all peerings holds the cluster's Lease, and waits until no peering's Lease is alive. A command
// that has created a peering's Lease then looks for the cluster's Lease, and gives way to it. So of two commands at least
// one sees the other.
//
// Locks are taken in the order of cluster IDs, the cluster's before a peering's. No command waits for a lock that
// precedes one that it holds.
//
// A Lease that is not renewed is free. Only the observer's clock counts: the Lease must stay unchanged for [Expiry]. The
// holder may merely have been stopped for that long. So [Begin] checks before each write when the Lease was last renewed,
// and reads it again if that is too long ago. A process may still be stopped between that check and its write:
// [Held.Overtook] returns the clusters where that is possible.
//
// Out of scope: the work under a lock, and how long a command waits.
package lock
