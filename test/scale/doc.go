// Package scale measures what liqonet costs in clusters of the lab with thousands of nodes. Their control plane is real, and so
// are a few nodes, with gateways and node agents. All other nodes are objects: kwok keeps them ready and makes their pods run, and
// what their node agents would report is played. There are benchmarks only: `make bench-scale`.
package scale
