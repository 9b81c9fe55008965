package peering

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
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

// The new gateway tries an image before the node agents, which serve other peerings, are replaced.
func TestGatewayTriesTheImageFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := threeSites(t)
		a.Late = "gateway-b-0"
		var runs atomic.Bool
		c := a.Through(func(ctx context.Context, r *fakeapi.Request) error {
			kit.ErrorIf(t, r.Of("apply", "DaemonSet") && !r.DryRun && !runs.Load(), "the node agents are replaced before the gateway runs")
			return r.Send(ctx)
		})
		kit.Must(Peer(t.Context(), c, b.Cluster, engine.Options{Image: "image:2"}, Steps{"Waiting until packets pass": func() {
			time.AfterFunc(300*time.Millisecond, func() {
				a.Mu.Lock()
				defer a.Mu.Unlock()
				runs.Store(true)
				a.Late = ""
			})
		}}))(t)
		kit.Check(t, "the node agents have the image", a.image(t), "image:2")
	})
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
	synctest.Test(t, func(t *testing.T) {
		a, _ := TwoSites(t)
		ctx := kit.Timeout(t, 10*time.Second)
		s := engine.Side{Cluster: a.Cluster}
		err := s.AwaitReports(ctx, false)
		kit.ErrorIf(t, !errors.Is(err, kube.ErrUnpeered), "got %v", err)
	})
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
	unscheduled := func(node string) *corev1.Pod { // as the DaemonSet's controller creates it
		p := pod("p", "", corev1.PodStatus{Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes are available: 1 Too many pods.",
		}}}, "")
		field := corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{field}}},
		}}}
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
		"an agent without room":        {pod: unscheduled("n1"), reason: "pod p is not scheduled on node n1: 0/3 nodes are available"},
		"one of another node":          {pod: unscheduled("n2")},
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

// dies makes all further writes to the clusters fail, as after a kill. It returns what ends that.
func dies(all ...*Site) (revive func()) {
	from := func(write int) {
		for _, w := range all {
			w.Mu.Lock()
			w.DeadFrom = write
			w.Mu.Unlock()
		}
	}
	from(1)
	return func() { from(0) }
}

// kill runs a command that is killed at a step.
func kill(t *testing.T, a, b *Site, o engine.Options, step string) {
	t.Helper()
	revive := func() {}
	err := kit.Err(Peer(t.Context(), a.Cluster, b.Cluster, o, Steps{step: func() { revive = dies(a, b) }}))
	kit.FailsWith(t, err, ErrInjected)
	revive()
}

