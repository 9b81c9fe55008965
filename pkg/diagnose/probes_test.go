package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/samber/lo"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/kubetest"
)

// podsOfJobs returns a cluster that creates a pod for each Job, in the state that prepare sets. The logs of pods are says.
func podsOfJobs(t *testing.T, says string, prepare func(*corev1.Pod) client.Object, objs ...client.Object) *kube.Cluster {
	t.Helper()
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{Create: func(ctx context.Context, w client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
		if review, isReview := obj.(*authorizationv1.SelfSubjectAccessReview); isReview {
			review.Status.Allowed = true
			return nil
		}
		obj.SetUID(types.UID("uid-of-" + obj.GetName()))
		job, isJob := obj.(*batchv1.Job)
		if !isJob {
			return w.Create(ctx, obj, opts...)
		}
		if err := w.Create(ctx, job, opts...); err != nil {
			return err
		}
		pod := &corev1.Pod{ObjectMeta: *job.Spec.Template.ObjectMeta.DeepCopy(), Spec: *job.Spec.Template.Spec.DeepCopy()}
		pod.Name, pod.Namespace, pod.UID = job.Name+"-xyz", job.Namespace, "uid-of-pod-"+job.UID
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}
		made := prepare(pod)
		if e, isEvent := made.(*corev1.Event); isEvent && e.InvolvedObject.UID == pod.UID {
			if err := w.Create(ctx, pod); err != nil {
				return err
			}
			e.InvolvedObject.UID = pod.UID // the API's
		} else if isEvent {
			e.InvolvedObject.UID = job.UID
		}
		return w.Create(ctx, made)
	}}, objs...)
	c.Kubectl = "kubectl --context a"
	c.DefaultImage = "image-of-the-command"
	c.Logs = func(context.Context, string) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(says)), nil
	}
	return c
}

func running(pod *corev1.Pod) client.Object {
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	return pod
}

func waiting(reason, message string) func(*corev1.Pod) client.Object {
	return func(pod *corev1.Pod) client.Object {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Image: "x", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
		return pod
	}
}

func TestProbes(t *testing.T) {
	tests := []struct {
		name, says string
		pod        func(*corev1.Pod) client.Object
		// want is the result of the probe, wantErr part of its error.
		want    string
		wantErr string
	}{
		{"it says what it has found out", `{"ready":true}` + "\n" + `{"result":{"answers":[{"id":"one"}]}}` + "\n", running, "one", ""},
		{"it cannot do its task", `{"error":"listen: address already in use"}` + "\n", running, "", "address already in use"},
		{"a version without probes", `time=… level=ERROR msg="the agent ends" error="unknown command \"probe\" for \"liqonet-agent\""`, running, "", "has a version without probes"},
		{"what it says is no result", "panic: oh no\n", running, "", "panic: oh no"},
		{"it ends without a word", "", running, "", "it has printed nothing"},
		{"the image", "", waiting("ImagePullBackOff", "not found"), "", "cannot be pulled: not found"},
		{"the container", "", waiting("CreateContainerError", "no such file"), "", "CreateContainerError: no such file"},
		{"admission", "", func(pod *corev1.Pod) client.Object {
			return &corev1.Event{
				ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "e"}, Type: corev1.EventTypeWarning,
				Reason: "FailedCreate", Message: `pods is forbidden: violates PodSecurity "restricted"`,
			}
		}, "", `violates PodSecurity "restricted"`},
		{"scheduling", "", func(pod *corev1.Pod) client.Object {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes are available"}}
			return pod
		}, "", "0/3 nodes are available"},
		{"the kubelet refuses it", "", func(pod *corev1.Pod) client.Object {
			pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "OutOfpods", "too many pods"
			return pod
		}, "", "OutOfpods too many pods"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := podsOfJobs(t, strings.ReplaceAll(tt.says, "…", ""), tt.pod, manifests.Namespace())
			one := &Probe{Name: "one", Node: "n1"}
			kit.NoError(t, RunProbes(t.Context(), c, "test", one))
			if tt.wantErr == "" && one.Err != nil || tt.wantErr != "" && (one.Err == nil || !strings.Contains(one.Err.Error(), tt.wantErr)) {
				t.Errorf("its error is %v, want %q", one.Err, tt.wantErr)
			}
			var got string
			for _, a := range one.Result.Answers {
				got += a.ID
			}
			kit.ErrorIf(t, got != tt.want, "it has found out %q, want %q", got, tt.want)
			nothingIsLeft(t, c)
		})
	}
}

