package discovery

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/plan"
)

// snapshot holds everything that was read from a cluster, sorted by the objects' names. It leaves out virtual nodes, and
// the pods on them.
type snapshot struct {
	kubeSystem   corev1.Namespace
	nodes        corev1.NodeList
	pods         corev1.PodList
	services     corev1.ServiceList
	daemonSets   appsv1.DaemonSetList
	serviceCIDRs networkingv1.ServiceCIDRList
	// configMaps has the ConfigMaps by namespace/name.
	configMaps map[string]*corev1.ConfigMap
	// custom has the objects of foreign kinds.
	custom map[schema.GroupVersionKind]*unstructured.UnstructuredList
	// unread lists the optional sources that exist but could not be read, and why.
	unread []string
}

// configMap returns the data of a ConfigMap, nil if there is none.
func (s *snapshot) configMap(name string) map[string]string {
	return lo.FromPtr(s.configMaps[name]).Data
}

// objects returns the objects of a foreign kind.
func (s *snapshot) objects(kind schema.GroupVersionKind) []unstructured.Unstructured {
	return lo.FromPtr(s.custom[kind]).Items
}

// daemonSet returns the first DaemonSet with a matching name that is wanted on some node.
func (s *snapshot) daemonSet(patterns ...string) *appsv1.DaemonSet {
	found, _ := lo.Find(lo.ToSlicePtr(s.daemonSets.Items), func(ds *appsv1.DaemonSet) bool {
		named := slices.ContainsFunc(patterns, func(p string) bool {
			match, _ := path.Match(p, ds.Name)
			return match
		})
		// A plugin is often turned off by a node selector that matches no node.
		return named && ds.Status.DesiredNumberScheduled > 0
	})
	return found
}

// holder is an object and an address that it has.
type holder struct {
	object string
	addr   netip.Addr
}

// podAddrs returns the addresses of pods from the network plugin: of pods that have a network of their own and are
// running.
func (s *snapshot) podAddrs() (out []holder) {
	for _, p := range s.pods.Items {
		if p.Spec.HostNetwork || p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
			continue
		}
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil {
				out = append(out, holder{"pod " + p.Namespace + "/" + p.Name, a.Unmap()})
			}
		}
	}
	return out
}

// livePods returns the addresses without the pods' names.
func (s *snapshot) livePods() []netip.Addr {
	return lo.Map(s.podAddrs(), func(p holder, _ int) netip.Addr { return p.addr })
}

// serviceAddrs returns the services' cluster IPs.
func (s *snapshot) serviceAddrs() (out []holder) {
	for _, svc := range s.services.Items {
		for _, ip := range svc.Spec.ClusterIPs {
			// An address with a zone cannot belong to a service.
			if a, err := netip.ParseAddr(ip); err == nil && a.Zone() == "" {
				out = append(out, holder{"service " + svc.Namespace + "/" + svc.Name, a})
			}
		}
	}
	return out
}

// nodePods returns the pod ranges of each node according to Kubernetes' own IPAM, or to kube-router's annotations, which
// override it.
func (s *snapshot) nodePods() []netip.Prefix {
	return lo.FlatMap(s.nodes.Items, func(n corev1.Node, _ int) []netip.Prefix {
		annotated := cmp.Or(n.Annotations["kube-router.io/pod-cidrs"], n.Annotations["kube-router.io/pod-cidr"])
		return parseRanges(cmp.Or(annotated, strings.Join(n.Spec.PodCIDRs, ",")), "").Prefixes()
	})
}

// podFlag looks for a flag in the system's pods that have a container with the name, e.g. kube-controller-manager.
func (s *snapshot) podFlag(container, flag string) (out plan.Ranges) {
	look := func(kind string, o metav1.ObjectMeta, spec corev1.PodSpec) {
		for _, c := range spec.Containers {
			if len(out) == 0 && o.Namespace == "kube-system" && c.Name == container {
				source := "from " + container + "'s --" + flag + " (" + kind + " " + o.Namespace + "/" + o.Name + ")"
				out = parseRanges(flagValue(slices.Concat(c.Command, c.Args), flag), source)
			}
		}
	}
	for _, p := range s.pods.Items {
		look("pod", p.ObjectMeta, p.Spec)
	}
	for _, ds := range s.daemonSets.Items {
		look("DaemonSet", ds.ObjectMeta, ds.Spec.Template.Spec)
	}
	return out
}

