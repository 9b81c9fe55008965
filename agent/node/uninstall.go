package node

import (
	"context"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/firewall"
	"github.com/liqonet/liqonet/pkg/nat"
	"github.com/liqonet/liqonet/pkg/overlay"
)

// cleanupTimeout is shorter than the pod's grace period.
const cleanupTimeout = 3 * time.Second

// podEndTimeout is how long an agent that has to end waits for its watch to report the end of its pod: both have the
// same cause.
const podEndTimeout = time.Second

// cleanupIfUninstalled cleans the kernel if no agent will follow this one: somebody deletes the agents' namespace,
// their DaemonSet or our definitions without unpeering. If that is not certain, it leaves the kernel unchanged.
func cleanupIfUninstalled(c client.Reader, last lastView, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	why := removalReason(ctx, c, last)
	if why == "" {
		return
	}
	log.Info("the agents are being removed: cleaning this node", "because", why)
	if err := Purge(ctx, log.Info); err != nil {
		log.Error("cannot clean this node; run liqonet-agent purge to remove the rest", "error", err)
	}
}

// lastView is an agent's last knowledge of its cluster, which is the state of its cache. It counts when the API
// server stops answering.
type lastView struct {
	// Reader is nil until the cache is filled.
	client.Reader
	// own and pod are the names of the NodeNetwork and of the agent's pod.
	own, pod string
}

// removalReason returns why the agents are being removed. It returns "" if they are not, or if it cannot tell.
//
// An API server that rejects requests is no proof by itself. A pod's token ends with its pod, even if somebody
// force-deletes the pod. An API server that has just started does not know the permissions yet. Then the last view
// counts.
func removalReason(ctx context.Context, c client.Reader, last lastView) string {
	set, namespace := agents()
	why, err := firstDeleted(ctx, c, set, namespace)
	unauthorized := apierrors.IsUnauthorized(err)
	switch {
	case unauthorized || apierrors.IsForbidden(err):
		return last.removed(ctx, unauthorized)
	case why == "" && apierrors.IsNotFound(c.List(ctx, &v1alpha1.PeeringList{}, client.Limit(1))):
		return "the kind Peering is gone"
	}
	return why
}

// removed does the same from the last view.
func (l lastView) removed(ctx context.Context, unauthorized bool) string {
	if l.Reader == nil {
		return ""
	}
	set, namespace := agents()
	// Somebody who removes the NodeNetwork and also the account or its permissions is not just restarting an agent.
	own := &v1alpha1.NodeNetwork{TypeMeta: metav1.TypeMeta{Kind: "NodeNetwork"}, ObjectMeta: metav1.ObjectMeta{Name: l.own}}
	why, err := firstDeleted(ctx, l, set, namespace, own)
	if why != "" || err != nil || !unauthorized {
		return why
	}
	// The token is invalid, but the watch did not report the end of the pod. Either the account is gone, or the node was
	// cut off for a long time, most likely during the last unpeer. If the agent was replaced since, its successor
	// restores everything within seconds. If not, nothing else would ever clean this node.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: l.pod}}
	err = wait.PollUntilContextTimeout(ctx, podEndTimeout/10, podEndTimeout, true, func(ctx context.Context) (bool, error) {
		ends, err := firstDeleted(ctx, l, pod)
		return ends != "", err
	})
	if wait.Interrupted(err) {
		return "this agent's account is gone, or its pod ended while it was cut off from its cluster"
	}
	return ""
}

// agents returns the objects with which all node agents are removed. Only their metadata is read. The DaemonSet's
// pods may be deleted before the DaemonSet.
func agents() (set, namespace *metav1.PartialObjectMetadata) {
	set = &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}}
	set.Namespace, set.Name = v1alpha1.Namespace, v1alpha1.NodeAgentName
	namespace = &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
	namespace.Name = v1alpha1.Namespace
	return set, namespace
}

// firstDeleted describes the first of the objects that is gone or being deleted. The error covers those that cannot be
// read.
func firstDeleted(ctx context.Context, c client.Reader, objs ...client.Object) (string, error) {
	var errs []error
	for _, obj := range objs {
		kind, name := obj.GetObjectKind().GroupVersionKind().Kind, obj.GetName()
		err := c.Get(ctx, client.ObjectKeyFromObject(obj), obj)
		switch {
		case apierrors.IsNotFound(err):
			return kind + " " + name + " is gone", nil
		case err == nil && !obj.GetDeletionTimestamp().IsZero():
			return kind + " " + name + " is being deleted", nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// purge removes and reports everything of ours in nftables.
func purge(report func(string, ...any)) error {
	removed, err := firewall.RemoveAcceptRules()
	if removed {
		report("removed rules from chains of others")
	}
	table, tableErr := nat.Purge()
	if table {
		report("removed nftables table " + nat.TableName)
	}
	return errors.Join(err, tableErr)
}

// Purge removes and reports everything of ours in the kernel, whichever agent left it there.
func Purge(ctx context.Context, report func(string, ...any)) error {
	kernel, err := overlay.New()
	if err != nil {
		return err
	}
	defer kernel.Close()
	changes, err := kernel.Apply(ctx, overlay.State{})
	for _, change := range changes {
		report(change)
	}
	return errors.Join(err, purge(report))
}
