package manifests

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/version"
	"github.com/liqonet/liqonet/test/kit"
)

var update = flag.Bool("update", false, "write the golden files")

// gateways returns one gateway of each kind.
func gateways() []Gateway {
	return []Gateway{
		{Peering: "b", Agents: Agents{Image: "registry/image:1"}, Role: v1alpha1.Server, WireGuard: "Kernel", OverlayKey: 1, Planes: 1},
		{Peering: "c", Plane: 3, Agents: Agents{Image: "registry/image:1"}, Role: v1alpha1.Client, WireGuard: "UserSpace", OverlayKey: 1, Planes: 4},
		{Peering: strings.Repeat("x", 40), Agents: Agents{Image: "registry/image:1"}, Role: v1alpha1.Server, WireGuard: "Kernel", OverlayKey: 1, Planes: 2},
	}
}

// services returns the Services of those that are servers.
func services() []*corev1.Service {
	return []*corev1.Service{
		GatewayService("b", corev1.ServiceTypeNodePort, []int32{0}),
		GatewayService(strings.Repeat("x", 40), corev1.ServiceTypeLoadBalancer, []int32{0, 1}),
	}
}

// all returns every object that is ever applied.
func all(t *testing.T) []Object {
	t.Helper()
	crds := CRDs()
	out := []Object{
		Namespace(), CriticalPodsQuota(), OverlaySecret(1, []byte("key")), ClusterNetwork(v1alpha1.ClusterNetworkSpec{}), Peering("b", v1alpha1.PeeringSpec{}),
	}
	for _, crd := range crds {
		out = append(out, crd)
	}
	account, daemonSet := NodeAgent(Agents{Image: "registry/image:1"}, []int32{1})
	out = append(append(out, account...), daemonSet)
	for _, g := range gateways() {
		account, deployment := g.Objects()
		out = append(append(out, account...), deployment, g.Secret(nil))
	}
	for _, s := range services() {
		out = append(out, s)
	}
	return out
}

// template is the pod template of a DaemonSet or a Deployment.
type template struct {
	corev1.PodTemplateSpec
	name     string
	selector map[string]string
}

func templates(t *testing.T) []template {
	t.Helper()
	var out []template
	for _, o := range all(t) {
		switch o := o.(type) {
		case *appsv1.DaemonSet:
			out = append(out, template{o.Spec.Template, o.Name, o.Spec.Selector.MatchLabels})
		case *appsv1.Deployment:
			out = append(out, template{o.Spec.Template, o.Name, o.Spec.Selector.MatchLabels})
		}
	}
	return out
}

func TestCRDs(t *testing.T) {
	crds := CRDs()
	status := map[string]bool{"ClusterNetwork": false, "Peering": true, "NodeNetwork": true}
	for _, crd := range crds {
		t.Run(crd.Spec.Names.Kind, func(t *testing.T) {
			wantStatus, ok := status[crd.Spec.Names.Kind]
			kit.ErrorIf(t, !ok || crd.Spec.Group != v1alpha1.GroupVersion.Group || crd.Name != crd.Spec.Names.Plural+".liqonet.io",
				"%s of group %s", crd.Name, crd.Spec.Group)
			if crd.Spec.Scope != "Cluster" || crd.Spec.Names.Singular != strings.ToLower(crd.Spec.Names.Kind) || crd.Spec.Names.Plural != crd.Spec.Names.Singular+"s" {
				t.Errorf("scope %s, names %+v", crd.Spec.Scope, crd.Spec.Names)
			}
			kit.FatalIf(t, len(crd.Spec.Versions) != 1, "%d versions", len(crd.Spec.Versions))
			v := crd.Spec.Versions[0]
			kit.ErrorIf(t, v.Name != "v1alpha1" || !v.Served || !v.Storage || v.Schema == nil || len(v.AdditionalPrinterColumns) == 0,
				"version %+v", v)
			kit.Check(t, "subresource status", v.Subresources != nil && v.Subresources.Status != nil, wantStatus)
			for _, c := range v.AdditionalPrinterColumns {
				// Printer columns of fields that do not exist are just empty.
				if path, _, _ := strings.Cut(strings.TrimPrefix(c.JSONPath, "."), "."); path != "metadata" {
					_, ok := v.Schema.OpenAPIV3Schema.Properties[path]
					kit.ErrorIf(t, !ok, "column %q of %s", c.Name, c.JSONPath)
				}
			}
		})
	}
	kit.Check(t, "len(crds)", len(crds), len(status))
}

