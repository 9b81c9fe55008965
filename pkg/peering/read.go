package peering

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
)

// get reads an object. It returns nil if there is none, or not even its kind.
func get[T any, P interface {
	*T
	client.Object
}](ctx context.Context, c *Cluster, namespace, name string) (P, error) {
	obj := P(new(T))
	err := c.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, obj)
	switch {
	case absent(err):
		return nil, nil
	case err != nil:
		return nil, c.fail(fmt.Sprintf("read %s %s", kindName(obj), name), err)
	}
	return obj, nil
}

// list reads the objects of a kind: none if there is no such kind.
func (c *Cluster) list(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := c.Client.List(ctx, list, opts...); !absent(err) {
		return c.fail(fmt.Sprintf("list %s objects", kindName(list)), err)
	}
	return nil
}

// lists reads the objects of several kinds at the same time, those in namespaces from ours.
func (c *Cluster) lists(ctx context.Context, lists ...client.ObjectList) error {
	g, ctx := failure.NewGroup(ctx)
	for _, list := range lists {
		g.Go(func() error { return c.list(ctx, list, inOurNamespace(list)) })
	}
	return g.Wait()
}

// inOurNamespace limits the list of a kind that is in namespaces to ours.
func inOurNamespace(list client.ObjectList) client.ListOption {
	switch list.(type) {
	case *corev1.NodeList, *corev1.NamespaceList, *rbacv1.ClusterRoleList, *rbacv1.ClusterRoleBindingList,
		*admissionv1.ValidatingAdmissionPolicyList, *admissionv1.ValidatingAdmissionPolicyBindingList,
		*apiextensionsv1.CustomResourceDefinitionList, *v1alpha1.ClusterNetworkList, *v1alpha1.PeeringList, *v1alpha1.NodeNetworkList:
		return client.InNamespace("")
	}
	return client.InNamespace(v1alpha1.Namespace)
}

// kindName is the kind of an object, or of those in a list.
func kindName(o runtime.Object) string {
	name := cmp.Or(o.GetObjectKind().GroupVersionKind().Kind, reflect.TypeOf(o).Elem().Name())
	return strings.TrimSuffix(name, "List")
}

// readSecret reads a Secret without what is in it, nil if there is none.
func (c *Cluster) readSecret(ctx context.Context, name string) (*metav1.PartialObjectMetadata, error) {
	secret := secretNamed(name)
	err := c.Client.Get(ctx, client.ObjectKeyFromObject(secret), secret)
	if absent(err) {
		return nil, nil
	}
	return secret, c.fail("read Secret "+name, err)
}

// secretNamed is a Secret in requests for which nothing comes back of what is in it.
func secretNamed(name string) *metav1.PartialObjectMetadata {
	secret := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name}}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return secret
}

// secretNames lists Secrets without what is in them.
func secretNames() client.ObjectList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	return list
}
