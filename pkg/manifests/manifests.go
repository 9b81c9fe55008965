package manifests

import (
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/nodes"
	"github.com/liqonet/liqonet/pkg/wire"
)

const (
	// KeyDir is where a gateway finds its Secret.
	KeyDir = "/etc/liqonet/keys"
	// PresharedDir is where a gateway finds the Secret with its pre-shared key.
	PresharedDir = "/etc/liqonet/preshared"
	// OverlayDir is where nodes and gateways find the overlay keys.
	OverlayDir = "/etc/liqonet/overlay"

	// accountDir is where client-go looks for the token of a pod's account.
	accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"
	// tokenSeconds is the lifetime of a token: a day. By default, Kubernetes would give the agents one for a year. The
	// kubelet requests the next one when a fifth of the time is left, so the API server may be unreachable, or a node's
	// clock slow, for that long.
	tokenSeconds = 24 * 60 * 60

	// volumeOverlay is the pods' volume with the overlay keys.
	volumeOverlay = "overlay"
	// overlayPart of the names of Secrets with overlay keys is between their owner and the generation. clusterOwner is the
	// owner of those that node agents mount. Gateways mount their own.
	overlayPart  = "-overlay-"
	clusterOwner = "liqonet"

	// IdentitySecretName is the name of the Secret with the key by which peers recognize the cluster.
	IdentitySecretName = "liqonet-identity"

	labelName      = "app.kubernetes.io/name"
	labelComponent = "app.kubernetes.io/component"

	// The priority classes of node agents and gateways, which are Kubernetes' own.
	nodeCritical    = "system-node-critical"
	clusterCritical = "system-cluster-critical"

	// The agents' memory limits, in bytes. TestSecurity_21 of package agents shows that they are enough for the largest
	// possible configuration.
	nodeMemory    = 512 << 20 // as in PodNeeds
	gatewayMemory = 3 << 29

	// controlPlane is both a label and a taint.
	controlPlane = "node-role.kubernetes.io/control-plane"
)

// PodNeeds describes the resources of our pods, for rules that refuse them.
const PodNeeds = "each node agent has a memory limit of 512Mi, each gateway one of 1536Mi, and none has a CPU limit"

//go:embed crds/*.yaml
var crds embed.FS

// CRDs returns the custom resource definitions that each cluster needs.
func CRDs() []*apiextensionsv1.CustomResourceDefinition {
	return lo.FilterMap(decodedCRDs(), func(crd *apiextensionsv1.CustomResourceDefinition, _ int) (*apiextensionsv1.CustomResourceDefinition, bool) {
		return crd.DeepCopy(), !isForServices(crd)
	})
}

// decodedCRDs decodes them once: every cluster needs them, and decoding takes longer than building all other objects. As
// they are embedded, they either always can be decoded or never.
var decodedCRDs = sync.OnceValue(func() []*apiextensionsv1.CustomResourceDefinition {
	return lo.Map(lo.Must(fs.Glob(crds, "crds/*.yaml")), func(file string, _ int) *apiextensionsv1.CustomResourceDefinition {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		lo.Must0(yaml.UnmarshalStrict(lo.Must(crds.ReadFile(file)), crd), file)
		annotations := crd.Annotations
		object(apiextensionsv1.SchemeGroupVersion, crd, "", crd.Name, commonLabels())
		maps.Copy(crd.Annotations, annotations)
		return crd
	})
})

// Namespace returns the namespace of the agents. Node agents use the host's network and gateways need NET_ADMIN, which
// the Pod Security Standards call privileged.
func Namespace() *corev1.Namespace {
	labels := commonLabels()
	for _, mode := range []string{"enforce", "audit", "warn"} {
		labels["pod-security.kubernetes.io/"+mode] = "privileged"
	}
	labels["istio-injection"] = "disabled"
	ns := object(corev1.SchemeGroupVersion, &corev1.Namespace{}, "", v1alpha1.Namespace, labels)
	ns.ObjectMeta = withoutMesh(ns.ObjectMeta)
	// A default node selector of the cluster would keep node agents off other nodes. The first is OpenShift's, the second
	// that of the admission plugin PodNodeSelector.
	ns.Annotations["openshift.io/node-selector"], ns.Annotations["scheduler.alpha.kubernetes.io/node-selector"] = "", ""
	return ns
}

