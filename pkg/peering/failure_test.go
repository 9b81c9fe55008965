package peering

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// threeSites returns a and c, which are peered, and b.
func threeSites(t *testing.T) (a, b, c *Site) {
	t.Helper()
	a, b = TwoSites(t)
	c = NewSite(t, "c", "10.30.0.0/16", "172.18.3.11")
	a.Peer, c.Peer = c, a
	MustPeer(t, a, c, engine.Options{})
	a.Peer, b.Peer = b, a
	return a, b, c
}

// image returns the image of the node agents.
func (w *Site) image(t *testing.T) string {
	t.Helper()
	ds := &appsv1.DaemonSet{}
	if err := w.Raw.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName}, ds); err != nil {
		t.Fatal(err)
	}
	return ds.Spec.Template.Spec.Containers[0].Image
}

// A failed new peering leaves no trace in shared objects.
func TestDefect1_01_FailedPeerKeepsImageOfOthers(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b, _ := threeSites(t)
	before := []map[string]any{a.contents(t), b.contents(t)}
	b.unreachable, a.unreachable = true, true
	o := engine.Options{Image: "example.invalid/none:1", Server: "id-of-b"}
	if _, err := Peer(t.Context(), a.Cluster, b.Cluster, o, &impatient{1, 500 * time.Millisecond}); kubetest.KindOf(t, err) != kube.NotReady {
		t.Error(err)
	}
	if got := a.image(t); got != "image:1" {
		t.Errorf("the node agents have the image %s", got)
	}
	for i, w := range []*Site{a, b} {
		if diff := cmp.Diff(before[i], w.contents(t)); diff != "" {
			t.Errorf("cluster %s is not as before:\n%s", w.Name, diff)
		}
	}
}

// The new gateway tries an image before the node agents, which serve other peerings, are replaced.
func TestDefect1_01_GatewayTriesTheImageFirst(t *testing.T) {
	t.Parallel()
	a, b, _ := threeSites(t)
	a.late = "gateway-b-0"
	var runs atomic.Bool
	c := *a.Cluster
	c.Client = interceptor.NewClient(a.Client, interceptor.Funcs{Apply: func(ctx context.Context, api client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
		if o, ok := obj.(interface{ GetKind() string }); ok && o.GetKind() == "DaemonSet" && !runs.Load() {
			t.Error("the node agents are replaced before the gateway runs")
		}
		return api.Apply(ctx, obj, opts...)
	}})
	_, err := Peer(t.Context(), &c, b.Cluster, engine.Options{Image: "image:2"}, Steps{"Waiting until packets pass": func() {
		time.AfterFunc(300*time.Millisecond, func() {
			a.Mu.Lock()
			defer a.Mu.Unlock()
			runs.Store(true)
			a.late = ""
		})
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got := a.image(t); got != "image:2" {
		t.Errorf("the node agents have the image %s", got)
	}
}

// Steps runs functions before the steps of their names.
type Steps map[string]func()

func (s Steps) Step(ctx context.Context, name string, do func(context.Context) error) error {
	if f := s[name]; f != nil {
		f()
	}
	return do(ctx)
}

// A command does not wait for node agents that another command has removed.
func TestDefect1_02_AgentsAreRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	a, _ := TwoSites(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s := engine.Side{Cluster: a.Cluster}
	if err := s.AwaitReports(ctx, false); !errors.Is(err, kube.ErrUnpeered) {
		t.Errorf("got %v", err)
	}
}

// Pods of other peerings and pods on unready nodes do not fail peer.
func TestDefect1_03_OnlyOwnPodsFailPeer(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	waiting := func(reason string, restarts int32) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			RestartCount: restarts, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
		}}}
	}
	pod := func(name, node string, status corev1.PodStatus, peering string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name}, Spec: corev1.PodSpec{NodeName: node}, Status: status}
		if peering != "" {
			p.Labels = map[string]string{v1alpha1.LabelPeering: peering}
		}
		return p
	}
	a, b := TwoSites(
		t, kubetest.Node("x-2", false, "172.18.9.9"),
		pod("gateway-of-another", "x-1", waiting("ImagePullBackOff", 0), "another"),
		pod("agent-of-a-lost-node", "x-2", waiting("CrashLoopBackOff", 99), ""),
	)
	MustPeer(t, a, b, engine.Options{})

	for name, tc := range map[string]struct {
		pod    *corev1.Pod
		reason string
		err    bool
	}{
		"image of the own gateway":     {pod: pod("p", "n1", waiting("ImagePullBackOff", 0), "b"), err: true},
		"image on a node that counts":  {pod: pod("p", "n1", waiting("ErrImageNeverPull", 0), ""), err: true},
		"image on another node":        {pod: pod("p", "n2", waiting("ErrImageNeverPull", 0), "")},
		"an agent that ended once":     {pod: pod("p", "n1", waiting("CrashLoopBackOff", 1), ""), reason: "again and again"},
		"one that ends all the time":   {pod: pod("p", "n1", waiting("CrashLoopBackOff", engine.MaxRestarts), ""), err: true},
		"a gateway of another peering": {pod: pod("p", "n1", waiting("CrashLoopBackOff", 9), "c")},
	} {
		t.Run(name, func(t *testing.T) {
			reason, err := engine.PodProblem(kubetest.NewCluster(t, "a", (&Site{}).funcs()), kubetest.ObjectsOf(tc.pod), []string{"n1"}, v1alpha1.GatewayName("b", 0))
			if (err != nil) != tc.err || !strings.Contains(reason, tc.reason) || (reason != "") != (tc.reason != "") {
				t.Errorf("got %q, %v", reason, err)
			}
		})
	}
}