func TestObjects(t *testing.T) {
	names := map[string]bool{}
	for _, o := range all(t) {
		gvk := o.GetObjectKind().GroupVersionKind()
		id := fmt.Sprintf("%s %s/%s", gvk.Kind, o.GetNamespace(), o.GetName())
		kit.ErrorIf(t, gvk.Kind == "" || gvk.Version == "" || names[id], "%q (%T): without a kind, or there twice", id, o)
		names[id] = true
		if o.GetLabels()[v1alpha1.LabelManagedBy] != v1alpha1.FieldManager {
			t.Errorf("%s is not recognisable as ours: %v", id, o.GetLabels())
		}
		for k, v := range o.GetLabels() {
			errs := slices.Concat(validation.IsQualifiedName(k), validation.IsValidLabelValue(v))
			kit.ErrorIf(t, len(errs) > 0, "%s: label %s=%s: %v", id, k, v, errs)
		}
		namespaced := slices.Contains([]string{"ServiceAccount", "DaemonSet", "Deployment", "Service", "Secret", "Role", "RoleBinding", "Lease", "ResourceQuota", "ConfigMap"}, gvk.Kind)
		// Events about cluster-scoped objects are in another namespace. A gateway has a role there, and nothing else.
		isForEvents := o.GetNamespace() == "default" && strings.HasPrefix(gvk.Kind, "Role") && strings.HasPrefix(o.GetName(), "liqonet-gateway-")
		if namespaced != (o.GetNamespace() == v1alpha1.Namespace || isForEvents) {
			t.Errorf("%s is in namespace %q", id, o.GetNamespace())
		}
		// A Lease has the version of the agent that renews it, and a history needs none.
		v := o.GetAnnotations()[v1alpha1.AnnotationVersion]
		kit.ErrorIf(t, (v != version.String()) != (gvk.Kind == "Lease" || gvk.Kind == "ConfigMap"), "%s has the version %q", id, v)
		kit.ErrorIf(t, gvk.Kind == "Service" && len(validation.IsDNS1035Label(o.GetName())) > 0, "%s: not a name of a service", id)
		// A pod's name is the Deployment's with two hashes.
		kit.ErrorIf(t, gvk.Kind == "Deployment" && len(o.GetName())+17 > 63 && !strings.Contains(o.GetName(), strings.Repeat("x", 40)),
			"%s: its pods' names are too long", id)
	}
}

func TestPods(t *testing.T) {
	for _, p := range templates(t) {
		t.Run(p.name, func(t *testing.T) {
			kit.ErrorIf(t, !labels.SelectorFromSet(p.selector).Matches(labels.Set(p.Labels)), "selector %v, labels %v", p.selector, p.Labels)
			spec := p.Spec
			node := p.name == v1alpha1.NodeAgentName
			if spec.HostNetwork != node || spec.HostPID || spec.HostIPC || spec.ServiceAccountName == "" || spec.ServiceAccountName == "default" {
				t.Errorf("host network %t, PID %t, IPC %t, account %q", spec.HostNetwork, spec.HostPID, spec.HostIPC, spec.ServiceAccountName)
			}
			kit.FatalIf(t, len(spec.InitContainers) > 0 || len(spec.Containers) != 1, "more than one container")
			c := spec.Containers[0]
			s := c.SecurityContext
			if s == nil || s.Privileged != nil && *s.Privileged || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
				s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("security context %+v", s)
			}
			kit.Check(t, "Capabilities", s.Capabilities, &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}, Drop: []corev1.Capability{"ALL"}})
			kit.ErrorIf(t, c.Image != "registry/image:1" || c.ImagePullPolicy != corev1.PullIfNotPresent, "image %s, %s", c.Image, c.ImagePullPolicy)
			if p := c.LivenessProbe; p == nil || p.HTTPGet == nil || p.HTTPGet.Path != "/healthz" || (p.HTTPGet.Host == "127.0.0.1") != node {
				t.Errorf("a loop that is stuck is not noticed: %+v", p)
			}
			kit.ErrorIf(t, c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero(), "no requests")
			// host are the host's files that any pod gets.
			var host []string
			for _, v := range spec.Volumes {
				if v.HostPath != nil {
					host = append(host, v.HostPath.Path)
				}
			}
			var want []string
			if p.Labels[v1alpha1.LabelPeering] == "c" {
				want = []string{"/dev/net/tun"}
			}
			kit.Check(t, "host", host, want)
			for _, m := range c.VolumeMounts {
				if !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) || (m.MountPath == "/dev/net/tun") == m.ReadOnly {
					t.Errorf("mount %+v", m)
				}
			}
		})
	}
}

