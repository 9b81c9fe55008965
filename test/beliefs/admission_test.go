package beliefs_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/admission"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/test/apiserver"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// refusalLimit is how long a command may take to report that the cluster refuses something, of which a webhook may need the last second.
const refusalLimit = kube.RefusalTimeout + 9*time.Second

// webhook is an admission webhook of a test, in the API server's network namespace.
type webhook struct {
	server *httptest.Server
	answer atomic.Pointer[func(*admissionv1.AdmissionResponse)]
}

// startWebhook starts one for resources of one API group that answers as answer says.
func startWebhook(t *testing.T, s *apiserver.Server, group, resources string, answer func(*admissionv1.AdmissionResponse)) *webhook {
	t.Helper()
	w := &webhook{}
	w.answer.Store(&answer)
	w.server = httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		raw, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(raw, &review)
		}
		if err != nil {
			http.Error(out, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		(*w.answer.Load())(review.Response)
		if err := json.NewEncoder(out).Encode(review); err != nil {
			t.Logf("answer the API server: %v", err)
		}
	}))
	kit.NoError(t, w.server.Listener.Close())
	kit.NoError(t, s.NS.Run(func() (err error) {
		w.server.Listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}))
	w.server.StartTLS()
	t.Cleanup(w.server.Close)
	url, timeout, fail, none := w.server.URL, int32(2), registrationv1.Fail, registrationv1.SideEffectClassNone
	config := &registrationv1.MutatingWebhookConfiguration{}
	config.Name = "hook-" + resources
	config.Webhooks = []registrationv1.MutatingWebhook{{
		Name: "hook.example.com", SideEffects: &none, FailurePolicy: &fail, TimeoutSeconds: &timeout, AdmissionReviewVersions: []string{"v1"},
		ClientConfig: registrationv1.WebhookClientConfig{URL: &url, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.server.Certificate().Raw})},
		Rules: []registrationv1.RuleWithOperations{{
			Operations: []registrationv1.OperationType{registrationv1.Create, registrationv1.Update},
			Rule:       registrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resources}},
		}},
	}}
	create(t, s, config)
	return w
}

// create creates an object until the end of the test.
func create(t *testing.T, s *apiserver.Server, obj client.Object) {
	t.Helper()
	kit.NoError(t, s.Admin.Create(t.Context(), obj))
	t.Cleanup(func() {
		kit.NoError(t, client.IgnoreNotFound(s.Admin.Delete(context.WithoutCancel(t.Context()), obj, client.PropagationPolicy(metav1.DeletePropagationBackground))))
	})
}

// agents are node agents as far as rules are concerned.
func agents(image string) *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}}
	d.ObjectMeta = metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName}
	labels := map[string]string{"app": "node"}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec = corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{
		Name: "agent", Image: image, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")}},
	}}}
	d.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "ours", Operator: corev1.TolerationOpExists}}
	return d
}

// TestAdmission tries commands on a real API server whose rules refuse or change our objects.
func TestAdmission(t *testing.T) {
	kit.NotShort(t)
	s := apiserver.Start(t)
	s.StartControllers(t, "daemonset-controller,resourcequota-controller")
	kit.NoError(t, s.Admin.Create(t.Context(), manifests.Namespace()))
	apiserver.Wait(t, "there is an account", func() error {
		return client.IgnoreAlreadyExists(s.Admin.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "default"}}))
	})
	for _, name := range []string{"node-1", "node-2"} {
		kit.NoError(t, s.Admin.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		ready := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`))
		kit.NoError(t, s.Admin.Status().Patch(t.Context(), n, ready))
		kit.NoError(t, s.Admin.Patch(t.Context(), n, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"taints":null}}`))))
	}
	c := &kube.Cluster{Name: "a", Client: s.Admin, Kubectl: "kubectl", Now: time.Now}
	t.Run("refused pods", func(t *testing.T) { refusedPods(t, s, c) })
	t.Run("refused objects", func(t *testing.T) { refusedObjects(t, s, c) })
	t.Run("changed objects", func(t *testing.T) { changedObjects(t, s, c) })
}

