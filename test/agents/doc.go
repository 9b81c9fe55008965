// Package agents tests the agents' program in network namespaces, with a real kernel and an API from package fakeapi.
// One node is damaged, one has the maximum load, and two peered clusters of two nodes with two planes lose gateways.
// Package e2e has the tests that need a cluster.
package agents
