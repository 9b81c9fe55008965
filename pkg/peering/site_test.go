package peering

import (
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// Site is a cluster with a fake API client and simulated agents and controllers, which are up to date whenever the
// command reads objects.
type Site struct {
	*kube.Cluster
	*fakeapi.Player
	Peer *Site
	// Writes counts the command's writes; the one with the number failing fails.
	Writes, failing int
	// DeadFrom is the write from which on all writes fail, 0 for none.
	DeadFrom int
	// readOnly rejects every write.
	readOnly bool
	// Raw is the API without simulated agents.
	Raw *fakeapi.API
	// did lists what the command has applied and deleted, in order: the kind and name, and for Deployments the number of pods.
	did []string
	// fails is a kind and a name whose next apply fails.
	fails string
	// Tls is the key exchange of each connection, none by default. keys are the names of the Secrets whose data the
	// command has read; all Secrets for a list.
	Tls  kube.KeyExchange
	Keys []string
	// BeforeWrite is called once, just before the command's write with the number BeforeWriteAt.
	BeforeWrite   func()
	BeforeWriteAt int
	// broken lists the violations of rules for keys by writes of a command, keyData the data of each Secret with a key.
	broken sets.Set[string]
	// late are such violations by a command that was suspended before the write. It must correct them, as it reads what others have
	// done in the meantime only after the write.
	late sets.Set[string]
	// IsCollected means that someone deleted a Peering: the collector deletes Secrets, and what mounts them, in any order.
	IsCollected bool
	keyData     map[types.UID]string
}

// note records an action of the command.
func (w *Site) note(what string, r *fakeapi.Request) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.did = append(w.did, strings.TrimSpace(what+" "+r.Kind+" "+r.Name))
}

// noteKey records that the command reads a Secret's data.
func (w *Site) noteKey(ctx context.Context, r *fakeapi.Request) {
	_, isMetadata := r.Object.(*metav1.PartialObjectMetadata)
	_, areMetadata := r.Object.(*metav1.PartialObjectMetadataList)
	if r.Kind != "Secret" || r.Verb != "get" && r.Verb != "list" || isMetadata || areMetadata {
		return
	}
	kube.SetKeyExchange(ctx, w.Tls)
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Keys = append(w.Keys, stdcmp.Or(r.Name, "all"))
}

// PresharedRead returns the Secrets with pre-shared keys that the command has read since the last call.
func (w *Site) PresharedRead() []string {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	read := slices.DeleteFunc(w.Keys, func(name string) bool { return name != "all" && !strings.Contains(name, "-psk-") })
	w.Keys = nil
	return read
}

var ErrInjected = errors.New("injected")

// TwoSites returns two clusters with the same pod range, and a node each.
func TwoSites(t *testing.T, setup ...client.Object) (a, b *Site) {
	t.Helper()
	a, b = NewSite(t, "a", "10.244.0.0/16", "172.18.1.11", setup...), NewSite(t, "b", "10.244.0.0/16", "172.18.2.11", setup...)
	a.Peer, b.Peer = b, a
	return a, b
}

func NewSite(t *testing.T, name, pods, nodeAddress string, setup ...client.Object) *Site {
	t.Helper()
	w := &Site{broken: sets.New[string](), late: sets.New[string](), keyData: map[types.UID]string{}}
	t.Cleanup(func() {
		w.Mu.Lock()
		defer w.Mu.Unlock()
		for _, what := range sets.List(w.broken.Union(w.late.Intersection(w.wrongKeys(false)))) {
			t.Errorf("%s: %s", name, what)
		}
	})
	objs := fakeapi.Objects("id-of-"+name, name+"-1", nodeAddress, pods)
	n := objs[0].(*corev1.Node)
	n.Spec.PodCIDR = netip.PrefixFrom(kubetest.Prefix(pods).Addr(), 24).String()
	n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
	for _, o := range setup {
		objs = append(objs, o.DeepCopyObject().(client.Object))
	}
	w.Raw = kit.Must(fakeapi.NewClient(objs...))(t)
	w.Player = fakeapi.NewPlayer(w.Raw)
	w.HasStarted = w.hasStarted
	w.Other = func() *fakeapi.Player {
		if w.Peer == nil {
			return nil
		}
		return w.Peer.Player
	}
	w.Cluster = kubetest.ClusterOf(name, fakeapi.Watching(fakeapi.Intercept(w.Raw, w.request)))
	w.Cluster.DefaultImage = "image:1"
	return w
}

