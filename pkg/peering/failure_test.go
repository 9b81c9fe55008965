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
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// threeSites returns a and c, which are peered, and b.
func threeSites(t *testing.T) (a, b, c *Site) {
	t.Helper()
	a, b = TwoSites(t)
	c = a.PeeredWith(t, "c", "10.30.0.0/16", "172.18.3.11")
	a.Peer, b.Peer = b, a
	return a, b, c
}

// image returns the image of the node agents.
func (w *Site) image(t *testing.T) string {
	t.Helper()
	ds := Get(t, w, v1alpha1.Namespace, v1alpha1.NodeAgentName, &appsv1.DaemonSet{})
	return ds.Spec.Template.Spec.Containers[0].Image
}

// A failed new peering leaves no trace in shared objects.
func TestFailedPeerKeepsImageOfOthers(t *testing.T) {
	kit.Play(t)
	a, b, _ := threeSites(t)
	before := contentsOf(t, a, b)
	b.unreachable, a.unreachable = true, true
	o := engine.Options{Image: "example.invalid/none:1", Server: "id-of-b"}
	kubetest.Fails(t, kit.Err(Peer(t.Context(), a.Cluster, b.Cluster, o, &impatient{1, 500 * time.Millisecond})), kube.NotReady)
	kit.Check(t, "the node agents have the image", a.image(t), "image:1")
	unchanged(t, before, a, b)
}

// The new gateway tries an image before the node agents, which serve other peerings, are replaced.
func TestGatewayTriesTheImageFirst(t *testing.T) {
	t.Parallel()
	a, b, _ := threeSites(t)
	a.late = "gateway-b-0"
	var runs atomic.Bool
	c := a.Through(func(ctx context.Context, r *fakeapi.Request) error {
		kit.ErrorIf(t, r.Of("apply", "DaemonSet") && !runs.Load(), "the node agents are replaced before the gateway runs")
		return r.Send(ctx)
	})
	kit.Must(Peer(t.Context(), c, b.Cluster, engine.Options{Image: "image:2"}, Steps{"Waiting until packets pass": func() {
		time.AfterFunc(300*time.Millisecond, func() {
			a.Mu.Lock()
			defer a.Mu.Unlock()
			runs.Store(true)
			a.late = ""
		})
	}}))(t)
	kit.Check(t, "the node agents have the image", a.image(t), "image:2")
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
func TestAgentsAreRemovedWhilePeerWaits(t *testing.T) {
	t.Parallel()
	a, _ := TwoSites(t)
	ctx := kit.Timeout(t, 10*time.Second)
	s := engine.Side{Cluster: a.Cluster}
	err := s.AwaitReports(ctx, false)
	kit.ErrorIf(t, !errors.Is(err, kube.ErrUnpeered), "got %v", err)
}

// Pods of other peerings and pods on unready nodes do not fail peer.
func TestOnlyOwnPodsFailPeer(t *testing.T) {
	kit.Play(t)
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
		"an agent that ended once":     {pod: pod("p", "n1", waiting("CrashLoopBackOff", 1), ""), reason: "exits repeatedly"},
		"one that ends all the time":   {pod: pod("p", "n1", waiting("CrashLoopBackOff", engine.MaxRestarts), ""), err: true},
		"a gateway of another peering": {pod: pod("p", "n1", waiting("CrashLoopBackOff", 9), "c")},
	} {
		t.Run(name, func(t *testing.T) {
			reason, err := engine.PodProblem(kubetest.NewCluster(t, "a", interceptor.Funcs{}), kubetest.ObjectsOf(tc.pod), []string{"n1"}, v1alpha1.GatewayName("b", 0))
			kit.ErrorIf(t, (err != nil) != tc.err || !strings.Contains(reason, tc.reason) || (reason != "") != (tc.reason != ""),
				"got %q, %v", reason, err)
		})
	}
}

// A peer's former range is not allocated to another peer while a rollback may restore it.
func TestRangesStayReservedUntilTheEnd(t *testing.T) {
	kit.Play(t)
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
			kit.ErrorIf(t, kubetest.KindOf(t, err) != kube.Usage, "c was given the range: %v", err)
			cancel(errors.New("interrupted"))
		})
	}})
	kit.FatalIf(t, err == nil, "it was not interrupted")
	kit.Check(t, "the Peering is not as before", a.peering(t).Spec, before, kit.Compare)
	entry := plan.Allocation(kubetest.ReadLedger(t, a.Cluster), "id-of-b")
	kit.ErrorIf(t, entry == nil || entry.Pods[0].Mapped.Prefix != kubetest.Prefix("10.61.0.0/16") || entry.Previous != nil,
		"the ledger has %+v", entry)
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
	err := p.attempt(t.Context())
	kit.FatalIf(t, !errors.Is(err, errKilled), "%v", err)
}