// nothingIsLeft checks that no object of probes exists.
func nothingIsLeft(t *testing.T, clusters ...*kube.Cluster) {
	t.Helper()
	for _, c := range clusters {
		for _, list := range []client.ObjectList{&corev1.PodList{}, &batchv1.JobList{}, &networkingv1.NetworkPolicyList{}} {
			kit.NoError(t, c.List(t.Context(), list))
			kit.ErrorIf(t, meta.LenList(list) > 0, "%s: %d of %s are left", c.Name, meta.LenList(list), kube.KindName(list))
		}
	}
}

// Probes use the agents' image, which is on the nodes already, or the command's default image before agents are installed.
func TestImageOfProbes(t *testing.T) {
	_, agents := manifests.NodeAgent(manifests.Agents{Image: "image-of-the-agents"}, []int32{1})
	for want, objs := range map[string][]client.Object{
		"image-of-the-command": {manifests.Namespace()},
		"image-of-the-agents":  {manifests.Namespace(), agents},
	} {
		run := kit.Must(NewProbes(t.Context(), podsOfJobs(t, "", running, objs...), "test"))(t)
		kit.ErrorIf(t, run.image != want, "the image is %s, want %s", run.image, want)
		kit.CheckNoError(t, run.Remove(t.Context()))
	}
}

// Before peering, the namespace is created, and removed afterwards unless it is in use.
func TestLentNamespace(t *testing.T) {
	isThere := func(c *kube.Cluster) bool {
		ns := kit.Must(kube.Get[corev1.Namespace](t.Context(), c, "", v1alpha1.Namespace))(t)
		return ns != nil
	}
	says := `{"ready":true}` + "\n"
	tests := []struct {
		name string
		// between is called while the probe runs.
		between func(t *testing.T, c *kube.Cluster)
		before  []client.Object
		stays   bool
	}{
		{"it is gone in the end", func(*testing.T, *kube.Cluster) {}, nil, false},
		{"it was there before", func(*testing.T, *kube.Cluster) {}, []client.Object{manifests.Namespace()}, true},
		{"a peer command uses it", func(t *testing.T, c *kube.Cluster) {
			kit.CheckNoError(t, engine.NewSide(c, 0).ApplyNamespace(t.Context()))
		}, nil, true},
		{"another command's probes run", func(t *testing.T, c *kube.Cluster) {
			other := manifests.Probe{Run: "other", Name: "one"}.Job()
			kit.CheckNoError(t, c.Client.Create(t.Context(), other))
		}, nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := podsOfJobs(t, says, running, tt.before...)
			run := kit.Must(NewProbes(t.Context(), c, "test"))(t)
			kit.NoError(t, run.Start(t.Context(), &Probe{Name: "one", Node: "n1"}))
			kit.FatalIf(t, !isThere(c), "there is no namespace")
			tt.between(t, c)
			kit.NoError(t, run.Remove(t.Context()))
			kit.ErrorIf(t, isThere(c) != tt.stays, "it is there: %t, want %t", !tt.stays, tt.stays)
		})
	}
}

// A running command extends the deadline of its probes. If it is killed, they end.
func TestProbesBeat(t *testing.T) {
	c := podsOfJobs(t, "", running, manifests.Namespace())
	forever, end := io.Pipe()
	c.Logs = func(context.Context, string) (io.ReadCloser, error) { return forever, nil }
	run := kit.Must(NewProbes(t.Context(), c, "test"))(t)
	one := &Probe{Name: "one", Node: "n1"}
	kit.NoError(t, run.Start(t.Context(), one))
	one.started = time.Now().Add(-time.Minute)
	run.extend(t.Context())
	var job batchv1.Job
	kit.NoError(t, c.Client.Get(t.Context(), client.ObjectKeyFromObject(one.job), &job))
	kit.Check(t, "it ends after so many seconds", *job.Spec.ActiveDeadlineSeconds, int64(60+manifests.ProbeSeconds))
	_ = end.Close()
	kit.CheckNoError(t, run.Remove(t.Context()))
}

