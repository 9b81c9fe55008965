// Package attack tries what an attacker could do, and shows for each attempt that it is the
// product that keeps it out: with the one defence taken away, the same attempt succeeds.
//
// Attackers are gateways and node agents that were taken over, and pods that forge packets.
// Packets are real, between the data planes of three peered clusters in network namespaces.
// Tokens are real, for a kube-apiserver without a cluster behind it. What a hostile API server
// can do to commands is tested next to the commands.
//
// The table with all attempts is printed in the end. What hostile objects do to their readers
// is tested next to the readers, with the objects of package schema.
package attack