// nodeArgs looks for a flag of k3s and RKE2. They write their arguments, including those from their configuration file
// but without defaults, to an annotation of each node.
func (s *snapshot) nodeArgs(flag string) plan.Ranges {
	for _, n := range s.nodes.Items {
		for _, key := range []string{"k3s.io/node-args", "rke2.io/node-args"} {
			var args []string
			if json.Unmarshal([]byte(n.Annotations[key]), &args) != nil {
				continue
			}
			if out := parseRanges(flagValue(args, flag), "from --"+flag+" in the annotation "+key+" of node "+n.Name); len(out) > 0 {
				return out
			}
		}
	}
	return nil
}

// flagValue returns the value of --name=value or --name value among arguments. An argument may be a whole shell command
// line.
func flagValue(args []string, name string) string {
	m := regexp.MustCompile(`(?:^|\s)--?` + name + `[=\s]+(\S+)`).FindStringSubmatch(strings.Join(args, " "))
	return lo.NthOrEmpty(m, 1)
}

// configured returns the ranges in a field of a YAML document, which is the value of a key in a ConfigMap.
func (s *snapshot) configured(configMap, key string, field ...string) plan.Ranges {
	var document map[string]any
	if yaml.Unmarshal([]byte(s.configMap(configMap)[key]), &document) != nil {
		return nil
	}
	list, _, _ := unstructured.NestedFieldNoCopy(document, field...) // a list of ranges, or a text that lists them
	return parseRanges(fmt.Sprint(list), "from "+strings.Join(field, ".")+" of ConfigMap "+configMap)
}

// customRanges returns the ranges in a field of the objects of a foreign kind. The field is a JSONPath.
func (s *snapshot) customRanges(kind schema.GroupVersionKind, path string) (out plan.Ranges) {
	field := jsonpath.New(path).AllowMissingKeys(true)
	if field.Parse("{."+path+"}") != nil {
		return nil
	}
	for _, o := range s.objects(kind) {
		var found strings.Builder
		_ = field.Execute(&found, o.Object) // a field of another type has no ranges
		out = append(out, parseRanges(found.String(), "from "+strings.ReplaceAll(path, "[*]", "")+" of "+kind.Kind+" "+o.GetName())...)
	}
	return distinct(out)
}

// ovnConfig reads a list of ranges, in which each may be followed by the length of the nodes' ranges: 10.244.0.0/16/24.
func (s *snapshot) ovnConfig(key string) (out plan.Ranges) {
	for _, e := range strings.Split(s.configMap("ovn-kubernetes/ovn-config")[key], ",") {
		parts := strings.Split(strings.TrimSpace(e), "/")
		out = append(out, parseRanges(strings.Join(parts[:min(len(parts), 2)], "/"), "from "+key+" of ConfigMap ovn-kubernetes/ovn-config")...)
	}
	return out
}

// customNetworking reports whether the amazon-vpc-cni gives pods addresses from other subnets than the nodes'.
func (s *snapshot) customNetworking() bool {
	ds := s.daemonSet("aws-node")
	return ds != nil && slices.ContainsFunc(ds.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
		return slices.Contains(c.Env, corev1.EnvVar{Name: "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG", Value: "true"})
	})
}

// parseRanges returns the ranges in a list, separated by commas or spaces. It drops host bits, as Kubernetes does, and
// anything that is not a prefix.
func parseRanges(list, source string) plan.Ranges {
	fields := strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(", \t\n\"'[]", r) })
	return lo.FilterMap(fields, func(s string, _ int) (plan.Range, bool) {
		p, err := netip.ParsePrefix(s)
		return plan.Range{Value: p.Masked(), Source: source}, err == nil
	})
}

// inferred returns ranges that no object contains, with a source.
func inferred(prefixes []netip.Prefix, source string) plan.Ranges {
	return lo.Map(prefixes, func(p netip.Prefix, _ int) plan.Range { return plan.Range{Value: p, Source: source, Assumed: true} })
}

// distinct sorts ranges by their prefix, IPv4 first, and drops those inside others.
func distinct(ranges plan.Ranges) plan.Ranges {
	return ipam.Outermost(ranges, func(r plan.Range) netip.Prefix { return r.Value })
}

// contains reports whether inner is inside outer.
func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}
