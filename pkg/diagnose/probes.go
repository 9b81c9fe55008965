package diagnose

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	// extendInterval is how often a running command extends the deadline of its probes.
	extendInterval = 10 * time.Second
	// rejectionTimeout is how long a pod must be refused until that counts as final. The ServiceAccount of a new namespace is created
	// shortly after the namespace.
	rejectionTimeout = 3 * time.Second
	// removalTimeout limits the attempt to remove what a request without an answer may have created.
	removalTimeout = 10 * time.Second
	// maxOutput limits the bytes that are read from a probe's log.
	maxOutput = 4 << 20
)

// Probe is a probe pod and its result.
type Probe struct {
	// Name is unique in the run. Node is where the probe runs.
	Name, Node string
	// Host gives it the host network, and NET_ADMIN.
	Host bool
	Task probe.Task

	// The following fields may be read at the stage ended. Whether Err is nil may be read at the stage ready.

	// Pod is its pod, nil if there is none.
	Pod *corev1.Pod
	// Err is why the task could not be done.
	Err error
	// Result is the output of the task.
	Result probe.Result

	job     *batchv1.Job
	started time.Time
	// reached has a channel for each stage, closed when the probe has reached it. next is the first stage that it has not.
	reached [ended + 1]chan struct{}
	next    stage
	// rejected is the time since which its pod has been refused.
	rejected time.Time
}

// String describes the probe in errors.
func (p *Probe) String() string { return fmt.Sprintf("probe %s on node %s", p.Name, p.Node) }

// stage is how far a probe has come. A probe that fails reaches all stages.
type stage int

const (
	// ready means that it serves and watches.
	ready stage = iota
	// answered means that its calls are done, or cannot be made.
	answered
	// ended means that there is no more output.
	ended
)

// reach records that the probe has come to a stage. Only one goroutine may call it.
func (p *Probe) reach(s stage) {
	for ; p.next <= s; p.next++ {
		close(p.reached[p.next])
	}
}

// Probes are the probe pods of one command in one cluster. The command must call Remove. If it is killed, Kubernetes removes the pods
// within a minute.
type Probes struct {
	cluster *kube.Cluster
	// run is the name of the run, and the value of LabelProbe on its objects. image is the image of the probes.
	run, image string

	// mu is held to append to the lists, which only the command reads without it.
	mu  sync.Mutex
	all []*Probe
	// created are all objects of the run except pods, and unanswered those that the API server may have created without an answer.
	created, unanswered []client.Object
	// waiting is why probes do not run yet.
	waiting map[*Probe]string
	stop    context.CancelFunc
	wg      sync.WaitGroup
	ctx     context.Context
}

// NewProbes prepares a run, and creates the namespace if it is missing. The kind, such as verify, begins all names.
func NewProbes(ctx context.Context, c *kube.Cluster, kind string) (*Probes, error) {
	ds, err := c.ReadNodeAgents(ctx)
	if err != nil {
		return nil, err
	}
	p := &Probes{cluster: c, run: kind + "-" + strings.ToLower(rand.Text()[:6]), image: imageOfProbes(c, ds), waiting: map[*Probe]string{}}
	if err := createNamespace(ctx, c); err != nil {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), removalTimeout)
		defer cancel()
		_ = deleteNamespace(ending, c) // a request without an answer may have created it
		return nil, err
	}
	p.ctx, p.stop = context.WithCancel(context.WithoutCancel(ctx)) // until Remove
	p.wg.Go(func() { wait.UntilWithContext(p.ctx, p.extend, extendInterval) })
	return p, nil
}

// imageOfProbes returns the image of the node agents or, without them, the command's own.
func imageOfProbes(c *kube.Cluster, agents *appsv1.DaemonSet) string {
	if agents == nil || !agents.DeletionTimestamp.IsZero() {
		return c.DefaultImage
	}
	return manifests.AgentsOf(agents, &agents.Spec.Template.Spec).Image
}

