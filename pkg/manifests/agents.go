package manifests

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/version"
)

// argOverlayKeys is an argument that agents before the level Current do not know.
const argOverlayKeys = "--overlay-keys="

// Agents are what runs in the pods of a cluster.
type Agents struct {
	Image string
	// Version is that of the image, empty for this command's.
	Version string
	// Level says what they know: it decides how their objects are. 0 is this version's.
	Level version.Level
}

func (a Agents) level() version.Level {
	if a.Level == 0 {
		return version.Current
	}
	return a.Level
}

// meta is the metadata of what runs these agents.
func (a Agents) meta(name string, labels map[string]string) metav1.ObjectMeta {
	m := objectMeta(v1alpha1.Namespace, name, labels)
	if a.Version != "" {
		m.Annotations[v1alpha1.AnnotationVersion] = a.Version
	}
	SetLevel(&m, a.level())
	return m
}

// SetLevel writes down the level of agents for which an object is made. That of v0.1.0 had no annotation.
func SetLevel(obj metav1.Object, level version.Level) {
	annotations := obj.GetAnnotations()
	if level > version.First {
		annotations[v1alpha1.AnnotationLevel] = strconv.Itoa(int(level))
	} else {
		delete(annotations, v1alpha1.AnnotationLevel)
	}
}

// LevelOf is the level of agents for which an object was made.
func LevelOf(obj metav1.Object) version.Level {
	level, err := strconv.Atoi(obj.GetAnnotations()[v1alpha1.AnnotationLevel])
	if err != nil {
		return version.First
	}
	return version.Level(level)
}

// AgentsOf are those that an object, a DaemonSet or a Deployment, runs. What their pods are told shows what they know, where
// the object does not say.
func AgentsOf(obj metav1.Object, pod *corev1.PodSpec) (a Agents) {
	a.Version, a.Level = obj.GetAnnotations()[v1alpha1.AnnotationVersion], LevelOf(obj)
	for _, c := range pod.Containers {
		a.Image = c.Image // there is one
		if a.Level == version.First && slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, argOverlayKeys) }) {
			a.Level = version.Current
		}
	}
	return a
}

// Lower says that an object is written on purpose for agents which know less than those of the one that is there. The policy
// refuses it otherwise.
func Lower(obj, there metav1.Object) {
	before := there.GetAnnotations()[v1alpha1.AnnotationLevel]
	if before == "" || LevelOf(obj) >= LevelOf(there) {
		return
	}
	annotations := maps.Clone(obj.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationLowered] = before
	obj.SetAnnotations(annotations)
}