// CriticalPodsQuota allows the namespace pods with the agents' priority classes: some clusters (GKE) allow them only in
// namespaces with such a quota.
func CriticalPodsQuota() *corev1.ResourceQuota {
	return object(corev1.SchemeGroupVersion, &corev1.ResourceQuota{
		Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1G")},
			ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{
				ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{nodeCritical, clusterCritical},
			}}},
		},
	}, v1alpha1.Namespace, "liqonet-critical-pods", commonLabels())
}

// OverlaySecretName returns the name of the Secret with an overlay key, by the key's generation. A kubelet keeps an
// immutable Secret as long as a pod uses it, so a new key needs a new name.
func OverlaySecretName(generation int32) string { return overlaySecretName(clusterOwner, generation) }

func overlaySecretName(owner string, generation int32) string {
	return fmt.Sprint(owner, overlayPart, generation)
}

// OverlayGeneration returns the generation of the overlay key in a Secret of that name, the cluster's or a gateway's. It
// returns 0 if it contains none.
func OverlayGeneration(secretName string) int32 {
	at := max(strings.LastIndex(secretName, overlayPart), 0)
	owner, number := secretName[:at], strings.TrimPrefix(secretName[at:], overlayPart)
	generation, err := strconv.ParseInt(number, 10, 32)
	if owner != clusterOwner && !strings.HasPrefix(owner, v1alpha1.GatewayServiceName("")) || err != nil {
		return 0
	}
	return int32(generation)
}

// OverlaySecret returns the Secret with an overlay key. Without a key it has no data.
func OverlaySecret(generation int32, key []byte) *corev1.Secret {
	return immutableSecret(OverlaySecretName(generation), commonLabels(), keyData(v1alpha1.OverlayKeyFile, key))
}

// IdentitySecret returns the Secret with the cluster's identity. It belongs to no peering, and no pod mounts it.
func IdentitySecret(private []byte) *corev1.Secret {
	return immutableSecret(IdentitySecretName, commonLabels(), keyData(v1alpha1.PrivateKeyFile, private))
}

// IdentityKey returns the public half of a cluster's identity, base64. The Secret has the seed of an Ed25519 key
// (RFC 8032, section 5.1.5), which engine.CheckKey accepts.
func IdentityKey(secret *corev1.Secret) string {
	public := ed25519.NewKeyFromSeed(secret.Data[v1alpha1.PrivateKeyFile])[ed25519.SeedSize:]
	return base64.StdEncoding.EncodeToString(public)
}

// IdentityFingerprint returns the fingerprint of the public half of an identity: its SHA-256 sum, in the format of OpenSSH. It is empty
// if there is none.
func IdentityFingerprint(key string) string {
	public, err := base64.StdEncoding.DecodeString(key)
	if key == "" || err != nil {
		return ""
	}
	sum := sha256.Sum256(public)
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// immutableSecret returns a Secret whose data never changes.
func immutableSecret(name string, labels map[string]string, data map[string][]byte) *corev1.Secret {
	return object(corev1.SchemeGroupVersion, &corev1.Secret{Immutable: new(true), Data: data}, v1alpha1.Namespace, name, labels)
}

// keyData returns the data of a Secret with one file, nil without a key.
func keyData(name string, key []byte) map[string][]byte {
	if key == nil {
		return nil
	}
	return map[string][]byte{name: key}
}

// JournalSecret returns the object in which a command for the peering records its changes.
func JournalSecret(peering string) *corev1.Secret {
	return object(corev1.SchemeGroupVersion, &corev1.Secret{}, v1alpha1.Namespace, "journal-"+peering, peeringLabels(peering))
}

// mountOverlayKeys mounts overlay keys into an agent's pod, each as a file named after its generation.
func mountOverlayKeys(pod *corev1.PodSpec, generations ...int32) {
	mount(pod, volumeOverlay, OverlayDir, projected(overlaySources(pod, generations)...), "--overlay-keys="+OverlayDir)
}

// mount mounts files or a device into the only container of an agent's pod, and adds arguments with their location.
func mount(pod *corev1.PodSpec, name, path string, source corev1.VolumeSource, args ...string) {
	c := &pod.Containers[0]
	c.Args = append(c.Args, args...)
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: source.HostPath == nil})
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name, VolumeSource: source})
}