// Pods outside of the host network comply with the Pod Security Standard "restricted", and no pod has a token.
func TestProbeIsRestricted(t *testing.T) {
	for _, host := range []bool{false, true} {
		pod := manifests.Probe{Run: "r", Name: "n", Host: host, Task: probe.Task{Token: "t"}}.Job().Spec.Template.Spec
		s := pod.Containers[0].SecurityContext
		got := []bool{
			*pod.AutomountServiceAccountToken, pod.HostNetwork, *s.AllowPrivilegeEscalation, *s.ReadOnlyRootFilesystem,
			s.RunAsNonRoot != nil && *s.RunAsNonRoot && *s.RunAsUser > 0, len(s.Capabilities.Add) > 0,
			len(s.Capabilities.Drop) == 1 && s.Capabilities.Drop[0] == "ALL", s.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault,
		}
		kit.Check(t, fmt.Sprintf("host %t", host), got, []bool{false, host, false, true, !host, host, true, true})
	}
}

// A missing permission to read logs is reported before anything is created.
func TestVerifyNamesPermissions(t *testing.T) {
	refuse := kubetest.Allowing(new(int), &sync.Mutex{}, func(r authorizationv1.ResourceAttributes) bool {
		return r.Resource != "*" && r.Subresource != "log" && r.Resource != "jobs"
	})
	a, b := kubetest.NewCluster(t, "a", refuse), kubetest.NewCluster(t, "b", interceptor.Funcs{})
	_, err := Verify(t.Context(), a, b, false, kube.Quiet{})
	kubetest.Fails(t, err, kube.Forbidden, "the user may not create jobs.batch, delete jobs.batch, get jobs.batch, get pods/log, patch jobs.batch")
	nothingIsLeft(t, a)
}

// The namespace that was created for probes stays if a peer command applies it after the last look at it.
func TestNamespaceForProbesStaysForPeer(t *testing.T) {
	applied := false
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{Delete: func(ctx context.Context, w client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
		if ns, is := obj.(*corev1.Namespace); is && !applied {
			applied = true
			now := ns.DeepCopy()
			now.Labels["applied"] = "by peer"
			kit.NoError(t, w.Update(ctx, now, client.FieldOwner(v1alpha1.FieldManager)))
		}
		return w.Delete(ctx, obj, opts...)
	}})
	kit.NoError(t, createNamespace(t.Context(), c))
	kit.NoError(t, deleteNamespace(t.Context(), c))
	ns, err := kube.Get[corev1.Namespace](t.Context(), c, "", v1alpha1.Namespace)
	kit.ErrorIf(t, err != nil || !applied || ns == nil || !ns.DeletionTimestamp.IsZero(), "applied %t: %+v, %v", applied, ns, err)
}

// twoNodes is a cluster with two ready nodes.
func twoNodes(t *testing.T, prepare func(*corev1.Pod) client.Object, objs ...client.Object) *kube.Cluster {
	t.Helper()
	return podsOfJobs(t, "", prepare, append(objs, kubetest.Node("n1", true, "172.18.1.11"), kubetest.Node("n2", true, "172.18.1.12"))...)
}

// pendingPod is a pod that is never started.
func pendingPod(pod *corev1.Pod) client.Object {
	pod.Status.Phase = corev1.PodPending
	return pod
}

// doctor that ends before its pods have run leaves nothing behind, and has what it read before.
func TestInterruptedDoctor(t *testing.T) { synctest.Test(t, interruptedDoctor) }

