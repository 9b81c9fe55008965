// Package fakeapi is a Kubernetes API server for tests of commands as processes:
// over HTTP, with the fake client of controller-runtime behind it, and what that one
// does otherwise than a real API server. What agents and controllers would do in such
// a cluster is played.
//
// It merges what is applied as our schemas say. Out of scope: defaults, admission, validation, and everything that runs.
package fakeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	ownschema "github.com/liqonet/liqonet/test/schema"
)

// Server is one cluster's API.
type Server struct {
	*httptest.Server
	// Client is behind it.
	Client *API

	scheme *runtime.Scheme
	kinds  map[schema.GroupVersionResource]schema.GroupVersionKind
	player *Player
	mu     sync.Mutex

	// Unplayed leaves what agents and controllers do to real ones.
	Unplayed bool

	watches Watches
	// down says until when every request fails, requests counts them.
	down     time.Time
	requests int
	// unplanned are responses with the status 500 that no test planned.
	unplanned []string
}

// Close ends the API. It panics if it has answered a request with the status 500 without FailFor: commands retry that, so that a test
// would only be slow.
func (s *Server) Close() {
	s.Server.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unplanned) > 0 {
		panic("the fake API has failed:\n" + strings.Join(s.unplanned, "\n"))
	}
}

// fail answers with an error.
func (s *Server) fail(w http.ResponseWriter, req *http.Request, err error) {
	if code := writeError(w, err); code == http.StatusInternalServerError && req.Context().Err() == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unplanned = append(s.unplanned, fmt.Sprintf("%s %s: %v", req.Method, req.URL, err))
	}
}

// FailFor lets every request fail for a while, with the status 500, and ends all watches.
func (s *Server) FailFor(d time.Duration) {
	s.mu.Lock()
	s.down = time.Now().Add(d)
	s.mu.Unlock()
	s.CloseClientConnections()
}

// Requests is how many there were.
func (s *Server) Requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// isDown counts a request, and says whether it has to fail.
func (s *Server) isDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	return time.Now().Before(s.down)
}

// Scheme has the kinds that commands know.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(
		admissionv1.AddToScheme(s), coordinationv1.AddToScheme(s), corev1.AddToScheme(s), discoveryv1.AddToScheme(s), appsv1.AddToScheme(s), batchv1.AddToScheme(s), rbacv1.AddToScheme(s), networkingv1.AddToScheme(s), policyv1.AddToScheme(s),
		authorizationv1.AddToScheme(s), apiextensionsv1.AddToScheme(s), v1alpha1.AddToScheme(s), mcs.AddToScheme(s), metav1.AddMetaToScheme(s),
	)
}

// New starts the API of a cluster that has the objects. Close it.
func New(objs ...client.Object) (*Server, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	s := &Server{scheme: scheme, kinds: map[schema.GroupVersionResource]schema.GroupVersionKind{}}
	for gvk := range scheme.AllKnownTypes() {
		resource, _ := meta.UnsafeGuessKindToResource(gvk)
		s.kinds[resource] = gvk
	}
	if s.Client, err = NewClient(objs...); err != nil {
		return nil, err
	}
	s.player = NewPlayer(s.Client)
	s.player.ReportOnce = true
	s.Server = httptest.NewServer(s)
	return s, nil
}

// OwnTypes knows which lists and maps of our kinds are merged, and by which keys: what each of several gateways applies stays.
var OwnTypes = sync.OnceValues(func() (managedfields.TypeConverter, error) {
	crds := manifests.CRDs()
	schemas := map[string]*spec.Schema{}
	for _, crd := range crds {
		_, structural, err := ownschema.Structural(crd)
		if err != nil {
			return nil, fmt.Errorf("definition %s: %w", crd.Name, err)
		}
		s := structural.ToKubeOpenAPI()
		s.AddExtension("x-kubernetes-group-version-kind", []any{map[string]any{
			"group": crd.Spec.Group, "version": crd.Spec.Versions[0].Name, "kind": crd.Spec.Names.Kind,
		}})
		schemas[crd.Name] = s
	}
	return managedfields.NewTypeConverter(schemas, true)
})

// request is a path of the API, taken apart.
type request struct {
	kind                 schema.GroupVersionKind
	namespace, name, sub string
}

