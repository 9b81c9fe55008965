// Package ipam decides which address ranges two clusters know each other by, and
// translates addresses between a range and its mapped one.
//
// Everything here is a pure function of its arguments: which ranges are in use,
// and by whom, is told by the caller (pkg/discovery and the ledger know it). The
// same input always gives the same output, on every machine and in every release;
// a test pins some results for that reason.
//
// How a range is chosen: a private range that is free in the receiving cluster is kept
// as it is. Otherwise each range of the pools has a number, a hash of the request's key
// and the range, and the free one with the highest number is taken. So the order in which
// candidates are tried depends on the key only, and every candidate is equally likely
// to be the first. It follows that
//
//   - releasing a range and asking again gives the same one, as long as the ranges
//     tried before it stay in use or there were none;
//   - two peers interfere, whichever comes first, only where both first choices
//     overlap. See docs/ipam.md for how likely that is.
//
// Out of scope: Kubernetes, storing allocations (the ledger, ClusterNetwork), and
// giving out single addresses.
package ipam