func interruptedDoctor(t *testing.T) {
	for _, delay := range []time.Duration{0, time.Millisecond, 500 * time.Millisecond, 3 * time.Second, 20 * time.Second} {
		c := twoNodes(t, pendingPod)
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Minute, errors.New("interrupted"))
		announced := false
		facts, err := ReadFacts(ctx, []*kube.Cluster{c}, func(string) { announced = true; time.AfterFunc(delay, cancel) }, kube.Quiet{})
		kit.ErrorIf(t, err == nil || !announced, "after %s: %v", delay, err)
		nothingIsLeft(t, c)
		ns := kit.Must(kube.Get[corev1.Namespace](t.Context(), c, "", v1alpha1.Namespace))(t)
		kit.ErrorIf(t, ns != nil, "after %s: the namespace is left", delay)
		x := facts.Clusters[0]
		kit.ErrorIf(t, len(x.Machines.Nodes) != 2 || x.SkipReasons[doctor.Nodes] != "" || x.SkipReasons[doctor.Kernels] == "", "after %s: %d nodes, skipped %v", delay, len(x.Machines.Nodes), x.SkipReasons)
	}
	// UDP tests that have not begun are not done.
	a, b := twoNodes(t, pendingPod), twoNodes(t, pendingPod)
	b.Name, b.ID = "b", "id-of-b"
	for _, c := range []*kube.Cluster{a, b} { // so that the peering cannot be planned
		c.Client = interceptor.NewClient(c.Client, interceptor.Funcs{Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if key.Name == metav1.NamespaceSystem {
				return apierrors.NewForbidden(corev1.Resource("namespaces"), key.Name, nil)
			}
			return w.Get(ctx, key, obj, opts...)
		}})
	}
	ctx, cancel := context.WithCancel(t.Context())
	facts, err := ReadFacts(ctx, []*kube.Cluster{a, b}, func(string) { time.AfterFunc(time.Second, cancel) }, kube.Quiet{})
	kit.ErrorIf(t, err == nil || len(facts.UDPTests) != 1 || facts.UDPTests[0].SkipReason != notRead, "%v: %+v", err, facts.UDPTests)
	nothingIsLeft(t, a, b)
	// Before anything was read, nothing is known, and no check has failed.
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	facts, err = ReadFacts(ctx, []*kube.Cluster{twoNodes(t, pendingPod), twoNodes(t, pendingPod)}, func(string) {}, kube.Quiet{})
	report := doctor.Examine(facts)
	kit.ErrorIf(t, err == nil || report.Result.IsProblem(), "%v: %+v", err, report.Cause)
}

// Calico's objects are read from either of its groups.
func TestCalicoPolicies(t *testing.T) {
	for _, serves := range []string{"crd.projectcalico.org/v1", "projectcalico.org/v3"} {
		c := kubetest.NewCluster(t, "a", interceptor.Funcs{List: func(ctx context.Context, w client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			all, is := list.(*unstructured.UnstructuredList)
			switch {
			case !is:
				return w.List(ctx, list, opts...)
			case all.GetAPIVersion() != serves || all.GetKind() != "GlobalNetworkPolicyList":
				return &meta.NoKindMatchError{GroupKind: all.GroupVersionKind().GroupKind()}
			}
			all.Items = []unstructured.Unstructured{{Object: map[string]any{"apiVersion": serves, "kind": "GlobalNetworkPolicy"}}}
			return nil
		}})
		facts := kit.Must(ReadFacts(t.Context(), []*kube.Cluster{c}, nil, kube.Quiet{}))(t)
		kit.Check(t, serves+": policies", len(facts.Clusters[0].Own.ClusterPolicies), 1)
	}
}

// If no pod starts, doctor says why within 30 s, and has what objects show.
func TestDoctorWithoutPods(t *testing.T) { synctest.Test(t, doctorWithoutPods) }

func doctorWithoutPods(t *testing.T) {
	for name, tt := range map[string]struct {
		pod  func(*corev1.Pod) client.Object
		want string
	}{
		"no kubelet":   {pendingPod, "no pod has read it: its pod is Pending"},
		"no image yet": {waiting("ContainerCreating", "waiting for the volume"), "ContainerCreating waiting for the volume"},
		"no network": {func(pod *corev1.Pod) client.Object {
			waiting("ContainerCreating", "")(pod)
			return &corev1.Event{
				ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, InvolvedObject: corev1.ObjectReference{UID: pod.UID},
				Type: corev1.EventTypeWarning, Reason: "FailedCreatePodSandBox", Message: "failed to assign an IP address to container",
			}
		}, "ContainerCreating failed to assign an IP address to container"},
		"quota": {func(pod *corev1.Pod) client.Object {
			return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, Type: corev1.EventTypeWarning, Reason: "FailedCreate", Message: "failed quota: team-quota"}
		}, "failed quota: team-quota"},
	} {
		c := twoNodes(t, tt.pod)
		start := time.Now()
		facts, err := ReadFacts(t.Context(), []*kube.Cluster{c}, func(string) { start = time.Now() }, kube.Quiet{})
		kit.NoError(t, err)
		kit.ErrorIf(t, time.Since(start) > 30*time.Second, "%s: it took %s", name, time.Since(start))
		for node, why := range facts.Clusters[0].Machines.Unread {
			kit.ErrorIf(t, !strings.Contains(why, tt.want), "%s: of %s it says %q", name, node, why)
		}
		kit.Check(t, name+": nodes that were not read", len(facts.Clusters[0].Machines.Unread), 2)
		nothingIsLeft(t, c)
	}
}

