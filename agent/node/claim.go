package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
)

// claim gives the node its NodeNetwork, and an address in the overlay. It holds the address by a Lease that has the address for a
// name and the node for a holder: names are unique, so no two nodes hold one address. Which one is tried first depends on the
// node's name only, so that a node gets the same address again where it can. The Lease goes with the NodeNetwork, and this one with the Node.
//
// It completes the lease, and says when it was made, zero if it was there.
//
// Where nothing of ours is in the cluster any more, nothing should be in the
// kernel either: then purge is called, and it is waited for better times.
func claim(ctx context.Context, node *corev1.Node, lease *loop.Lease, purge func(context.Context) error) (own *v1alpha1.NodeNetwork, made time.Time, err error) {
	c := lease.Client
	internal, err := internalCIDR(ctx, c, purge)
	if err != nil {
		return nil, made, err
	}
	if own, err = ownReport(ctx, c, node, internal); err != nil {
		return nil, made, err
	}
	lease.Owner = applymeta.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("NodeNetwork").WithName(own.Name).WithUID(own.UID)
	if lease.Name = own.Lease(); lease.Name != "" {
		var held coordinationv1.Lease
		err := c.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: lease.Name}, &held)
		if client.IgnoreNotFound(err) != nil {
			return nil, made, fmt.Errorf("read who holds this node's overlay address: %w", err)
		}
		if err == nil && ptr.Deref(held.Spec.HolderIdentity, "") == lease.Holder {
			lease.UID = held.UID
			return own, made, nil
		}
	}
	taken := map[netip.Addr]bool{}
	for i := range ipam.MaxNode {
		if i == blindTries {
			var list v1alpha1.NodeNetworkList
			if err := c.List(ctx, &list); err != nil {
				return nil, made, fmt.Errorf("list the addresses that are taken: %w", err)
			}
			for _, n := range list.Items {
				taken[n.Status.Address.Addr] = n.Name != node.Name
			}
		}
		addr, err := ipam.NodeAddr(internal, ipam.NodeCandidate(node.Name, i))
		if err != nil {
			return nil, made, err
		}
		if taken[addr] {
			continue
		}
		lease.Name = v1alpha1.NodeLease(addr)
		switch lease.UID, err = lease.Claim(ctx); {
		case err == nil:
			own.Status.Address = v1alpha1.IP{Addr: addr}
			return own, time.Now(), nil
		case !apierrors.IsConflict(err):
			return nil, made, fmt.Errorf("claim overlay address %s: %w", addr, err)
		}
	}
	return nil, made, fmt.Errorf("all %d addresses of %s are taken", ipam.MaxNode, internal)
}

// blindTries is how many addresses a node tries to take before it asks which ones are taken. All nodes of a large cluster may start
// at once, and all NodeNetworks of it are many megabytes. Of 5,000 nodes three in four need one try or two.
const blindTries = 16

// ownReport returns the node's NodeNetwork, which it makes if it is not there. It is applied and not created: for two seconds after a
// custom resource definition was established the API server holds up every create request.
func ownReport(ctx context.Context, c client.Client, node *corev1.Node, internal netip.Prefix) (*v1alpha1.NodeNetwork, error) {
	n := &v1alpha1.NodeNetwork{}
	usable := func() bool {
		owned := slices.ContainsFunc(n.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == node.UID })
		addr := n.Status.Address
		return owned && n.DeletionTimestamp.IsZero() && (!addr.IsValid() || internal.Contains(addr.Addr))
	}
	err := c.Get(ctx, types.NamespacedName{Name: node.Name}, n)
	if client.IgnoreNotFound(err) != nil || err == nil && usable() {
		return n, err
	}
	if err == nil {
		// Of a node of the same name that is gone, or with an address of a range that is not used any more.
		if err := c.Delete(ctx, n, client.Preconditions{UID: &n.UID}); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("delete the outdated NodeNetwork of this node: %w", err)
		}
	}
	raw, err := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeNetwork", "metadata": map[string]any{
		"name": node.Name, "labels": map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager},
		// It is of no use when the node is gone.
		"ownerReferences": []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
	}})
	if err != nil {
		return nil, err
	}
	n = &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	if err := c.Patch(ctx, n, client.RawPatch(types.ApplyPatchType, raw), client.FieldOwner(manager(node))); err != nil {
		return nil, fmt.Errorf("make this node's NodeNetwork: %w", err)
	}
	if !usable() {
		return nil, fmt.Errorf("NodeNetwork %s is of another Node still", n.Name)
	}
	return n, nil
}

// abandonedAfter is how long there has to be no ClusterNetwork until the agent
// believes it: an API server that starts does not serve it at once.
const abandonedAfter = 3 * time.Second

// internalCIDR waits for the ClusterNetwork: agents are installed while the API
// server still learns to serve it.
func internalCIDR(ctx context.Context, c client.Client, purge func(context.Context) error) (netip.Prefix, error) {
	cn := &v1alpha1.ClusterNetwork{}
	start, purged := time.Now(), false
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, types.NamespacedName{Name: v1alpha1.ClusterNetworkName}, cn)
		if err == nil && cn.DeletionTimestamp.IsZero() || client.IgnoreNotFound(err) != nil {
			return err == nil, err
		}
		if !purged && time.Since(start) > abandonedAfter {
			purged = true
			return false, purge(ctx)
		}
		return false, nil
	})
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("read the cluster's internal range: %w", err)
	}
	return cn.Spec.InternalCIDR.Prefix, nil
}

// manager is the field manager of a node's agent: each one has its own.
func manager(node *corev1.Node) string { return "liqonet-node-" + string(node.UID) }
