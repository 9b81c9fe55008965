package attack_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/samber/lo"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/diagnose"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/test/apiserver"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// attacked is a cluster with a real API server, which is peered with b and c. Agents and controllers are played.
type attacked struct {
	*apiserver.Server
	own, b, c *kube.Cluster
	// tokens are clients of agents, by their names in the test.
	tokens map[string]client.Client
}

// lists are the kinds that an instruction could be in, or be about.
func lists() []client.ObjectList {
	return []client.ObjectList{
		&corev1.NamespaceList{}, &corev1.NodeList{}, &corev1.ServiceAccountList{}, &corev1.ConfigMapList{}, &corev1.SecretList{}, &corev1.ServiceList{}, &corev1.PodList{},
		&corev1.ResourceQuotaList{}, &appsv1.DeploymentList{}, &appsv1.DaemonSetList{}, &coordinationv1.LeaseList{},
		&rbacv1.RoleList{}, &rbacv1.RoleBindingList{}, &rbacv1.ClusterRoleList{}, &rbacv1.ClusterRoleBindingList{},
		&admissionv1.ValidatingAdmissionPolicyList{}, &admissionv1.ValidatingAdmissionPolicyBindingList{}, &apiextensionsv1.CustomResourceDefinitionList{},
		&v1alpha1.ClusterNetworkList{}, &v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{},
	}
}

// foreign are objects of others.
func foreign() []client.Object {
	meta := metav1.ObjectMeta{Namespace: "payments", Name: "db"}
	return []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: meta.Namespace}}, &corev1.Secret{ObjectMeta: meta}, &corev1.ConfigMap{ObjectMeta: meta},
		&corev1.ServiceAccount{ObjectMeta: meta}, &coordinationv1.Lease{ObjectMeta: meta},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "of-somebody"}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "of-somebody"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}},
	}
}

// instructions are changes that a command recorded as its own, which it would revert: foreign objects did not exist, and
// roles had more permissions.
func instructions(t *testing.T) string {
	t.Helper()
	var changes []engine.Change
	for _, obj := range foreign() {
		kit.NoError(t, kind(obj))
		id := map[string]any{"apiVersion": obj.GetObjectKind().GroupVersionKind().GroupVersion().String(), "kind": obj.GetObjectKind().GroupVersionKind().Kind, "metadata": map[string]any{
			"namespace": obj.GetNamespace(), "name": obj.GetName(),
		}}
		changes = append(changes, engine.Change{After: id})
	}
	admin := map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": map[string]any{"name": v1alpha1.NodeAgentName}}
	more := runtime.DeepCopyJSON(admin)
	more["rules"] = []any{map[string]any{"apiGroups": []any{"*"}, "resources": []any{"*"}, "verbs": []any{"*"}}}
	raw, err := json.Marshal(append(changes, engine.Change{After: admin, Before: more}))
	kit.NoError(t, err)
	return string(raw)
}

// kind sets the kind of a typed object.
func kind(obj client.Object) error {
	scheme, err := fakeapi.Scheme()
	if err != nil {
		return err
	}
	kinds, _, err := scheme.ObjectKinds(obj)
	if err == nil {
		obj.GetObjectKind().SetGroupVersionKind(kinds[0])
	}
	return err
}