// A silent kubelet does not report that its pods have ended. doctor deletes them nevertheless, and without a delay if they have not run.
func TestDoctorWithSilentKubelet(t *testing.T) { synctest.Test(t, doctorWithSilentKubelet) }

func doctorWithSilentKubelet(t *testing.T) {
	const kernel = `{"ready":true}` + "\n" + `{"result":{"kernel":{"release":"7.0"}}}` + "\n"
	for name, tt := range map[string]struct {
		pod   func(*corev1.Pod) client.Object
		most  time.Duration
		ready bool
	}{
		"before its pod runs": {pendingPod, 30 * time.Second, false},
		"after its pod ran":   {running, time.Hour, true},
	} {
		c := podsOfJobs(t, kernel, tt.pod, kubetest.Node("n1", true, "172.18.1.11"))
		c.Client = interceptor.NewClient(c.Client, interceptor.Funcs{Delete: func(ctx context.Context, w client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			grace := (&client.DeleteOptions{}).ApplyOptions(opts).GracePeriodSeconds
			if _, is := obj.(*corev1.Pod); is && (grace == nil || *grace > 0) {
				return nil // the API server waits for the kubelet
			}
			return w.Delete(ctx, obj, opts...)
		}})
		start := time.Now()
		facts, err := ReadFacts(t.Context(), []*kube.Cluster{c}, func(string) {
			start = time.Now()
			time.AfterFunc(20*time.Second, func() {
				kit.CheckNoError(t, c.Client.Status().Update(t.Context(), kubetest.Node("n1", false, "172.18.1.11")))
			})
		}, kube.Quiet{})
		kit.NoError(t, err)
		kit.ErrorIf(t, time.Since(start) > tt.most, "%s: it took %s", name, time.Since(start))
		m := facts.Clusters[0].Machines
		kit.ErrorIf(t, nodes.IsReady(&m.Nodes[0]) != tt.ready || len(m.Kernels) == len(m.Unread), "%s: node %+v, kernels %v, not read: %v", name, m.Nodes[0].Status, m.Kernels, m.Unread)
		nothingIsLeft(t, c)
		ns := kit.Must(kube.Get[corev1.Namespace](t.Context(), c, "", v1alpha1.Namespace))(t)
		kit.ErrorIf(t, ns != nil, "%s: the namespace is left", name)
	}
}

// A create request that is never answered does not make doctor hang, and what it has created is removed.
func TestUnansweredCreate(t *testing.T) { synctest.Test(t, unansweredCreate) }

func unansweredCreate(t *testing.T) {
	for _, kind := range []string{"Namespace", "Job"} {
		c := twoNodes(t, pendingPod)
		c.Client = interceptor.NewClient(c.Client, interceptor.Funcs{Create: func(ctx context.Context, w client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			err := w.Create(ctx, obj, opts...)
			if kube.KindName(obj) == kind {
				obj.SetUID("")
				<-ctx.Done()
				return ctx.Err()
			}
			return err
		}})
		start := time.Now()
		facts, err := ReadFacts(t.Context(), []*kube.Cluster{c}, func(string) { start = time.Now() }, kube.Quiet{})
		kit.NoError(t, err)
		kit.ErrorIf(t, time.Since(start) > 40*time.Second || facts.Clusters[0].SkipReasons[doctor.Kernels] == "", "%s: it took %s, %v", kind, time.Since(start), facts.Clusters[0].SkipReasons)
		nothingIsLeft(t, c)
		ns := kit.Must(kube.Get[corev1.Namespace](t.Context(), c, "", v1alpha1.Namespace))(t)
		kit.ErrorIf(t, ns != nil, "%s: the namespace is left", kind)
	}
}

