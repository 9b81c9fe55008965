// Package nft has what the packages that write nftables rules share: comments by
// which a rule is recognised, and lists of chains that are complete.
//
// Out of scope: which rules there are (packages nat and firewall).
package nft