func newAttacked(t *testing.T) *attacked {
	t.Helper()
	a := &attacked{Server: apiserver.Start(t), tokens: map[string]client.Client{}}
	a.StartControllers(t, "resourcequota-controller,garbage-collector-controller,namespace-controller,serviceaccount-controller")
	for _, obj := range fakeapi.Objects("", firstNode, "172.18.1.11", "10.244.0.0/16") {
		if _, isService := obj.(*corev1.Service); isService {
			continue // the API server makes its own
		}
		n, isNode := obj.(*corev1.Node)
		if isNode {
			n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.244.0.0/24", []string{"10.244.0.0/24"}
		}
		status := obj.DeepCopyObject().(client.Object)
		kit.NoError(t, client.IgnoreAlreadyExists(a.Admin.Create(t.Context(), obj)))
		if isNode {
			n.Status, n.Spec.Taints = status.(*corev1.Node).Status, nil
			kit.NoError(t, a.Admin.Status().Update(t.Context(), n))
			kit.NoError(t, a.Admin.Patch(t.Context(), n, merged("%s", `{"spec":{"taints":null}}`)))
		}
	}
	for _, obj := range foreign() {
		kit.NoError(t, a.Admin.Create(t.Context(), obj))
	}
	a.play(t)
	a.own = clusterOf("a", a.Admin)
	kit.NoError(t, a.own.Identify(t.Context()))
	a.b, a.c = playedCluster(t, "b", 2), playedCluster(t, "c", 3)
	for _, peer := range []*kube.Cluster{a.b, a.c} {
		kit.NoError(t, a.run(t, "peer", peer), "peer with %s", peer.Name)
	}
	var pods corev1.PodList
	kit.NoError(t, a.Admin.List(t.Context(), &pods, client.InNamespace(v1alpha1.Namespace)))
	for account, name := range map[string]string{v1alpha1.NodeAgentName: nodeAgent, manifests.Gateway{Peering: a.b.Name}.Name(): gatewayAgent} {
		i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.ServiceAccountName == account })
		kit.FatalIf(t, i < 0, "no pod has the account %s", account)
		a.tokens[name] = a.Agent(t, account, &pods.Items[i])
	}
	return a
}

func clusterOf(name string, c client.WithWatch) *kube.Cluster {
	out := kubetest.ClusterOf(name, c)
	out.DefaultImage, out.Kubectl = "image:1", "kubectl"
	return out
}

// playedCluster is one with a played API.
func playedCluster(t *testing.T, name string, number int) *kube.Cluster {
	t.Helper()
	server := kit.Must(fakeapi.New(fakeapi.Objects("id-of-"+name, name+"-1", fmt.Sprintf("172.18.%d.11", number), "10.244.0.0/16")...))(t)
	t.Cleanup(server.Close)
	scheme := server.Client.Scheme()
	return clusterOf(name, kit.Must(client.NewWithWatch(&rest.Config{Host: server.URL, QPS: -1}, client.Options{Scheme: scheme, Mapper: apiserver.Mapper(scheme)}))(t))
}

// play does what agents, controllers and kubelets do, until the test ends.
func (a *attacked) play(t *testing.T) {
	failed := error(nil)
	c := fakeapi.Intercept(a.Admin, func(ctx context.Context, r *fakeapi.Request) (err error) {
		defer func() {
			if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
				failed = fmt.Errorf("%s: %w", r, err)
			}
		}()
		switch obj := r.Object.(type) {
		case *appsv1.ControllerRevision:
			obj.Data.Raw = []byte("{}")
		case *corev1.Pod:
			if r.Verb == "delete" {
				return a.Admin.Delete(ctx, obj, client.GracePeriodSeconds(0)) // as a kubelet that has ended it
			}
			if r.Verb != "create" {
				break
			}
			status := obj.Status
			if err := r.Send(ctx); err != nil {
				return err
			}
			return retry.RetryOnConflict(retry.DefaultRetry, func() error {
				if err := a.Admin.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
					return err
				}
				obj.Status = status
				return a.Admin.Status().Update(ctx, obj)
			})
		}
		return r.Send(ctx)
	})
	ctx, cancel := context.WithCancel(t.Context())
	player := fakeapi.NewPlayerOn(c)
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			if failed = a.endPods(ctx); failed == nil {
				_ = player.Play(ctx) // it is tried again, and the last error is shown
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if t.Failed() {
			t.Log("agents failed at last: ", failed)
		}
	})
}

// endPods removes the pods that somebody has deleted, as kubelets do.
func (a *attacked) endPods(ctx context.Context) error {
	var pods corev1.PodList
	err := a.Admin.List(ctx, &pods, client.InNamespace(v1alpha1.Namespace))
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp != nil {
			err = errors.Join(err, client.IgnoreNotFound(a.Admin.Delete(ctx, &pod, client.GracePeriodSeconds(0))))
		}
	}
	return err
}

