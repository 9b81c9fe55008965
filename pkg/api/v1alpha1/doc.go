// Package v1alpha1 holds liqonet's custom resources. There are three:
//
//   - ClusterNetwork, one object per cluster: its own ranges, and the ledger of
//     everything that was given out to peers. It is written by the CLI only, with
//     optimistic concurrency, so that two CLIs never give out one range twice.
//   - Peering, one per remote cluster: the spec is what the CLI decided, the
//     status what the gateways measured.
//   - NodeNetwork, one per node and named by it: its address in the overlay, and
//     what was found and done there. It is written by that node's agent only.
//
// Out of scope: anything that computes. The package is imported by the CLI and
// the agents and imports neither.
//
// +kubebuilder:object:generate=true
// +groupName=liqonet.io
package v1alpha1
