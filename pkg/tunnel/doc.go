// Package tunnel keeps the WireGuard tunnel between two gateways, by the kernel
// or by wireguard-go inside this process, in the network namespace of the
// calling thread, and measures it by probes.
//
// Both backends implement [Device] and behave alike. WireGuard is only touched
// where its configuration differs from the wanted one.
//
// Out of scope: what keys, endpoints and prefixes a tunnel shall have, routes
// through it (package overlay), and translation (package nat).
package tunnel