// refusedPods tries each kind of rule. The wait ends soon, with a hint that is true.
func refusedPods(t *testing.T, s *apiserver.Server, c *kube.Cluster) {
	in := metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "team"}
	quota := func(name corev1.ResourceName, most string) func(*testing.T) {
		return func(t *testing.T) {
			q := &corev1.ResourceQuota{ObjectMeta: in, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{name: resource.MustParse(most)}}}
			create(t, s, q)
			apiserver.Wait(t, "the quota counts", func() error {
				if err := s.Admin.Get(t.Context(), client.ObjectKeyFromObject(q), q); err != nil || len(q.Status.Hard) > 0 {
					return err
				}
				return fmt.Errorf("%v", q.Status)
			})
		}
	}
	type refusal struct {
		name string
		rule func(t *testing.T)
		hint string
	}
	all := []refusal{
		{"no quota without a CPU limit", quota("limits.cpu", "4"), "none has a CPU limit"},
		{"a quota for one of two nodes", quota("limits.memory", "600Mi"), "raise the quota"},
		{"a quota of pods", quota("pods", "0"), "raise the quota, or exempt namespace liqonet-system from it"},
		{"LimitRange", func(t *testing.T) {
			most := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
			create(t, s, &corev1.LimitRange{ObjectMeta: in, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Max: most}}}})
		}, "change the LimitRange"},
		{"PodSecurity", func(t *testing.T) {
			enforce(t, s, "restricted")
			t.Cleanup(func() { enforce(t, s, "privileged") })
		}, "pod-security.kubernetes.io/enforce=privileged"},
		{"ValidatingAdmissionPolicy", func(t *testing.T) { createPolicy(t, s) }, "exempt namespace liqonet-system"},
		{"a webhook that refuses", func(t *testing.T) {
			startWebhook(t, s, "", "pods", func(r *admissionv1.AdmissionResponse) {
				r.Allowed, r.Result = false, &metav1.Status{Message: "no host network"}
			})
		}, "exempt namespace liqonet-system"},
		{"a webhook that is down", func(t *testing.T) {
			startWebhook(t, s, "", "pods", func(*admissionv1.AdmissionResponse) {}).server.Close()
		}, "repair the admission webhook"},
	}
	for _, tt := range kubetest.Some(t, all, 2, len(all)) {
		t.Run(tt.name, func(t *testing.T) {
			tt.rule(t)
			began, r := time.Now(), &kube.Refusals{}
			err := error(nil)
			// A rule may need a moment until it applies to the first pod: then the agents are created once more.
			for attempt := 0; err == nil && attempt < 5; attempt++ {
				d := agents("x")
				create(t, s, d)
				ctx, cancel := context.WithTimeout(t.Context(), 2*refusalLimit)
				err = c.Await(ctx, "wait for the node agents", "", engine.RolloutKinds(), func(o kube.Objects) (string, error) {
					if live := kube.ByName[*appsv1.DaemonSet](o, d.Name); live == nil || live.UID != d.UID || live.Status.DesiredNumberScheduled != 2 {
						began = time.Now()
						return "the DaemonSet has not been observed", nil
					} else if live.Status.CurrentNumberScheduled == 2 {
						return "", nil
					}
					return "pods are missing", r.Check(ctx, c, o)
				})
				cancel()
				removeAgents(t, s, d)
			}
			kubetest.Fails(t, err, kube.NotReady, "create the pods of DaemonSet liqonet-system/liqonet-node")
			e := err.(*kube.Error)
			took := time.Since(began)
			t.Logf("after %.1f s: %v; %s", took.Seconds(), e, e.Hint)
			kit.ErrorIf(t, took > refusalLimit, "it took %s", took)
			kit.ErrorIf(t, !strings.Contains(e.Hint, tt.hint), "the hint is %q", e.Hint)
		})
	}
}