// run runs an administrator's command.
func (a *attacked) run(t *testing.T, command string, peer *kube.Cluster) (err error) {
	t.Helper()
	ctx := kit.Timeout(t, 5*time.Minute)
	switch command {
	case "peer":
		out := peering.PeerAll(ctx, []peering.Pair{{a.own, peer}}, engine.Options{}, func(peering.Pair) kube.Reporter { return kube.Quiet{} })
		return out[0].Err
	case "rotate-keys":
		return kit.Err(peering.Rotate(ctx, a.own, peer, peering.Rotation{}, kube.Quiet{}))
	case "doctor --fix":
		clusters := []*kube.Cluster{a.own, peer}
		facts, err := diagnose.ReadFacts(ctx, clusters, nil, kube.Quiet{})
		if err == nil {
			_, err = diagnose.Fix(ctx, clusters, facts, doctor.Examine(facts), kube.Quiet{})
		}
		return err
	}
	_, _, err = peering.Unpeer(ctx, a.own, peer, kube.Quiet{})
	return err
}

// all are the objects of all kinds, by kind and name.
func (a *attacked) all(t *testing.T) map[string]client.Object {
	t.Helper()
	out := map[string]client.Object{}
	for _, list := range lists() {
		kit.NoError(t, a.Admin.List(t.Context(), list))
		for _, obj := range kube.Items(list) {
			kit.NoError(t, kind(obj))
			out[kube.Describe(obj)] = obj
		}
	}
	return out
}

// others is what neither an agent's token nor a command for b may change: all objects but those of b, those of the agents
// themselves, and what commands replace for all peerings.
func (a *attacked) others(t *testing.T) map[string]any {
	t.Helper()
	out := map[string]any{}
	for name, obj := range a.all(t) {
		switch o := obj.(type) {
		case *corev1.Pod, *coordinationv1.Lease:
			if obj.GetNamespace() == v1alpha1.Namespace || obj.GetNamespace() == metav1.NamespaceSystem {
				continue // heartbeats and locks
			}
		case *corev1.Secret:
			if strings.HasPrefix(o.Name, "liqonet-overlay-") {
				continue // of the generation in use
			}
		case *v1alpha1.ClusterNetwork:
			out["the entry of c"] = o.Spec.Peers[slices.IndexFunc(o.Spec.Peers, func(p v1alpha1.PeerAllocation) bool { return p.ClusterID == a.c.ID })]
			continue
		case *appsv1.DaemonSet:
			pod := o.Spec.Template.Spec
			out[name] = []any{pod.ServiceAccountName, pod.HostNetwork, pod.Containers[0].Image, pod.Containers[0].Command, len(pod.Containers)}
			continue
		}
		if obj.GetLabels()[v1alpha1.LabelPeering] == a.b.Name || slices.Contains([]string{a.b.Name, firstNode, v1alpha1.NodeHistoryName(firstNode)}, obj.GetName()) {
			continue
		}
		content := kit.Must(runtime.DefaultUnstructuredConverter.ToUnstructured(obj))(t)
		delete(content, "status")
		for _, field := range []string{"managedFields", "resourceVersion", "generation"} {
			delete(content["metadata"].(map[string]any), field)
		}
		out[name] = content
	}
	return out
}

// attempt is a request with an agent's token. It is likely to be granted, at least in part, if agents write objects of
// that kind.
type attempt struct {
	by, what string
	isLikely bool
	do       func(ctx context.Context) error
}

