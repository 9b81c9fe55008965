// Package doctor says what is wrong with clusters and their peerings, where, and
// what to do. It is pure: Facts in, a Report out. What a fact is, is said here; who reads them are pkg/diagnose (objects) and
// agent/probe (kernels).
//
// A check has a stable name, as liqonet-mtu-01. It looks at facts and returns findings. The catalogue says on which others each
// depends, from which pkg/check tells the cause.
//
// Out of scope: reading, repairing, printing.
package doctor
