package peering

import (
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
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
	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/lock"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// Site is a cluster with a fake API client and simulated agents and controllers, which are up to date whenever the
// command reads objects.
type Site struct {
	*kube.Cluster
	Mu sync.Mutex
	// kernel is what all nodes support, routes are the routes that they have.
	kernel v1alpha1.KernelFacts
	routes []netip.Prefix
	// unreachable makes this cluster's gateways unreachable from outside.
	unreachable bool
	Peer        *Site
	// late is a node or a Deployment whose pod is not replaced. holder is the pod that holds all Leases, empty for the
	// running one.
	late, holder string
	// Writes counts the command's writes; the one with the number failing fails.
	Writes, failing int
	// DeadFrom is the write from which on all writes fail, 0 for none.
	DeadFrom int
	// readOnly rejects every write.
	readOnly  bool
	nodePorts map[string]int32
	// played is the state that agents and controllers last saw, playedAt when that was, playTook how long it took.
	played   string
	playedAt time.Time
	// rolledOut is the state that controllers saw at their last rollout.
	rolledOut string
	playTook  time.Duration
	// Raw is the API without simulated agents.
	Raw *fakeapi.API
	// did lists what the command has applied and deleted, in order: the kind and name, and for Deployments the number of pods.
	did []string
	// slow is a node whose agent reports, with slowKernel, only after a gateway was started.
	slow       string
	slowKernel v1alpha1.KernelFacts
	// unplaced is the plane whose gateways cannot be scheduled, 0 for none. silent is a node whose agent reports and renews nothing.
	unplaced int32
	silent   string
	// outside is a pod's address that all nodes report, none if invalid.
	outside netip.Addr
	// lossy is an image whose agents pass no packets. fails is a kind and a name whose next apply fails.
	lossy, fails string
	// Tls is the key exchange of each connection, none by default. keys are the names of the Secrets whose data the
	// command has read; all Secrets for a list.
	Tls  kube.KeyExchange
	Keys []string
	// BeforeWrite is called once, just before the command's write with the number BeforeWriteAt.
	BeforeWrite   func()
	BeforeWriteAt int
	// broken lists the violations of rules for keys by writes of a command, keyData the data of each Secret with a key.
	broken sets.Set[string]
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
	w := &Site{kernel: v1alpha1.KernelFacts{Release: "6.1", VXLAN: true}, broken: sets.New[string](), keyData: map[types.UID]string{}}
	t.Cleanup(func() {
		w.Mu.Lock()
		defer w.Mu.Unlock()
		for _, what := range sets.List(w.broken) {
			t.Errorf("%s: %s", name, what)
		}
	})
	n := kubetest.Node(name+"-1", true, nodeAddress)
	n.Labels = map[string]string{corev1.LabelOSStable: "linux"}
	n.Spec.PodCIDR = netip.PrefixFrom(kubetest.Prefix(pods).Addr(), 24).String()
	n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
	objs := []client.Object{
		n, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: types.UID("id-of-" + name)}},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}},
		},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubeadm-config"},
			Data:       map[string]string{"ClusterConfiguration": "networking:\n  podSubnet: " + pods + "\n  serviceSubnet: 10.96.0.0/16\n"},
		},
	}
	for _, o := range setup {
		objs = append(objs, o.DeepCopyObject().(client.Object))
	}
	w.Raw = kit.Must(fakeapi.NewClient(objs...))(t)
	w.Cluster = kubetest.ClusterOf(name, fakeapi.Watching(fakeapi.Intercept(w.Raw, w.request)))
	w.Cluster.DefaultImage = "image:1"
	return w
}

