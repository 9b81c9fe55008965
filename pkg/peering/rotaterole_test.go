package peering

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// rotateRole is the manifest in docs/cli.md for a job that replaces keys. PEERING stands for the name of the Peering.
const rotateRole = "../../docs/rotate-keys-role.yaml"

var update = flag.Bool("update", false, "write "+rotateRole)

// asRules converts permissions of one namespace, or of all, to the rules of a role.
func asRules(all []kube.Permission, namespace string) string {
	type key struct{ group, resource, names string }
	verbs := map[key][]string{} // by resource and name
	var keys []key
	names := map[key][]string{} // of objects, by resource and verbs
	for _, p := range all {
		if k := (key{p.Group, p.Resource, p.Name}); p.Namespace == namespace {
			if verbs[k] == nil {
				keys = append(keys, k)
			}
			if !slices.Contains(verbs[k], p.Verb) {
				verbs[k] = append(verbs[k], p.Verb)
			}
		}
	}
	rule := func(k key) key { return key{k.group, k.resource, strings.Join(verbs[k], ", ")} }
	for _, k := range keys {
		if k.names != "" {
			names[rule(k)] = append(names[rule(k)], k.names)
		}
	}
	var lines, done []string
	for _, k := range keys {
		name := ""
		if k.names != "" {
			name = "resourceNames: [" + strings.Join(names[rule(k)], ", ") + "], "
		}
		if id := fmt.Sprint(rule(k), name); !slices.Contains(done, id) {
			done = append(done, id)
			lines = append(lines, fmt.Sprintf("- {apiGroups: [%q], resources: [%s], %sverbs: [%s]}\n", k.group, k.resource, name, rule(k).names))
		}
	}
	return strings.Join(lines, "")
}

// The role in the documentation has exactly the permissions that the command checks.
func TestRotateRole(t *testing.T) {
	const head = `# What kubectl liqonet rotate-keys needs in one of its two clusters, of a Peering called PEERING, and no more.
# TestRotateRole compares it with what the command asks for, TestRotateWithRole with what it does.
apiVersion: v1
kind: Namespace
metadata: {name: liqonet-rotate-keys}
---
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: liqonet-rotate-keys, name: rotate-keys}
automountServiceAccountToken: false
`
	all := rotatePermissions("PEERING")
	want := head
	for _, namespace := range []string{"", "default", "kube-system", v1alpha1.Namespace} {
		kind, where := "ClusterRole", ""
		if namespace != "" {
			kind, where = "Role", "namespace: "+namespace+", "
		}
		want += fmt.Sprintf(`---
apiVersion: rbac.authorization.k8s.io/v1
kind: %[1]s
metadata: {%[2]sname: rotate-keys}
rules:
%[3]s---
apiVersion: rbac.authorization.k8s.io/v1
kind: %[1]sBinding
metadata: {%[2]sname: rotate-keys}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %[1]s, name: rotate-keys}
subjects:
- {kind: ServiceAccount, namespace: liqonet-rotate-keys, name: rotate-keys}
`, kind, where, asRules(all, namespace))
	}
	if *update {
		kit.NoError(t, os.WriteFile(rotateRole, []byte(want), 0o644))
	}
	got := kit.Must(os.ReadFile(rotateRole))(t)
	kit.Check(t, fmt.Sprintf("%s, which -update writes", rotateRole), string(got), want)
	// Each permission is needed: without it the command fails before it changes anything.
	rules := readRules(t, "b")
	asked := rotatePermissions("b")
	check := func(rules map[string][]rbacv1.PolicyRule) error {
		return kubetest.NewCluster(t, "a", kubetest.Allowing(new(int), &sync.Mutex{}, func(a authorizationv1.ResourceAttributes) bool {
			return allows(rules, a.Namespace, a.Group, strings.Trim(a.Resource+"/"+a.Subresource, "/"), a.Name, a.Verb)
		})).CheckPermissions(t.Context(), asked)
	}
	kit.CheckNoError(t, check(rules))
	for namespace, of := range rules {
		for i := range of {
			fewer := maps.Clone(rules)
			fewer[namespace] = slices.Delete(slices.Clone(of), i, i+1)
			err := check(fewer)
			kit.ErrorIf(t, err == nil, "nobody asks for %+v in %q", of[i], namespace)
		}
	}
}

// readRules returns the rules of the roles, by namespace.
func readRules(t *testing.T, peering string) map[string][]rbacv1.PolicyRule {
	t.Helper()
	text := kit.Must(os.ReadFile(rotateRole))(t)
	rules := map[string][]rbacv1.PolicyRule{}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(bytes.ReplaceAll(text, []byte("PEERING"), []byte(peering))), 4096)
	for {
		var role rbacv1.Role // a ClusterRole has the same fields
		if err := decoder.Decode(&role); errors.Is(err, io.EOF) {
			return rules
		} else if err != nil {
			t.Fatal(err)
		}
		if len(role.Rules) > 0 {
			rules[role.Namespace] = append(rules[role.Namespace], role.Rules...)
		}
	}
}

