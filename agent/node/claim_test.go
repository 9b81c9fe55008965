package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	coordination "k8s.io/client-go/applyconfigurations/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/agent/loop"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

func newClient(t *testing.T, funcs interceptor.Funcs, objs ...client.Object) client.WithWatch {
	t.Helper()
	api := kit.Must(fakeapi.NewClient(append(objs, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}})...))(t)
	return interceptor.NewClient(api, funcs)
}

func clusterNetwork(internal string) *v1alpha1.ClusterNetwork {
	return &v1alpha1.ClusterNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ClusterNetworkName},
		Spec:       v1alpha1.ClusterNetworkSpec{InternalCIDR: cidr(internal)},
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
	kit.NoError(t, c.List(t.Context(), &list))
	out := map[string]string{}
	for _, l := range list.Items {
		out[l.Name] = *l.Spec.HolderIdentity
	}
	return out
}

// counted counts the requests of a client.
type counted struct{ reads, lists, writes atomic.Int64 }

func (n *counted) funcs() interceptor.Funcs {
	return interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			n.reads.Add(1)
			return c.Get(ctx, key, obj, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			n.lists.Add(1)
			return c.List(ctx, list, opts...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			n.writes.Add(1)
			return c.Apply(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
			n.writes.Add(1)
			return c.Patch(ctx, obj, p, opts...)
		},
	}
}

// Many nodes that start at once get one address each, with few requests.
func TestConcurrentClaims(t *testing.T) {
	const nodes = 150
	for _, internal := range []string{"10.80.0.0/19", "fd00:80::/115"} {
		all := newClient(t, interceptor.Funcs{}, clusterNetwork(internal))
		start := func() (reported map[string]string, n *counted) {
			n = &counted{}
			c := interceptor.NewClient(all, n.funcs())
			var wg sync.WaitGroup
			for i := range nodes {
				wg.Go(func() {
					_, _, err := claimFor(t.Context(), c, newNode(fmt.Sprint("n", i), fmt.Sprint(i)))
					kit.CheckNoError(t, err)
				})
			}
			wg.Wait()
			var list v1alpha1.NodeNetworkList
			kit.NoError(t, all.List(t.Context(), &list))
			reported, held := map[string]string{}, holders(t, all)
			for i := range list.Items {
				r := &list.Items[i]
				reported[r.Name] = r.Status.Address.String()
				if holder := held[r.LeaseName()]; holder != r.Name || !prefix(internal).Contains(r.Status.Address.Addr) {
					t.Errorf("%s got %s, which %q holds", r.Name, r.Status.Address, holder)
				}
			}
			kit.ErrorIf(t, len(held) != nodes || len(reported) != nodes,
				"%d nodes have %d Leases and %d NodeNetworks", nodes, len(held), len(reported))
			return reported, n
		}
		before, n := start()
		// Each node needs two writes: one for the NodeNetwork, and one for the Lease.
		if reads, lists, writes := n.reads.Load(), n.lists.Load(), n.writes.Load(); reads != 2*nodes || lists > 0 || writes > 2*nodes+10 {
			t.Errorf("%s: %d reads, %d lists, %d writes", internal, reads, lists, writes)
		}
		again, n := start()
		kit.Check(t, "addresses of nodes that started again", again, before)
		if reads, others := n.reads.Load(), n.lists.Load()+n.writes.Load(); reads != 3*nodes || others > 0 {
			t.Errorf("%s, nodes start again: %d reads, %d other requests", internal, reads, others)
		}
	}
}

// Very few of 5,000 nodes try so many addresses that they list the NodeNetworks.
func TestFewNodesList(t *testing.T) {
	taken, listing := map[int]bool{}, 0
	for i := range 5000 {
		tries, name := 0, fmt.Sprint("n", i)
		for taken[ipam.NodeCandidate(name, tries)] {
			tries++
		}
		taken[ipam.NodeCandidate(name, tries)] = true
		if tries >= maxUnverifiedTries {
			listing++
		}
	}
	kit.ErrorIf(t, listing > 60, "%d nodes list", listing)
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
	kit.NoError(t, err)
	if own.Name != "n1" || own.Labels[v1alpha1.LabelManagedBy] != v1alpha1.FieldManager || len(own.OwnerReferences) != 1 || own.OwnerReferences[0].UID != "1" {
		t.Errorf("got %+v", own.ObjectMeta)
	}
	var l coordinationv1.Lease
	kit.NoError(t, c.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.Namespace, Name: own.LeaseName()}, &l))
	if l.UID != lease.UID || l.OwnerReferences[0].Kind != "NodeNetwork" || l.OwnerReferences[0].UID != own.UID || l.Annotations[v1alpha1.AnnotationPod] != "pod" {
		t.Errorf("got %+v", l.ObjectMeta)
	}
	first := own.Status.Address.Addr
	candidate := func(i int) string {
		a := kit.Must(ipam.NodeAddr(prefix("10.80.0.0/19"), ipam.NodeCandidate("n1", i)))(t)
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
			kit.ErrorIf(t, tries > maxUnverifiedTries+1, "%d addresses were tried", tries)
			kit.FatalIf(t, err != nil || own.Status.Address.String() != tt.want || (own.UID != "before") != tt.isNew,
				"want %s, got %+v, %v", tt.want, own, err)
			kit.ErrorIf(t, own.Name != "n1" || own.OwnerReferences[0].UID != types.UID(tt.uid), "got %+v", own.ObjectMeta)
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
	kit.NoError(t, err)
	lease.Pod = "next"
	kit.NoError(t, lease.Renew(t.Context()))
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: own.LeaseName()}}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(l), l); err != nil || l.Annotations[v1alpha1.AnnotationPod] != "next" || l.Spec.RenewTime == nil {
		t.Errorf("got %+v, %v", l, err)
	}
	kit.NoError(t, c.Delete(t.Context(), l))
	if err := lease.Renew(t.Context()); !apierrors.IsConflict(err) {
		t.Errorf("it is gone: %v", err)
	}
	other := loop.Lease{Client: c, Name: lease.Name, Holder: "n2", Manager: "other"}
	kit.NoError(t, kit.Err(other.Claim(t.Context())))
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

// A Lease of another node, into which its agent has written what makes each claim fail, keeps no agent from starting.
func TestClaimPassesOverWhatCannotBeClaimed(t *testing.T) {
	node := newNode("n1", "u1")
	first := kit.Must(ipam.NodeAddr(cidr("10.80.0.0/19").Prefix, ipam.NodeCandidate(node.Name, 0)))(t)
	forged := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeLeaseName(first)}}
	for holder, passes := range map[string]bool{"evil": true, "n1": false} {
		forged.Spec.HolderIdentity = &holder
		c := newClient(t, interceptor.Funcs{
			Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
				if l, isOne := obj.(*coordination.LeaseApplyConfiguration); isOne && *l.Name == forged.Name {
					return apierrors.NewInternalError(errors.New("failed to convert managed fields"))
				}
				return c.Apply(ctx, obj, opts...)
			},
		}, clusterNetwork("10.80.0.0/19"), node, forged.DeepCopy())
		_, lease, err := claimFor(t.Context(), c, node)
		kit.ErrorIf(t, (err == nil) != passes || passes && lease.Name == forged.Name, "held by %s: it has Lease %s: %v", holder, lease.Name, err)
	}
}