// attempts are each kind of change of each object, a new object of each name that means something to commands, and the
// deletion of each.
func (a *attacked) attempts(t *testing.T) (out []attempt) {
	t.Helper()
	everything, err := json.Marshal(instructions(t))
	kit.NoError(t, err)
	all := a.all(t)
	owner := all["Peering "+a.b.Name]
	patches := []string{
		`{"metadata":{"labels":{"app.kubernetes.io/managed-by":"liqonet","liqonet.io/peering":"b"},"annotations":{"liqonet.io/claim":"x"}}}`,
		`{"metadata":{"labels":{"app.kubernetes.io/managed-by":null,"liqonet.io/peering":null}}}`,
		finalizer,
		fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":"Peering","name":"b","uid":%q}]}}`, v1alpha1.GroupVersion, owner.GetUID()),
		fmt.Sprintf(`{"data":{%q:%s}}`, engine.JournalKey, everything),
		fmt.Sprintf(`{"metadata":{"annotations":{"liqonet.io/claim":"x"}},"stringData":{%q:%s}}`, engine.JournalKey, everything),
		`{"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`,
		`{"subjects":[{"kind":"ServiceAccount","namespace":"liqonet-system","name":"liqonet-node"}]}`,
		`{"spec":{"holderIdentity":"x","leaseDurationSeconds":1,"renewTime":"2026-01-01T00:00:00.000000Z"}}`,
		`{"spec":{"peers":[],"planes":[],"remote":{"clusterID":"x"},"replicas":0,"nodeName":"x","template":{"spec":{"serviceAccountName":"x"}}}}`,
		`{"spec":{"validations":[],"policyName":"x"}}`,
	}
	statuses := []string{
		`{"status":{"conditions":[` + connected("True", "ProbesAnswered", "") + `],"planes":[{"index":0,"observedGeneration":99,"connected":true,"podIP":"10.244.0.66"},{"index":1}]}}`,
		`{"status":{"address":"10.80.0.9","routes":["0.0.0.0/1"],"podCIDRs":["10.0.0.0/8"],"podIPs":["10.99.0.7"],"underlayMTU":1,"gateways":[{"peeringName":"c","plane":0,"ready":false}]}}`,
		`{"status":{"phase":"Terminating","replicas":0}}`,
	}
	for by, c := range a.tokens {
		add := func(what string, obj client.Object, do func(ctx context.Context, obj client.Object) error) {
			isLikely := slices.Contains([]string{"ConfigMap", "Lease", "NodeNetwork", "Peering"}, kube.KindName(obj))
			out = append(out, attempt{by, what + " " + kube.Describe(obj), isLikely, func(ctx context.Context) error { return do(ctx, obj.DeepCopyObject().(client.Object)) }})
		}
		var made []client.Object
		for _, name := range []string{
			manifests.JournalSecret("b").Name, manifests.JournalSecret("c").Name, "liqonet-overlay-9", "liqonet-identity", "gateway-b-9", "gateway-c-0", "history-gateway-c-0", "liqonet-peering-" + a.own.ID, "liqonet-cluster", "node-10.80.0.9",
		} {
			for _, in := range []string{v1alpha1.Namespace, metav1.NamespaceSystem} {
				meta := metav1.ObjectMeta{Namespace: in, Name: name, Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager, v1alpha1.LabelPeering: "b"}, Annotations: map[string]string{"liqonet.io/claim": "x"}}
				data := map[string]string{engine.JournalKey: instructions(t)}
				made = append(made, &corev1.ConfigMap{ObjectMeta: meta, Data: data}, &corev1.Secret{ObjectMeta: meta, StringData: data}, &corev1.ServiceAccount{ObjectMeta: meta},
					&coordinationv1.Lease{ObjectMeta: meta, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("x")}})
			}
		}
		for _, obj := range made {
			kit.NoError(t, kind(obj))
			add("create", obj, func(ctx context.Context, obj client.Object) error { return c.Create(ctx, obj) })
			add("apply", obj, func(ctx context.Context, obj client.Object) error {
				obj.SetManagedFields(nil)
				return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(manifests.ToApply(obj.(manifests.Object))), client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership)
			})
		}
		for _, obj := range all {
			if strings.HasPrefix(obj.GetName(), "system:") {
				continue // of the API server
			}
			for _, patch := range patches {
				add("patch with "+patch[:min(len(patch), 60)], obj, func(ctx context.Context, obj client.Object) error {
					return c.Patch(ctx, obj, client.RawPatch(types.MergePatchType, []byte(patch)))
				})
			}
			for _, patch := range statuses {
				add("report "+patch[:min(len(patch), 60)], obj, func(ctx context.Context, obj client.Object) error {
					return c.Status().Patch(ctx, obj, client.RawPatch(types.MergePatchType, []byte(patch)))
				})
			}
			add("delete", obj, func(ctx context.Context, obj client.Object) error { return c.Delete(ctx, obj) })
		}
	}
	slices.SortFunc(out, func(x, y attempt) int { return cmp.Or(cmp.Compare(x.by, y.by), cmp.Compare(x.what, y.what)) })
	return out
}

