package discovery

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/pkg/ipam"
	"github.com/liqonet/liqonet/pkg/plan"
)

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

// flagValue returns the value of --name=value or --name value among arguments. An argument may be a whole shell command
// line.
func flagValue(args []string, name string) string {
	m := regexp.MustCompile(`(?:^|\s)--?` + name + `[=\s]+(\S+)`).FindStringSubmatch(strings.Join(args, " "))
	if m == nil {
		return ""
	}
	return m[1]
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