// write records a write of the command, which lasts until end is called.
func (w *Site) write(ctx context.Context, what string) (end func(), err error) {
	w.Mu.Lock()
	do, isLate := w.BeforeWrite, false
	if do != nil && w.Writes+1 >= w.BeforeWriteAt {
		w.BeforeWrite = nil
		w.Mu.Unlock()
		do()
		w.Mu.Lock()
		isLate = true
	}
	readOnly := w.readOnly
	w.Mu.Unlock()
	if readOnly {
		return nil, apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("things").GroupResource(), what, errors.New("read only"))
	}
	// As for each request of the product. This may read the lock, which needs w.mu.
	if end, err = lock.BeginWrite(ctx); err != nil {
		return nil, err
	}
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Writes++
	if w.Writes == w.failing || w.DeadFrom > 0 && w.Writes >= w.DeadFrom {
		end()
		return nil, fmt.Errorf("%s: %w", what, ErrInjected)
	}
	before, release := w.wrongKeys(false), end
	return func() {
		release()
		w.Mu.Lock()
		defer w.Mu.Unlock()
		for broken := range w.wrongKeys(false).Difference(before) { // violations by others exist before
			isGone := strings.HasSuffix(broken, "which is not there")
			if isLate && isGone {
				w.late.Insert(broken)
			} else if !w.IsCollected || !isGone {
				w.broken.Insert(broken + " after: " + what)
			}
		}
	}, nil
}

// simulated are the kinds that agents and controllers change.
var simulated = sets.New("Deployment", "DaemonSet", "Lease", "Service", "Peering", "NodeNetwork")

// request sends or fails one request of a command.
func (w *Site) request(ctx context.Context, r *fakeapi.Request) error {
	if r.Verb == "list" || r.Verb == "get" && simulated.Has(r.Kind) {
		if err := w.Play(ctx); err != nil {
			return err
		}
	}
	if review := r.Review(); review != nil {
		review.Status.Allowed = true
		return nil
	}
	if r.Reads() || r.DryRun {
		w.noteKey(ctx, r)
		return r.Send(ctx)
	}
	if !r.IsLock() {
		end, err := w.write(ctx, r.String())
		if err != nil {
			return err
		}
		defer end()
		switch replicas, _, _ := unstructured.NestedFieldNoCopy(contentOf(r), "spec", "replicas"); {
		case r.Verb == "apply" && w.fails == r.Kind+" "+r.Name:
			w.fails = ""
			return ErrInjected
		case r.Of("apply", "Deployment") && r.Sub == "":
			w.note(fmt.Sprint("run ", replicas), r)
		case r.Verb == "delete":
			w.note("delete", r)
		}
	}
	err := r.Send(ctx)
	if r.Verb == "create" && err == nil {
		kube.SetKeyExchange(ctx, w.Tls)
	}
	return err
}

// contentOf returns what is applied, nothing of other requests.
func contentOf(r *fakeapi.Request) map[string]any {
	if u, ok := r.Object.(*unstructured.Unstructured); ok {
		return u.Object
	}
	return nil
}

// Through returns the cluster, each of whose requests do sends or answers.
func (w *Site) Through(do func(context.Context, *fakeapi.Request) error) *kube.Cluster {
	c := *w.Cluster
	c.Client = fakeapi.Intercept(w.Client, do)
	return &c
}

