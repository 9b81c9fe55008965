package diagnose

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/samber/lo"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/probe"
)

const (
	// probeBeat is how often a command that lives gives its probes more time.
	probeBeat = 10 * time.Second
	// probeRefusal is how long a reason against a pod may last until it counts as final. The account of a new namespace
	// comes a moment after it.
	probeRefusal = 3 * time.Second
	// probeOutput is how many bytes of what a probe says are read.
	probeOutput = 4 << 20
)

// Probe is one probe pod, and what becomes of it.
type Probe struct {
	// Name tells it from others of the run; Node is where it runs.
	Name, Node string
	// Host gives it the node's network, and NET_ADMIN.
	Host bool
	Task probe.Task

	// The following may be read when Ended is closed, and when Ready is closed, whether there is an error.

	// Ready is closed when the probe does what others depend on, or cannot.
	Ready chan struct{}
	// Answered is closed when its calls are made, or cannot be.
	Answered chan struct{}
	// Ended is closed when it says no more.
	Ended chan struct{}
	// Pod is its pod, nil where none was made.
	Pod *corev1.Pod
	// Err is why it could not do its task.
	Err error
	// Result is what it has found out.
	Result probe.Result

	job   *batchv1.Job
	begun time.Time
	// refused is since when there is a reason against its pod.
	refused time.Time
}

// String names it in errors.
func (p *Probe) String() string { return fmt.Sprintf("probe %s on node %s", p.Name, p.Node) }

// end says that there is nothing to be waited for any more.
func (p *Probe) end() {
	reached(p.Ready)
	reached(p.Answered)
	close(p.Ended)
}