func (s *Server) parse(path string) (r request, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	gvr := schema.GroupVersionResource{}
	switch {
	case len(parts) > 2 && parts[0] == "api":
		gvr.Version, parts = parts[1], parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		gvr.Group, gvr.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return r, false
	}
	if len(parts) > 2 && parts[0] == "namespaces" && parts[2] != "finalize" && parts[2] != "status" {
		r.namespace, parts = parts[1], parts[2:]
	}
	gvr.Resource = parts[0]
	if len(parts) > 1 {
		r.name = parts[1]
	}
	if len(parts) > 2 {
		r.sub = parts[2]
	}
	r.kind, ok = s.kinds[gvr]
	return r, ok
}

// play does what agents and controllers would have done by now.
func (s *Server) play(ctx context.Context) error {
	if s.Unplayed {
		return nil
	}
	return s.player.Play(ctx)
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if s.isDown() {
		writeError(w, apierrors.NewInternalError(errors.New("the server is down")))
		return
	}
	r, ok := s.parse(req.URL.Path)
	// Whoever waits for what is played reads one of these.
	if kind := r.kind.Kind; req.Method == http.MethodGet && (kind == "Peering" || kind == "NodeNetwork" || kind == "Service") {
		if err := s.play(req.Context()); err != nil {
			s.fail(w, req, err)
			return
		}
	}
	if !ok {
		s.discover(w, req)
		return
	}
	if req.URL.Query().Get("sendInitialEvents") != "" {
		// Clients list then.
		writeError(w, apierrors.NewInvalid(r.kind.GroupKind(), "", nil))
		return
	}
	if req.URL.Query().Get("watch") != "" {
		s.watch(w, r, req)
		return
	}
	obj, err := s.serve(r, req)
	if err != nil {
		s.fail(w, req, err)
		return
	}
	write(w, http.StatusOK, obj)
}

// watch streams what changes since a list.
func (s *Server) watch(w http.ResponseWriter, r request, req *http.Request) {
	ctx, cancel := context.WithCancel(context.WithValue(req.Context(), ForWatch{}, new(int64(-1))))
	defer cancel()
	changes := s.watches.Watch(ctx, req.URL.Query().Get("resourceVersion"), func(ctx context.Context) (client.ObjectList, error) {
		if err := s.play(ctx); err != nil {
			return nil, err
		}
		return s.objects(ctx, r, req)
	})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	for e := range changes.ResultChan() {
		if json.NewEncoder(w).Encode(map[string]any{"type": e.Type, "object": reduced(e.Object.(*unstructured.Unstructured), req)}) != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
	}
}

// discover answers that there are no other kinds.
func (s *Server) discover(w http.ResponseWriter, req *http.Request) {
	switch strings.Trim(req.URL.Path, "/") {
	case "api":
		write(w, http.StatusOK, &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions", APIVersion: "v1"}, Versions: []string{"v1"}})
	case "apis":
		write(w, http.StatusOK, &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}})
	case "api/v1":
		write(w, http.StatusOK, &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1"})
	default:
		writeError(w, apierrors.NewNotFound(schema.GroupResource{}, req.URL.Path))
	}
}

