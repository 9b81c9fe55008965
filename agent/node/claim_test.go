package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

func newClient(t *testing.T, funcs interceptor.Funcs, objs ...client.Object) client.WithWatch {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(s).WithObjects(objs...).WithInterceptorFuncs(funcs).
		WithIndex(&v1alpha1.NodeNetwork{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*v1alpha1.NodeNetwork).Spec.NodeName} }).Build()
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

func networks(t *testing.T, c client.Client) map[string]v1alpha1.NodeNetwork {
	t.Helper()
	var list v1alpha1.NodeNetworkList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	out := map[string]v1alpha1.NodeNetwork{}
	for _, n := range list.Items {
		out[n.Name] = n
	}
	return out
}

func TestConcurrentClaims(t *testing.T) {
	const nodes = 50
	c := newClient(t, interceptor.Funcs{}, clusterNetwork("10.80.0.0/19"))
	got := make([]*v1alpha1.NodeNetwork, nodes)
	var wg sync.WaitGroup
	for i := range nodes {
		wg.Go(func() {
			var err error
			if got[i], err = claim(t.Context(), c, newNode(fmt.Sprint("n", i), fmt.Sprint(i)), noPurge); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	seen := map[string]bool{}
	for i, n := range got {
		if seen[n.Name] || n.Spec.NodeName != fmt.Sprint("n", i) || !prefix("10.80.0.0/19").Contains(addr(n.Name)) {
			t.Errorf("node %d got %s for %s", i, n.Name, n.Spec.NodeName)
		}
		seen[n.Name] = true
		again, err := claim(t.Context(), c, newNode(fmt.Sprint("n", i), fmt.Sprint(i)), noPurge)
		if err != nil || again.Name != n.Name || again.UID != n.UID {
			t.Errorf("node %d got %s, and then %v, %v", i, n.Name, again, err)
		}
	}
	if have := networks(t, c); len(have) != nodes {
		t.Errorf("want %d, got %d", nodes, len(have))
	}
}

func TestClaim(t *testing.T) {
	owned := func(name, node, uid string) *v1alpha1.NodeNetwork {
		return &v1alpha1.NodeNetwork{
			ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(uid)}}},
			Spec:       v1alpha1.NodeNetworkSpec{NodeName: node},
		}
	}
	// What a node of that name gets when all is free.
	c := newClient(t, interceptor.Funcs{}, clusterNetwork("10.80.0.0/19"))
	first, err := claim(t.Context(), c, newNode("n1", "1"), noPurge)
	if err != nil {
		t.Fatal(err)
	}
	if first.Labels[v1alpha1.LabelManagedBy] != v1alpha1.FieldManager || len(first.OwnerReferences) != 1 || first.OwnerReferences[0].UID != "1" {
		t.Errorf("got %+v", first.ObjectMeta)
	}
	next := addr(first.Name).Next().String()
	var many []netip.Addr // more than are tried blindly
	for a := addr(first.Name); len(many) < 2*blindTries; a = a.Next() {
		many = append(many, a)
	}
	tests := []struct {
		name string
		have []client.Object
		// others are the addresses that another node has taken.
		others []netip.Addr
		uid    string
		want   string
		// gone are those that must not be there any more.
		gone string
	}{
		{name: "its own", have: []client.Object{owned("10.80.0.99", "n1", "1")}, uid: "1", want: "10.80.0.99"},
		{name: "taken by another one", others: many[:1], uid: "1", want: next},
		{name: "taken by many", others: many, uid: "1", want: many[len(many)-1].Next().String()},
		{name: "recreated with another UID", have: []client.Object{owned(first.Name, "n1", "1")}, uid: "9", want: first.Name},
		{name: "recreated, elsewhere", have: []client.Object{owned("10.80.0.99", "n1", "1")}, uid: "9", want: first.Name, gone: "10.80.0.99"},
		{name: "of another range", have: []client.Object{owned("10.99.0.1", "n1", "1")}, uid: "1", want: first.Name, gone: "10.99.0.1"},
		{name: "no address at all", have: []client.Object{owned("n1", "n1", "1")}, uid: "1", want: first.Name, gone: "n1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tries := 0
			c := newClient(t, interceptor.Funcs{Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
				tries++
				return c.Apply(ctx, obj, opts...)
			}}, append(tt.have, clusterNetwork("10.80.0.0/19"))...)
			for _, a := range tt.others {
				if n, err := take(t.Context(), c, a, newNode("n2", "2")); n == nil || err != nil {
					t.Fatal(n, err)
				}
			}
			tries = 0
			n, err := claim(t.Context(), c, newNode("n1", tt.uid), noPurge)
			if tries > blindTries+1 {
				t.Errorf("%d addresses were tried", tries)
			}
			if err != nil || n.Name != tt.want {
				t.Fatalf("want %s, got %v, %v", tt.want, n, err)
			}
			have := networks(t, c)
			if got := have[tt.want]; got.OwnerReferences[0].UID != types.UID(tt.uid) || got.Spec.NodeName != "n1" {
				t.Errorf("got %+v", got)
			}
			if _, ok := have[tt.gone]; ok {
				t.Errorf("%s is still there", tt.gone)
			}
		})
	}
}

// An agent does not read what other nodes have reported, which it would do as often as there are nodes. Where it cannot
// select its own, it does.
func TestClaimReadsItsOwn(t *testing.T) {
	for _, canSelect := range []bool{true, false} {
		read := 0
		c := newClient(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			o := client.ListOptions{}
			o.ApplyOptions(opts)
			if o.FieldSelector != nil && !canSelect {
				return apierrors.NewBadRequest("field label not supported: spec.nodeName")
			}
			err := c.List(ctx, list, opts...)
			read += len(list.(*v1alpha1.NodeNetworkList).Items)
			return err
		}}, clusterNetwork("10.80.0.0/19"))
		const others = 30
		for i := range others {
			if n, err := take(t.Context(), c, addr(fmt.Sprint("10.80.9.", i)), newNode(fmt.Sprint("o", i), fmt.Sprint(i))); n == nil || err != nil {
				t.Fatal(n, err)
			}
		}
		first, err := claim(t.Context(), c, newNode("n1", "1"), noPurge)
		if err != nil {
			t.Fatal(err)
		}
		again, err := claim(t.Context(), c, newNode("n1", "1"), noPurge)
		if err != nil || again.UID != first.UID || again.Name != first.Name {
			t.Errorf("got %s, and then %v, %v", first.Name, again, err)
		}
		if want := map[bool]int{true: 1, false: 2*others + 1}[canSelect]; read != want {
			t.Errorf("can select %t: %d objects were read, want %d", canSelect, read, want)
		}
	}
}

// TestClaimTwice: an agent that starts while another one of the same node still
// ends gets the same address.
func TestClaimTwice(t *testing.T) {
	once := sync.Once{}
	c := newClient(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		err := c.List(ctx, list, opts...)
		once.Do(func() {
			if _, err := claim(ctx, c, newNode("n1", "1"), noPurge); err != nil {
				t.Error(err)
			}
		})
		return err
	}}, clusterNetwork("10.80.0.0/19"))
	if _, err := claim(t.Context(), c, newNode("n1", "1"), noPurge); err != nil {
		t.Fatal(err)
	}
	if have := networks(t, c); len(have) != 1 {
		t.Errorf("the node has %d addresses", len(have))
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
	if _, err := claim(ctx, c, newNode("n1", "1"), noPurge); err == nil || !strings.Contains(err.Error(), "internal range") {
		t.Errorf("got %v", err)
	}
}

// noPurge is for clusters in which there is something of ours.
func noPurge(context.Context) error { return errors.New("purged") }
