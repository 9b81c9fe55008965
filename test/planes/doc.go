// Package planes has two peered clusters of two nodes with two planes, in network namespaces. Their agents are real
// ones, and their API servers are played. So gateways can fail without a Kubernetes around them.
package planes
