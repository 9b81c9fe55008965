package nft

// ListAttempts bounds the attempts of Uninterrupted.
const ListAttempts = listAttempts

// Uninterrupted is how chains are listed.
var Uninterrupted = retryInterrupted
