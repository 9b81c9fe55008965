// Package tunnel keeps the WireGuard tunnel between two gateways, and measures it by
// probes. It works in the network namespace of the calling thread.
//
// There are two backends: the kernel, and wireguard-go inside this process. A [Device] of
// either behaves alike. WireGuard is only touched if its configuration differs from
// the wanted one.
//
// Out of scope: which keys, endpoints and prefixes a tunnel has, routes through it
// (package overlay), and translation (package nat).
package tunnel