func projected(sources ...corev1.VolumeProjection) corev1.VolumeSource {
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: new(int32(0o400)), Sources: sources}}
}

func fromSecret(name string) corev1.VolumeSource {
	return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, DefaultMode: new(int32(0o400))}}
}

func overlaySources(pod *corev1.PodSpec, generations []int32) []corev1.VolumeProjection {
	owner := lo.Ternary(pod.ServiceAccountName == v1alpha1.NodeAgentName, clusterOwner, pod.ServiceAccountName)
	return lo.Map(generations, func(g int32, _ int) corev1.VolumeProjection {
		return corev1.VolumeProjection{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: overlaySecretName(owner, g)},
			Items:                []corev1.KeyToPath{{Key: v1alpha1.OverlayKeyFile, Path: strconv.Itoa(int(g))}},
		}}
	})
}

// overlayVolume returns the volume with the overlay keys of an agent's pod, an empty one if the pod has none.
func overlayVolume(pod *corev1.PodSpec) *corev1.ProjectedVolumeSource {
	volume, _ := lo.Find(pod.Volumes, func(v corev1.Volume) bool { return v.Name == volumeOverlay && v.Projected != nil })
	return cmp.Or(volume.Projected, &corev1.ProjectedVolumeSource{})
}

// OverlayKeys returns the generations of the overlay keys in an agent's pods, sorted.
func OverlayKeys(pod *corev1.PodSpec) []int32 {
	generations := lo.FilterMap(overlayVolume(pod).Sources, func(s corev1.VolumeProjection, _ int) (int32, bool) {
		generation := OverlayGeneration(lo.FromPtr(s.Secret).Name)
		return generation, generation != 0
	})
	slices.Sort(generations)
	return generations
}

// mountAccount mounts the files that an agent needs to call its API server. The ones that Kubernetes would mount by
// itself include more files, and a token that lasts longer.
//
// The token has no explicit audience, so it is only valid for the API server. The API server's own audience differs
// between clusters, and it refuses tokens for others.
func mountAccount(pod *corev1.PodSpec) {
	pod.AutomountServiceAccountToken = new(false)
	token := &corev1.ServiceAccountTokenProjection{Path: corev1.ServiceAccountTokenKey, ExpirationSeconds: new(int64(tokenSeconds))}
	authority := corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
		LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, // Kubernetes keeps it in each namespace
		Items:                []corev1.KeyToPath{{Key: corev1.ServiceAccountRootCAKey, Path: corev1.ServiceAccountRootCAKey}},
	}}
	mount(pod, "account", accountDir, projected(corev1.VolumeProjection{ServiceAccountToken: token}, authority))
}

// RetireOverlayKeys removes the keys before a generation from the pods of an agent, which restarts them. If none is left,
// it adds the key of that generation. It reports false if there are no earlier keys.
func RetireOverlayKeys(pod *corev1.PodSpec, generation int32) (changed bool) {
	before := OverlayKeys(pod)
	after := lo.Filter(before, func(g int32, _ int) bool { return g >= generation })
	if len(after) == len(before) {
		return false
	}
	SetOverlayKeys(pod, lo.CoalesceSliceOrEmpty(after, []int32{generation}))
	return true
}

// SetOverlayKeys gives the pods of an agent the keys of these generations, which restarts them.
func SetOverlayKeys(pod *corev1.PodSpec, generations []int32) {
	overlayVolume(pod).Sources = overlaySources(pod, generations)
}

// CopyOverlayKeys copies the overlay keys of a live agent to the object that is about to be applied.
func CopyOverlayKeys(obj, live *unstructured.Unstructured) {
	path := []string{"spec", "template", "spec", "volumes"}
	overlay := func(volume any) bool {
		m, _ := volume.(map[string]any)
		return m["name"] == volumeOverlay
	}
	now, _, _ := unstructured.NestedSlice(live.Object, path...)
	volumes, _, _ := unstructured.NestedSlice(obj.Object, path...)
	if has, keeps := slices.IndexFunc(now, overlay), slices.IndexFunc(volumes, overlay); has >= 0 && keeps >= 0 {
		volumes[keeps] = now[has]
		_ = unstructured.SetNestedSlice(obj.Object, volumes, path...) // it was found there
	}
}