// TestSelectors checks that no set of pods, and no Service, selects another one's pods.
func TestSelectors(t *testing.T) {
	pods := templates(t)
	for _, p := range pods {
		for _, o := range pods {
			kit.ErrorIf(t, p.name != o.name && labels.SelectorFromSet(p.selector).Matches(labels.Set(o.Labels)),
				"%s takes the pods of %s", p.name, o.name)
		}
	}
	// A Service's port targets only the gateway of its plane, as no other one has a port of that name.
	for _, s := range services() {
		for i, port := range s.Spec.Ports {
			chosen := map[string]int32{}
			for _, p := range pods {
				for _, has := range p.Spec.Containers[0].Ports {
					if labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(p.Labels)) && has.Name == port.TargetPort.StrVal && has.Protocol == port.Protocol {
						chosen[p.name] = has.ContainerPort
					}
				}
			}
			want := map[string]int32{}
			for _, g := range gateways() {
				if g.Peering == s.Labels[v1alpha1.LabelPeering] && g.Plane == int32(i) {
					want[g.Name()] = 51840
				}
			}
			if !maps.Equal(want, chosen) || port.Port != 51840+int32(i) || port.Protocol != corev1.ProtocolUDP {
				t.Errorf("%s %+v leads to %v, want %v", s.Name, port, chosen, want)
			}
		}
	}
}

func TestGatewayNames(t *testing.T) {
	names := map[string]bool{}
	for _, peering := range []string{"a", "a-0", "a-1", "b"} {
		for plane := range int32(4) {
			g := Gateway{Peering: peering, Plane: plane}
			if names[g.Name()] || names[g.ClusterScopedName()] {
				t.Errorf("%s is there twice", g.Name())
			}
			names[g.Name()], names[g.ClusterScopedName()] = true, true
		}
	}
}