// allows decides as an API server with RBAC does.
func allows(rules map[string][]rbacv1.PolicyRule, namespace, group, resource, name, verb string) bool {
	of := rules[""]
	if namespace != "" {
		of = slices.Concat(of, rules[namespace])
	}
	return slices.ContainsFunc(of, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, verb) &&
			(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, name))
	})
}

// guarded is a cluster whose API server rejects what the rules do not allow. It records the requests.
func (w *Site) guarded(rules map[string][]rbacv1.PolicyRule, done *sync.Map) *kube.Cluster {
	check := func(r *fakeapi.Request, verb string) error {
		kind := r.Object.GetObjectKind().GroupVersionKind()
		if kind.Empty() {
			kinds, _, err := w.Client.Scheme().ObjectKinds(r.Object)
			if err != nil {
				return err
			}
			kind = kinds[0]
		}
		plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Group: kind.Group, Kind: r.Kind})
		resource, name := strings.Trim(plural.Resource+"/"+r.Sub, "/"), r.Name
		if r.Verb == "create" {
			name = ""
		}
		if !allows(rules, r.Namespace, kind.Group, resource, name, verb) {
			return apierrors.NewForbidden(schema.GroupResource{Group: kind.Group, Resource: resource}, r.Namespace+"/"+name, fmt.Errorf("may not %s", verb))
		}
		done.Store(kube.Permission{Group: kind.Group, Resource: resource, Namespace: r.Namespace, Verb: verb, Name: name}, true)
		return nil
	}
	return w.Through(func(ctx context.Context, r *fakeapi.Request) error {
		if review := r.Review(); review != nil { // every user may
			a := review.Spec.ResourceAttributes
			review.Status.Allowed = allows(rules, a.Namespace, a.Group, strings.Trim(a.Resource+"/"+a.Subresource, "/"), a.Name, a.Verb)
			return nil
		}
		verb := r.Verb
		if verb == "apply" {
			verb = "patch"
		}
		err := check(r, verb)
		if u, isApplied := r.Object.(*unstructured.Unstructured); isApplied && r.Verb == "apply" && err == nil {
			live := &unstructured.Unstructured{}
			live.SetGroupVersionKind(u.GroupVersionKind())
			if w.Raw.Get(ctx, client.ObjectKeyFromObject(u), live) != nil {
				err = check(r, "create")
			}
		}
		if err != nil {
			return err
		}
		return r.Send(ctx)
	})
}

// With the role alone, the keys of a peering with one plane and with two can be replaced, whichever cluster is the
// server. This also works if another command has written to the lock, which must then be read.
func TestRotateWithRole(t *testing.T) {
	kit.Play(t)
	done := &sync.Map{}
	for _, planes := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			a, b := TwoSites(t, kubetest.Node("other", true, "172.18.9.11"))
			MustPeer(t, a, b, engine.Options{Planes: planes})
			a.Tls, b.Tls = kube.Hybrid, kube.Hybrid
			for _, presharedOnly := range []bool{true, false} {
				touch := then{"Replacing the keys of plane 0": func() { a.touchLock(t) }}
				r, err := Rotate(t.Context(), a.guarded(readRules(t, "b"), done), b.guarded(readRules(t, "a"), done), Rotation{PresharedOnly: presharedOnly}, touch)
				kit.FatalIf(t, err != nil, "%d planes: %v", planes, err)
				if len(r.Views[0].Planes) != planes || r.Views[0].PresharedKeyExchange != kube.Hybrid || r.Views[1].PresharedKeyExchange != kube.Hybrid {
					t.Errorf("%d planes: got %+v", planes, r.Views)
				}
			}
		})
	}
	// All permissions are used, except those that depend on the network plugin or are only granted.
	_, kinds := discovery.PluginSources()
	var idle []string
	for _, p := range append(rotatePermissions("a"), rotatePermissions("b")...) {
		if slices.ContainsFunc(kinds, func(k schema.GroupVersionKind) bool { return k.Group == p.Group }) {
			continue
		}
		used := false
		done.Range(func(k, _ any) bool {
			d := k.(kube.Permission)
			used = d.Group == p.Group && d.Resource == p.Resource && d.Verb == p.Verb && (p.Namespace == "" || d.Namespace == p.Namespace)
			return !used
		})
		if what := p.Verb + " " + p.Resource; !used && !slices.Contains(idle, what) {
			idle = append(idle, what)
		}
	}
	kit.Check(t, "what is not used", idle, []string{"create events"})
}

// touchLock changes the lock of the only peering, and returns when it was then renewed.
func (w *Site) touchLock(t *testing.T) {
	t.Helper()
	held := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "liqonet-peering-" + w.Peer.ID}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"somebody":"was here"}}}`))
	kit.NoError(t, w.Raw.Patch(t.Context(), held, patch))
	touched := held.Spec.RenewTime.Time
	kit.Within(t, 2*lock.RenewInterval, "the lock to be renewed", func() string {
		if err := w.Raw.Get(t.Context(), client.ObjectKeyFromObject(held), held); err != nil {
			return err.Error()
		}
		if !held.Spec.RenewTime.After(touched) {
			return "it was not"
		}
		return ""
	})
}