// The next command rolls back the changes of one that was killed.
func TestJournalOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	t.Run("a peering that works", func(t *testing.T) {
		t.Parallel()
		a, b := Peered(t)
		before := contentsOf(t, a, b)
		kill(t, a, b, engine.Options{Image: "example.invalid/none:1", Server: "id-of-b"}, "Waiting until packets pass")
		kit.FatalIf(t, cmp.Equal(before[0], a.contents(t)) || cmp.Equal(before[1], b.contents(t)), "nothing was changed")
		MustPeer(t, a, b, engine.Options{})
		unchanged(t, before, a, b)
	})
	t.Run("a new one next to another", func(t *testing.T) {
		t.Parallel()
		a, b, _ := threeSites(t)
		before := contentsOf(t, a, b)
		revive := func() {}
		c := a.Through(func(ctx context.Context, r *fakeapi.Request) error {
			err := r.Send(ctx)
			if r.Of("apply", "DaemonSet") && a.image(t) != "image:1" {
				revive = dies(a, b)
			}
			return err
		})
		kit.FailsWith(t, kit.Err(Peer(t.Context(), c, b.Cluster, engine.Options{Image: "example.invalid/none:1"}, kube.Quiet{})), ErrInjected)
		revive()
		MustUnpeer(t, a, b)
		unchanged(t, before, a, b)
	})
	t.Run("a new one that fails again", func(t *testing.T) {
		t.Parallel()
		a, b := TwoSites(t)
		kill(t, a, b, engine.Options{}, "Waiting until packets pass")
		a.Unreachable, b.Unreachable = true, true
		_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{}, &impatient{after: 1, Duration: 200 * time.Millisecond})
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

// The Peering is changed between the read and the write of expose-host, which does not undo that.
func TestExposeHostKeepsChangesOfOthers(t *testing.T) {
	kit.Play(t)
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
	kit.Must(ExposeHost(t.Context(), c, b.Cluster, netip.MustParseAddr("192.0.2.7"), kube.Quiet{}))(t)
	if p := a.peering(t).Spec; len(p.Local.Hosts) != 1 || len(p.Remote.NodeIPs) != 2 {
		t.Errorf("the Peering has hosts %v and nodes %v", p.Local.Hosts, p.Remote.NodeIPs)
	}
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

// contents returns all objects of a cluster, without what API servers count and agents write.
func (w *Site) contents(t *testing.T) map[string]any {
	t.Helper()
	out := map[string]any{}
	for _, list := range []client.ObjectList{
		&appsv1.DaemonSetList{}, &appsv1.DeploymentList{}, &corev1.ServiceList{}, &corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.ServiceAccountList{},
		&rbacv1.ClusterRoleBindingList{}, &rbacv1.ClusterRoleList{}, &admissionv1.ValidatingAdmissionPolicyList{}, &corev1.NamespaceList{}, kubetest.CrdList(),
		&v1alpha1.ClusterNetworkList{}, &v1alpha1.PeeringList{}, &v1alpha1.NodeNetworkList{},
	} {
		kit.NoError(t, w.Raw.List(context.Background(), list))
		objs := kube.Items(list)
		for _, o := range objs {
			content := kit.Must(runtime.DefaultUnstructuredConverter.ToUnstructured(o))(t)
			unstructured.RemoveNestedField(content, "status")
			for _, f := range []string{"resourceVersion", "generation", "managedFields", "creationTimestamp", "uid"} {
				unstructured.RemoveNestedField(content, "metadata", f)
			}
			out[kube.Describe(o)] = content
		}
	}
	return out
}

// failEach makes writes fail, one in each run, in a or in b. setup creates the initial clusters.
func failEach(t *testing.T, o engine.Options, setup func(t *testing.T) (a, b *Site)) {
	t.Parallel()
	a, b := setup(t)
	a.Writes, b.Writes = 0, 0
	MustPeer(t, a, b, o)
	for side, writes := range []int{a.Writes, b.Writes} {
		for _, n := range kubetest.Moments(t, writes, 2) {
			t.Run(fmt.Sprintf("write %d in %c", n, "ab"[side]), func(t *testing.T) {
				t.Parallel()
				a, b := setup(t)
				before := contentsOf(t, a, b)
				w := []*Site{a, b}[side]
				w.Mu.Lock()
				w.Writes, w.failing = 0, n
				w.Mu.Unlock()
				_, err := Peer(t.Context(), a.Cluster, b.Cluster, o, kube.Quiet{})
				if err == nil { // fewer writes, or an optional one: the next command does the rest
					MustPeer(t, a, b, o)
					Settled(t, a, b, o)
					return
				}
				kit.FatalIf(t, !strings.Contains(err.Error(), "injected") || strings.Contains(err.Error(), "could not be rolled back"), "%v", err)
				for i, w := range []*Site{a, b} {
					kit.Check(t, fmt.Sprintf("after %v cluster %s is not as before", err, w.Name), cmp.Diff(before[i], w.contents(t)), "")
				}
			})
		}
	}
}

// A failure of any write leaves both clusters as they were.
func TestRollback(t *testing.T) {
	kit.Play(t)
	t.Run("new", func(t *testing.T) {
		failEach(t, engine.Options{}, func(t *testing.T) (a, b *Site) { return TwoSites(t) })
	})
	if testing.Short() {
		return
	}
	t.Run("next to another peering", func(t *testing.T) {
		failEach(t, engine.Options{Image: "image:2"}, func(t *testing.T) (a, b *Site) {
			a, b = TwoSites(t)
			a.PeeredWith(t, "c", "10.30.0.0/16", "172.18.3.11")
			a.Peer, b.Peer = b, a
			return a, b
		})
	})
	t.Run("of a peering that works", func(t *testing.T) {
		o := engine.Options{
			Image: "image:2", Server: "id-of-b",
			Clusters: map[string]engine.ClusterOptions{"id-of-a": {
				LimitNew: new(int64(10)), LimitRate: new(int64),
				Map:      ipam.Mappings{{Mapped: kubetest.Prefix("10.60.0.0/16")}},
				Gateways: v1alpha1.GatewayPlacement{NodeSelector: map[string]string{}, Tolerations: []corev1.Toleration{{Key: "spot", Operator: "Exists"}}},
			}},
		}
		failEach(t, o, func(t *testing.T) (a, b *Site) {
			a, b = TwoSites(t)
			MustPeer(t, a, b, wishFor("id-of-a", engine.ClusterOptions{Endpoints: []string{"203.0.113.5:31820"}, LimitRate: new(int64(5e8)), Gateways: v1alpha1.GatewayPlacement{
				NodeSelector: map[string]string{corev1.LabelOSStable: "linux"}, Tolerations: []corev1.Toleration{{Key: "spot", Operator: "Exists", Effect: "NoSchedule"}},
			}}))
			return a, b
		})
	})
	t.Run("of a peering that works, by time", func(t *testing.T) {
		t.Parallel()
		a, b := Peered(t)
		before := contentsOf(t, a, b)
		b.Unreachable = true
		_, err := Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Server: "id-of-b", Image: "image:2"}, &impatient{after: 1, Duration: time.Second})
		kubetest.Fails(t, err, kube.NotReady)
		unchanged(t, before, a, b)
	})
}

