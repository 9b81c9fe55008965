// Package plan decides what is done to peer two clusters. Each side is planned by itself from three values. Facts
// are what was read of its cluster. The intent is what is wanted of it in this run. The peer's offer is what that lets others know
// of it. Same input, same plan, whichever cluster is named first.
//
// Two offers of each cluster are exchanged. The first one (Introduce) says what the cluster is. The second one (Answer) says
// in addition by which ranges it knows the reader. With that one, Make makes a plan. What both clusters have to decide
// alike, such as who is called, follows from the two offers in the order of their IDs.
//
// A plan is a value: nobody changes it after it was made. What is not known yet is a Value that says so. Resolve returns another plan
// with it.
//
// The package is pure: it has no client, no context and no clock.
//
// Out of scope: reading the facts (pkg/discovery and pkg/peering), and carrying out
// the plan (pkg/peering).
package plan
