package ipam_test

import (
	"fmt"
	"net/netip"

	"github.com/liqonet/liqonet/pkg/ipam"
)

// Cluster a chooses the ranges by which it knows cluster b, whose pods have the same range as its own.
func ExampleAllocatePeer() {
	a := []ipam.Usage{
		{Prefix: netip.MustParsePrefix("10.244.0.0/16"), Owner: "pods of cluster a"},
		{Prefix: netip.MustParsePrefix("10.96.0.0/12"), Owner: "services of cluster a"},
		{Prefix: netip.MustParsePrefix("172.18.0.0/24"), Owner: "nodes of cluster a"},
		{Prefix: netip.MustParsePrefix("10.80.0.0/19"), Owner: "internal range of cluster a"},
	}
	b, err := ipam.AllocatePeer(a, ipam.Peer{
		ID:   "1f0c9a52-7a0e-4a5c-9a44-0d3f3a2f7b11",
		Name: "b",
		Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range b.Pods {
		fmt.Println(r, "-", r.Reason)
	}
	fmt.Println(b.External, "-", b.ExternalReason)
	pod, _ := b.Mappings().Translate(netip.MustParseAddr("10.244.3.9"))
	fmt.Println("b's pod 10.244.3.9 is", pod)
	nodes, err := ipam.ExternalMapping(ipam.DefaultInternal(), b.External)
	if err != nil {
		fmt.Println(err)
		return
	}
	node, _ := nodes.Translate(netip.MustParseAddr("10.80.0.5"))
	fmt.Println("b's node 10.80.0.5 is", node)
	// Output:
	// 10.244.0.0/16 -> 10.120.0.0/16 - chosen from the pools: 10.244.0.0/16 overlaps 10.244.0.0/16 (pods of cluster a)
	// 10.137.192.0/18 - chosen from the pools
	// b's pod 10.244.3.9 is 10.120.3.9
	// b's node 10.80.0.5 is 10.137.192.5
}
