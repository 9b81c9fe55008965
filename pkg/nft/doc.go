// Package nft has what the packages that write nftables rules share: comments by
// which a rule is recognised, expressions, lists of chains that are complete, and what
// a notification is about.
//
// Out of scope: which rules there are (packages nat and firewall).
package nft
