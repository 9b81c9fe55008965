// Package agents tests the agents' program in network namespaces: its kernel is real,
// and its API is played by package fakeapi. One node is damaged, one has as much to do as there can be, and
// two peered clusters of two nodes with two planes lose gateways. What needs a cluster is tested by package e2e.
package agents
