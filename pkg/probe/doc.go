// Package probe is what the command line and its probe pods tell each other. A Task is
// what a pod is to do, in its argument. Lines are what it says, one JSON document in each
// line of its standard output.
//
// It is pure. Who starts the pods is pkg/peering, who does the tasks is agent/probe.
package probe