// A peer's former range is not allocated to another peer while a rollback may restore it.
func TestDefect1_16_RangesStayReservedUntilTheEnd(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := TwoSites(t)
	MustPeer(t, a, b, wishFor("id-of-b", mapped(ipam.Mapping{Mapped: kubetest.Prefix("10.61.0.0/16")})))
	before := a.peering(t).Spec
	c := NewSite(t, "c", "10.244.0.0/16", "172.18.3.11")
	ctx, cancel := context.WithCancelCause(t.Context())
	once := sync.Once{}
	_, err := Peer(ctx, a.Cluster, b.Cluster, wishFor("id-of-b", mapped(ipam.Mapping{Mapped: kubetest.Prefix("10.62.0.0/16")})), Steps{"Waiting until packets pass": func() {
		once.Do(func() {
			c.Peer = a
			// c wants the former range of b.
			_, err := Peer(t.Context(), a.Cluster, c.Cluster, wishFor("id-of-c", mapped(ipam.Mapping{Mapped: kubetest.Prefix("10.61.0.0/16")})), kube.Quiet{})
			if kubetest.KindOf(t, err) != kube.Usage {
				t.Errorf("c was given the range: %v", err)
			}
			cancel(errors.New("interrupted"))
		})
	}})
	if err == nil {
		t.Fatal("it was not interrupted")
	}
	if diff := cmp.Diff(before, a.peering(t).Spec, kubetest.Compare); diff != "" {
		t.Errorf("the Peering is not as before:\n%s", diff)
	}
	entry := plan.Allocation(kubetest.ReadLedger(t, a.Cluster), "id-of-b")
	if entry == nil || entry.Pods[0].Mapped.Prefix != kubetest.Prefix("10.61.0.0/16") || entry.Previous != nil {
		t.Errorf("the ledger has %+v", entry)
	}
}

// killed is a Reporter that kills the command at a step, without any cleanup.
type killed string

var errKilled = errors.New("killed")

func (k killed) Step(ctx context.Context, name string, do func(context.Context) error) error {
	if name == string(k) {
		return errKilled
	}
	return do(ctx)
}

// after does the same in the middle of a step, once a condition holds.
type after struct {
	step     string
	happened func() bool
}

