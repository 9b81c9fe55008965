// Package nft has what the packages that write nftables rules share: expressions and
// comments of rules, lists of chains that are complete, and notifications.
//
// Out of scope: which rules there are (packages nat and firewall).
package nft
