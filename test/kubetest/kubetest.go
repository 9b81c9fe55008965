package kubetest

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/samber/lo"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	fakediscovery "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/pkg/version"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
)

// Allowing answers reviews by allowed, and counts them.
func Allowing(count *int, mu *sync.Mutex, allowed func(authorizationv1.ResourceAttributes) bool) interceptor.Funcs {
	return interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
		r, ok := obj.(*authorizationv1.SelfSubjectAccessReview)
		if !ok {
			return c.Create(ctx, obj, opts...)
		}
		mu.Lock()
		defer mu.Unlock()
		*count++
		r.Status.Allowed = allowed(*r.Spec.ResourceAttributes)
		return nil
	}}
}

func Prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

var Cidr, Mapping = kit.CIDR, kit.Mapping

func Scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := kit.Must(fakeapi.Scheme())(t)
	return s
}

// NewCluster returns a cluster whose API is the fake client's. The user may do
// everything, unless funcs say otherwise.
func NewCluster(t *testing.T, name string, funcs interceptor.Funcs, objs ...client.Object) *kube.Cluster {
	t.Helper()
	if funcs.Create == nil {
		everything := Allowing(new(int), &sync.Mutex{}, func(authorizationv1.ResourceAttributes) bool { return true })
		funcs.Create = everything.Create
	}
	api := kit.Must(fakeapi.NewClient(objs...))(t)
	return ClusterOf(name, fakeapi.Watching(interceptor.NewClient(api, funcs)))
}

// ClusterOf is a cluster of this build with an API.
func ClusterOf(name string, api client.WithWatch) *kube.Cluster {
	return &kube.Cluster{
		Name:      name,
		ID:        "id-of-" + name,
		Client:    api,
		Version:   version.String(),
		Now:       time.Now,
		Discovery: &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{}},
	}
}

// PeerNamed is a peer of which only name and ID matter.
func PeerNamed(name string) *kube.Cluster { return &kube.Cluster{Name: name, ID: "id-of-" + name} }

func Node(name string, ready bool, addresses ...string) *corev1.Node {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name), Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

func Report(nodeName, address string, kernel *v1alpha1.KernelFacts) v1alpha1.NodeNetwork {
	return v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status:     v1alpha1.NodeNetworkStatus{Address: v1alpha1.IP{Addr: netip.MustParseAddr(address)}, Kernel: kernel},
	}
}

// KindOf returns the Kind of an Error, and says if err is none.
func KindOf(t *testing.T, err error) kube.Kind {
	t.Helper()
	e := (*kube.Error)(nil)
	kit.FatalIf(t, !errors.As(err, &e), "want an Error, got %T: %v", err, err)
	return e.Kind
}

// Fails reports an error that is none of the kind, or that does not say something.
func Fails(t *testing.T, err error, kind kube.Kind, says ...string) {
	t.Helper()
	if KindOf(t, err) != kind {
		t.Errorf("want an error of kind %v, got %v", kind, err)
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q is not in %v", text, err)
		}
	}
}

// PodWith is named after its first address.
func PodWith(addresses ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod-" + addresses[0]},
		Status:     corev1.PodStatus{PodIP: addresses[0], Phase: corev1.PodPending},
	}
	for _, a := range addresses {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return pod
}

// Seed is what all choices of a run are made by.
var Seed = sync.OnceValue(func() uint64 {
	if *schema.Seed == 0 {
		return kit.Seed()
	}
	return *schema.Seed
})

// Some are a few of all, others each time.
func Some[T any](t *testing.T, all []T, few, full int) []T {
	t.Helper()
	if kit.Full() {
		few = full
	}
	t.Logf("-seed %d: %d of %d", Seed(), min(few, len(all)), len(all))
	rand.New(rand.NewPCG(Seed(), 0)).Shuffle(len(all), reflect.Swapper(all))
	return all[:min(few, len(all))]
}

// SomeOf are a few entries of all, others each time.
func SomeOf[T any](t *testing.T, few int, all map[string]T) map[string]T {
	t.Helper()
	return lo.PickByKeys(all, Some(t, slices.Sorted(maps.Keys(all)), few, len(all)))
}

// Moments are the numbers of a few writes, others each time, of all that a command makes; with Full, of all.
func Moments(t *testing.T, writes, few int) []int {
	t.Helper()
	kit.ErrorIf(t, writes < 5, "%d writes are none", writes)
	var all []int
	for n := range writes {
		all = append(all, n+1)
	}
	return Some(t, all, few, len(all))
}

func CrdList() client.ObjectList { return &apiextensionsv1.CustomResourceDefinitionList{} }

func Ipv4Prefixes(ss ...string) (out []netip.Prefix) {
	for _, s := range ss {
		out = append(out, Prefix(s))
	}
	return out
}

// ObjectsOf are the objects as a wait sees them.
func ObjectsOf(objs ...client.Object) kube.Objects {
	store := toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
	for _, obj := range objs {
		_ = store.Add(obj) // fails for what has no metadata only
	}
	return kube.Objects{store}
}

// SomePeering is one that an API server could have.
func SomePeering() *v1alpha1.Peering {
	return &v1alpha1.Peering{
		ObjectMeta: metav1.ObjectMeta{Name: "b", Generation: 4},
		Spec: v1alpha1.PeeringSpec{
			Local: v1alpha1.LocalNetwork{
				Pods: []v1alpha1.CIDRMapping{Mapping("10.244.0.0/16", "10.20.0.0/16")}, InternalCIDR: Cidr("10.80.0.0/19"), ExternalCIDR: Cidr("10.70.64.0/18"),
			},
			Remote: v1alpha1.RemoteNetwork{
				ClusterID: "id-of-b", Name: "b", Pods: []v1alpha1.CIDRMapping{Mapping("10.245.0.0/16", "10.245.0.0/16")}, ExternalCIDR: Cidr("10.70.0.0/18"),
			},
			Overlay: "Geneve",
			Planes:  []v1alpha1.Plane{{Role: v1alpha1.Server, WireGuard: "Kernel"}},
		},
	}
}

// LedgerOf returns a ledger with entries for the peers.
func LedgerOf(peers ...string) *v1alpha1.ClusterNetwork {
	cn := plan.NewLedger("", ipam.DefaultInternal())
	for i, p := range peers {
		cn.Spec.Peers = append(cn.Spec.Peers, v1alpha1.PeerAllocation{ClusterID: "id-of-" + p, Name: p, Index: int32(i)})
	}
	return cn
}

func ReadLedger(t *testing.T, c *kube.Cluster) *v1alpha1.ClusterNetwork {
	t.Helper()
	cn := kit.Must(c.ReadLedger(t.Context()))(t)
	return cn
}

// Mark begins the removal of the ledger.
func Mark(t *testing.T, c *kube.Cluster) {
	t.Helper()
	kit.NoError(t, c.Client.Delete(t.Context(), ReadLedger(t, c)))
	cn := ReadLedger(t, c)
	kit.FatalIf(t, cn == nil || cn.DeletionTimestamp.IsZero(), "the ledger has no finalizer")
}

type RoundTripper func(*http.Request) (*http.Response, error)

func (f RoundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
