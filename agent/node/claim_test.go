package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	coordination "k8s.io/client-go/applyconfigurations/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/test/fakeapi"
)

func newClient(t *testing.T, funcs interceptor.Funcs, objs ...client.Object) client.WithWatch {
	t.Helper()
	api, err := fakeapi.NewClient(append(objs, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}})...)
	if err != nil {
		t.Fatal(err)
	}
	return interceptor.NewClient(api, funcs)
}

func clusterNetwork(internal string) *v1alpha1.ClusterNetwork {
	return &v1alpha1.ClusterNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ClusterNetworkName},
		Spec:       v1alpha1.ClusterNetworkSpec{InternalCIDR: v1alpha1.CIDR{Prefix: prefix(internal)}},
	}
}

func newNode(name, uid string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)}}
}

// claimFor does the same as a starting node agent, up to the first written report.
func claimFor(ctx context.Context, c client.Client, node *corev1.Node) (own *v1alpha1.NodeNetwork, lease *loop.Lease, err error) {
	lease = &loop.Lease{Client: c, Holder: node.Name, Pod: "pod", Manager: manager(node)}
	if own, _, err = acquireAddress(ctx, node, lease, noPurge); err == nil {
		n := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: own.Name, UID: own.UID}}
		err = loop.ApplyStatus(ctx, c, "NodeNetwork", n, v1alpha1.NodeNetworkStatus{Address: own.Status.Address}, lease.Manager)
	}
	return own, lease, err
}

// holders returns the holders of addresses, by the names of the Leases.
func holders(t *testing.T, c client.Client) map[string]string {
	t.Helper()
	var list coordinationv1.LeaseList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, l := range list.Items {
		out[l.Name] = *l.Spec.HolderIdentity
	}
	return out
}

// claimsAPI is an API in which names are unique, and each Lease has one holder. The fake client takes minutes for as
// many nodes.
type claimsAPI struct {
	mu                   sync.Mutex
	leases               map[string]string
	reports              map[string]*v1alpha1.NodeNetwork
	reads, lists, writes int
}

func (n *claimsAPI) funcs() interceptor.Funcs {
	return interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.reads++
			switch obj := obj.(type) {
			case *coordinationv1.Lease:
				if holder := n.leases[key.Name]; holder != "" {
					obj.UID, obj.Spec.HolderIdentity = types.UID(key.Name), &holder
					return nil
				}
			case *v1alpha1.NodeNetwork:
				if has := n.reports[key.Name]; has != nil {
					has.DeepCopyInto(obj)
					return nil
				}
			default:
				return c.Get(ctx, key, obj, opts...)
			}
			return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
		},
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.lists++
			for _, r := range n.reports {
				into := list.(*v1alpha1.NodeNetworkList)
				into.Items = append(into.Items, *r)
			}
			return nil
		},
		Apply: func(_ context.Context, _ client.WithWatch, obj runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.writes++
			lease := obj.(*coordination.LeaseApplyConfiguration)
			if holder := n.leases[*lease.Name]; holder != "" && holder != *lease.Spec.HolderIdentity {
				return apierrors.NewConflict(schema.GroupResource{}, *lease.Name, errors.New("it has another holder"))
			}
			n.leases[*lease.Name] = *lease.Spec.HolderIdentity
			lease.WithUID(types.UID(*lease.Name))
			return nil
		},
		Patch: func(_ context.Context, _ client.WithWatch, obj client.Object, p client.Patch, _ ...client.PatchOption) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.writes++
			raw, err := p.Data(obj)
			if err != nil {
				return err
			}
			if err := json.Unmarshal(raw, obj); err != nil {
				return err
			}
			obj.SetUID(types.UID(obj.GetName()))
			n.reports[obj.GetName()] = obj.DeepCopyObject().(*v1alpha1.NodeNetwork)
			return nil
		},
		SubResourcePatch: func(_ context.Context, _ client.Client, _ string, obj client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			raw, err := p.Data(obj)
			if err != nil {
				return err
			}
			reported := &v1alpha1.NodeNetwork{}
			n.reports[obj.GetName()].Status = reported.Status
			err = json.Unmarshal(raw, reported)
			n.reports[obj.GetName()].Status = reported.Status
			return err
		},
	}
}