// reached closes what only one goroutine closes, once.
func reached(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// Probes are the probe pods of one command in one cluster. Whoever makes them removes them in the end; if the command is
// killed, Kubernetes does so within a minute.
type Probes struct {
	cluster *kube.Cluster
	// run is the name of the run, which the label LabelProbe has on all of it. image is what the probes run.
	run, image string

	mu  sync.Mutex
	all []*Probe
	// made are all objects of the run but for pods.
	made   []client.Object
	stop   context.CancelFunc
	beaten sync.WaitGroup
	ctx    context.Context
}

// NewProbes prepares a run: the namespace is made where it is missing. The kind, such as verify, begins all names.
func NewProbes(ctx context.Context, c *kube.Cluster, kind string) (*Probes, error) {
	ds, err := c.NodeAgents(ctx)
	if err != nil {
		return nil, err
	}
	p := &Probes{cluster: c, run: kind + "-" + utilrand.String(5), image: c.DefaultImage}
	if ds != nil {
		p.image = manifests.AgentsOf(ds, &ds.Spec.Template.Spec).Image
	}
	if err := lendNamespace(ctx, c); err != nil {
		return nil, err
	}
	p.ctx, p.stop = context.WithCancel(context.WithoutCancel(ctx)) // until Remove
	p.beaten.Go(func() { wait.UntilWithContext(p.ctx, p.prolong, probeBeat) })
	return p, nil
}

// Start makes probes, and begins to read what they say. It returns before they run: each says by its channels how far it is.
func (p *Probes) Start(ctx context.Context, probes ...*Probe) error {
	g, gctx := failure.NewGroup(ctx)
	for _, one := range probes {
		one.Ready, one.Answered, one.Ended, one.begun = make(chan struct{}), make(chan struct{}), make(chan struct{}), time.Now()
		one.job = manifests.Probe{Run: p.run, Name: one.Name, Node: one.Node, Image: p.image, Task: one.Task, Host: one.Host}.Job()
		g.Go(func() error { return p.create(gctx, one.job) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	p.mu.Lock()
	p.all = append(p.all, probes...)
	p.mu.Unlock()
	p.beaten.Go(func() {
		err := failure.Caught(func() error { return p.follow(p.ctx, probes) })
		for _, one := range probes {
			if err != nil && one.Pod == nil && one.Err == nil {
				one.Err = err
				one.end()
			}
		}
	})
	return nil
}

// Own makes objects that belong to the run, and that Kubernetes removes with the first of its probes.
func (p *Probes) Own(ctx context.Context, objs ...client.Object) error {
	p.mu.Lock()
	owner := p.all[0].job
	p.mu.Unlock()
	g, gctx := failure.NewGroup(ctx)
	for _, obj := range objs {
		obj.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Name: owner.Name, UID: owner.UID}})
		g.Go(func() error { return p.create(gctx, obj) })
	}
	return g.Wait()
}

// create makes an object of the run. One that is there was made by the same request, to which no answer came.
func (p *Probes) create(ctx context.Context, obj client.Object) error {
	err := p.cluster.Client.Create(ctx, obj)
	if apierrors.IsAlreadyExists(err) {
		err = p.cluster.Client.Get(ctx, client.ObjectKeyFromObject(obj), obj)
	}
	if err != nil {
		return p.cluster.Fail("create "+kube.Describe(obj), err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made = append(p.made, obj)
	return nil
}

// follow waits until each of the probes runs or cannot, and has what it says read.
func (p *Probes) follow(ctx context.Context, probes []*Probe) error {
	c := p.cluster
	return c.Await(ctx, "start the probe pods", c.PodsHint(), []client.ObjectList{&corev1.PodList{}, &corev1.EventList{}}, func(ctx context.Context, o kube.Objects) (string, error) {
		var missing []string
		for _, one := range probes {
			if one.Pod != nil || one.Err != nil {
				continue
			}
			pod := kube.Find(o, func(pod *corev1.Pod) bool { return metav1.IsControlledBy(pod, one.job) })
			reason, err := whyNoProbe(c, o, one, pod)
			switch {
			case err != nil:
				one.Err = err
				one.end()
			case reason != "":
				missing = append(missing, fmt.Sprintf("%s on node %s: %s", one.job.Name, one.Node, reason))
			default:
				one.Pod = pod
				p.beaten.Go(func() { p.listen(ctx, one) })
			}
		}
		return strings.Join(missing, "; "), nil
	})
}

// whyNoProbe is why what a probe says cannot be read yet, and an error if that will not change.
func whyNoProbe(c *kube.Cluster, o kube.Objects, one *Probe, pod *corev1.Pod) (reason string, err error) {
	if pod == nil {
		for _, e := range kube.OfKind[*corev1.Event](o) {
			if e.InvolvedObject.UID == one.job.UID && e.Type == corev1.EventTypeWarning && e.Reason == "FailedCreate" {
				reason = strings.TrimSpace(e.Message)
			}
		}
		return cmp.Or(reason, "it has no pod yet"), one.refusedFor(c, reason)
	}
	for _, s := range pod.Status.ContainerStatuses {
		if err := engine.CannotStart(c, pod, s); err != nil {
			return "", err
		}
		if s.State.Running != nil || s.State.Terminated != nil {
			return "", nil
		}
		if s.State.Waiting != nil {
			reason = strings.TrimSpace(s.State.Waiting.Reason + " " + s.State.Waiting.Message)
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		return "", engine.StartError(c, pod, errors.New(strings.TrimSpace(pod.Status.Reason+" "+pod.Status.Message)))
	}
	if cond := engine.Unschedulable(pod); cond != nil {
		return cond.Message, one.refusedFor(c, cond.Message)
	}
	return cmp.Or(reason, "its pod is "+string(cmp.Or(pod.Status.Phase, corev1.PodPending))), nil
}

// refusedFor is an error if there has been a reason against a pod for some time.
func (p *Probe) refusedFor(c *kube.Cluster, reason string) error {
	switch {
	case reason == "":
		p.refused = time.Time{}
	case p.refused.IsZero():
		p.refused = time.Now()
	case time.Since(p.refused) >= probeRefusal:
		hint := fmt.Sprintf("%s -n %s describe job %s", c.Kubectl, p.job.Namespace, p.job.Name)
		return c.Errorf(kube.NotReady, fmt.Sprintf("start probe %s on node %s", p.job.Name, p.Node), hint, "%s", reason)
	}
	return nil
}

// listen reads what a probe says until it ends.
func (p *Probes) listen(ctx context.Context, one *Probe) {
	defer one.end()
	said, err := p.cluster.Logs(ctx, one.Pod.Name)
	if err != nil {
		one.Err = p.cluster.Fail("read the log of pod "+one.Pod.Name, err)
		return
	}
	defer said.Close()
	lines := bufio.NewScanner(io.LimitReader(said, probeOutput))
	lines.Buffer(nil, probeOutput)
	spoken, last := false, ""
	for lines.Scan() {
		l := probe.Line{Result: &one.Result}          // the parts of it come in several lines
		if json.Unmarshal(lines.Bytes(), &l) != nil { // what libraries and the runtime write
			last = cmp.Or(lines.Text(), last)
			continue
		}
		spoken = true
		if l.Error != "" {
			one.Err = engine.StartError(p.cluster, one.Pod, errors.New(l.Error))
		}
		if l.Ready {
			reached(one.Ready)
		}
		if one.Result.Answers != nil {
			reached(one.Answered)
		}
	}
	switch {
	case one.Err != nil:
	case strings.Contains(last, "unknown command"):
		e := engine.StartError(p.cluster, one.Pod, fmt.Errorf("the agents' image %s is of a version without probes", p.image))
		e.Hint = "kubectl liqonet upgrade " + p.cluster.Name
		one.Err = e
	case !spoken:
		one.Err = engine.StartError(p.cluster, one.Pod, errors.New(cmp.Or(last, "it has said nothing")))
	}
}

// prolong gives the probes more time as long as the command lives.
func (p *Probes) prolong(ctx context.Context) {
	p.mu.Lock()
	all := slices.Clone(p.all)
	p.mu.Unlock()
	for _, one := range all {
		select {
		case <-one.Ended:
			continue
		default:
		}
		seconds := int(time.Since(one.begun).Seconds()) + manifests.ProbeSeconds
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"activeDeadlineSeconds":%d}}`, seconds))
		_ = p.cluster.Client.Patch(ctx, one.job.DeepCopy(), patch) // the next time, or the probe ends
	}
}

// End tells probes to end that run, and waits until they have said their last word.
func (p *Probes) End(ctx context.Context, probes ...*Probe) error {
	running := lo.Filter(probes, func(one *Probe, _ int) bool { return one.Pod != nil })
	objs := lo.FlatMap(running, func(one *Probe, _ int) []client.Object { return []client.Object{one.job, one.Pod} })
	if err := p.cluster.DeleteEach(ctx, objs); err != nil {
		return err
	}
	return p.await(ctx, ended, running...)
}

// await waits until each of the probes is as far as that.
func (p *Probes) await(ctx context.Context, as func(*Probe) (is <-chan struct{}, doing string), probes ...*Probe) error {
	for _, one := range probes {
		is, doing := as(one)
		select {
		case <-is:
		case <-ctx.Done():
			return p.cluster.TimedOut(ctx, doing, p.cluster.PodsHint(), "")
		}
	}
	return nil
}

// How far probes are waited for.
func ready(p *Probe) (<-chan struct{}, string) { return p.Ready, "start " + p.String() }

func answered(p *Probe) (<-chan struct{}, string) {
	return p.Answered, "wait for the calls of node " + p.Node
}
func ended(p *Probe) (<-chan struct{}, string) { return p.Ended, "wait for " + p.String() }

// Remove removes all of the run, and waits until it is gone. The context of the command may have ended.
func (p *Probes) Remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), kube.RollbackTimeout)
	defer cancel()
	p.mu.Lock()
	c, made := p.cluster, p.made
	p.mu.Unlock()
	err := errors.Join(c.DeleteEach(ctx, made), p.deletePods(ctx))
	p.stop()
	p.beaten.Wait()
	if err == nil && len(made) > 0 {
		err = c.Await(ctx, "wait until the probe pods are gone", c.PodsHint(), []client.ObjectList{&corev1.PodList{}}, func(_ context.Context, o kube.Objects) (string, error) {
			if pod := kube.Find(o, func(pod *corev1.Pod) bool { return pod.Labels[v1alpha1.LabelProbe] == p.run }); pod != nil {
				return "pod " + pod.Name + " is still there", nil
			}
			return "", nil
		})
	}
	return errors.Join(err, returnNamespace(ctx, c))
}

// deletePods deletes the pods of the run at once. Kubernetes does the same for those of Jobs that are gone, but later.
func (p *Probes) deletePods(ctx context.Context, opts ...client.DeleteOption) error {
	pods, err := p.cluster.ListManaged(ctx, &corev1.PodList{}, client.MatchingLabels{v1alpha1.LabelProbe: p.run})
	return errors.Join(err, p.cluster.DeleteEach(ctx, pods, opts...))
}

// RunProbes makes probes, waits until each has done its task or cannot, and removes all of it.
func RunProbes(ctx context.Context, c *kube.Cluster, kind string, probes ...*Probe) (err error) {
	run, err := NewProbes(ctx, c, kind)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, run.Remove(ctx)) }()
	return run.toEnd(ctx, probes...)
}

// toEnd makes probes, and waits until each has done its task or cannot.
func (p *Probes) toEnd(ctx context.Context, probes ...*Probe) error {
	if err := p.Start(ctx, probes...); err != nil {
		return err
	}
	return p.await(ctx, ended, probes...)
}

// annotationLent is on our namespace where a command has made it for its probes only.
const annotationLent = "liqonet.io/made-for-probes"

// lendNamespace makes our namespace where there is none, as before peering.
func lendNamespace(ctx context.Context, c *kube.Cluster) error {
	ns, err := kube.Get[corev1.Namespace](ctx, c, "", v1alpha1.Namespace)
	switch {
	case err != nil:
		return err
	case ns != nil && !kube.IsManaged(ns):
		hint := fmt.Sprintf("delete it if nobody needs it (%s delete namespace %s)", c.Kubectl, ns.Name)
		return c.Errorf(kube.Usage, "run probes in namespace "+ns.Name, hint, "liqonet has not made it")
	case ns != nil && ns.DeletionTimestamp.IsZero():
		return nil
	case ns != nil:
		if err := c.AwaitDeleted(ctx, ns); err != nil {
			return err
		}
	}
	ns = manifests.Namespace()
	ns.Annotations[annotationLent] = "true"
	err = client.IgnoreAlreadyExists(c.Client.Create(ctx, ns, client.FieldOwner(annotationLent)))
	return c.Fail("create namespace "+ns.Name, err)
}

// returnNamespace deletes our namespace if it was made for probes, also of a command that was killed, and nobody uses it. A peer command
// that has begun since has applied it as well, which its managers tell.
func returnNamespace(ctx context.Context, c *kube.Cluster) error {
	ns, err := kube.Get[corev1.Namespace](ctx, c, "", v1alpha1.Namespace)
	if ns == nil || ns.Annotations[annotationLent] == "" || !kube.IsManaged(ns) || !ns.DeletionTimestamp.IsZero() {
		return err
	}
	if slices.ContainsFunc(ns.ManagedFields, func(m metav1.ManagedFieldsEntry) bool { return m.Manager == v1alpha1.FieldManager }) {
		return nil
	}
	var jobs batchv1.JobList
	if err := c.List(ctx, &jobs, client.InNamespace(v1alpha1.Namespace)); err != nil || len(jobs.Items) > 0 {
		return err
	}
	if err := c.Delete(ctx, ns, client.Preconditions{ResourceVersion: new(ns.ResourceVersion)}); err != nil {
		return err
	}
	return engine.RemoveNamespace(ctx, c)
}

// toProbe are the permissions that probes need.
func toProbe() []kube.Permission {
	ns := v1alpha1.Namespace
	return slices.Concat(
		kube.Permissions("", "get", "namespaces"),
		kube.Permissions(ns, "get", "daemonsets.apps pods/log"),
		kube.Permissions(ns, "get create patch delete", "jobs.batch"),
		kube.Permissions(ns, "list watch delete", "pods"),
		kube.Permissions(ns, "list watch", "events"),
	)
}
