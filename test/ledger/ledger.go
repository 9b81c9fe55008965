// Package ledger looks, for tests, whether a cluster has given out everything once
// only: names, indexes (from which VNIs and interfaces follow), ranges, keys and ports.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// Check reads the ledger, the Peerings and the Services of a cluster that has so
// many peers, each with one range of pods, and that uses the ranges itself. The
// error is of all that is wrong.
func Check(ctx context.Context, c client.Reader, peers int, used ...netip.Prefix) error {
	cn := &v1alpha1.ClusterNetwork{}
	var peerings v1alpha1.PeeringList
	var services corev1.ServiceList
	if err := errors.Join(
		c.Get(ctx, types.NamespacedName{Name: v1alpha1.ClusterNetworkName}, cn),
		c.List(ctx, &peerings), c.List(ctx, &services, client.InNamespace(v1alpha1.Namespace)),
	); err != nil {
		return err
	}
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	seen := map[string]bool{}
	once := func(what string, value any) {
		key := fmt.Sprint(what, " ", value)
		if seen[key] {
			wrong("%s was given out twice", key)
		}
		seen[key] = true
	}
	if len(cn.Spec.Peers) != peers || len(peerings.Items) != peers {
		wrong("%d entries and %d Peerings, want %d", len(cn.Spec.Peers), len(peerings.Items), peers)
	}
	entries := map[string]v1alpha1.PeerAllocation{}
	ranges := append([]netip.Prefix{cn.Spec.InternalCIDR.Prefix}, used...)
	for _, e := range cn.Spec.Peers {
		entries[e.Name] = e
		once("name", e.Name)
		once("index", e.Index)
		if !e.Active() || len(e.Pods) != 1 {
			wrong("entry %+v", e)
			continue
		}
		for _, r := range []netip.Prefix{e.Pods[0].Mapped.Prefix, e.ExternalCIDR.Prefix} {
			for _, o := range ranges {
				if r.Overlaps(o) {
					wrong("%s of %s overlaps %s", r, e.Name, o)
				}
			}
			ranges = append(ranges, r)
		}
	}
	for _, p := range peerings.Items {
		once("index of a Peering", p.Spec.Index)
		once("key", p.Spec.Planes[0].RemotePublicKey)
		if e := entries[p.Name]; e.Index != p.Spec.Index || e.ClusterID != p.Spec.Remote.ClusterID ||
			len(e.Pods) != 1 || e.Pods[0] != p.Spec.Remote.Pods[0] {
			wrong("Peering %s is not as its entry: %+v, %+v", p.Name, p.Spec, e)
		}
	}
	for _, svc := range services.Items {
		if port := svc.Spec.Ports[0].NodePort; port != 0 {
			once("node port", port)
		}
	}
	return errors.Join(errs...)
}
