package kube_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/admission"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// The messages are those of API servers. No hint sends the user to an administrator, whom the same rules refuse.
func TestAdmissionHint(t *testing.T) {
	for message, want := range map[string]string{
		`pods "liqonet-node-" is forbidden: ValidatingAdmissionPolicy 'nohost' with binding 'nohost' denied request: host network is not allowed`:                                                                                                                                                            "exempt namespace liqonet-system",
		`daemonsets.apps "liqonet-node" is forbidden: ValidatingAdmissionPolicy 'registry' with binding 'registry' denied request: images must come from registry.corp`:                                                                                                                                      "--agent-image",
		`admission webhook "validate.kyverno.svc-fail" denied the request: resource DaemonSet/liqonet-system/liqonet-node was blocked`:                                                                                                                                                                       "exempt namespace liqonet-system",
		`Internal error occurred: failed calling webhook "mutate.example.com": failed to call webhook: Post "https://x.y.svc:443/": no endpoints available`:                                                                                                                                                  "repair the admission webhook",
		`pods "liqonet-node-" is forbidden: failed quota: team-quota: must specify limits.cpu for: agent`:                                                                                                                                                                                                    "none has a CPU limit",
		`pods "gateway-b-1-" is forbidden: exceeded quota: team-quota, requested: limits.memory=1536Mi, used: limits.memory=2560Mi, limited: limits.memory=3Gi`:                                                                                                                                              "1536Mi",
		`deployments.apps "gateway-b-1" is forbidden: exceeded quota: objects, requested: count/deployments.apps=1, used: count/deployments.apps=3, limited: count/deployments.apps=3`:                                                                                                                       "raise the quota, or exempt namespace liqonet-system from it",
		`pods "liqonet-node-" is forbidden: maximum memory usage per Container is 64Mi, but limit is 512Mi`:                                                                                                                                                                                                  "change the LimitRange",
		`pods "liqonet-node-" is forbidden: unable to validate against any security context constraint: [provider "anyuid": Forbidden: not usable by user]`:                                                                                                                                                  "oc adm policy add-scc-to-group privileged",
		`pods "liqonet-node-" is forbidden: violates PodSecurity "restricted:latest": host namespaces (hostNetwork=true)`:                                                                                                                                                                                    "pod-security.kubernetes.io/enforce=privileged",
		`pods "liqonet-node-" is forbidden: status unknown for quota: team-quota, resources: limits.memory`:                                                                                                                                                                                                  "try again",
		`Internal error occurred: resource quota evaluation timed out`:                                                                                                                                                                                                                                       "try again",
		`admission webhook "warden-validating.common-webhooks.networking.gke.io" denied the request: GKE Warden rejected the request because it violates one or more constraints. Violations details: {"[denied by autogke-disallow-hostnamespaces]":["enabling hostNetwork is not allowed in Autopilot."]}`: "Standard mode",
		`daemonsets.apps is forbidden: User "jane" cannot create resource "daemonsets" in API group "apps" in the namespace "liqonet-system"`:                                                                                                                                                                "",
	} {
		got := admission.Hint(message)
		kit.ErrorIf(t, (got == "") != (want == "") || !strings.Contains(got, want), "%s: got the hint %q", message, got)
		forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x", errors.New(message))
		e := (*kube.Error)(nil)
		errors.As((&kube.Cluster{}).Wrap("apply", forbidden), &e)
		kit.ErrorIf(t, strings.Contains(e.Hint, "administrator") != (want == ""), "%s: the hint of an error is %q", message, e.Hint)
	}
}

// Admission without a hint of its own is no missing permission either.
func TestForbiddenToEverybody(t *testing.T) {
	for message, want := range map[string]string{
		`pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist`: "refuses it to everybody",
		`User "jane" cannot create resource "pods" in API group "" in the namespace "liqonet-system"`:                "administrator",
		`user "jane" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held`:   "administrator",
		`unable to create new content in namespace liqonet-system because it is being terminated`:                    "administrator",
	} {
		e := (*kube.Error)(nil)
		errors.As((&kube.Cluster{}).Wrap("apply", apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x", errors.New(message))), &e)
		kit.ErrorIf(t, e.Kind != kube.Forbidden || !strings.Contains(e.Hint, want), "%s: %v, the hint is %q", message, e.Kind, e.Hint)
	}
}

// refusedDaemonSet is that of the node agents, without a pod.
func refusedDaemonSet() *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName, UID: "1"}}
	d.Spec.Template.Labels = map[string]string{"app": "node"}
	d.Status.DesiredNumberScheduled = 2
	return d
}

// refusedGateway is a gateway whose pods are refused.
func refusedGateway(name string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name}}
	d.Spec.Template.Labels = map[string]string{"app": name}
	d.Status.Conditions = []appsv1.DeploymentCondition{{
		Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota: team-quota",
	}}
	return d
}

