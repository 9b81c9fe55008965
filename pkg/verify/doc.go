// Package verify decides what probes of two peered clusters ask each other, and what the
// answers mean: facts and answers in, a report out. It is pure.
//
//	sides ─> Questions ─> probes ask (pkg/diagnose, agent/probe) ─> Judge ─> Report
//
// Out of scope: making probes, printing.
package verify
