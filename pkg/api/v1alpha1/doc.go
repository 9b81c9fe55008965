// Package v1alpha1 defines liqonet's custom resources:
//
//   - ClusterNetwork, one object per cluster: its own ranges, and the ledger of everything allocated to peers. Only the
//     CLI writes it, with optimistic concurrency, so that two CLIs never allocate the same range.
//   - Peering, one per remote cluster: the spec holds the CLI's decisions, the status the gateways' measurements.
//   - NodeNetwork, one per node and with its name: its address in the overlay, and what its agent found and did there.
//     Only that node's agent writes it.
//   - ExportedService and ReceivedService, one per service that this cluster exports, and that a peer tells. The
//     controller of services writes the first kind, and gateways the second.
//
// Out of scope: computations. The CLI and the agents import this package, and it imports neither.
//
// +kubebuilder:object:generate=true
// +groupName=liqonet.io
package v1alpha1