// removeAgents deletes the DaemonSet and its pods, which no kubelet ends.
func removeAgents(t *testing.T, s *apiserver.Server, d *appsv1.DaemonSet) {
	t.Helper()
	apiserver.Wait(t, "the node agents are gone", func() error {
		if err := client.IgnoreNotFound(s.Admin.Delete(t.Context(), d, client.PropagationPolicy(metav1.DeletePropagationOrphan))); err != nil {
			return err
		}
		if err := s.Admin.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(d.Namespace), client.GracePeriodSeconds(0)); err != nil {
			return err
		}
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)) // no collector runs
		if err := client.IgnoreNotFound(s.Admin.Patch(t.Context(), d.DeepCopy(), patch)); err != nil {
			return err
		}
		var left corev1.PodList
		err := s.Admin.Get(t.Context(), client.ObjectKeyFromObject(d), d.DeepCopy())
		if listErr := s.Admin.List(t.Context(), &left, client.InNamespace(d.Namespace)); listErr != nil || err == nil || len(left.Items) > 0 {
			return fmt.Errorf("%d pods left, %w, %w", len(left.Items), err, listErr)
		}
		return client.IgnoreNotFound(err)
	})
}

// enforce sets the level of PodSecurity of our namespace.
func enforce(t *testing.T, s *apiserver.Server, level string) {
	t.Helper()
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":%q}}}`, level))
	kit.NoError(t, s.Admin.Patch(context.WithoutCancel(t.Context()), manifests.Namespace(), patch))
}

// createPolicy makes the API server refuse pods in the host's network.
func createPolicy(t *testing.T, s *apiserver.Server) {
	t.Helper()
	policy := &registrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "nohost"}}
	policy.Spec.MatchConstraints = &registrationv1.MatchResources{ResourceRules: []registrationv1.NamedRuleWithOperations{{RuleWithOperations: registrationv1.RuleWithOperations{
		Operations: []registrationv1.OperationType{registrationv1.Create},
		Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
	}}}}
	policy.Spec.Validations = []registrationv1.Validation{{Expression: "!object.spec.?hostNetwork.orValue(false)", Message: "host network is not allowed"}}
	binding := &registrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "nohost"}}
	binding.Spec = registrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "nohost", ValidationActions: []registrationv1.ValidationAction{registrationv1.Deny}}
	create(t, s, policy)
	create(t, s, binding)
}

// refusedObjects has webhooks refuse a write. Whatever the status, the command reports it soon, and blames no missing permission.
func refusedObjects(t *testing.T, s *apiserver.Server, c *kube.Cluster) {
	refuse := func(code int32) func(*admissionv1.AdmissionResponse) {
		return func(r *admissionv1.AdmissionResponse) {
			r.Allowed, r.Result = false, &metav1.Status{Code: code, Message: "images must come from registry.corp"}
		}
	}
	hang := func(*admissionv1.AdmissionResponse) { time.Sleep(3 * time.Second) } // longer than the API server waits
	type refusal struct {
		answer func(*admissionv1.AdmissionResponse)
		down   bool
		hint   string
	}
	all := map[string]refusal{
		"refused":               {refuse(0), false, "--agent-image"},
		"as invalid":            {refuse(422), false, "--agent-image"},
		"as a conflict":         {refuse(409), false, "--agent-image"},
		"as not found":          {refuse(404), false, "--agent-image"},
		"as unavailable":        {refuse(503), false, "--agent-image"},
		"as too many requests":  {refuse(429), false, "--agent-image"},
		"it is down":            {refuse(0), true, "repair the admission webhook"},
		"it does not answer":    {hang, false, "repair the admission webhook"},
		"it fails unexpectedly": {func(*admissionv1.AdmissionResponse) { panic(http.ErrAbortHandler) }, false, "repair the admission webhook"},
	}
	for _, name := range kubetest.Some(t, slices.Sorted(maps.Keys(all)), 3, len(all)) {
		tt := all[name]
		t.Run(name, func(t *testing.T) {
			w := startWebhook(t, s, "apps", "daemonsets", tt.answer)
			if tt.down {
				w.server.Close()
			}
			err, took := error(nil), time.Duration(0)
			for i := 0; err == nil && i < 50; i++ { // the API server needs a moment to see the webhook
				began := time.Now()
				err = engine.NewSide(c, 0).Apply(t.Context(), agents(fmt.Sprint("image-", i)))
				took = time.Since(began)
			}
			t.Logf("after %.1f s: %v", took.Seconds(), err)
			kubetest.Fails(t, err, kube.Forbidden, "apply DaemonSet liqonet-system/liqonet-node")
			hint := err.(*kube.Error).Hint
			kit.ErrorIf(t, !strings.Contains(hint, tt.hint) || strings.Contains(hint, "administrator"), "the hint is %q", hint)
			kit.ErrorIf(t, took > refusalLimit, "it took %s", took)
		})
		removeAgents(t, s, agents("x"))
	}
}

