package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/admission"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

// RefusalTimeout is how long all pods of a workload have to be refused until a wait ends. A quota or an account that was just
// created may not be known yet.
const RefusalTimeout = 6 * time.Second

// Refusals detects that a cluster's own rules refuse the pods of a workload during a wait. Controllers keep trying, but only
// the cluster's administrators can change that.
type Refusals struct {
	// begun is when the wait began, by the API server's clock: earlier refusals may have been dealt with.
	begun time.Time
	// since is when the pods of a workload were first found to be refused.
	since map[string]time.Time
}

// Check returns an error if the API server has refused all pods of one of the workloads for [RefusalTimeout].
func (r *Refusals) Check(ctx context.Context, c *Cluster, o Objects, gateways ...string) error {
	r.begun = cmp.Or(r.begun, c.Now().Add(-RefusalTimeout))
	refused := map[string]string{}
	for _, d := range OfKind[*appsv1.Deployment](o) {
		failure, is := lo.Find(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue
		})
		if is && slices.Contains(gateways, d.Name) && !hasPods(o, d.Spec.Template.Labels) {
			refused[Describe(d)] = failure.Message
		}
	}
	if d := ByName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName); d != nil && d.Status.DesiredNumberScheduled > 0 && !hasPods(o, d.Spec.Template.Labels) {
		if why := lastFailedCreate(ctx, c, d, r.begun); why != "" {
			refused[Describe(d)] = why
		}
	}
	now, before := time.Now(), r.since
	r.since = lo.MapValues(refused, func(_, name string) time.Time { return cmp.Or(before[name], now) })
	for name, since := range r.since {
		if why := refused[name]; now.Sub(since) >= RefusalTimeout {
			hint := cmp.Or(admission.Hint(why), "find out what refuses them: "+c.Kubectl+" get validatingadmissionpolicies,validatingwebhookconfigurations")
			return c.Errorf(NotReady, "create the pods of "+name, hint, "the cluster refuses them: %s", why)
		}
	}
	return nil
}

// hasPods reports whether there are pods with all of these labels.
func hasPods(o Objects, labels map[string]string) bool {
	return Find(o, func(p *corev1.Pod) bool {
		return !slices.ContainsFunc(lo.Keys(labels), func(k string) bool { return p.Labels[k] != labels[k] })
	}) != nil
}

// lastFailedCreate returns the newest message about pods that could not be created, empty if there is none.
func lastFailedCreate(ctx context.Context, c *Cluster, of client.Object, since time.Time) string {
	var events corev1.EventList
	if c.Client.List(ctx, &events, InOurNamespace) != nil { // without permission, the wait times out
		return ""
	}
	failed := lo.Filter(events.Items, func(e corev1.Event, _ int) bool {
		return e.Reason == "FailedCreate" && e.InvolvedObject.UID == of.GetUID() && !eventTime(e).Before(since)
	})
	if len(failed) == 0 {
		return ""
	}
	return strings.TrimSpace(slices.MaxFunc(failed, func(a, b corev1.Event) int { return eventTime(a).Compare(eventTime(b)) }).Message)
}

// removedHint replaces hints about objects that a rollback has removed.
const removedHint = "the rollback has removed the objects; to keep them, and look at them: run the command again with --keep-failed"

// WithoutRemovedObjects replaces the hint of an error if it is about objects in our namespace, which were removed since.
func WithoutRemovedObjects(err error) error {
	if e := (*Error)(nil); errors.As(err, &e) && strings.Contains(e.Hint, fmt.Sprintf(" -n %s ", v1alpha1.Namespace)) {
		e.Hint = removedHint
	}
	return err
}