// write records a write of the command, which lasts until end is called.
func (w *Site) write(ctx context.Context, what string) (end func(), err error) {
	w.Mu.Lock()
	do := w.BeforeWrite
	if do != nil && w.Writes+1 >= w.BeforeWriteAt {
		w.BeforeWrite = nil
		w.Mu.Unlock()
		do()
		w.Mu.Lock()
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
			if !w.IsCollected || !strings.HasSuffix(broken, "which is not there") {
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
		if err := w.play(ctx); err != nil {
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

// play does what agents and controllers would have done by now.
func (w *Site) play(ctx context.Context) error {
	c := w.Raw
	w.Mu.Lock()
	defer w.Mu.Unlock()
	// Many watches would do nothing but this.
	if ctx.Value(fakeapi.ForWatch{}) != nil && time.Since(w.playedAt) < 2*w.playTook {
		return nil
	}
	// Unless something changes, they only renew their Leases.
	sees := w.sees()
	if sees == w.played && time.Since(w.playedAt) < playInterval {
		return nil
	}
	w.played, w.playedAt = sees, time.Now()
	ctx = context.WithValue(ctx, fakeapi.ForWatch{}, nil) // they see everything, whatever the watch has seen
	defer func() { w.playTook = time.Since(w.playedAt) }()
	if err := w.playService(ctx, c); err != nil {
		return err
	}
	if rolledOut := fmt.Sprint(c.LastChange(fakeapi.RollsOut...), w.late); rolledOut != w.rolledOut {
		if err := fakeapi.RollOut(ctx, c, metav1.Time{}, w.late); err != nil {
			return err
		}
		w.rolledOut = rolledOut
	}
	if err := w.playUnplaced(ctx, c); err != nil {
		return err
	}
	ds := &appsv1.DaemonSet{}
	if c.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName}, ds) != nil {
		return nil
	}
	cn := &v1alpha1.ClusterNetwork{}
	if c.Get(ctx, types.NamespacedName{Name: v1alpha1.ClusterNetworkName}, cn) != nil {
		return nil
	}
	var peerings v1alpha1.PeeringList
	if err := c.List(ctx, &peerings); err != nil {
		return err
	}
	var list corev1.NodeList
	if err := c.List(ctx, &list); err != nil {
		return err
	}
	for _, n := range list.Items {
		if !nodes.RunsAgents(&n) {
			continue
		}
		kernel := &w.kernel
		if n.Name == w.slow {
			if kernel = &w.slowKernel; !w.hasStarted() {
				continue
			}
		}
		addr, err := ipam.NodeAddr(cn.Spec.InternalCIDR.Prefix, ipam.NodeCandidate(n.Name, 0))
		if err != nil {
			return err
		}
		if n.Name == w.silent {
			if err := w.playSilence(ctx, c, v1alpha1.NodeLeaseName(addr)); err != nil {
				return err
			}
			continue
		}
		nn := kubetest.Report(n.Name, addr.String(), nil)
		if err := c.Get(ctx, client.ObjectKeyFromObject(&nn), &nn); apierrors.IsNotFound(err) {
			nn.Labels = map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager}
			if err := c.Create(ctx, &nn); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
		if err := fakeapi.RenewLease(ctx, c, v1alpha1.NodeLeaseName(addr), v1alpha1.NodeAgentName+"-"+n.Name, w.holder); err != nil {
			return err
		}
		passes := !w.runs(ctx, c, v1alpha1.NodeLeaseName(addr), w.lossy)
		status := v1alpha1.NodeNetworkStatus{Address: v1alpha1.IP{Addr: addr}, Kernel: kernel, UnderlayMTU: 1500, Routes: v1alpha1.NewCIDRs(w.routes...)}
		if w.outside.IsValid() {
			status.PodIPs = []v1alpha1.IP{{Addr: w.outside}}
		}
		for i := range peerings.Items {
			p := &peerings.Items[i]
			for _, plane := range p.Spec.Planes {
				status.Gateways = append(status.Gateways, v1alpha1.NodeGateway{
					PeeringName: p.Name, Plane: plane.Index, ObservedGeneration: p.Generation, Ready: w.connected(p) && passes && !w.lacksNode(plane.Index), RTTMicroseconds: 300,
				})
			}
		}
		if cmp.Equal(nn.Status, status, kit.Compare) {
			continue
		}
		nn.Status = status
		if err := c.Status().Update(ctx, &nn); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	for i := range peerings.Items {
		p := &peerings.Items[i]
		if len(p.Status.Conditions) == 0 {
			continue // the command has not written them yet: gateways see the Peering later
		}
		// Status().Update replaces the whole status; agents apply their parts.
		var planes []v1alpha1.PlaneStatus
		for _, plane := range p.Spec.Planes {
			gateway := v1alpha1.GatewayName(p.Name, plane.Index)
			if c.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: gateway}, &appsv1.Deployment{}) != nil {
				continue
			}
			if w.unplaced > 0 && plane.Index == w.unplaced {
				if err := w.playSilence(ctx, c, gateway); err != nil {
					return err
				}
				continue
			}
			if err := fakeapi.RenewLease(ctx, c, gateway, gateway+"-pod", w.holder); err != nil {
				return err
			}
			planes = append(planes, v1alpha1.PlaneStatus{
				Index: plane.Index, ObservedGeneration: p.Generation, Connected: w.connected(p) && !w.lacksNode(plane.Index) && !w.runs(ctx, c, gateway, w.lossy), MTU: 1440, PodIP: v1alpha1.IP{Addr: netip.MustParseAddr(fakeapi.GatewayIP)},
			})
		}
		for _, reported := range p.Status.Planes { // the report of a removed plane stays
			if !slices.ContainsFunc(planes, func(s v1alpha1.PlaneStatus) bool { return s.Index == reported.Index }) {
				planes = append(planes, reported)
			}
		}
		if cmp.Equal(p.Status.Planes, planes, kit.Compare) {
			continue
		}
		p.Status.Planes = planes
		if err := c.Status().Update(ctx, p); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// playInterval is how often Leases are checked without a change.
const playInterval = 250 * time.Millisecond

// sees is everything that the next play depends on.
func (w *Site) sees() string {
	return fmt.Sprint(
		w.Raw.Changes(), w.kernel, w.routes, w.unreachable, w.Peer != nil && w.Peer.unreachable, w.late, w.holder, w.slow, w.slowKernel, w.hasStarted(), w.lossy, w.silent, w.lacksNode(1), w.unplaced, w.outside,
	)
}

// hasStarted reports whether the command has started a gateway.
func (w *Site) hasStarted() bool {
	return slices.ContainsFunc(w.did, func(did string) bool { return strings.HasPrefix(did, "run 1 Deployment") })
}

// runs reports whether the agent that renews a Lease runs an image.
func (w *Site) runs(ctx context.Context, c client.WithWatch, lease, image string) bool {
	l, pod := &coordinationv1.Lease{}, &corev1.Pod{}
	if image == "" || c.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: lease}, l) != nil {
		return false
	}
	err := c.Get(ctx, types.NamespacedName{Namespace: v1alpha1.Namespace, Name: l.Annotations[v1alpha1.AnnotationPod]}, pod)
	return err == nil && pod.Spec.Containers[0].Image == image
}

// lacksNode reports whether a gateway of the plane cannot be scheduled, in either cluster.
func (w *Site) lacksNode(plane int32) bool {
	return plane > 0 && (w.unplaced == plane || w.Peer != nil && w.Peer.unplaced == plane)
}

// playSilence stops the renewal of a Lease.
func (w *Site) playSilence(ctx context.Context, c client.WithWatch, lease string) error {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: lease}}
	return client.IgnoreNotFound(c.Delete(ctx, l))
}