// A node sends no packets to what another cluster names, unless it may be another cluster's machine.
func TestCallable(t *testing.T) {
	own := []netip.Prefix{netip.MustParsePrefix("172.18.1.0/24")}
	for in, want := range map[string]string{
		"172.18.3.11": "[172.18.3.11:31000]", "203.0.113.1": "[203.0.113.1:31000]", "2001:db8::1": "[[2001:db8::1]:31000]",
		"172.18.1.11": "[]", "127.0.0.1": "[]", "169.254.169.254": "[]", "0.0.0.0": "[]", "224.0.0.1": "[]", "255.255.255.255": "[]",
		"::1": "[]", "fe80::1": "[]", "::ffff:127.0.0.1": "[]", "::ffff:169.254.169.254": "[]", "::ffff:172.18.1.11": "[]", "64:ff9b::ac12:10b": "[]", "fe80::1%eth0": "[]",
	} {
		kit.Check(t, in, fmt.Sprint(callable([]netip.Addr{netip.MustParseAddr(in)}, 31000, own)), want)
	}
	kit.Check(t, "a well-known port", len(callable([]netip.Addr{netip.MustParseAddr("172.18.3.11")}, 53, own)), 0)
	c := &clusterReader{Cluster: &kube.Cluster{Server: netip.MustParseAddr("192.0.2.1")}, facts: &doctor.Cluster{}}
	node := kubetest.Node("n1", true, "172.18.1.11")
	node.Spec.PodCIDRs = []string{"10.244.0.0/24"}
	c.facts.Machines.Nodes = []corev1.Node{*node}
	c.facts.Peerings = []v1alpha1.Peering{{Spec: v1alpha1.PeeringSpec{Local: v1alpha1.LocalNetwork{
		ServiceCIDRs: []v1alpha1.CIDR{kit.CIDR("10.96.0.0/12")}, Pods: []v1alpha1.CIDRMapping{kit.Mapping("10.244.0.0/16", "10.20.0.0/16")},
	}}}}
	c.facts.Ledger = manifests.ClusterNetwork(v1alpha1.ClusterNetworkSpec{Peers: []v1alpha1.PeerAllocation{{Pods: []v1alpha1.CIDRMapping{kit.Mapping("10.1.0.0/16", "10.21.0.0/16")}}}})
	kit.Check(t, "own ranges", fmt.Sprint(c.ownRanges()), "[192.0.2.1/32 172.18.1.11/32 10.244.0.0/24 10.96.0.0/12 10.244.0.0/16 10.21.0.0/16]")
}

// A node agent's token holds more addresses than its own. doctor names the node, and --fix releases them, but neither the
// address that a node reports nor one that it has just claimed.
func TestSurplusLeasesAreReleased(t *testing.T) {
	ages := map[string]time.Duration{}
	ledger := manifests.ClusterNetwork(v1alpha1.ClusterNetworkSpec{InternalCIDR: kit.CIDR("10.80.0.0/19"), Peers: []v1alpha1.PeerAllocation{{ClusterID: "b", Name: "b", Phase: v1alpha1.PeerActive}}})
	one, none := kubetest.Report("one", "10.80.0.1", nil), v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: "none"}}
	c := kubetest.NewCluster(t, "a", interceptor.Funcs{List: func(ctx context.Context, w client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		err := w.List(ctx, list, opts...)
		if leases, is := list.(*coordinationv1.LeaseList); is {
			for i, l := range leases.Items {
				leases.Items[i].CreationTimestamp = metav1.NewTime(time.Now().Add(-ages[l.Name]))
			}
		}
		return err
	}}, manifests.Namespace(), ledger, &one, &none)
	for name, l := range map[string]struct {
		holder string
		age    time.Duration
	}{
		"node-10-80-0-1": {"one", time.Minute}, "node-10-80-9-1": {"one", time.Hour}, "node-10-80-9-2": {"one", 3 * time.Minute}, "node-10-80-9-3": {"one", time.Minute},
		"node-10-80-0-2": {"none", 2 * time.Hour}, "node-10-80-0-3": {"none", time.Hour}, "node-10-80-0-4": {"node-without-report", time.Hour}, "gateway-b-0": {"one", time.Hour},
	} {
		ages[name] = l.age
		kit.NoError(t, c.Client.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &l.holder}}))
	}
	x := &clusterReader{Cluster: c, facts: &doctor.Cluster{Ledger: ledger}}
	kit.NoError(t, x.readLeftovers(t.Context()))
	kit.Check(t, "left over", x.facts.Own.Leftovers, []string{
		"1 Leases that hold more overlay addresses in the name of node none", "2 Leases that hold more overlay addresses in the name of node one",
	})
	kit.NoError(t, removeOrphans(t.Context(), c))
	var left coordinationv1.LeaseList
	kit.NoError(t, c.Client.List(t.Context(), &left))
	names := lo.Map(left.Items, func(l coordinationv1.Lease, _ int) string { return l.Name })
	kit.Check(t, "Leases that stay", strings.Join(names, " "), "gateway-b-0 node-10-80-0-1 node-10-80-0-2 node-10-80-0-4 node-10-80-9-3")
}