// NodeAgent returns the account of the node agents with its permissions, and their DaemonSet, which needs it. keys are
// the generations of the overlay keys.
func NodeAgent(a Agents, keys []int32) (account []Object, daemonSet *appsv1.DaemonSet) {
	labels := componentLabels("node")
	account = accountObjects(v1alpha1.NodeAgentName, v1alpha1.NodeAgentName, labels,
		[]rbacv1.PolicyRule{
			policyRule("get,list,watch", "", "nodes,pods"),
			policyRule("get,list,watch", "", "namespaces", v1alpha1.Namespace),
			policyRule("get", "", "namespaces", metav1.NamespaceSystem),
			policyRule("get,list,watch", "apps", "daemonsets", v1alpha1.NodeAgentName),
			policyRule("get", "liqonet.io", "clusternetworks"),
			policyRule("list,watch", "liqonet.io", "peerings"),
			policyRule("get,list,watch,create,patch,delete", "liqonet.io", "nodenetworks"),
			policyRule("patch", "liqonet.io", "nodenetworks/status"),
			// To report that a Peering's gateways are dead and its connection is unknown: nodePolicy allows nothing else.
			policyRule("patch", "liqonet.io", "peerings/status"),
		},
		[]rbacv1.PolicyRule{
			policyRule("get,create,patch", "coordination.k8s.io", "leases"),
			// The agent's history.
			policyRule("create,patch", "", "configmaps"),
		})
	account = slices.Concat(account, Policies())
	pod := corev1.PodSpec{
		ServiceAccountName:            v1alpha1.NodeAgentName,
		PriorityClassName:             nodeCritical,
		HostNetwork:                   true,
		DNSPolicy:                     corev1.DNSDefault,
		TerminationGracePeriodSeconds: new(int64(5)),
		// A cordoned, tainted or unready node still has pods.
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Affinity:    nodes.Affinity(),
		Containers:  []corev1.Container{agentContainer(a.Image, "10m", nodeMemory, "127.0.0.1", "node")},
	}
	mountAccount(&pod)
	mountOverlayKeys(&pod, keys...)
	return account, withVersion(a, object(appsv1.SchemeGroupVersion, &appsv1.DaemonSet{
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{labelComponent: "node"}},
			// All are replaced at once. Packets flow without agents, and a gateway that is replaced at the same time
			// waits for all of them. With a smaller number, unready nodes would use it up.
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type:          appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromString("100%"))},
			},
			Template: corev1.PodTemplateSpec{ObjectMeta: withoutMesh(metav1.ObjectMeta{Labels: labels}), Spec: pod},
		},
	}, v1alpha1.Namespace, v1alpha1.NodeAgentName, labels))
}

// nodeMetricsArg makes a node agent serve its metrics at its node's own address.
const nodeMetricsArg = "--metrics-address=$(HOST_IP)"

// ExposeNodeMetrics makes node agents serve their metrics at their nodes' own addresses instead of 127.0.0.1.
func ExposeNodeMetrics(daemonSet *appsv1.DaemonSet) {
	c := &daemonSet.Spec.Template.Spec.Containers[0]
	c.Args, c.Ports = append(c.Args, nodeMetricsArg), append(c.Ports, metricsPort())
	c.Env = append(c.Env, fieldEnv("HOST_IP", "status.hostIP"))
}

// metricsPort returns the port by which a PodMonitor finds the metrics.
func metricsPort() corev1.ContainerPort {
	return corev1.ContainerPort{Name: "metrics", ContainerPort: v1alpha1.MetricsPort, Protocol: corev1.ProtocolTCP}
}

// ExposesNodeMetrics reports whether node agents serve their metrics at their nodes' own addresses.
func ExposesNodeMetrics(daemonSet *appsv1.DaemonSet) bool {
	return slices.ContainsFunc(daemonSet.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
		return slices.Contains(c.Args, nodeMetricsArg)
	})
}

