// Package plan decides what is done to peer two clusters: fact sheets of both in,
// one plan for both out. Same facts, same plan, whichever cluster is named first.
//
// It is pure: it has no client, no context and no clock. So each side of a peering
// can run it by itself, and both come to the same result.
//
// Out of scope: reading the facts (pkg/discovery and pkg/peering), and carrying out
// the plan (pkg/peering).
package plan