func (a after) Step(ctx context.Context, name string, do func(context.Context) error) error {
	if name != a.step {
		return do(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- do(ctx) }()
	for !a.happened() {
		select {
		case err := <-ended:
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	<-ended
	return errKilled
}

// kill runs a command up to a step, and leaves the state as it is then.
func kill(t *testing.T, a, b *Site, o engine.Options, r kube.Reporter) {
	t.Helper()
	p := newRun(a.Cluster, b.Cluster, o, r)
	p.ticket = newTickets(1)[0]
	if err := p.attempt(t.Context()); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
}

// The next command rolls back the changes of one that was killed.
func TestDefect1_01_JournalOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	t.Run("a peering that works", func(t *testing.T) {
		t.Parallel()
		a, b := TwoSites(t)
		MustPeer(t, a, b, engine.Options{})
		before := []map[string]any{a.contents(t), b.contents(t)}
		kill(t, a, b, engine.Options{Image: "example.invalid/none:1", Server: "id-of-b"}, killed("Waiting until packets pass"))
		if cmp.Equal(before[0], a.contents(t)) || cmp.Equal(before[1], b.contents(t)) {
			t.Fatal("nothing was changed")
		}
		MustPeer(t, a, b, engine.Options{})
		for i, w := range []*Site{a, b} {
			if diff := cmp.Diff(before[i], w.contents(t)); diff != "" {
				t.Errorf("cluster %s is not as before:\n%s", w.Name, diff)
			}
		}
	})
	t.Run("a new one beside another", func(t *testing.T) {
		t.Parallel()
		a, b, _ := threeSites(t)
		before := []map[string]any{a.contents(t), b.contents(t)}
		a.unreachable, b.unreachable = true, true
		kill(t, a, b, engine.Options{Image: "example.invalid/none:1"}, after{"Waiting until packets pass", func() bool { return a.image(t) != "image:1" }})
		a.unreachable, b.unreachable = false, false
		if _, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{}); err != nil {
			t.Fatal(err)
		}
		for i, w := range []*Site{a, b} {
			if diff := cmp.Diff(before[i], w.contents(t)); diff != "" {
				t.Errorf("cluster %s is not as before:\n%s", w.Name, diff)
			}
		}
	})
	t.Run("a new one that fails again", func(t *testing.T) {
		t.Parallel()
		a, b := TwoSites(t)
		kill(t, a, b, engine.Options{}, killed("Waiting until packets pass"))
		a.unreachable, b.unreachable = true, true
		if _, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, &impatient{1, 200 * time.Millisecond}); kubetest.KindOf(t, err) != kube.NotReady {
			t.Error(err)
		}
		if left := append(a.Ours(t), b.Ours(t)...); len(left) > 0 {
			t.Errorf("it leaves %v", left)
		}
	})
}

// Indexes are allocated in the order of the pairs, even if one fails before its turn.
func TestDefect1_20_TurnsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	tickets := newTickets(3)
	go tickets[1].release() // it failed before its turn
	select {
	case <-tickets[2].ready:
		t.Error("the third pair overtook the first one")
	case <-time.After(50 * time.Millisecond):
	}
	tickets[0].release()
	<-tickets[2].ready
}

// A pair claims before later pairs, however long it takes.
func TestDefect1_20_PairsClaimInTheirOrder(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := TwoSites(t)
	c := NewSite(t, "c", "10.30.0.0/16", "172.18.3.11")
	overtaken := make(chan struct{})
	reporters := map[string]Steps{
		"b": {"Installing the node agents": func() {
			select {
			case <-overtaken:
			case <-time.After(500 * time.Millisecond):
			}
		}},
		"c": {"Pushing ranges, keys and gateways": func() { close(overtaken) }},
	}
	for _, out := range PeerAll(t.Context(), []Pair{{a.Cluster, b.Cluster}, {a.Cluster, c.Cluster}}, engine.Options{}, func(p Pair) kube.Reporter { return reporters[p[1].Name] }) {
		if out.Err != nil {
			t.Error(out.Err)
		}
	}
	for i, id := range []string{"id-of-b", "id-of-c"} {
		if entry := plan.Allocation(kubetest.ReadLedger(t, a.Cluster), id); entry == nil || int(entry.Index) != i {
			t.Errorf("%s has the entry %+v, want index %d", id, entry, i)
		}
	}
}