// Gateway holds everything that determines the objects of one gateway.
type Gateway struct {
	// Peering is the Peering's name, Owner its UID, empty if that is not known yet. Plane is the plane's index.
	Peering string
	Owner   types.UID
	Plane   int32
	Agents
	Role v1alpha1.Role
	// OverlayKey is the generation of the overlay key of its links.
	OverlayKey int32
	// WireGuard determines whether the pod gets /dev/net/tun.
	WireGuard v1alpha1.WireGuardBackend
	// KeyGeneration identifies the Secret with the gateway's key, from 1.
	KeyGeneration int32
	// PresharedKey identifies the Secret with the tunnel's pre-shared key, from 1; 0 for none.
	PresharedKey int32
	// Temporary marks a gateway that takes over while another one is replaced. It may run on the same node.
	Temporary bool
	// Planes is the number of planes of the peering.
	Planes int
	// Services is set if the gateway exchanges services with the peer.
	Services bool
	// Placement selects the nodes to run on, nil for any.
	Placement *v1alpha1.GatewayPlacement
}

// Name returns the name of all objects of the gateway except its Secrets.
func (g Gateway) Name() string { return v1alpha1.GatewayName(g.Peering, g.Plane) }

// HistoryName returns the name of the ConfigMap in which the gateway records state changes.
func (g Gateway) HistoryName() string { return v1alpha1.GatewayHistoryName(g.Peering, g.Plane) }

// SecretName returns the name of the Secret with the gateway's key.
func (g Gateway) SecretName() string { return fmt.Sprintf("%s-%d", g.Name(), g.KeyGeneration) }

// Secret returns the Secret with the gateway's WireGuard key.
func (g Gateway) Secret(data map[string][]byte) *corev1.Secret { return g.secret(g.SecretName(), data) }

// PresharedSecretName returns the name of the Secret with the tunnel's pre-shared key.
func (g Gateway) PresharedSecretName() string {
	return fmt.Sprintf("%s-psk-%d", g.Name(), g.PresharedKey)
}

// PresharedSecret returns the Secret with the tunnel's pre-shared key, and its fingerprint. Without a key it has neither.
func (g Gateway) PresharedSecret(key []byte) *corev1.Secret {
	secret := g.secret(g.PresharedSecretName(), keyData(v1alpha1.PresharedKeyFile, key))
	if key != nil {
		secret.Annotations[v1alpha1.AnnotationFingerprint] = Fingerprint(key)
	}
	return secret
}

// OverlaySecretName returns the name of the Secret with the key of the gateway's links to nodes.
func (g Gateway) OverlaySecretName() string { return overlaySecretName(g.Name(), g.OverlayKey) }

// OverlaySecret returns the Secret with the key of the gateway's links to nodes. Without a key it has no data.
func (g Gateway) OverlaySecret(key []byte) *corev1.Secret {
	return g.secret(g.OverlaySecretName(), keyData(v1alpha1.OverlayKeyFile, key))
}

// Fingerprint identifies a pre-shared key. The key is random, so a part of its hash does not reveal it.
func Fingerprint(key []byte) string {
	sum := sha256.Sum256(key)
	return base64.StdEncoding.EncodeToString(sum[:16])
}

func (g Gateway) secret(name string, data map[string][]byte) *corev1.Secret {
	return SetOwner(immutableSecret(name, g.Labels(), data), g.Peering, g.Owner)
}

// ClusterScopedName returns the name of the gateway's cluster-scoped objects.
func (g Gateway) ClusterScopedName() string { return "liqonet-" + g.Name() }

// Labels returns the labels of all objects of the gateway.
func (g Gateway) Labels() map[string]string {
	return lo.Assign(gatewayLabels(g.Peering), map[string]string{v1alpha1.LabelPlane: strconv.Itoa(int(g.Plane))})
}

// GatewayService returns the Service that exposes the gateways of a peering, with one port per plane.
// Only the gateway of that plane has a container port of that name.
func GatewayService(peering string, kind corev1.ServiceType, planes []int32) *corev1.Service {
	selector := gatewayLabels(peering)
	return object(corev1.SchemeGroupVersion, &corev1.Service{
		Spec: corev1.ServiceSpec{
			Type:     kind,
			Selector: selector,
			// Packets can reach the gateway before it is ready, so that the client's first packet arrives.
			PublishNotReadyAddresses: true,
			Ports: lo.Map(planes, func(plane int32, _ int) corev1.ServicePort {
				name := v1alpha1.PlanePortName(plane)
				return corev1.ServicePort{Name: name, Protocol: corev1.ProtocolUDP, Port: wire.TunnelPort + plane, TargetPort: intstr.FromString(name)}
			}),
		},
	}, v1alpha1.Namespace, v1alpha1.GatewayServiceName(peering), selector)
}

