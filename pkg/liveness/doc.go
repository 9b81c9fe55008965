// Package liveness finds out within fractions of a second that a way does not carry packets any
// more, as bidirectional forwarding detection does (RFC 5880). One end asks ten times a second while
// the way is in use, with small packets and with ones of full size; the other end answers.
//
// Answers may also be late, because they wait in a queue. Where packets of any kind come by the way
// it is not down. Then the end to which nothing comes tells the other one.
//
// A node asks its cluster's gateway, by the overlay. A gateway asks the peer's gateway, by the tunnel,
// and tells in its answers to nodes how that is. So a node knows the whole way, however many nodes
// there are.
//
// Out of scope: what is done about it (package failover), and measuring (package tunnel).
package liveness