// Start creates probes, and starts to read their output. It returns before they run: each probe reports its progress.
func (p *Probes) Start(ctx context.Context, probes ...*Probe) error {
	for _, one := range probes {
		one.reached, one.started = [...]chan struct{}{make(chan struct{}), make(chan struct{}), make(chan struct{})}, time.Now()
		one.job = manifests.Probe{Run: p.run, Name: one.Name, Node: one.Node, Image: p.image, Task: one.Task, Host: one.Host}.Job()
	}
	if err := failure.ForEach(ctx, probes, func(ctx context.Context, one *Probe) error { return p.create(ctx, one.job) }); err != nil {
		return err
	}
	p.mu.Lock()
	p.all = append(p.all, probes...)
	p.mu.Unlock()
	p.wg.Go(func() {
		err := failure.RecoverPanic(func() error { return p.follow(p.ctx, probes) })
		for _, one := range probes {
			if err != nil && one.Pod == nil && one.Err == nil {
				one.Err = err
				one.reach(ended)
			}
		}
	})
	return nil
}

// CreateOwned creates objects of the run that Kubernetes deletes with the first of its probes.
func (p *Probes) CreateOwned(ctx context.Context, objs ...client.Object) error {
	owner := p.all[0].job
	return failure.ForEach(ctx, objs, func(ctx context.Context, obj client.Object) error {
		obj.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: owner.Name, UID: owner.UID}})
		return p.create(ctx, obj)
	})
}

// create creates an object of the run. If it exists, an earlier attempt of the same request has created it without getting a response.
func (p *Probes) create(ctx context.Context, obj client.Object) error {
	err := p.cluster.Client.Create(ctx, obj)
	if apierrors.IsAlreadyExists(err) {
		err = p.cluster.Client.Get(ctx, client.ObjectKeyFromObject(obj), obj)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.created = append(p.created, obj)
	} else if !errors.As(err, new(apierrors.APIStatus)) {
		p.unanswered = append(p.unanswered, obj)
	}
	return p.cluster.Wrap("create "+kube.Describe(obj), err)
}

// pending returns why a probe does not run, empty if it does.
func (p *Probes) pending(one *Probe) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting[one]
}

// follow waits until each of the probes runs or has failed, and starts to read its output.
func (p *Probes) follow(ctx context.Context, probes []*Probe) error {
	c := p.cluster
	return c.Await(ctx, "start the probe pods", c.PodsHint(), []client.ObjectList{&corev1.PodList{}, &corev1.EventList{}}, func(o kube.Objects) (string, error) {
		var missing []string
		for _, one := range probes {
			if one.Pod != nil || one.Err != nil {
				continue
			}
			pod := kube.Find(o, func(pod *corev1.Pod) bool { return metav1.IsControlledBy(pod, one.job) })
			reason, err := pendingReason(c, o, one, pod)
			p.mu.Lock()
			p.waiting[one] = reason
			p.mu.Unlock()
			switch {
			case err != nil:
				one.Err = err
				one.reach(ended)
			case reason != "":
				missing = append(missing, fmt.Sprintf("%s on node %s: %s", one.job.Name, one.Node, reason))
			default:
				one.Pod = pod
				p.wg.Go(func() { p.readLog(ctx, one) })
			}
		}
		return strings.Join(missing, "; "), nil
	})
}