// Many nodes that start at once get one address each, with few requests.
func TestConcurrentClaims(t *testing.T) {
	for _, tt := range []struct {
		internal string
		nodes    int
		// writes and lists are the maximum numbers of these requests.
		writes, lists int
	}{{"10.80.0.0/19", 1000, 2100, 5}, {"fd00:80::/115", 1000, 2100, 5}, {"10.80.0.0/19", 5000, 16000, 60}} {
		api := &claimsAPI{leases: map[string]string{}, reports: map[string]*v1alpha1.NodeNetwork{}}
		c := interceptor.NewClient(newClient(t, interceptor.Funcs{}, clusterNetwork(tt.internal)), api.funcs())
		start := func() map[string]string {
			var wg sync.WaitGroup
			for i := range tt.nodes {
				wg.Go(func() {
					if _, _, err := claimFor(t.Context(), c, newNode(fmt.Sprint("n", i), fmt.Sprint(i))); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			out := map[string]string{}
			for name, r := range api.reports {
				a := r.Status.Address.Addr
				out[name] = a.String()
				if !prefix(tt.internal).Contains(a) || api.leases[v1alpha1.NodeLeaseName(a)] != name {
					t.Errorf("%s got %s, which %q holds", name, a, api.leases[v1alpha1.NodeLeaseName(a)])
				}
			}
			if len(api.leases) != tt.nodes || len(out) != tt.nodes {
				t.Errorf("%d nodes have %d Leases and %d NodeNetworks", tt.nodes, len(api.leases), len(out))
			}
			return out
		}
		before := start()
		t.Logf("%s, %d nodes: %d reads, %d lists, %d writes", tt.internal, tt.nodes, api.reads, api.lists, api.writes)
		// Each node needs two writes: one for the NodeNetwork, and one for the Lease.
		if api.reads != 2*tt.nodes || api.lists > tt.lists || api.writes > tt.writes {
			t.Errorf("%s, %d nodes: %d reads, %d lists, %d writes", tt.internal, tt.nodes, api.reads, api.lists, api.writes)
		}
		api.reads, api.lists, api.writes = 0, 0, 0
		if diff := cmp.Diff(before, start()); diff != "" {
			t.Errorf("nodes got other addresses when they started again:\n%s", diff)
		}
		if api.reads != 3*tt.nodes || api.lists+api.writes > 0 {
			t.Errorf("%s, %d nodes start again: %d reads, %d lists, %d writes", tt.internal, tt.nodes, api.reads, api.lists, api.writes)
		}
	}
}

func TestClaim(t *testing.T) {
	report := func(uid, address string) client.Object {
		n := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "before", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: types.UID(uid)}}}}
		if address != "" {
			n.Status.Address = v1alpha1.IP{Addr: addr(address)}
		}
		return n
	}
	held := func(address, by string) client.Object {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeLeaseName(addr(address)), UID: "held"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &by},
		}
	}
	// This is the result for a node of that name if all addresses are free.
	c := newClient(t, interceptor.Funcs{}, clusterNetwork("10.80.0.0/19"))
	own, lease, err := claimFor(t.Context(), c, newNode("n1", "1"))
	if err != nil {
		t.Fatal(err)
	}
	if own.Name != "n1" || own.Labels[v1alpha1.LabelManagedBy] != v1alpha1.FieldManager || len(own.OwnerReferences) != 1 || own.OwnerReferences[0].UID != "1" {
		t.Errorf("got %+v", own.ObjectMeta)
	}
	var l coordinationv1.Lease
	if err := c.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.Namespace, Name: own.LeaseName()}, &l); err != nil {
		t.Fatal(err)
	}
	if l.UID != lease.UID || l.OwnerReferences[0].Kind != "NodeNetwork" || l.OwnerReferences[0].UID != own.UID || l.Annotations[v1alpha1.AnnotationPod] != "pod" {
		t.Errorf("got %+v", l.ObjectMeta)
	}
	first := own.Status.Address.Addr
	candidate := func(i int) string {
		a, err := ipam.NodeAddr(prefix("10.80.0.0/19"), ipam.NodeCandidate("n1", i))
		if err != nil {
			t.Fatal(err)
		}
		return a.String()
	}
	var many []client.Object // more than are tried blindly, held and reported by other nodes
	for i := range 2 * maxUnverifiedTries {
		o := report("2", candidate(i))
		o.SetName(fmt.Sprint("o", i))
		many = append(many, held(candidate(i), "n2"), o)
	}
	tests := []struct {
		name string
		have []client.Object
		uid  string
		want string
		// isNew is set if the report is a new object.
		isNew bool
	}{
		{name: "its own", have: []client.Object{report("1", "10.80.0.99"), held("10.80.0.99", "n1")}, uid: "1", want: "10.80.0.99"},
		{name: "its own, before it has reported", have: []client.Object{report("1", ""), held(first.String(), "n1")}, uid: "1", want: first.String()},
		{name: "its own, and another node has it", have: []client.Object{report("1", "10.80.0.99"), held("10.80.0.99", "n2")}, uid: "1", want: first.String()},
		{name: "its own, and the Lease is gone", have: []client.Object{report("1", first.String())}, uid: "1", want: first.String()},
		{name: "taken by another one", have: many[:1], uid: "1", want: candidate(1), isNew: true},
		{name: "taken by many", have: many, uid: "1", want: candidate(2 * maxUnverifiedTries), isNew: true},
		{name: "recreated with another UID", have: []client.Object{report("1", first.String()), held(first.String(), "n1")}, uid: "9", want: first.String(), isNew: true},
		{name: "recreated, and the Lease is gone", have: []client.Object{report("1", "10.80.0.99")}, uid: "9", want: first.String(), isNew: true},
		{name: "of another range", have: []client.Object{report("1", "10.99.0.1"), held("10.99.0.1", "n1")}, uid: "1", want: first.String(), isNew: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tries := 0
			c := newClient(t, interceptor.Funcs{Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
				tries++
				return c.Apply(ctx, obj, opts...)
			}}, slices.Concat(tt.have, []client.Object{clusterNetwork("10.80.0.0/19")})...)
			own, lease, err := claimFor(t.Context(), c, newNode("n1", tt.uid))
			if tries > maxUnverifiedTries+1 {
				t.Errorf("%d addresses were tried", tries)
			}
			if err != nil || own.Status.Address.String() != tt.want || (own.UID != "before") != tt.isNew {
				t.Fatalf("want %s, got %+v, %v", tt.want, own, err)
			}
			if own.Name != "n1" || own.OwnerReferences[0].UID != types.UID(tt.uid) {
				t.Errorf("got %+v", own.ObjectMeta)
			}
			if got := holders(t, c)[lease.Name]; got != "n1" || lease.UID == "" {
				t.Errorf("%s of UID %q is of %s", lease.Name, lease.UID, got)
			}
		})
	}
}