// A peer cluster that claims that the peering works does not prevent a rollback.
func TestFailedPeerIsTakenBackWhateverThePeerSays(t *testing.T) {
	kit.Play(t)
	a, b := TwoSites(t)
	a.Unreachable, b.Unreachable = true, true
	var lies atomic.Bool
	hostile := b.Through(func(ctx context.Context, r *fakeapi.Request) error {
		err := r.Send(ctx)
		if cn, ok := r.Object.(*v1alpha1.ClusterNetwork); ok && r.Verb == "get" && err == nil && lies.Load() {
			for i := range cn.Spec.Peers {
				cn.Spec.Peers[i].Phase = v1alpha1.PeerActive
			}
		}
		return err
	})
	kubetest.Fails(t, kit.Err(Peer(t.Context(), a.Cluster, hostile, engine.Options{}, &impatient{1, 500 * time.Millisecond, func() { lies.Store(true) }})), kube.NotReady)
	left := a.Ours(t)
	kit.ErrorIf(t, len(left) > 0, "it leaves %v", left)
}

// Another command unpeers the clusters between the first reading of a peer and its lock. If that peer then fails, it
// removes what it has made: the peering that worked when it began is no longer there to be restored.
func TestUnpeeredBeforeTheLock(t *testing.T) {
	kit.Play(t)
	a, b := Peered(t)
	once := sync.Once{}
	c := a.Through(func(ctx context.Context, r *fakeapi.Request) error {
		if r.Verb == "create" && r.IsLock() {
			once.Do(func() { MustUnpeer(t, a, b) })
		}
		if r.Of("apply", "Deployment") {
			return apierrors.NewForbidden(corev1.Resource("deployments"), "", errors.New("a quota"))
		}
		return r.Send(ctx)
	})
	_, err := Peer(t.Context(), c, b.Cluster, engine.Options{}, kube.Quiet{})
	kit.FatalIf(t, err == nil || !strings.Contains(err.Error(), "quota"), "it must fail for the quota: %v", err)
	for _, w := range []*Site{a, b} {
		for _, cn := range List[v1alpha1.ClusterNetworkList](t, w).Items {
			kit.ErrorIf(t, len(cn.Spec.Peers) > 0, "%s keeps its entry of the ledger: %+v", w.Name, cn.Spec.Peers)
		}
		left := List[v1alpha1.PeeringList](t, w).Items
		kit.ErrorIf(t, len(left) > 0, "%s keeps %d Peerings", w.Name, len(left))
	}
}

// told collects the notices of a command.
type told struct {
	mu  sync.Mutex
	all []string
}

