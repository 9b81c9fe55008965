// Package rekey has the two gateways of a tunnel agree on fresh pre-shared keys of WireGuard, by ML-KEM-768
// (FIPS 203). What was recorded of the tunnel stays closed to who later has a quantum computer and
// the pre-shared key of the Secrets, the base key.
//
// It is pure: a [Machine] is told what the peer says, what was seen of the tunnel, and the time. It says which
// key WireGuard is to have, and what the peer is to be told. It knows no network and no cluster.
//
// The client proposes, and leads:
//
//	client                                server
//	  |  offer: encapsulation key            |
//	  | -----------------------------------> |  derives the next key, and does not use it
//	  |  answer: ciphertext, tag             |
//	  | <----------------------------------- |
//	  |  accept: tag                         |
//	  | -----------------------------------> |  WireGuard has the next key
//	  |  hello: name of the next key         |
//	  | <----------------------------------- |
//	  |  WireGuard has the next key          |
//	  |  ... a handshake ...                 |
//	  |  hello: name of the next key         |
//	  | -----------------------------------> |  it is known to be in use, the one before is forgotten
//
// Each message says all that its sender wants said, so a lost one is said again and a second one changes nothing.
// WireGuard uses a pre-shared key for handshakes only. A session goes on meanwhile, for up to three minutes.
//
// The next key is derived from ML-KEM's shared secret, the key before, and all that both have said. So who
// was not in before does not get in by an agreement.
//
// Keys that were agreed on are in memory only: a gateway that starts has the base key. If the two have
// different keys there is no handshake. Then the client tries all keys that it knows, the base key, the right one
// and a next one, in turn. The server takes the base key after two attempts in vain, and then the right one, in turn. So they meet at one that both
// have, and agree anew if that is the base key. If both go on, it is the right one.
//
// Out of scope: how messages get to the peer (package exchange), WireGuard (package tunnel), and what is done
// about a key that is not fresh.
package rekey
