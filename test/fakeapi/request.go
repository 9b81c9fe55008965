package fakeapi

import (
	"context"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/kube"
)

// Request is one request of a client.
type Request struct {
	// Verb is get, list, watch, create, update, patch, apply, delete or deletecollection. Sub is the subresource, if any.
	Verb, Sub string
	// Kind is that of the object, also for a list. Namespace and Name are empty if the request does not say them.
	Kind, Namespace, Name string
	// Object is what is read or written; for apply it is unstructured.
	Object runtime.Object
	DryRun bool

	api  client.WithWatch
	send func(context.Context, client.WithWatch) error
}

// Send sends the request to the API.
func (r *Request) Send(ctx context.Context) error { return r.send(ctx, r.api) }

// SendTo sends it to another client.
func (r *Request) SendTo(ctx context.Context, api client.WithWatch) error { return r.send(ctx, api) }

// Reads says that the request changes nothing.
func (r *Request) Reads() bool {
	return r.DryRun || slices.Contains([]string{"get", "list", "watch"}, r.Verb)
}

// Of says whether it is one with the verb for an object of the kind.
func (r *Request) Of(verb, kind string) bool { return r.Verb == verb && r.Kind == kind }

// Review is the question whether the user may do something, nil if the request asks nothing.
func (r *Request) Review() *authorizationv1.SelfSubjectAccessReview {
	review, _ := r.Object.(*authorizationv1.SelfSubjectAccessReview)
	return review
}

// IsLock says that it is about the lock of a command.
func (r *Request) IsLock() bool { return r.Kind == "Lease" && r.Namespace == metav1.NamespaceSystem }

// String is as "update status of Deployment liqonet-system/x".
func (r *Request) String() string {
	object := r.Kind + " " + strings.TrimPrefix(r.Namespace+"/"+r.Name, "/")
	if r.Sub != "" {
		return r.Verb + " " + r.Sub + " of " + object
	}
	return r.Verb + " " + object
}

// Intercept returns a client each of whose requests do sends, or answers.
func Intercept(api client.WithWatch, do func(context.Context, *Request) error) client.WithWatch {
	type with = client.WithWatch
	on := func(ctx context.Context, verb string, o runtime.Object, send func(context.Context, with) error) error {
		r := &Request{Verb: verb, Kind: kube.KindName(o), Object: o, api: api, send: send}
		if obj, ok := o.(client.Object); ok {
			r.Namespace, r.Name = obj.GetNamespace(), obj.GetName()
		}
		return do(ctx, r)
	}
	onSub := func(ctx context.Context, verb, sub string, o client.Object, send func(context.Context, client.SubResourceClient) error) error {
		return do(ctx, &Request{
			Verb: verb, Sub: sub, Kind: kube.KindName(o), Namespace: o.GetNamespace(), Name: o.GetName(), Object: o, api: api,
			send: func(ctx context.Context, api with) error { return send(ctx, api.SubResource(sub)) },
		})
	}
	inNamespace := func(opts []client.ListOption) string { return (&client.ListOptions{}).ApplyOptions(opts).Namespace }
	return interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, _ with, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			return do(ctx, &Request{
				Verb: "get", Kind: kube.KindName(obj), Namespace: key.Namespace, Name: key.Name, Object: obj, api: api,
				send: func(ctx context.Context, api with) error { return api.Get(ctx, key, obj, opts...) },
			})
		},
		List: func(ctx context.Context, _ with, list client.ObjectList, opts ...client.ListOption) error {
			return do(ctx, &Request{
				Verb: "list", Kind: kube.KindName(list), Namespace: inNamespace(opts), Object: list, api: api,
				send: func(ctx context.Context, api with) error { return api.List(ctx, list, opts...) },
			})
		},
		Watch: func(ctx context.Context, _ with, list client.ObjectList, opts ...client.ListOption) (w watch.Interface, err error) {
			err = do(ctx, &Request{
				Verb: "watch", Kind: kube.KindName(list), Namespace: inNamespace(opts), Object: list, api: api,
				send: func(ctx context.Context, api with) (err error) {
					w, err = api.Watch(ctx, list, opts...)
					return err
				},
			})
			return w, err
		},
		Create: func(ctx context.Context, _ with, obj client.Object, opts ...client.CreateOption) error {
			return on(ctx, "create", obj, func(ctx context.Context, api with) error { return api.Create(ctx, obj, opts...) })
		},
		Update: func(ctx context.Context, _ with, obj client.Object, opts ...client.UpdateOption) error {
			return on(ctx, "update", obj, func(ctx context.Context, api with) error { return api.Update(ctx, obj, opts...) })
		},
		Patch: func(ctx context.Context, _ with, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return on(ctx, "patch", obj, func(ctx context.Context, api with) error { return api.Patch(ctx, obj, patch, opts...) })
		},
		Apply: func(ctx context.Context, _ with, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			u, err := applied(obj)
			if err != nil {
				return err
			}
			return do(ctx, &Request{
				Verb: "apply", Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName(), Object: u, api: api,
				DryRun: len((&client.ApplyOptions{}).ApplyOptions(opts).DryRun) > 0,
				send:   func(ctx context.Context, api with) error { return api.Apply(ctx, obj, opts...) },
			})
		},
		Delete: func(ctx context.Context, _ with, obj client.Object, opts ...client.DeleteOption) error {
			return on(ctx, "delete", obj, func(ctx context.Context, api with) error { return api.Delete(ctx, obj, opts...) })
		},
		DeleteAllOf: func(ctx context.Context, _ with, obj client.Object, opts ...client.DeleteAllOfOption) error {
			return on(ctx, "deletecollection", obj, func(ctx context.Context, api with) error { return api.DeleteAllOf(ctx, obj, opts...) })
		},
		SubResourceApply: func(ctx context.Context, _ client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			u, err := applied(obj)
			if err != nil {
				return err
			}
			return onSub(ctx, "apply", sub, u, func(ctx context.Context, s client.SubResourceClient) error { return s.Apply(ctx, obj, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, _ client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			return onSub(ctx, "update", sub, obj, func(ctx context.Context, s client.SubResourceClient) error { return s.Update(ctx, obj, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, _ client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return onSub(ctx, "patch", sub, obj, func(ctx context.Context, s client.SubResourceClient) error { return s.Patch(ctx, obj, p, opts...) })
		},
	})
}
