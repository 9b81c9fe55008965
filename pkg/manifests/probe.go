package manifests

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/probe"
)

const (
	// probeUser is a user that no machine has.
	probeUser = 65532
	// probeMemory is the limit of probe pods, in bytes.
	probeMemory = 256 << 20
	// ProbeSeconds is how long probe pods run when the command does not ask for more time, which it does
	// as long as it lives.
	ProbeSeconds = 30
	// probeKept is how long, in seconds, what they have said can be read when they have ended.
	probeKept = 10
)

// LabelProbeServes is on probe pods that answer others.
const LabelProbeServes = "liqonet.io/probe-serves"

// Probe is a pod that a command runs for some seconds, as a Job of its own: if the command is killed, Kubernetes
// removes it.
type Probe struct {
	// Run is the name of all that belongs together, Name tells the probe from others of it.
	Run, Name string
	// Node is the one that it runs on.
	Node  string
	Image string
	Task  probe.Task
	// Host gives it the network of the node, and NET_ADMIN; NET_RAW, too, where it reads the kernel. Otherwise the pod complies with the Pod Security
	// Standard restricted.
	Host bool
}

// ProbeLabels are those of all that belongs to a run.
func ProbeLabels(run string) map[string]string {
	return with(componentLabels("probe"), v1alpha1.LabelProbe, run)
}

// ProbeMeta is the metadata of an object of a run.
func ProbeMeta(run, name string) metav1.ObjectMeta {
	return objectMeta(v1alpha1.Namespace, run+"-"+name, ProbeLabels(run))
}

// Job runs the probe, once.
func (p Probe) Job() *batchv1.Job {
	pod := corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: new(int64(2)),
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		DNSPolicy:                     corev1.DNSDefault,
		Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		// By the scheduler, which says why it does not place a pod.
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
				{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{p.Node}},
			}}},
		}}},
		Containers: []corev1.Container{p.container()},
		// The kernel then answers whether the peer is there to a socket that needs no capability.
		SecurityContext: &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.ipv4.ping_group_range", Value: "0 2147483647"}}},
	}
	labels := ProbeLabels(p.Run)
	if p.Host {
		pod.HostNetwork, pod.SecurityContext = true, nil
	} else if p.Task.Serve != nil {
		labels[LabelProbeServes] = ""
	}
	return &batchv1.Job{
		TypeMeta: typeMeta(batchv1.SchemeGroupVersion, "Job"), ObjectMeta: ProbeMeta(p.Run, p.Name),
		Spec: batchv1.JobSpec{
			BackoffLimit: new(int32(0)), ActiveDeadlineSeconds: new(int64(ProbeSeconds)), TTLSecondsAfterFinished: new(int32(probeKept)),
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
		},
	}
}

func (p Probe) container() corev1.Container {
	security := confined(0, "NET_ADMIN") // Kubernetes gives capabilities to no other user
	switch {
	case !p.Host:
		security = confined(probeUser)
		security.RunAsNonRoot, security.RunAsGroup = new(true), new(int64(probeUser))
	case p.Task.Kernel != nil: // pings of full size, and ARP
		security = confined(0, "NET_ADMIN", "NET_RAW")
	}
	return container(p.Image, "10m", probeMemory, security, "probe", p.Task.String())
}
