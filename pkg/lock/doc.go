// Package lock keeps commands from changing one cluster at the same time, by Leases in namespace kube-system: it always
// exists, and agents have no rights on Leases there.
//
// There is one Lease per peering and one per cluster. A command on one peering holds that peering's in both clusters. One that
// concerns all peerings holds the cluster's, and waits until no peering's lives. Whoever has created a peering's Lease looks
// for the cluster's then, and gives way. So of two commands at least one sees the other.
//
// Locks are taken in the order of cluster IDs, the cluster's before a peering's. Nobody waits for one that precedes one they hold.
//
// A Lease that nobody renews is free. Only the observer's clock tells: it has to stay unchanged for [Expiry]. A holder may
// have been stopped for as long. So [Begin] looks at the time since the last renewal before each write. If that is too long ago, it reads the
// Lease again. What it does not exclude is a process that is stopped between that look and its write. [Held.Overtook] tells where one may be.
//
// What is done under a lock, and for how long a command waits, is out of scope.
package lock