// changedObjects has a webhook add a toleration.
func changedObjects(t *testing.T, s *apiserver.Server, c *kube.Cluster) {
	side := func() *engine.Side { return engine.NewSide(c, 0) }
	apply := func(what string, d *appsv1.DaemonSet, want ...string) *engine.Side {
		t.Helper()
		to := side()
		kit.NoError(t, to.Apply(t.Context(), d))
		if !slices.Equal(to.Changes.List, want) {
			t.Errorf("%s: the changes are %q, want %q", what, to.Changes.List, want)
		}
		return to
	}
	const changed = "a: DaemonSet liqonet-system/liqonet-node"
	apply("a new object", agents("1"), changed)
	apply("the same once more", agents("1"))
	patch, isJSON := []byte(`[{"op":"add","path":"/spec/template/spec/tolerations/-","value":{"key":"x","operator":"Exists"}}]`), admissionv1.PatchTypeJSONPatch
	w := startWebhook(t, s, "apps", "daemonsets", func(r *admissionv1.AdmissionResponse) { r.Patch, r.PatchType = patch, &isJSON })
	apiserver.Wait(t, "the API server uses the webhook", func() error {
		made, err := kube.Preview(t.Context(), s.Admin, manifests.ToApply(agents("1")))
		if err == nil && made.GetGeneration() == 1 {
			return fmt.Errorf("generation %d", made.GetGeneration())
		}
		return err
	})
	apply("the run that replaces the agents", agents("1"), changed)
	apply("a run that changes nothing", agents("1"))
	live := func() *appsv1.DaemonSet {
		d := agents("")
		kit.NoError(t, s.Admin.Get(t.Context(), client.ObjectKeyFromObject(d), d))
		return d
	}
	kit.Check(t, "the generation", live().Generation, 2)
	update := apply("another image", agents("2"), changed)
	kit.NoError(t, update.RollBack(t.Context(), update.Changes.Journal.Changes, func(context.Context, engine.AgentSet) error { return nil }))
	kit.Check(t, "the image after a rollback", live().Spec.Template.Spec.Containers[0].Image, "1")
	none := func(*admissionv1.AdmissionResponse) {}
	w.answer.Store(&none)
	want, there, err := c.Read(t.Context(), agents("1"))
	kit.NoError(t, err)
	kit.ErrorIf(t, kube.Contains(there.Object, want.Object), "what admission no longer changes is no difference")
	made := kit.Must(kube.Preview(t.Context(), s.Admin, want))(t)
	kit.Check(t, "the fields that differ", admission.Differences(there, made), []string{"spec.template.spec.tolerations differs"})
}
