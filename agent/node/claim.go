package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
)

// claim returns the node's NodeNetwork, whose name is its overlay address. A
// node without one takes a free address by making the object: names are unique,
// so no address is given out twice. Which one is tried first depends on
// the node's name only, so that a node gets the same address again where it can.
//
// Where nothing of ours is in the cluster any more, nothing should be in the
// kernel either: then purge is called, and it is waited for better times.
func claim(ctx context.Context, c client.Client, node *corev1.Node, purge func(context.Context) error) (*v1alpha1.NodeNetwork, error) {
	internal, err := internalCIDR(ctx, c, purge)
	if err != nil {
		return nil, err
	}
	before, err := ofNode(ctx, c, node.Name)
	if err != nil {
		return nil, err
	}
	for i := range before {
		n := &before[i]
		if n.Spec.NodeName != node.Name || !n.DeletionTimestamp.IsZero() {
			continue
		}
		owned := slices.ContainsFunc(n.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == node.UID })
		if addr, err := netip.ParseAddr(n.Name); err == nil && internal.Contains(addr) && owned {
			return n, nil
		}
		// Of a node of the same name that is gone, or of a range that is not used
		// any more.
		if err := c.Delete(ctx, n, client.Preconditions{UID: &n.UID}); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("delete the outdated address %s of this node: %w", n.Name, err)
		}
	}
	taken := map[string]bool{}
	for i := range ipam.MaxNode {
		if i == blindTries {
			var list v1alpha1.NodeNetworkList
			if err := c.List(ctx, &list); err != nil {
				return nil, fmt.Errorf("list the addresses that are taken: %w", err)
			}
			for _, n := range list.Items {
				taken[n.Name] = true
			}
		}
		addr, err := ipam.NodeAddr(internal, ipam.NodeCandidate(node.Name, i))
		if err != nil {
			return nil, err
		}
		if taken[addr.String()] {
			continue
		}
		n, err := take(ctx, c, addr, node)
		if err != nil {
			return nil, fmt.Errorf("claim overlay address %s: %w", addr, err)
		}
		if n != nil {
			return n, nil
		}
	}
	return nil, fmt.Errorf("all %d addresses of %s are taken", ipam.MaxNode, internal)
}

// blindTries is how many addresses a node tries to take before it asks which ones are taken. All nodes of a large cluster may start
// at once, and all NodeNetworks of it are many megabytes. Of 5,000 nodes three in four need one try or two.
const blindTries = 16

// ofNode returns the NodeNetworks of a node, and maybe others.
func ofNode(ctx context.Context, c client.Client, name string) ([]v1alpha1.NodeNetwork, error) {
	var list v1alpha1.NodeNetworkList
	err := c.List(ctx, &list, client.MatchingFields{"spec.nodeName": name})
	if apierrors.IsBadRequest(err) {
		// The definition is one from before they could be selected by their nodes.
		err = c.List(ctx, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this node: %w", err)
	}
	return list.Items, nil
}

// take claims one address; nil if another node was faster. The object is applied
// and not created: for two seconds after a custom resource definition was
// established the API server holds up every create request. Each node applies by
// a name of its own, so that the second one gets a conflict.
func take(ctx context.Context, c client.Client, addr netip.Addr, node *corev1.Node) (*v1alpha1.NodeNetwork, error) {
	u := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"nodeName": node.Name},
	}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("NodeNetwork"))
	u.SetName(addr.String())
	u.SetLabels(map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager})
	// The address is free again when the node is gone.
	u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}})
	err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(manager(node)))
	if apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	n := &v1alpha1.NodeNetwork{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(u), n); err != nil || n.Spec.NodeName != node.Name {
		return nil, client.IgnoreNotFound(err)
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