// GatewayBudget keeps a peering with several planes from losing more than one gateway at once when nodes are drained. It
// counts running pods. A readiness probe of the tunnel would be stricter, but until the next pod is ready, kube-proxy
// leaves connections to the previous one alone.
func GatewayBudget(peering string) *policyv1.PodDisruptionBudget {
	labels := gatewayLabels(peering)
	return object(policyv1.SchemeGroupVersion, &policyv1.PodDisruptionBudget{
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable:             new(intstr.FromInt32(1)),
			Selector:                   &metav1.LabelSelector{MatchLabels: labels},
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
		},
	}, v1alpha1.Namespace, v1alpha1.GatewayServiceName(peering), labels)
}

// Objects returns the gateway's account with its permissions, and its Deployment, which needs the account and the Secret.
func (g Gateway) Objects() (account []Object, deployment *appsv1.Deployment) {
	labels := g.Labels()
	inNamespace := []rbacv1.PolicyRule{
		// To find the node that holds an address that several report.
		policyRule("get", "coordination.k8s.io", "leases"),
		policyRule("patch", "coordination.k8s.io", "leases", g.Name()),
		// To announce the gateway's endpoints to the peer.
		policyRule("list,watch", "", "services", v1alpha1.GatewayServiceName(g.Peering)),
		policyRule("patch", "", "configmaps", g.HistoryName()),
	}
	account = accountObjects(g.Name(), g.ClusterScopedName(), labels,
		[]rbacv1.PolicyRule{
			policyRule("get", "", "namespaces", metav1.NamespaceSystem),
			policyRule("list,watch", "liqonet.io", "peerings", g.Peering),
			policyRule("patch", "liqonet.io", "peerings/status", g.Peering),
			policyRule("list,watch", "liqonet.io", "nodenetworks"),
		}, inNamespace)
	if g.Services {
		role := account[1].(*rbacv1.ClusterRole)
		role.Rules = append(role.Rules, gatewayServicesRules()...)
	}
	lease := object(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{}, v1alpha1.Namespace, g.Name(), labels)
	history := object(corev1.SchemeGroupVersion, &corev1.ConfigMap{}, v1alpha1.Namespace, g.HistoryName(), labels)
	lease.Annotations, history.Annotations = nil, nil // the agent fills both
	events := roleObjects(g.Name(), metav1.NamespaceDefault, g.ClusterScopedName(), labels,
		[]rbacv1.PolicyRule{policyRule("create", "", "events")})
	account = slices.Concat(account, []Object{lease}, events, []Object{history})
	for _, obj := range account {
		SetOwner(obj, g.Peering, g.Owner)
	}
	return account, SetOwner(g.deployment(), g.Peering, g.Owner)
}

func (g Gateway) deployment() *appsv1.Deployment {
	labels, podLabels := g.Labels(), g.Labels()
	if g.Temporary {
		podLabels[v1alpha1.LabelTemporary] = ""
	}
	// The autoscaler would keep a node for a pod with a hostPath. A gateway may move: another plane takes over, and
	// GatewayBudget keeps one of them.
	template := withoutMesh(metav1.ObjectMeta{
		Labels: podLabels, Annotations: map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
	})
	plane := labels[v1alpha1.LabelPlane]
	container := agentContainer(g.Image, "50m", gatewayMemory, "", "gateway", "--peering="+g.Peering, "--plane="+plane)
	container.Env = append(container.Env, fieldEnv("POD_IPS", "status.podIPs"))
	container.Ports = []corev1.ContainerPort{{Name: v1alpha1.PlanePortName(g.Plane), ContainerPort: wire.TunnelPort, Protocol: corev1.ProtocolUDP}, metricsPort()}
	pod := corev1.PodSpec{
		ServiceAccountName: g.Name(),
		PriorityClassName:  clusterCritical,
		// A terminating gateway waits until nodes use another one.
		TerminationGracePeriodSeconds: new(int64(10)),
		Affinity:                      g.affinity(),
		Tolerations:                   GatewayTolerations(g.Placement, g.Planes),
		Containers:                    []corev1.Container{container},
	}
	mount(&pod, "keys", KeyDir, fromSecret(g.SecretName()), "--key-dir="+KeyDir)
	if g.WireGuard == v1alpha1.UserSpaceWireGuard {
		const tun = "/dev/net/tun"
		mount(&pod, "tun", tun, corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: tun, Type: new(corev1.HostPathCharDev)}})
	}
	mountAccount(&pod)
	mountOverlayKeys(&pod, g.OverlayKey)
	if g.PresharedKey > 0 { // a new key has a new Secret, so the pod restarts with it
		file := path.Join(PresharedDir, v1alpha1.PresharedKeyFile)
		mount(&pod, "preshared", PresharedDir, fromSecret(g.PresharedSecretName()), "--preshared-key="+file)
	}
	return withVersion(g.Agents, object(appsv1.SchemeGroupVersion, &appsv1.Deployment{
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			// Two gateways with the same key would steal each other's packets, so there is never a second one. The
			// strategy is not Recreate, which waits until the previous pods are gone: one on a lost node stays forever,
			// and there would be no gateway.
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt32(0)), MaxUnavailable: new(intstr.FromInt32(1))},
			},
			Template: corev1.PodTemplateSpec{ObjectMeta: template, Spec: pod},
		},
	}, v1alpha1.Namespace, g.Name(), labels))
}