// pendingReason returns why a probe's log cannot be read yet, and an error if that is final.
func pendingReason(c *kube.Cluster, o kube.Objects, one *Probe, pod *corev1.Pod) (reason string, err error) {
	warning := func(about types.UID, reasons ...string) (message string) {
		for _, e := range kube.OfKind[*corev1.Event](o) {
			if e.InvolvedObject.UID == about && e.Type == corev1.EventTypeWarning && slices.Contains(reasons, e.Reason) {
				message = strings.TrimSpace(e.Message)
			}
		}
		return message
	}
	if pod == nil {
		reason = warning(one.job.UID, "FailedCreate")
		return cmp.Or(reason, "it has no pod yet"), one.rejectedError(c, reason)
	}
	for _, s := range pod.Status.ContainerStatuses {
		if err := engine.StartFailure(c, pod, s); err != nil {
			return "", err
		}
		if s.State.Running != nil || s.State.Terminated != nil {
			return "", nil
		}
		if s.State.Waiting != nil {
			reason = strings.TrimSpace(s.State.Waiting.Reason + " " + cmp.Or(s.State.Waiting.Message, warning(pod.UID, "FailedCreatePodSandBox", "FailedMount")))
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		return "", engine.StartError(c, pod, errors.New(strings.TrimSpace(pod.Status.Reason+" "+pod.Status.Message)))
	}
	if cond := engine.Unschedulable(pod); cond != nil {
		return cond.Message, one.rejectedError(c, cond.Message)
	}
	return cmp.Or(reason, "its pod is "+string(cmp.Or(pod.Status.Phase, corev1.PodPending))), nil
}

// rejectedError returns an error if the probe's pod has been refused for rejectionTimeout. The reason is empty if it is not refused.
func (p *Probe) rejectedError(c *kube.Cluster, reason string) error {
	switch {
	case reason == "":
		p.rejected = time.Time{}
	case p.rejected.IsZero():
		p.rejected = time.Now()
	case time.Since(p.rejected) >= rejectionTimeout:
		hint := fmt.Sprintf("%s -n %s describe job %s", c.Kubectl, p.job.Namespace, failure.Quote(p.job.Name))
		return c.Errorf(kube.NotReady, fmt.Sprintf("start probe %s on node %s", p.job.Name, p.Node), hint, "%s", reason)
	}
	return nil
}

// readLog reads the log of a probe until it ends.
func (p *Probes) readLog(ctx context.Context, one *Probe) {
	defer one.reach(ended)
	said, err := p.cluster.Logs(ctx, one.Pod.Name)
	if err != nil {
		one.Err = p.cluster.Wrap("read the log of pod "+one.Pod.Name, err)
		return
	}
	defer said.Close()
	lines := bufio.NewScanner(io.LimitReader(said, maxOutput))
	lines.Buffer(nil, maxOutput)
	spoken, last := false, ""
	for lines.Scan() {
		l := probe.Line{Result: &one.Result}          // each line may add a part of the result
		if json.Unmarshal(lines.Bytes(), &l) != nil { // output of libraries and the runtime
			last = cmp.Or(lines.Text(), last)
			continue
		}
		spoken = true
		if l.Error != "" {
			one.Err = engine.StartError(p.cluster, one.Pod, errors.New(l.Error))
		}
		if l.Ready {
			one.reach(ready)
		}
		if one.Result.Answers != nil {
			one.reach(answered)
		}
	}
	switch {
	case one.Err != nil:
	case strings.Contains(last, "unknown command"):
		e := engine.StartError(p.cluster, one.Pod, fmt.Errorf("the agents' image %s has a version without probes", p.image))
		e.Hint = "kubectl liqonet upgrade " + failure.Quote(p.cluster.Name)
		one.Err = e
	case !spoken:
		one.Err = engine.StartError(p.cluster, one.Pod, errors.New(cmp.Or(last, "it has printed nothing")))
	}
}

// extend extends the deadline of the probes.
func (p *Probes) extend(ctx context.Context) {
	p.mu.Lock()
	all := slices.Clone(p.all)
	p.mu.Unlock()
	for _, one := range all {
		select {
		case <-one.reached[ended]:
			continue
		default:
		}
		seconds := int(time.Since(one.started).Seconds()) + manifests.ProbeSeconds
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"activeDeadlineSeconds":%d}}`, seconds))
		_ = p.cluster.Client.Patch(ctx, one.job.DeepCopy(), patch) // if it fails, the next call extends the deadline, or the probe ends
	}
}

// await waits until each of the probes has come to a stage.
func (p *Probes) await(ctx context.Context, to stage, probes ...*Probe) error {
	for _, one := range probes {
		select {
		case <-one.reached[to]:
		case <-ctx.Done():
			doing := [...]string{"start " + one.String(), "wait for the calls of node " + one.Node, "wait for " + one.String()}[to]
			return p.cluster.TimedOut(ctx, doing, p.cluster.PodsHint(), "")
		}
	}
	return nil
}

// Remove removes all objects of the run, and waits until its pods are gone. The command's context may have ended.
func (p *Probes) Remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), kube.RollbackTimeout)
	defer cancel()
	c := p.cluster
	for _, obj := range p.unanswered {
		if c.Client.Get(ctx, client.ObjectKeyFromObject(obj), obj) == nil {
			p.created = append(p.created, obj)
		}
	}
	err := errors.Join(c.DeleteEach(ctx, p.created), p.deletePods(ctx))
	p.stop()
	p.wg.Wait()
	if err == nil && len(p.created) > 0 {
		err = c.Await(ctx, "wait until the probe pods are gone", c.PodsHint(), []client.ObjectList{&corev1.PodList{}}, func(o kube.Objects) (string, error) {
			if pod := kube.Find(o, func(pod *corev1.Pod) bool { return pod.Labels[v1alpha1.LabelProbe] == p.run }); pod != nil {
				return "pod " + pod.Name + " is still there", nil
			}
			return "", nil
		})
	}
	return errors.Join(err, deleteNamespace(ctx, c))
}

// deletePods deletes the pods of the run immediately. Kubernetes deletes the pods of deleted Jobs too, but later.
func (p *Probes) deletePods(ctx context.Context, opts ...client.DeleteOption) error {
	pods, err := p.cluster.ListManaged(ctx, client.MatchingLabels{v1alpha1.LabelProbe: p.run}, &corev1.PodList{})
	return errors.Join(err, p.cluster.DeleteEach(ctx, pods, opts...))
}

// RunProbes creates probes, waits until each has done its task or failed, and removes them.
func RunProbes(ctx context.Context, c *kube.Cluster, kind string, probes ...*Probe) (err error) {
	run, err := NewProbes(ctx, c, kind)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, run.Remove(ctx)) }()
	return run.startAndAwait(ctx, ended, probes...)
}

// startAndAwait creates probes, and waits until each of them has come to a stage.
func (p *Probes) startAndAwait(ctx context.Context, to stage, probes ...*Probe) error {
	if err := p.Start(ctx, probes...); err != nil {
		return err
	}
	return p.await(ctx, to, probes...)
}

// annotationForProbes marks our namespace if a command has created it only for its probes.
const annotationForProbes = "liqonet.io/made-for-probes"

// createNamespace creates our namespace if it is missing, as before peering.
func createNamespace(ctx context.Context, c *kube.Cluster) error {
	ns, err := kube.Get[corev1.Namespace](ctx, c, "", v1alpha1.Namespace)
	switch {
	case err != nil:
		return err
	case ns != nil && !kube.IsManaged(ns):
		hint := fmt.Sprintf("delete it if nobody needs it (%s delete namespace %s)", c.Kubectl, ns.Name)
		return c.Errorf(kube.Usage, "run probes in namespace "+ns.Name, hint, "liqonet has not created it")
	case ns != nil && ns.DeletionTimestamp.IsZero():
		return nil
	case ns != nil:
		if err := c.AwaitDeleted(ctx, ns); err != nil {
			return err
		}
	}
	ns = manifests.Namespace()
	ns.Annotations[annotationForProbes] = "true"
	err = client.IgnoreAlreadyExists(c.Client.Create(ctx, ns, client.FieldOwner(annotationForProbes)))
	return c.Wrap("create namespace "+ns.Name, err)
}

// deleteNamespace deletes our namespace if it was created only for probes, even by a command that was killed, and is unused. If a peer
// command has started since, it has applied the namespace too, which the managed fields show.
func deleteNamespace(ctx context.Context, c *kube.Cluster) error {
	ns, err := kube.Get[corev1.Namespace](ctx, c, "", v1alpha1.Namespace)
	if ns == nil || ns.Annotations[annotationForProbes] == "" || !kube.IsManaged(ns) || !ns.DeletionTimestamp.IsZero() {
		return err
	}
	if slices.ContainsFunc(ns.ManagedFields, func(m metav1.ManagedFieldsEntry) bool { return m.Manager == v1alpha1.FieldManager }) {
		return nil
	}
	var jobs batchv1.JobList
	if err := c.List(ctx, &jobs, client.InNamespace(v1alpha1.Namespace)); err != nil || len(jobs.Items) > 0 {
		return err
	}
	err = c.Client.Delete(ctx, ns, client.Preconditions{UID: &ns.UID, ResourceVersion: &ns.ResourceVersion})
	switch {
	case apierrors.IsConflict(err): // applied since
		return nil
	case client.IgnoreNotFound(err) != nil:
		return c.Wrap("delete namespace "+ns.Name, err)
	}
	return engine.RemoveNamespace(ctx, c)
}

// probePermissions returns the permissions that probes need.
func probePermissions() []kube.Permission {
	ns := v1alpha1.Namespace
	return slices.Concat(
		kube.Permissions("", "get", "namespaces"),
		kube.Permissions(ns, "get", "daemonsets.apps pods/log"),
		kube.Permissions(ns, "get create patch delete", "jobs.batch"),
		kube.Permissions(ns, "list watch delete", "pods"),
		kube.Permissions(ns, "list watch", "events"),
	)
}