// TestRBAC shows all permissions of the agents, so that a new one is seen in the review.
func TestRBAC(t *testing.T) {
	accounts, roles, rules := map[string]bool{}, map[string]bool{}, ""
	show := func(name string, granted []rbacv1.PolicyRule) {
		if strings.Contains(name, "xxx") {
			return
		}
		rules += name + "\n"
		for _, r := range granted {
			rules += fmt.Sprintf("  %s %s %s %s\n", strings.Join(r.Verbs, ","), strings.Join(r.Resources, ","), cmp.Or(strings.Join(r.APIGroups, ","), "core"), strings.Join(r.ResourceNames, ","))
			for _, word := range slices.Concat(r.Verbs, r.Resources, r.APIGroups) {
				if strings.Contains(word, "*") || strings.HasPrefix(word, "secrets") || slices.Contains([]string{"escalate", "bind", "impersonate"}, word) {
					t.Errorf("%s may %v", name, r)
				}
			}
			kit.ErrorIf(t, len(r.NonResourceURLs) > 0, "%s may %v", name, r)
		}
	}
	for _, o := range all(t) {
		switch o := o.(type) {
		case *corev1.ServiceAccount:
			accounts[o.Name] = true
		case *rbacv1.ClusterRole:
			roles["ClusterRole "+o.Name] = true
			kit.ErrorIf(t, o.AggregationRule != nil, "%s aggregates", o.Name)
			show(o.Name, o.Rules)
		case *rbacv1.Role:
			roles["Role "+o.Name] = true
			where := "its namespace"
			if o.Namespace != v1alpha1.Namespace {
				where = o.Namespace
			}
			show(o.Name+" in "+where, o.Rules)
		}
	}
	for _, o := range all(t) {
		var ref rbacv1.RoleRef
		var subjects []rbacv1.Subject
		switch b := o.(type) {
		case *rbacv1.ClusterRoleBinding:
			ref, subjects = b.RoleRef, b.Subjects
		case *rbacv1.RoleBinding:
			ref, subjects = b.RoleRef, b.Subjects
		default:
			continue
		}
		if !roles[ref.Kind+" "+ref.Name] || len(subjects) != 1 || !accounts[subjects[0].Name] || subjects[0].Namespace != v1alpha1.Namespace {
			t.Errorf("binding %s to %+v of %+v", o.GetName(), subjects, ref)
		}
	}
	for _, p := range templates(t) {
		kit.ErrorIf(t, !accounts[p.Spec.ServiceAccountName], "%s has an account that does not exist: %s", p.name, p.Spec.ServiceAccountName)
	}
	rules = strings.ReplaceAll(rules, " \n", "\n")
	file := filepath.Join("testdata", "rbac.txt")
	if *update {
		kit.NoError(t, os.WriteFile(file, []byte(rules), 0o644))
	}
	want := kit.Must(os.ReadFile(file))(t)
	kit.Check(t, "rules", rules, string(want))
}

// There is never a second gateway of a plane. A new one does not wait for earlier ones, which may be on a lost node.
func TestGatewayIsReplaced(t *testing.T) {
	_, deployment := Gateway{Peering: "b", Role: v1alpha1.Client}.Objects()
	s := deployment.Spec.Strategy
	if *deployment.Spec.Replicas != 1 || s.Type != appsv1.RollingUpdateDeploymentStrategyType || s.RollingUpdate == nil ||
		s.RollingUpdate.MaxSurge.IntValue() != 0 || s.RollingUpdate.MaxUnavailable.IntValue() != 1 {
		t.Errorf("got %+v", s)
	}
}

// Pods that carry the pod network are evicted last, and the quota allows their priority.
func TestPriorityOfPods(t *testing.T) {
	var allowed []string
	for _, e := range CriticalPodsQuota().Spec.ScopeSelector.MatchExpressions {
		allowed = append(allowed, e.Values...)
	}
	for _, p := range templates(t) {
		want := "system-cluster-critical"
		if p.name == v1alpha1.NodeAgentName {
			want = "system-node-critical"
		}
		kit.ErrorIf(t, p.Spec.PriorityClassName != want || !slices.Contains(allowed, want),
			"%s has the priority class %q; the quota is for %v", p.name, p.Spec.PriorityClassName, allowed)
	}
}

// Agents have a memory limit, and Go's runtime has a lower one.
func TestLimitOfMemory(t *testing.T) {
	_, daemonSet := NodeAgent(Agents{Image: "image"}, []int32{1})
	_, deployment := Gateway{Peering: "b"}.Objects()
	for _, c := range []corev1.Container{daemonSet.Spec.Template.Spec.Containers[0], deployment.Spec.Template.Spec.Containers[0]} {
		limit, request := c.Resources.Limits.Memory().Value(), c.Resources.Requests.Memory().Value()
		i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
		kit.FatalIf(t, i < 0 || request == 0 || limit < request, "%v: request %d, limit %d", c.Args, request, limit)
		soft, err := strconv.ParseInt(c.Env[i].Value, 10, 64)
		kit.ErrorIf(t, err != nil || soft != limit/4*3, "%v: GOMEMLIMIT is %s of %d: %v", c.Args, c.Env[i].Value, limit, err)
	}
}
