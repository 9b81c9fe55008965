// Package exchange is the channel between the two gateways of a peering, inside their
// tunnel. Each one tells the other what it has to know of its cluster.
//
// The peer is not trusted. All that it sends is bounded in size and rate, is checked
// field by field, and an error ends no more than one connection. What the values may be
// used for is decided by the caller (see Filter).
//
// The channel is one TCP connection, which the client makes. Each side sends frames:
// the length of the rest (4 bytes, network byte order), the version of the frame (1
// byte), its type (1 byte), and the content. Frames of another version or an unknown type are skipped,
// so that an older gateway understands a newer one.
package exchange