// try makes attempts, several at a time, and returns those that were granted.
func try(t *testing.T, all []attempt) (granted []attempt) {
	t.Helper()
	var mu sync.Mutex
	var running sync.WaitGroup
	next := make(chan attempt)
	for range 8 {
		running.Go(func() {
			for one := range next {
				err := one.do(t.Context())
				mu.Lock()
				switch {
				case err == nil:
					granted = append(granted, one)
				case errors.As(err, new(apierrors.APIStatus)) || strings.Contains(err.Error(), "not found"):
				default:
					t.Errorf("%s: %s: %v", one.by, one.what, err)
				}
				mu.Unlock()
			}
		})
	}
	for _, one := range all {
		next <- one
	}
	close(next)
	running.Wait()
	return granted
}

// An agent's token writes whatever the API server takes: nothing of it makes a command change or delete what is not of its
// own peering. With one permission more, to create Secrets, a journal in its name does.
func TestAttackCommands(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	log.SetLogger(logr.Discard()) // of warnings by the API server
	a := newAttacked(t)
	before := a.others(t)
	kit.FatalIf(t, len(before) < 100, "%d objects are not all", len(before))
	likely, others := lo.FilterReject(a.attempts(t), func(one attempt, _ int) bool { return one.isLikely })
	tried := slices.Concat(likely, kubetest.Some(t, others, 300, len(others)))
	granted := try(t, tried)
	t.Logf("%d of %d attempts were granted", len(granted), len(tried))
	for _, one := range granted {
		t.Logf("%s: %s", one.by, one.what)
	}
	kit.ErrorIf(t, len(granted) < 4, "an agent may write its own")
	kit.Check(t, "other objects, when the tokens have written", a.others(t), before)
	for _, command := range append(kubetest.Some(t, []string{"peer", "rotate-keys", "doctor --fix"}, 1, 3), "unpeer") {
		try(t, granted)
		kit.CheckNoError(t, a.run(t, command, a.b), command)
		kit.Check(t, "other objects after "+command, a.others(t), before)
	}
	// Without the defense:
	kit.NoError(t, a.run(t, "peer", a.b))
	account, role := v1alpha1.NodeAgentName, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "more"}}
	role.Rules = []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create"}}}
	kit.NoError(t, a.Admin.Create(t.Context(), role))
	kit.NoError(t, a.Admin.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: role.Namespace, Name: role.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: v1alpha1.Namespace, Name: account}},
	}))
	journal := manifests.JournalSecret(a.b.Name)
	journal.StringData = map[string]string{engine.JournalKey: instructions(t)}
	var pods corev1.PodList
	kit.NoError(t, a.Admin.List(t.Context(), &pods, client.InNamespace(v1alpha1.Namespace)))
	i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.ServiceAccountName == account })
	by := a.Agent(t, account, &pods.Items[i])
	apiserver.Wait(t, "the token creates a Secret", func() error { return by.Create(t.Context(), journal.DeepCopy()) })
	t.Logf("peer: %v", a.run(t, "peer", a.b))
	err := a.Admin.Get(t.Context(), client.ObjectKey{Namespace: "payments", Name: "db"}, &corev1.Secret{})
	kit.ErrorIf(t, !apierrors.IsNotFound(err), "a journal has no effect, so the test proves nothing: %v", err)
}
