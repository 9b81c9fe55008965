// Package peering has the commands that change two clusters: peer, unpeer, rotate-keys, upgrade and expose-host.
//
//	facts ─> plan (pure) ─> lock ─> claim ─> install agents ─> their reports ─> plan ─> apply ─> wait until packets pass
//
// Every function is idempotent: a command that was killed at any moment is
// completed by running it again, or undone by Unpeer. What was given out is in
// the ledger (ClusterNetwork.spec.peers) from before anything else is created until
// everything else is gone. Each change of the ledger is made with the resourceVersion that
// it was read with.
//
// Out of scope: what is done in one cluster (pkg/engine), printing (a Reporter is told what happens), finding clusters in
// kubeconfigs (pkg/cli), and everything in a kernel (the agents).
package peering