func (l *told) tell(notice string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, notice)
}

// edit changes a field of a workload as kubectl edit does.
func (w *Site) edit(t *testing.T, obj client.Object, name string) {
	t.Helper()
	kit.NoError(t, w.Raw.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: name}, obj))
	engine.PodSpecOf(obj).Containers[0].ImagePullPolicy = corev1.PullAlways
	kit.NoError(t, w.Raw.Update(t.Context(), obj, client.FieldOwner("kubectl-edit")))
}

// peer reports what it overwrites: the object, the field, and its manager.
func TestPeerNamesWhatItOverwrites(t *testing.T) {
	kit.Play(t)
	var notices told
	ctx := kube.WithConflictReports(t.Context(), notices.tell)
	a, b := TwoSites(t)
	peer := func() (writes int) {
		a.Writes = 0
		kit.Must(Peer(ctx, a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}))(t)
		return a.Writes
	}
	peer()
	before := peer()
	kit.ErrorIf(t, len(notices.all) > 0, "where nobody has changed anything it says %q", notices.all)
	a.edit(t, &appsv1.Deployment{}, "gateway-b-0")
	after := peer()
	want := `a: Deployment liqonet-system/gateway-b-0: .spec.template.spec.containers[name="agent"].imagePullPolicy was set by "kubectl-edit", and is overwritten`
	kit.ErrorIf(t, !slices.Equal(notices.all, []string{want}), "it says %q, want %q", notices.all, want)
	d := &appsv1.Deployment{}
	if err := a.Raw.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "gateway-b-0"}, d); err != nil || d.Spec.Template.Spec.Containers[0].ImagePullPolicy != corev1.PullIfNotPresent {
		t.Errorf("%v, %+v", err, d.Spec.Template.Spec.Containers)
	}
	kit.ErrorIf(t, after <= before, "it took %d requests to overwrite, and %d where there was no conflict", after, before)
}

// The strategy of node agents is no rollout that a killed command has left, unless it is the one for rollouts.
func TestPeerNamesAStrategyThatItOverwrites(t *testing.T) {
	kit.Play(t)
	var notices told
	a, b := Peered(t)
	ds := Get(t, a, v1alpha1.Namespace, v1alpha1.NodeAgentName, &appsv1.DaemonSet{})
	before := ds.DeepCopy()
	ds.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromInt32(1))}
	kit.NoError(t, a.Raw.Patch(t.Context(), ds, client.MergeFrom(before), client.FieldOwner("kubectl-edit")))
	kit.Must(Peer(kube.WithConflictReports(t.Context(), notices.tell), a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}))(t)
	kit.ErrorIf(t, !slices.ContainsFunc(notices.all, func(n string) bool { return strings.Contains(n, "maxUnavailable") }),
		"it says %q", notices.all)
	Settled(t, a, b, engine.Options{})
}

// A rollback keeps fields that others have set since, and reports them.
func TestRollbackNamesWhatStays(t *testing.T) {
	kit.Play(t)
	var notices told
	a, b := Peered(t)
	_, err := Peer(kube.WithConflictReports(t.Context(), notices.tell), a.Cluster, b.Cluster, engine.Options{Image: "image:2"}, Steps{"Waiting until packets pass": func() {
		a.edit(t, &appsv1.Deployment{}, "gateway-b-0")
		a.Mu.Lock()
		defer a.Mu.Unlock()
		a.failing = a.Writes + 1
	}})
	kit.FatalIf(t, !errors.Is(err, ErrInjected), "%v", err)
	d := &appsv1.Deployment{}
	if err := a.Raw.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "gateway-b-0"}, d); err != nil || d.Spec.Template.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways {
		t.Errorf("%v, %+v", err, d.Spec.Template.Spec.Containers)
	}
	want := `imagePullPolicy was set by "kubectl-edit", and the object stays as it is`
	if len(notices.all) != 1 || !strings.HasSuffix(notices.all[0], want) || !strings.HasPrefix(notices.all[0], "a: Deployment liqonet-system/gateway-b-0: ") {
		t.Errorf("it says %q, want %q", notices.all, want)
	}
}