// Another command changes the Peering between the read and the write of expose-host, and vice versa. Neither undoes
// the other's change.
func TestDefect1_12_ExposedHostAndPeerDoNotUndoEachOther(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	host := netip.MustParseAddr("192.0.2.7")
	exposed := func(a *Site) bool {
		return slices.ContainsFunc(a.peering(t).Spec.Local.Hosts, func(m v1alpha1.AddressMapping) bool { return m.Real.Addr == host })
	}
	t.Run("a change during expose-host", func(t *testing.T) {
		a, b := TwoSites(t)
		MustPeer(t, a, b, engine.Options{})
		other, once := *a.Cluster, sync.Once{}
		c := &other
		c.Client = interceptor.NewClient(a.Client, interceptor.Funcs{
			Apply: func(ctx context.Context, api client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) (err error) {
				once.Do(func() {
					p := a.peering(t)
					p.Spec.Remote.NodeIPs = append(p.Spec.Remote.NodeIPs, v1alpha1.IP{Addr: netip.MustParseAddr("172.18.2.99")})
					err = a.Raw.Update(ctx, p)
				})
				if err != nil {
					return err
				}
				return api.Apply(ctx, obj, opts...)
			},
		})
		if _, err := ExposeHost(t.Context(), c, b.Cluster, host, kube.Quiet{}); err != nil {
			t.Fatal(err)
		}
		if p := a.peering(t); !exposed(a) || len(p.Spec.Remote.NodeIPs) != 2 {
			t.Errorf("the Peering has hosts %v and nodes %v", p.Spec.Local.Hosts, p.Spec.Remote.NodeIPs)
		}
	})
}

// Swapping roles does not replace gateway pods: the agents switch to their new roles.
func TestDefect1_29_ExchangeOfRolesKeepsGateways(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := TwoSites(t)
	MustPeer(t, a, b, engine.Options{Server: a.ID})
	pods := func() (uids []types.UID) {
		for _, w := range []*Site{a, b} {
			var list corev1.PodList
			if err := w.Raw.List(t.Context(), &list, client.HasLabels{v1alpha1.LabelPeering}); err != nil {
				t.Fatal(err)
			}
			for _, p := range list.Items {
				uids = append(uids, p.UID)
			}
		}
		return uids
	}
	before := pods()
	MustPeer(t, a, b, engine.Options{Server: b.ID})
	if role := a.peering(t).Spec.Planes[0].Role; role != v1alpha1.Client {
		t.Fatalf("the role of a is %s", role)
	}
	if after := pods(); len(before) != 2 || !slices.Equal(before, after) {
		t.Errorf("the gateways' pods were %v, and are %v", before, after)
	}
}

// An unpeer that was killed right after it marked the ledger leaves running agents. The next command completes the
// removal and starts over.
func TestPeerAfterTheLedgerWasMarked(t *testing.T) {
	kit.Slow(t)
	t.Parallel()
	a, b := TwoSites(t)
	MustPeer(t, a, b, engine.Options{})
	for _, peering := range List[v1alpha1.PeeringList](t, b).Items {
		if err := b.Raw.Delete(t.Context(), &peering); err != nil {
			t.Fatal(err)
		}
	}
	if err := engine.Release(t.Context(), b.Cluster, a.ID); err != nil {
		t.Fatal(err)
	}
	kubetest.Mark(t, b.Cluster)
	if ledgers := List[v1alpha1.ClusterNetworkList](t, b).Items; len(ledgers) != 1 || ledgers[0].DeletionTimestamp.IsZero() {
		t.Fatalf("the ledger is not marked: %v", ledgers)
	}
	MustPeer(t, a, b, engine.Options{})
	if n := DryRun(t, a, b, engine.Options{}).Changes(); n > 0 {
		t.Errorf("the next one would make %d changes", n)
	}
}
