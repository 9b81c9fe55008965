package nft

// ListAttempts is how often Uninterrupted lists at most.
const ListAttempts = listAttempts

// Uninterrupted is how chains are listed.
var Uninterrupted = uninterrupted
