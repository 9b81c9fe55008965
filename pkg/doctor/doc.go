// Package doctor says what is wrong with clusters and their peerings, where, and
// what to do. It is pure: Facts in, a Report out. What a fact is, is said here; who reads them are pkg/peering (objects) and
// agent/probe (kernels).
//
// A check has a stable name, as liqonet-mtu-01. It looks at facts and returns findings. Explanations are data: they say
// which finding follows from which. The cause is the first failure that follows from no other one.
//
// Out of scope: reading, repairing, printing.
package doctor
