package peering

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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
	"github.com/liqonet/liqonet/pkg/version"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/schema"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

var compare = cmp.Options{cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{}, v1alpha1.CIDR{}, v1alpha1.IP{}), cmpopts.EquateEmpty()}

var cidr, mapping = kit.CIDR, kit.Mapping

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s, err := fakeapi.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newCluster returns a cluster whose API is the fake client's. The user may do
// everything, unless funcs say otherwise.
func newCluster(t *testing.T, name string, funcs interceptor.Funcs, objs ...client.Object) *Cluster {
	t.Helper()
	if funcs.Create == nil {
		everything := allowing(new(int), &sync.Mutex{}, func(authorizationv1.ResourceAttributes) bool { return true })
		funcs.Create = everything.Create
	}
	api, err := fakeapi.NewClient(objs...)
	if err != nil {
		t.Fatal(err)
	}
	return &Cluster{
		Name:      name,
		ID:        "id-of-" + name,
		Client:    fakeapi.Watching(interceptor.NewClient(api, funcs)),
		Version:   version.String(),
		Now:       time.Now,
		Discovery: &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{}},
	}
}

// peerNamed is a peer of which only name and ID matter.
func peerNamed(name string) *Cluster { return &Cluster{Name: name, ID: "id-of-" + name} }

func node(name string, ready bool, addresses ...string) *corev1.Node {
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

func report(nodeName, address string, kernel *v1alpha1.KernelFacts) v1alpha1.NodeNetwork {
	return v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status:     v1alpha1.NodeNetworkStatus{Address: v1alpha1.IP{Addr: netip.MustParseAddr(address)}, Kernel: kernel},
	}
}

// kindOf returns the Kind of an Error, and says if err is none.
func kindOf(t *testing.T, err error) Kind {
	t.Helper()
	e := (*Error)(nil)
	if !errors.As(err, &e) {
		t.Fatalf("want an Error, got %T: %v", err, err)
	}
	return e.Kind
}

// podWith is named after its first address.
func podWith(addresses ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod-" + addresses[0]},
		Status:     corev1.PodStatus{PodIP: addresses[0], Phase: corev1.PodPending},
	}
	for _, a := range addresses {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return pod
}

// seed is what all choices of a run are made by.
var seed = sync.OnceValue(func() uint64 {
	if *schema.Seed == 0 {
		return rand.Uint64()
	}
	return *schema.Seed
})

// some are a few of all, others each time.
func some[T any](t *testing.T, all []T, few, full int) []T {
	t.Helper()
	if kit.Full() {
		few = full
	}
	t.Logf("-seed %d: %d of %d", seed(), min(few, len(all)), len(all))
	rand.New(rand.NewPCG(seed(), 0)).Shuffle(len(all), reflect.Swapper(all))
	return all[:min(few, len(all))]
}

// moments are the numbers of a few writes, others each time, of all that a command makes; with Full, of all.
func moments(t *testing.T, writes, few int) []int {
	t.Helper()
	if writes < 5 {
		t.Errorf("%d writes are none", writes)
	}
	var all []int
	for n := range writes {
		all = append(all, n+1)
	}
	return some(t, all, few, len(all))
}

func crdList() client.ObjectList { return &apiextensionsv1.CustomResourceDefinitionList{} }

func ipv4Prefixes(ss ...string) (out []netip.Prefix) {
	for _, s := range ss {
		out = append(out, prefix(s))
	}
	return out
}

// objectsOf are the objects as a wait sees them.
func objectsOf(objs ...client.Object) objects {
	store := toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
	for _, obj := range objs {
		_ = store.Add(obj) // fails for what has no metadata only
	}
	return objects{store}
}

// Silent is a Reporter that shows nothing.
type Silent struct{}

// Step does it.
func (Silent) Step(ctx context.Context, _ string, do func(context.Context) error) error {
	return do(ctx)
}

// somePeering is one that an API server could have.
func somePeering() *v1alpha1.Peering {
	return &v1alpha1.Peering{
		ObjectMeta: metav1.ObjectMeta{Name: "b", Generation: 4},
		Spec: v1alpha1.PeeringSpec{
			Local: v1alpha1.LocalNetwork{
				Pods: []v1alpha1.CIDRMapping{mapping("10.244.0.0/16", "10.20.0.0/16")}, InternalCIDR: cidr("10.80.0.0/19"), ExternalCIDR: cidr("10.70.64.0/18"),
			},
			Remote: v1alpha1.RemoteNetwork{
				ClusterID: "id-of-b", Name: "b", Pods: []v1alpha1.CIDRMapping{mapping("10.245.0.0/16", "10.245.0.0/16")}, ExternalCIDR: cidr("10.70.0.0/18"),
			},
			Overlay: "Geneve",
			Planes:  []v1alpha1.Plane{{Role: v1alpha1.Server, WireGuard: "Kernel"}},
		},
	}
}
