// Package peering implements the commands that change two clusters: peer, unpeer, rotate-keys, upgrade and expose-host.
//
//	facts ─> plan (pure) ─> lock ─> reserve ─> install agents ─> their reports ─> plan ─> apply ─> wait until packets pass
//
// Every function is idempotent: running a killed command again completes it, and Unpeer undoes it. Allocations are in
// the ledger (ClusterNetwork.spec.peers) from before any other object is created until all others are gone. Every
// change of the ledger requires the resourceVersion that was read.
//
// Files call only those below them:
//
//	rotate.go, upgrade.go, hosts.go                      one command each
//	peer.go                                              several pairs, and peer: what it does under the locks, as rotate-keys does too, and its rollback
//	unpeer.go                                            unpeer, and its plan
//	push.go                                              objects of gateways and Peerings
//	keys.go                                              keys, and what commands require of identities
//	run.go                                               the two clusters, the plan, and the wait until packets pass
//
// Out of scope: changes of a single cluster (pkg/engine), printing (a Reporter does it), finding clusters in
// kubeconfigs (pkg/connect), and kernels (the agents).
package peering
