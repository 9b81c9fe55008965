// Package agents tests the agents' program in network namespaces: its kernel is real,
// and its API is played by package fakeapi. What needs a cluster is tested by package
// e2e.
package agents
