package manifests

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/probe"
)

const (
	// probeUser is an unprivileged user that no machine uses.
	probeUser = 65532
	// probeMemory is the memory limit of probe pods, in bytes.
	probeMemory = 256 << 20
	// ProbeSeconds is how long probe pods run unless the command extends the time, which it does while it runs.
	ProbeSeconds = 30
	// probeTTL is how long, in seconds, the output of ended probe pods remains readable.
	probeTTL = 10
)

// LabelProbeServer marks probe pods that answer others.
const LabelProbeServer = "liqonet.io/probe-serves"

// Probe is a pod that a command runs for some seconds, as a Job of its own: if the command is killed, Kubernetes removes
// it.
type Probe struct {
	// Run is the common name of all objects of a run. Name distinguishes the probe from the others.
	Run, Name string
	// Node is the node to run on.
	Node  string
	Image string
	Task  probe.Task
	// Host gives the probe the node's network and NET_ADMIN, and also NET_RAW if it reads the kernel. Otherwise the pod
	// complies with the Pod Security Standard restricted.
	Host bool
}

// ProbeLabels returns the labels of all objects of a run.
func ProbeLabels(run string) map[string]string {
	return lo.Assign(componentLabels("probe"), map[string]string{v1alpha1.LabelProbe: run})
}

// ProbeMeta returns the metadata of an object of a run.
func ProbeMeta(run, name string) metav1.ObjectMeta {
	return object(corev1.SchemeGroupVersion, &corev1.Pod{}, v1alpha1.Namespace, run+"-"+name, ProbeLabels(run)).ObjectMeta
}

// Job returns a Job that runs the probe once.
func (p Probe) Job() *batchv1.Job {
	pod := corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: new(int64(2)),
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		DNSPolicy:                     corev1.DNSDefault,
		Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		// The scheduler places it, as that reports why it cannot place a pod.
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
				{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{p.Node}},
			}}},
		}}},
		Containers: []corev1.Container{p.container()},
		// This lets a socket without capabilities send pings.
		SecurityContext: &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.ipv4.ping_group_range", Value: "0 2147483647"}}},
	}
	labels := ProbeLabels(p.Run)
	if p.Host {
		pod.HostNetwork, pod.SecurityContext = true, nil
	} else if p.Task.Serve != nil {
		labels[LabelProbeServer] = ""
	}
	return object(batchv1.SchemeGroupVersion, &batchv1.Job{
		Spec: batchv1.JobSpec{
			BackoffLimit: new(int32(0)), ActiveDeadlineSeconds: new(int64(ProbeSeconds)), TTLSecondsAfterFinished: new(int32(probeTTL)),
			Template: corev1.PodTemplateSpec{ObjectMeta: withoutMesh(metav1.ObjectMeta{Labels: labels}), Spec: pod},
		},
	}, v1alpha1.Namespace, p.Run+"-"+p.Name, ProbeLabels(p.Run))
}

func (p Probe) container() corev1.Container {
	security := restrictedContext(0, "NET_ADMIN") // Kubernetes gives capabilities to no other user
	switch {
	case !p.Host:
		security = restrictedContext(probeUser)
		security.RunAsNonRoot, security.RunAsGroup = new(true), new(int64(probeUser))
	case p.Task.Kernel != nil: // for pings of full size, and ARP
		security = restrictedContext(0, "NET_ADMIN", "NET_RAW")
	}
	return container(p.Image, "10m", probeMemory, security, "probe", p.Task.String())
}
