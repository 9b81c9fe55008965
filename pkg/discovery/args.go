package discovery

import (
	"encoding/json"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// flagValue returns the value of --name=value or --name value among arguments.
// Arguments of a shell are split, since manifests write whole command lines.
func flagValue(args []string, name string) (string, bool) {
	var words []string
	for _, a := range args {
		words = append(words, strings.Fields(a)...)
	}
	for i, w := range words {
		w = strings.TrimLeft(w, "-")
		if v, ok := strings.CutPrefix(w, name+"="); ok {
			return v, true
		}
		if w == name && i+1 < len(words) {
			return words[i+1], true
		}
	}
	return "", false
}

// podFlag looks for a flag in the system's pods of which one container has the
// name, e.g. kube-controller-manager.
func (s *snapshot) podFlag(container, flag string) []Fact[netip.Prefix] {
	for _, p := range s.pods {
		if p.Namespace != "kube-system" {
			continue
		}
		if f := containerFlag(p.Spec, container, flag, "pod "+p.Namespace+"/"+p.Name); len(f) > 0 {
			return f
		}
	}
	for _, ds := range s.daemonSets {
		if ds.Namespace != "kube-system" {
			continue
		}
		if f := containerFlag(ds.Spec.Template.Spec, container, flag, "DaemonSet "+ds.Namespace+"/"+ds.Name); len(f) > 0 {
			return f
		}
	}
	return nil
}

func containerFlag(spec corev1.PodSpec, container, flag, of string) []Fact[netip.Prefix] {
	for _, c := range spec.Containers {
		if c.Name != container {
			continue
		}
		if v, ok := flagValue(append(append([]string{}, c.Command...), c.Args...), flag); ok {
			if ps := parsePrefixes(v); len(ps) > 0 {
				return facts(ps, "from "+container+"'s --"+flag+" ("+of+")", false)
			}
		}
	}
	return nil
}

// env returns an environment variable of a container of a pod template.
func env(spec corev1.PodSpec, name string) (string, bool) {
	for _, c := range spec.Containers {
		for _, e := range c.Env {
			if e.Name == name && e.ValueFrom == nil {
				return e.Value, true
			}
		}
	}
	return "", false
}

// nodeArgs looks for a flag of k3s and RKE2, which write their arguments, also those
// of their configuration file, to an annotation of each node, unless defaults.
func (s *snapshot) nodeArgs(flag string) []Fact[netip.Prefix] {
	for _, n := range s.nodes {
		for _, key := range []string{"k3s.io/node-args", "rke2.io/node-args"} {
			var args []string
			if json.Unmarshal([]byte(n.Annotations[key]), &args) != nil {
				continue
			}
			if v, ok := flagValue(args, flag); ok {
				if ps := parsePrefixes(v); len(ps) > 0 {
					return facts(ps, "from --"+flag+" in the annotation "+key+" of node "+n.Name, false)
				}
			}
		}
	}
	return nil
}