// The next command rolls back the changes of one that was killed.
func TestJournalOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	t.Run("a peering that works", func(t *testing.T) {
		t.Parallel()
		a, b := Peered(t)
		before := contentsOf(t, a, b)
		kill(t, a, b, engine.Options{Image: "example.invalid/none:1", Server: "id-of-b"}, killed("Waiting until packets pass"))
		kit.FatalIf(t, cmp.Equal(before[0], a.contents(t)) || cmp.Equal(before[1], b.contents(t)), "nothing was changed")
		MustPeer(t, a, b, engine.Options{})
		unchanged(t, before, a, b)
	})
	t.Run("a new one next to another", func(t *testing.T) {
		t.Parallel()
		a, b, _ := threeSites(t)
		before := contentsOf(t, a, b)
		a.unreachable, b.unreachable = true, true
		kill(t, a, b, engine.Options{Image: "example.invalid/none:1"}, after{"Waiting until packets pass", func() bool { return a.image(t) != "image:1" }})
		a.unreachable, b.unreachable = false, false
		MustUnpeer(t, a, b)
		unchanged(t, before, a, b)
	})
	t.Run("a new one that fails again", func(t *testing.T) {
		t.Parallel()
		a, b := TwoSites(t)
		kill(t, a, b, engine.Options{}, killed("Waiting until packets pass"))
		a.unreachable, b.unreachable = true, true
		_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, &impatient{1, 200 * time.Millisecond})
		kubetest.Fails(t, err, kube.NotReady)
		LeavesNothing(t, a, b)
	})
}

// Indexes are allocated in the order of the pairs, even if one fails before its turn.
func TestTurnsKeepTheirOrder(t *testing.T) {
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
func TestPairsClaimInTheirOrder(t *testing.T) {
	kit.Play(t)
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
		kit.ErrorIf(t, out.Err != nil, "%v", out.Err)
	}
	for i, id := range []string{"id-of-b", "id-of-c"} {
		entry := plan.Allocation(kubetest.ReadLedger(t, a.Cluster), id)
		kit.ErrorIf(t, entry == nil || int(entry.Index) != i, "%s has the entry %+v, want index %d", id, entry, i)
	}
}

// Another command changes the Peering between the read and the write of expose-host, and vice versa. Neither undoes
// the other's change.
func TestExposedHostAndPeerDoNotUndoEachOther(t *testing.T) {
	kit.Play(t)
	host := netip.MustParseAddr("192.0.2.7")
	exposed := func(a *Site) bool {
		return slices.ContainsFunc(a.peering(t).Spec.Local.Hosts, func(m v1alpha1.AddressMapping) bool { return m.Real.Addr == host })
	}
	t.Run("a change during expose-host", func(t *testing.T) {
		a, b := Peered(t)
		once := sync.Once{}
		c := a.Through(func(ctx context.Context, r *fakeapi.Request) (err error) {
			if r.Verb == "apply" && r.Sub == "" {
				once.Do(func() {
					p := a.peering(t)
					p.Spec.Remote.NodeIPs = append(p.Spec.Remote.NodeIPs, v1alpha1.IP{Addr: netip.MustParseAddr("172.18.2.99")})
					err = a.Raw.Update(ctx, p)
				})
			}
			if err != nil {
				return err
			}
			return r.Send(ctx)
		})
		kit.Must(ExposeHost(t.Context(), c, b.Cluster, host, kube.Quiet{}))(t)
		if p := a.peering(t); !exposed(a) || len(p.Spec.Remote.NodeIPs) != 2 {
			t.Errorf("the Peering has hosts %v and nodes %v", p.Spec.Local.Hosts, p.Spec.Remote.NodeIPs)
		}
	})
}

// Swapping roles does not replace gateway pods: the agents switch to their new roles.
func TestExchangeOfRolesKeepsGateways(t *testing.T) {
	kit.Play(t)
	a, b := TwoSites(t)
	MustPeer(t, a, b, engine.Options{Server: a.ID})
	pods := func() (uids []types.UID) {
		for _, w := range []*Site{a, b} {
			var list corev1.PodList
			kit.NoError(t, w.Raw.List(t.Context(), &list, client.HasLabels{v1alpha1.LabelPeering}))
			for _, p := range list.Items {
				uids = append(uids, p.UID)
			}
		}
		return uids
	}
	before := pods()
	MustPeer(t, a, b, engine.Options{Server: b.ID})
	role := a.peering(t).Spec.Planes[0].Role
	kit.FatalIf(t, role != v1alpha1.Client, "the role of a is %s", role)
	after := pods()
	kit.ErrorIf(t, len(before) != 2 || !slices.Equal(before, after), "the gateways' pods were %v, and are %v", before, after)
}

// An unpeer that was killed right after it marked the ledger leaves running agents. The next command completes the
// removal and starts over.
func TestPeerAfterTheLedgerWasMarked(t *testing.T) {
	kit.Play(t)
	a, b := Peered(t)
	for _, peering := range List[v1alpha1.PeeringList](t, b).Items {
		kit.NoError(t, b.Raw.Delete(t.Context(), &peering))
	}
	kit.NoError(t, engine.ReleaseEntry(t.Context(), b.Cluster, a.ID))
	kubetest.Mark(t, b.Cluster)
	ledgers := List[v1alpha1.ClusterNetworkList](t, b).Items
	kit.FatalIf(t, len(ledgers) != 1 || ledgers[0].DeletionTimestamp.IsZero(), "the ledger is not marked: %v", ledgers)
	MustPeer(t, a, b, engine.Options{})
	n := DryRun(t, a, b, engine.Options{}).Changes()
	kit.ErrorIf(t, n > 0, "the next one would make %d changes", n)
}