// A wait ends soon after pods are refused, even if others run, and not for refusals that are over or concern others.
func TestRefusals(t *testing.T) {
	refused := func(ago time.Duration) client.Object {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "e"}, Reason: "FailedCreate", Message: "denied request: no",
			InvolvedObject: corev1.ObjectReference{UID: "1"}, LastTimestamp: metav1.NewTime(time.Now().Add(-ago)),
		}
	}
	complete := refusedDaemonSet()
	complete.Status.CurrentNumberScheduled = 2
	recreated := refusedDaemonSet() // the Event is about an earlier object, or another one
	recreated.UID = "2"
	partial := refusedDaemonSet()
	partial.Status.CurrentNumberScheduled = 1
	for name, tt := range map[string]struct {
		event time.Duration
		of    client.Object
		want  string
	}{
		"node agents":                 {0, refusedDaemonSet(), "create the pods of DaemonSet liqonet-system/liqonet-node"},
		"node agents, an hour ago":    {time.Hour, refusedDaemonSet(), ""},
		"pods of another object":      {0, recreated, ""},
		"one of two nodes has no pod": {0, partial, "create the pods of DaemonSet liqonet-system/liqonet-node"},
		"all nodes have pods by now":  {0, complete, ""},
		"one of two gateways":         {time.Hour, refusedGateway("gateway-b-1"), "create the pods of Deployment liqonet-system/gateway-b-1"},
		"another peering's":           {time.Hour, refusedGateway("gateway-c-0"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reads := 0
				c := kubetest.NewCluster(t, "a", interceptor.Funcs{List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					reads++
					return api.List(ctx, list, opts...)
				}}, refused(tt.event))
				r, o, began := &kube.Refusals{}, kubetest.ObjectsOf(tt.of), time.Now()
				kit.NoError(t, r.Check(t.Context(), c, o, "gateway-b-0", "gateway-b-1"))
				kit.Check(t, "reads of Events before pods are late", reads, 0)
				err := error(nil)
				for err == nil && time.Since(began) < 2*kube.RefusalTimeout {
					time.Sleep(100 * time.Millisecond)
					err = r.Check(t.Context(), c, o, "gateway-b-0", "gateway-b-1")
				}
				took := time.Since(began)
				kit.ErrorIf(t, reads > 6, "%d reads of Events in %s", reads, took)
				if tt.want == "" {
					kit.NoError(t, err)
					return
				}
				kubetest.Fails(t, err, kube.NotReady, tt.want)
				kit.ErrorIf(t, took < kube.RefusalTimeout || took > kube.RefusalTimeout+3*time.Second, "it took %s", took)
			})
		})
	}
}

// What admission makes of our objects is no difference. What others have set is one, and is named with its manager.
func TestReadWithAdmission(t *testing.T) {
	want := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "x", "namespace": v1alpha1.Namespace}, "data": map[string]any{"a": "ours"},
	}}
	for _, changes := range []bool{true, false} {
		live := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: v1alpha1.Namespace}, Data: map[string]string{"a": "theirs"}}
		c := kubetest.NewCluster(t, "a", interceptor.Funcs{
			Apply: func(ctx context.Context, api client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
				err := api.Apply(ctx, obj, opts...)
				if made := string(kit.Must(json.Marshal(obj))(t)); err == nil && changes {
					return json.Unmarshal([]byte(strings.Replace(made, `"ours"`, `"theirs"`, 1)), obj)
				}
				return err
			},
		}, live)
		made := kit.Must(kube.Preview(t.Context(), c.Client, want))(t)
		_, there, err := c.Read(t.Context(), want)
		kit.NoError(t, err)
		kit.Check(t, "the object is as applied", kube.Contains(there.Object, want.Object), changes)
		if changes {
			continue
		}
		there.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kyverno", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:data":{"f:a":{}}}`)}}})
		kit.Check(t, "the fields of others", admission.Differences(there, made), []string{`data.a was set by "kyverno"`})
		there.SetManagedFields(nil)
		kit.Check(t, "fields of nobody", admission.Differences(there, made), []string{"data.a differs"})
	}
}

// After a rollback, no hint of any cluster leads to objects that are gone.
func TestWithoutRemovedObjects(t *testing.T) {
	c := &kube.Cluster{Name: "a", Kubectl: "kubectl"}
	failed := func(hint string) *kube.Error { return c.Errorf(kube.NotReady, "wait", hint, "no report") }
	first, second, other := failed(c.PodsHint()), failed(c.PodsHint()), failed("raise the quota")
	err := errors.Join(fmt.Errorf("a and b: %w", errors.Join(first, other)), second)
	kit.ErrorIf(t, kube.WithoutRemovedObjects(err) != err, "it is another error")
	for _, e := range []*kube.Error{first, second} {
		kit.ErrorIf(t, !strings.Contains(e.Hint, "--keep-failed") || strings.Contains(e.Hint, "describe"), "the hint is %q", e.Hint)
	}
	service := failed("kubectl -n " + v1alpha1.Namespace + " describe service gateway-b; or choose another --service-type")
	kit.ErrorIf(t, kube.WithoutRemovedObjects(service) == nil || !strings.HasPrefix(service.Hint, "choose another --service-type; the rollback"), "what still helps is lost: %q", service.Hint)
	kit.Check(t, "another hint", other.Hint, "raise the quota")
	kit.NoError(t, kube.WithoutRemovedObjects(nil))
}
