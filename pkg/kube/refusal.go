package kube

import (
	"cmp"
	"context"
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

// RefusalTimeout is how long the cluster's own rules have to refuse a request, or pods, until the command ends. A quota or an account that was
// just created may not be known yet, and a webhook may restart.
const RefusalTimeout = 6 * time.Second

// Refusals detects that a cluster's own rules refuse pods during a wait. Controllers keep trying, but only the cluster's administrators can
// change that.
type Refusals struct {
	// begun is when the wait began, by the API server's clock: earlier refusals may have been dealt with.
	begun time.Time
	// since is when pods of a workload were first found to be refused.
	since map[string]time.Time
	// nodeAgents is why the node agents' pods are refused by the Events, which were last read at eventsRead.
	nodeAgents string
	eventsRead time.Time
}

// eventsInterval is how often Events are read while pods are missing. Usually there are none any more before the first time.
const eventsInterval = 2 * time.Second

// Check returns an error if the API server has refused pods of the node agents, or of one of the gateways, for [RefusalTimeout].
func (r *Refusals) Check(ctx context.Context, c *Cluster, o Objects, gateways ...string) error {
	now := time.Now()
	r.begun, r.eventsRead = cmp.Or(r.begun, c.Now().Add(-RefusalTimeout)), cmp.Or(r.eventsRead, now)
	refused := map[string]string{}
	for _, d := range OfKind[*appsv1.Deployment](o) {
		failure, is := lo.Find(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue
		})
		if is && slices.Contains(gateways, d.Name) {
			refused[Describe(d)] = failure.Message
		}
	}
	if d := ByName[*appsv1.DaemonSet](o, v1alpha1.NodeAgentName); d != nil && d.Status.CurrentNumberScheduled < d.Status.DesiredNumberScheduled {
		if now.Sub(r.eventsRead) >= eventsInterval {
			r.nodeAgents, r.eventsRead = lastFailedCreate(ctx, c, d, r.begun), now
		}
		if r.nodeAgents != "" {
			refused[Describe(d)] = r.nodeAgents
		}
	}
	before := r.since
	r.since = lo.MapValues(refused, func(_, name string) time.Time { return cmp.Or(before[name], now) })
	for name, since := range r.since {
		if why := refused[name]; now.Sub(since) >= RefusalTimeout {
			hint := cmp.Or(admission.Hint(why), "find out what refuses them: "+c.Kubectl+" get validatingadmissionpolicies,validatingwebhookconfigurations")
			return c.Errorf(NotReady, "create the pods of "+name, hint, "the cluster refuses them: %s", why)
		}
	}
	return nil
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
	newest := slices.MaxFunc(failed, func(a, b corev1.Event) int { return eventTime(a).Compare(eventTime(b)) })
	return strings.TrimPrefix(strings.TrimSpace(newest.Message), "(combined from similar events): ")
}

// removedHint replaces hints about objects that a rollback has removed.
const removedHint = "the rollback has removed the objects; to keep them, and look at them: run the command again with --keep-failed"

// WithoutRemovedObjects replaces the hints of an error, and of those that it joins, if they are about objects in our namespace, which were
// removed since.
func WithoutRemovedObjects(err error) error {
	if e, is := err.(*Error); is && strings.Contains(e.Hint, fmt.Sprintf(" -n %s ", v1alpha1.Namespace)) {
		_, other, _ := strings.Cut(e.Hint, "; or ") // what else helps is still true
		e.Hint = strings.Join(lo.Compact([]string{other, removedHint}), "; ")
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		_ = WithoutRemovedObjects(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, joined := range e.Unwrap() {
			_ = WithoutRemovedObjects(joined)
		}
	}
	return err
}