// playUnplaced removes the node from pods that cannot be scheduled.
func (w *Site) playUnplaced(ctx context.Context, c client.WithWatch) error {
	if w.unplaced == 0 {
		return nil
	}
	plane := client.MatchingLabels{v1alpha1.LabelPlane: fmt.Sprint(w.unplaced)}
	var pods corev1.PodList
	var deployments appsv1.DeploymentList
	if err := c.List(ctx, &pods, client.InNamespace(v1alpha1.Namespace), plane); err != nil {
		return err
	}
	if err := c.List(ctx, &deployments, client.InNamespace(v1alpha1.Namespace), plane); err != nil {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if engine.Unschedulable(pod) != nil {
			continue
		}
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available",
		}}}
		if err := c.Status().Update(ctx, pod); err != nil {
			return err
		}
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if d.Status.AvailableReplicas == 0 {
			continue
		}
		d.Status.AvailableReplicas = 0
		if err := c.Status().Update(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// connected reports whether the server can be reached.
func (w *Site) connected(p *v1alpha1.Peering) bool {
	if len(p.Spec.Planes) > 0 && p.Spec.Planes[0].Role == v1alpha1.Server {
		return !w.unreachable
	}
	return w.Peer == nil || !w.Peer.unreachable
}

// playService allocates node ports.
func (w *Site) playService(ctx context.Context, c client.WithWatch) error {
	var services corev1.ServiceList
	if err := c.List(ctx, &services, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return err
	}
	taken, kept := map[int32]bool{}, map[string]int32{}
	for _, s := range services.Items {
		port := s.Spec.Ports[0].NodePort
		if port == 0 {
			port = w.nodePorts[s.Name] // an API server keeps the port
		}
		taken[port], kept[s.Name] = true, port
	}
	w.nodePorts = kept
	for i := range services.Items {
		s := &services.Items[i]
		if s.Spec.Type != corev1.ServiceTypeNodePort || s.Spec.Ports[len(s.Spec.Ports)-1].NodePort != 0 {
			continue
		}
		s.Spec.Ports[0].NodePort = kept[s.Name]
		for port := int32(30001); s.Spec.Ports[0].NodePort == 0; port++ {
			if !taken[port] {
				s.Spec.Ports[0].NodePort, kept[s.Name] = port, port
			}
		}
		for i := range s.Spec.Ports[1:] {
			s.Spec.Ports[i+1].NodePort = s.Spec.Ports[0].NodePort + int32(1000*(i+1))
		}
		if err := c.Update(ctx, s); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// Peer peers one pair.
func Peer(ctx context.Context, a, b *kube.Cluster, o engine.Options, r kube.Reporter) (Result, error) {
	out := PeerAll(ctx, []Pair{{a, b}}, o, func(Pair) kube.Reporter { return r })[0]
	return out.Result, out.Err
}

func MustPeer(t *testing.T, a, b *Site, o engine.Options) Result {
	t.Helper()
	return kit.Must(Peer(t.Context(), a.Cluster, b.Cluster, o, kube.Quiet{}))(t)
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
	_, _, err := Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{})
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
