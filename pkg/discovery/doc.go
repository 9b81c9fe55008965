// Package discovery finds out which address ranges a cluster uses, what its network
// plugin and provider are, and what can be exposed there, from its API alone.
//
// No source is right in all clusters. The network plugin gives out addresses, so it is
// asked first, each plugin in its own way. The cluster's general configuration comes
// afterwards. Every fact says where it is from, and whether it was
// read or assumed. What was found is compared with the pods and services that run:
// an address outside of the ranges found is an error that names it.
//
// The cluster is read with few requests, independent ones at the same time, and
// nothing is written. Kinds and objects that a cluster does not have, or that the
// user may not read, are no errors as long as another source knows the fact.
//
// Out of scope: what only a node's kernel knows (its routes, links, MTU): the node
// agents report it. Credentials and APIs of cloud providers are not used.
package discovery
