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

// acquireAddress gives the node its NodeNetwork and an address in the overlay. A Lease holds the address: it is named
// after the address and held by the node. Names are unique, so no two nodes hold the same address. The order of
// attempts depends only on the node's name, so that a node gets the same address again if possible. The Lease is
// deleted with the NodeNetwork, and the NodeNetwork with the Node.
//
// acquireAddress completes the lease. created is when it was created, zero if it already existed.
//
// If nothing of ours is left in the cluster, nothing should be left in the kernel either. Then acquireAddress calls
// purge, and continues to wait for the ClusterNetwork.
func acquireAddress(ctx context.Context, node *corev1.Node, lease *loop.Lease, purge func(context.Context) error) (own *v1alpha1.NodeNetwork, created time.Time, err error) {
	c := lease.Client
	internal, err := internalCIDR(ctx, c, purge)
	if err != nil {
		return nil, created, err
	}
	if own, err = ensureNodeNetwork(ctx, c, node, internal); err != nil {
		return nil, created, err
	}
	lease.Owner = applymeta.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("NodeNetwork").WithName(own.Name).WithUID(own.UID)
	if lease.Name = own.LeaseName(); lease.Name != "" {
		var held coordinationv1.Lease
		err := c.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: lease.Name}, &held)
		if client.IgnoreNotFound(err) != nil {
			return nil, created, fmt.Errorf("read who holds this node's overlay address: %w", err)
		}
		if err == nil && ptr.Deref(held.Spec.HolderIdentity, "") == lease.Holder {
			lease.UID = held.UID
			return own, created, nil
		}
	}
	taken := map[netip.Addr]bool{}
	for i := range ipam.MaxNode {
		if i == maxUnverifiedTries {
			var list v1alpha1.NodeNetworkList
			if err := c.List(ctx, &list); err != nil {
				return nil, created, fmt.Errorf("list the addresses that are taken: %w", err)
			}
			for _, n := range list.Items {
				taken[n.Status.Address.Addr] = n.Name != node.Name
			}
		}
		addr, err := ipam.NodeAddr(internal, ipam.NodeCandidate(node.Name, i))
		if err != nil {
			return nil, created, err
		}
		if taken[addr] {
			continue
		}
		lease.Name = v1alpha1.NodeLeaseName(addr)
		switch lease.UID, err = lease.Claim(ctx); {
		case err == nil:
			own.Status.Address = v1alpha1.IP{Addr: addr}
			return own, time.Now(), nil
		case !apierrors.IsConflict(err):
			return nil, created, fmt.Errorf("claim overlay address %s: %w", addr, err)
		}
	}
	return nil, created, fmt.Errorf("all %d addresses of %s are taken", ipam.MaxNode, internal)
}

// maxUnverifiedTries is how many addresses a node tries before it lists those that are taken. All nodes of a large
// cluster may start at once, and all its NodeNetworks are many megabytes. Of 5,000 nodes, three in four need one or two
// tries.
const maxUnverifiedTries = 16

// ensureNodeNetwork returns the node's NodeNetwork, and creates it if it does not exist. It applies the object instead
// of creating it: for two seconds after a custom resource definition is established, the API server delays every create
// request.
func ensureNodeNetwork(ctx context.Context, c client.Client, node *corev1.Node, internal netip.Prefix) (*v1alpha1.NodeNetwork, error) {
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
		// It belongs to a deleted node of the same name, or has an address of a range that is no longer used.
		if err := c.Delete(ctx, n, client.Preconditions{UID: &n.UID}); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("delete the outdated NodeNetwork of this node: %w", err)
		}
	}
	raw, _ := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeNetwork", "metadata": map[string]any{
		"name": node.Name, "labels": map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager},
		// It is useless without the node.
		"ownerReferences": []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
	}}) // strings
	n = &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	if err := c.Patch(ctx, n, client.RawPatch(types.ApplyPatchType, raw), client.FieldOwner(manager(node))); err != nil {
		return nil, fmt.Errorf("create this node's NodeNetwork: %w", err)
	}
	if !usable() {
		return nil, fmt.Errorf("NodeNetwork %s still belongs to another Node", n.Name)
	}
	return n, nil
}

// abandonedAfter is how long the ClusterNetwork has to be absent before the agent believes it: an API server that
// starts does not serve it immediately.
const abandonedAfter = 3 * time.Second

// internalCIDR waits for the ClusterNetwork and returns its internal range. Agents may be installed before the API
// server serves the new kind.
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

// manager returns the field manager of a node's agent. Each agent has its own.
func manager(node *corev1.Node) string { return "liqonet-node-" + string(node.UID) }
