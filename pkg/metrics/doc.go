// Package metrics shows Prometheus what an agent knows. It says which metrics there are and what they are
// called, and answers scrapes.
//
// What is known of planes and what the kernel counts is read when somebody scrapes, by a function of the
// agent. What happens at a moment is counted here: answers to probes, changes of the plane, reconciliations.
// Nothing of it is on the way of a packet.
//
// Out of scope: measuring, and who may scrape (package nat).
package metrics