// An agent that starts while its predecessor on the same node is still ending gets the same address, at whichever
// request they interfere.
func TestClaimTwice(t *testing.T) {
	for at := range 4 {
		n := 0
		c := newClient(t, interceptor.Funcs{}, clusterNetwork("10.80.0.0/19"))
		before := func() {
			if n++; n == at+1 {
				if _, _, err := claimFor(t.Context(), c, newNode("n1", "1")); err != nil {
					t.Error(err)
				}
			}
		}
		disturbed := interceptor.NewClient(c, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
				before()
				return c.Get(ctx, key, obj, opts...)
			},
			Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
				before()
				return c.Apply(ctx, obj, opts...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
				before()
				return c.Patch(ctx, obj, p, opts...)
			},
		})
		if _, _, err := claimFor(t.Context(), disturbed, newNode("n1", "1")); err != nil {
			t.Fatal(err)
		}
		if have := holders(t, c); len(have) != 1 || n <= at {
			t.Errorf("after %d requests the node has %v", at, have)
		}
	}
}

// A heartbeat does not restore a deleted claim: another node may hold the address by now.
func TestClaimIsRenewedOnly(t *testing.T) {
	c := newClient(t, interceptor.Funcs{}, clusterNetwork("10.80.0.0/19"))
	own, lease, err := claimFor(t.Context(), c, newNode("n1", "1"))
	if err != nil {
		t.Fatal(err)
	}
	lease.Pod = "next"
	if err := lease.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: own.LeaseName()}}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(l), l); err != nil || l.Annotations[v1alpha1.AnnotationPod] != "next" || l.Spec.RenewTime == nil {
		t.Errorf("got %+v, %v", l, err)
	}
	if err := c.Delete(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if err := lease.Renew(t.Context()); !apierrors.IsConflict(err) {
		t.Errorf("it is gone: %v", err)
	}
	other := loop.Lease{Client: c, Name: lease.Name, Holder: "n2", Manager: "other"}
	if _, err := other.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := lease.Renew(t.Context()); !apierrors.IsInvalid(err) || holders(t, c)[lease.Name] != "n2" {
		t.Errorf("it is another one's: %v, %v", err, holders(t, c))
	}
}

func TestClaimWaits(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	looks := 0
	c := newClient(t, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
		if looks++; looks == 2 {
			cancel(errors.New("enough"))
		}
		return c.Get(ctx, key, obj, opts...)
	}})
	if _, _, err := claimFor(ctx, c, newNode("n1", "1")); err == nil || !strings.Contains(err.Error(), "internal range") {
		t.Errorf("got %v", err)
	}
}

// noPurge is for clusters that contain objects of ours.
func noPurge(context.Context) error { return errors.New("purged") }