func (s *Server) serve(r request, req *http.Request) (any, error) {
	ctx, query := req.Context(), req.URL.Query()
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(r.kind)
	obj.SetNamespace(r.namespace)
	obj.SetName(r.name)
	switch req.Method {
	case http.MethodGet:
		if r.name == "" {
			return s.list(r, req)
		}
		err := s.Client.Get(ctx, client.ObjectKeyFromObject(obj), obj)
		return reduced(obj, req), err
	case http.MethodPost, http.MethodPut:
		if err := s.decode(body, req.Header.Get("Content-Type"), obj); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if r.kind.Kind == "SelfSubjectAccessReview" {
			return obj, unstructured.SetNestedField(obj.Object, true, "status", "allowed")
		}
		if r.namespace != "" {
			obj.SetNamespace(r.namespace)
		}
		owner := client.FieldOwner(query.Get("fieldManager"))
		switch {
		case req.Method == http.MethodPost:
			return obj, s.Client.Create(ctx, obj, owner)
		case r.sub != "":
			return obj, s.Client.SubResource(r.sub).Update(ctx, obj, owner)
		default:
			return obj, s.Client.Update(ctx, obj, owner)
		}
	case http.MethodPatch:
		if kind := types.PatchType(req.Header.Get("Content-Type")); kind == types.MergePatchType {
			patch, owner := client.RawPatch(kind, body), client.FieldOwner(query.Get("fieldManager"))
			if r.sub != "" {
				err := s.Client.SubResource(r.sub).Patch(ctx, obj, patch, owner)
				return reduced(obj, req), err
			}
			err := s.Client.Patch(ctx, obj, patch, owner)
			return reduced(obj, req), err
		}
		if err := json.Unmarshal(body, &obj.Object); err != nil || req.Header.Get("Content-Type") != "application/apply-patch+yaml" {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("%s: %v", req.Header.Get("Content-Type"), err))
		}
		o := client.ApplyOptions{FieldManager: query.Get("fieldManager"), Force: new(query.Get("force") == "true"), DryRun: query["dryRun"]}
		apply := client.ApplyConfigurationFromUnstructured(obj)
		if r.sub != "" {
			return obj, s.Client.SubResource(r.sub).Apply(ctx, apply, &client.SubResourceApplyOptions{ApplyOptions: o})
		}
		return obj, s.Client.Apply(ctx, apply, &o)
	case http.MethodDelete:
		if r.name == "" {
			return success(), s.deleteAll(ctx, r, req)
		}
		o := &metav1.DeleteOptions{}
		if len(body) > 0 {
			if err := json.Unmarshal(body, o); err != nil {
				if _, _, err := protobuf.NewSerializer(s.scheme, s.scheme).Decode(body, nil, o); err != nil {
					return nil, apierrors.NewBadRequest(err.Error())
				}
			}
		}
		var opts []client.DeleteOption
		if o.Preconditions != nil {
			opts = append(opts, client.Preconditions(*o.Preconditions))
		}
		return success(), s.Client.Delete(ctx, obj, opts...)
	default:
		return nil, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: r.kind.Kind}, req.Method)
	}
}

// deleteAll deletes all objects that a request selects. The fake client knows no fields.
func (s *Server) deleteAll(ctx context.Context, r request, req *http.Request) error {
	list, err := s.objects(ctx, r, req)
	if err != nil {
		return err
	}
	for i := range list.Items {
		if err := s.Client.Delete(ctx, &list.Items[i]); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

func success() *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess}
}

// objects are those that a request asks for.
func (s *Server) objects(ctx context.Context, r request, req *http.Request) (*unstructured.UnstructuredList, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(r.kind.GroupVersion().WithKind(r.kind.Kind + "List"))
	selector, err := labels.Parse(req.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if err := s.Client.List(ctx, list, client.InNamespace(r.namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, err
	}
	fields, err := fields.ParseSelector(req.URL.Query().Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	for _, f := range fields.Requirements() {
		list.Items = slices.DeleteFunc(list.Items, func(u unstructured.Unstructured) bool {
			value, _, _ := unstructured.NestedString(u.Object, strings.Split(f.Field, ".")...)
			return value != f.Value
		})
	}
	return list, nil
}

func (s *Server) list(r request, req *http.Request) (any, error) {
	list, err := s.objects(req.Context(), r, req)
	if err != nil {
		return nil, err
	}
	if err := s.watches.Listed(list); err != nil {
		return nil, err
	}
	if !strings.Contains(req.Header.Get("Accept"), "as=PartialObjectMetadata") {
		return list, nil
	}
	out := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}}
	for i := range list.Items {
		out.Items = append(out.Items, *reduced(&list.Items[i], req).(*metav1.PartialObjectMetadata))
	}
	return out, nil
}

// reduced is the object, or what was asked for of it.
func reduced(obj *unstructured.Unstructured, req *http.Request) any {
	if !strings.Contains(req.Header.Get("Accept"), "as=PartialObjectMetadata") {
		return obj
	}
	out := &metav1.PartialObjectMetadata{}
	if runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, out) != nil {
		return obj
	}
	out.TypeMeta = metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}
	return out
}

// decode reads JSON or protobuf.
func (s *Server) decode(body []byte, contentType string, into *unstructured.Unstructured) error {
	if !strings.Contains(contentType, "protobuf") {
		return json.Unmarshal(body, &into.Object)
	}
	gvk := into.GroupVersionKind()
	typed, _, err := protobuf.NewSerializer(s.scheme, s.scheme).Decode(body, &gvk, nil)
	if err != nil {
		return err
	}
	into.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	into.SetGroupVersionKind(gvk)
	return err
}

func write(w http.ResponseWriter, code int, obj any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(obj)
}

// writeError returns the status.
func writeError(w http.ResponseWriter, err error) int {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	out := status.Status()
	out.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	write(w, int(out.Code), &out)
	return int(out.Code)
}