// hasStarted reports whether the command has started a gateway.
func (w *Site) hasStarted() bool {
	return slices.ContainsFunc(w.did, func(did string) bool { return strings.HasPrefix(did, "run 1 Deployment") })
}

// Peer peers one pair.
func Peer(ctx context.Context, a, b *kube.Cluster, o engine.Options, r kube.Reporter) (Result, error) {
	out := PeerAll(ctx, []Pair{{a, b}}, o, func(Pair) kube.Reporter { return r })[0]
	return out.Result, out.Err
}

func MustPeer(t *testing.T, a, b *Site, o engine.Options) Result {
	t.Helper()
	return kit.Must(Peer(kit.Timeout(t, 10*time.Minute), a.Cluster, b.Cluster, o, kube.Quiet{}))(t)
}

// Peered returns two clusters that are peered.
func Peered(t *testing.T) (a, b *Site) {
	t.Helper()
	a, b = TwoSites(t)
	MustPeer(t, a, b, engine.Options{})
	return a, b
}

// PeerAgain peers the cluster with another one.
func (w *Site) PeerAgain(t *testing.T, with *Site) {
	t.Helper()
	w.Peer, with.Peer = with, w
	MustPeer(t, w, with, engine.Options{})
}

// PeeredWith returns a new cluster that is peered with this one.
func (w *Site) PeeredWith(t *testing.T, name, pods, nodeAddress string) *Site {
	t.Helper()
	other := NewSite(t, name, pods, nodeAddress)
	w.PeerAgain(t, other)
	return other
}

// Settled reports what the next peer would change.
func Settled(t *testing.T, a, b *Site, o engine.Options) {
	t.Helper()
	kit.Check(t, "what the next peer would change", Changes(DryRun(t, a, b, o)), nil, kit.Compare)
}

// LeavesNothing reports objects of ours.
func LeavesNothing(t *testing.T, all ...*Site) {
	t.Helper()
	for _, w := range all {
		kit.Check(t, "what is left in "+w.Name, w.Ours(t), nil, kit.Compare)
	}
}

func contentsOf(t *testing.T, all ...*Site) (out []map[string]any) {
	t.Helper()
	for _, w := range all {
		out = append(out, w.contents(t))
	}
	return out
}

// unchanged reports what is not as before.
func unchanged(t *testing.T, before []map[string]any, all ...*Site) {
	t.Helper()
	for i, w := range all {
		kit.Check(t, "the contents of "+w.Name, w.contents(t), before[i])
	}
}

// MustUnpeer reports if the clusters cannot be unpeered.
func MustUnpeer(t *testing.T, a, b *Site) {
	t.Helper()
	_, _, err := Unpeer(kit.Timeout(t, 10*time.Minute), a.Cluster, b.Cluster, kube.Quiet{})
	kit.CheckNoError(t, err)
}

// versions returns the resourceVersions of all objects in a cluster.
func (w *Site) versions(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, list := range append(
		append(engine.Workloads(), engine.Accounts()...), &coordinationv1.LeaseList{}, &corev1.ConfigMapList{}, &corev1.NamespaceList{}, &corev1.NodeList{}, kubetest.CrdList(),
		&v1alpha1.ClusterNetworkList{}, &v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{},
	) {
		kit.NoError(t, w.Raw.List(t.Context(), list))
		objs := kube.Items(list)
		for _, o := range objs {
			out[kube.Describe(o)] = o.GetResourceVersion()
		}
	}
	return out
}

// planned returns the objects of a plan that exist afterwards.
func planned(c *plan.ClusterPlan) []string {
	var out []string
	for _, o := range c.Objects {
		if o.Action != plan.Delete {
			out = append(out, fmt.Sprint(o.Kind, " ", o.Namespace, "/", o.Name))
		}
	}
	slices.Sort(out)
	return out
}