// policyRule returns a rule that allows verbs for resources of one API group, separated by commas: for all objects, or
// those with these names.
func policyRule(verbs, group, resources string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{
		APIGroups: []string{group}, Resources: strings.Split(resources, ","), ResourceNames: names, Verbs: strings.Split(verbs, ","),
	}
}

// accountObjects returns the account of an agent. It has permissions in the whole cluster, through a role with another
// name, and some only in our namespace: elsewhere Leases are others' heartbeats.
func accountObjects(name, clusterName string, labels map[string]string, inCluster, inNamespace []rbacv1.PolicyRule) []Object {
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterName}
	return append([]Object{
		object(corev1.SchemeGroupVersion, &corev1.ServiceAccount{
			// Others' pods that name it get no token unless they request one.
			AutomountServiceAccountToken: new(false),
		}, v1alpha1.Namespace, name, labels),
		object(rbacv1.SchemeGroupVersion, &rbacv1.ClusterRole{Rules: inCluster}, "", clusterName, labels),
		object(rbacv1.SchemeGroupVersion, &rbacv1.ClusterRoleBinding{RoleRef: role, Subjects: subjects(name)}, "", clusterName, labels),
	}, roleObjects(name, v1alpha1.Namespace, name, labels, inNamespace)...)
}

// roleObjects gives the account of an agent permissions in a namespace.
func roleObjects(account, namespace, name string, labels map[string]string, rules []rbacv1.PolicyRule) []Object {
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}
	return []Object{
		object(rbacv1.SchemeGroupVersion, &rbacv1.Role{Rules: rules}, namespace, name, labels),
		object(rbacv1.SchemeGroupVersion, &rbacv1.RoleBinding{RoleRef: role, Subjects: subjects(account)}, namespace, name, labels),
	}
}

func subjects(account string) []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: "ServiceAccount", Name: account, Namespace: v1alpha1.Namespace}}
}

// agentContainer returns the container of an agent's pod, with a memory limit in bytes. Above three quarters of it,
// Go's runtime collects garbage more often. The rest is for the kernel's links, routes and sets, which count toward
// the limit. An empty healthHost means the pod's own address.
func agentContainer(image, cpu string, memory int64, healthHost string, args ...string) corev1.Container {
	// netlink and nftables need this one capability. The user is root because Kubernetes cannot give capabilities to
	// others.
	c := container(image, cpu, memory, restrictedContext(0, "NET_ADMIN"), args...)
	c.Env = []corev1.EnvVar{
		fieldEnv("NODE_NAME", "spec.nodeName"), fieldEnv("POD_NAME", "metadata.name"),
		{Name: "GOMEMLIMIT", Value: fmt.Sprint(memory / 4 * 3)},
	}
	// The kubelet restarts an agent whose loop is stuck, which the agent itself reports.
	health := &corev1.HTTPGetAction{Host: healthHost, Path: "/healthz", Port: intstr.FromInt32(v1alpha1.HealthPort)}
	c.LivenessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: health}, PeriodSeconds: 20, TimeoutSeconds: 5, FailureThreshold: 3,
	}
	return c
}

// container returns a container that runs the agents' program. It requests 32 MiB, and has a memory limit in bytes.
func container(image, cpu string, memory int64, security *corev1.SecurityContext, args ...string) corev1.Container {
	return corev1.Container{
		Name: "agent", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Args: args, SecurityContext: security,
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("32Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI)},
		},
	}
}

// restrictedContext returns the security context of a container with no other capabilities than these.
func restrictedContext(user int64, capabilities ...corev1.Capability) *corev1.SecurityContext {
	return &corev1.SecurityContext{
		RunAsUser:                new(user),
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: capabilities},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

func fieldEnv(name, path string) corev1.EnvVar {
	field := &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: field}}
}

// affinity selects nodes that run agents and have the chosen labels. Each gateway of a peering gets a node of its own,
// preferably in a zone of its own. Gateways avoid control planes if there is another node. The labels are in a list that
// always exists, so that removing one is a change to that list.
func (g Gateway) affinity() *corev1.Affinity {
	a := nodes.Affinity()
	term := &a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0]
	chosen := lo.FromPtr(g.Placement).NodeSelector
	for _, key := range slices.Sorted(maps.Keys(chosen)) {
		term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
			Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{chosen[key]},
		})
	}
	a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{
		Weight: 100,
		Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: controlPlane, Operator: corev1.NodeSelectorOpDoesNotExist},
		}},
	}}
	// Gateways of the same plane are left out: one that is terminating must not keep the next one off its node. So are
	// temporary ones.
	others := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: v1alpha1.LabelPeering, Operator: metav1.LabelSelectorOpIn, Values: []string{g.Peering}},
		{Key: v1alpha1.LabelPlane, Operator: metav1.LabelSelectorOpNotIn, Values: []string{strconv.Itoa(int(g.Plane))}},
		{Key: v1alpha1.LabelTemporary, Operator: metav1.LabelSelectorOpDoesNotExist},
	}}
	otherZone := corev1.PodAffinityTerm{LabelSelector: others, TopologyKey: corev1.LabelTopologyZone}
	otherNode := corev1.PodAffinityTerm{LabelSelector: others, TopologyKey: corev1.LabelHostname}
	preferred, required := []corev1.WeightedPodAffinityTerm{{Weight: 50, PodAffinityTerm: otherZone}}, []corev1.PodAffinityTerm{otherNode}
	if g.Temporary {
		preferred, required = append(preferred, corev1.WeightedPodAffinityTerm{Weight: 100, PodAffinityTerm: otherNode}), nil
	}
	a.PodAntiAffinity = &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: preferred, RequiredDuringSchedulingIgnoredDuringExecution: required,
	}
	return a
}

// GatewayTolerations returns the tolerations of a gateway's pod: the chosen ones, and those that each gateway has. planes
// is the number of planes of the peering.
func GatewayTolerations(p *v1alpha1.GatewayPlacement, planes int) []corev1.Toleration {
	out := []corev1.Toleration{{Key: controlPlane, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	if planes == 1 {
		// Kubernetes' default of 300 s is too long if there is no other gateway. If there is one, waiting is better: a node that
		// has only lost its API server continues to run a gateway with the same key.
		for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
			t := corev1.Toleration{Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
			t.TolerationSeconds = new(int64(5))
			out = append(out, t)
		}
	}
	return append(out, lo.FromPtr(p).Tolerations...)
}

// Peering returns the Peering with a name and a spec.
func Peering(name string, spec v1alpha1.PeeringSpec) *v1alpha1.Peering {
	return object(v1alpha1.GroupVersion, &v1alpha1.Peering{Spec: spec}, "", name, peeringLabels(name))
}

// ClusterNetwork returns the ledger of a cluster.
func ClusterNetwork(spec v1alpha1.ClusterNetworkSpec) *v1alpha1.ClusterNetwork {
	cn := object(v1alpha1.GroupVersion, &v1alpha1.ClusterNetwork{Spec: spec}, "", v1alpha1.ClusterNetworkName, commonLabels())
	cn.Finalizers = []string{v1alpha1.UninstallFinalizer}
	return cn
}
