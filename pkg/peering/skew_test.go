package peering_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/check"
	"github.com/liqonet/liqonet/pkg/diagnose"
	"github.com/liqonet/liqonet/pkg/doctor"
	"github.com/liqonet/liqonet/pkg/engine"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/test/kit"
)

// A command that is older than a cluster's agents or definitions writes nothing, not even to roll back an interrupted
// command, except for unpeer. A command whose version cannot be compared may write.
func TestVersionSkew(t *testing.T) {
	kit.NotShort(t)
	t.Parallel()
	a, b := peering.Peered(t)
	killed := peering.Steps{"Waiting until packets pass": func() { a.DeadFrom, b.DeadFrom = 1, 1 }}
	_, err := peering.Peer(t.Context(), a.Cluster, b.Cluster, engine.Options{Image: "image:2"}, killed)
	kit.FatalIf(t, err == nil, "a command that cannot write has succeeded")
	a.DeadFrom, b.DeadFrom = 0, 0
	if !slices.ContainsFunc(peering.List[corev1.SecretList](t, b).Items, func(m corev1.Secret) bool { return strings.HasPrefix(m.Name, "journal-") }) {
		t.Fatal("there is nothing to undo")
	}

	agents := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: v1alpha1.NodeAgentName}}
	definition := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "peerings." + v1alpha1.GroupVersion.Group}}
	ofVersion := func(obj client.Object, version string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationVersion, version)
		kit.NoError(t, b.Raw.Patch(t.Context(), obj, client.RawPatch(types.MergePatchType, patch)))
	}
	host := netip.MustParseAddr("192.0.2.12")
	commands := map[string]func(ctx context.Context) error{
		"peer": func(ctx context.Context) error {
			return kit.Err(peering.Peer(ctx, a.Cluster, b.Cluster, engine.Options{}, kube.Quiet{}))
		},
		"peer --dry-run": func(ctx context.Context) error {
			return kit.Err(peering.PlanAll(ctx, []peering.Pair{{a.Cluster, b.Cluster}}, engine.Options{}, kube.Quiet{}))
		},
		"rotate-keys": func(ctx context.Context) error {
			return kit.Err(peering.Rotate(ctx, a.Cluster, b.Cluster, peering.Rotation{}, kube.Quiet{}))
		},
		"upgrade": func(ctx context.Context) error {
			return kit.Err(peering.UpgradeAll(ctx, []*kube.Cluster{b.Cluster}, peering.Newer(), kube.Quiet{}))
		},
		"upgrade --dry-run": func(ctx context.Context) error {
			return kit.Err(peering.PlanUpgrades(ctx, []*kube.Cluster{b.Cluster}, peering.Newer(), kube.Quiet{}))
		},
		"expose-host": func(ctx context.Context) error {
			return kit.Err(peering.ExposeHost(ctx, b.Cluster, a.Cluster, host, kube.Quiet{}))
		},
		"expose-host --remove": func(ctx context.Context) error {
			return kit.Err(peering.UnexposeHost(ctx, b.Cluster, a.Cluster, host, kube.Quiet{}))
		},
		"doctor --fix": func(ctx context.Context) error {
			facts := &doctor.Facts{Clusters: []*doctor.Cluster{{Own: doctor.Objects{Leftovers: []string{"Deployment gateway-gone-0"}}}}}
			return kit.Err(diagnose.Fix(ctx, []*kube.Cluster{b.Cluster}, facts, &check.Report{}, kube.Quiet{}))
		},
	}
	a.Version, b.Version = "v0.2.0", "v0.2.0"
	for what, obj := range map[string]client.Object{"agents": agents, "definitions": definition} {
		ofVersion(obj, "v0.3.0")
		a.Writes, b.Writes = 0, 0
		for _, name := range slices.Sorted(maps.Keys(commands)) {
			err := commands[name](t.Context())
			if e := (*kube.Error)(nil); !errors.As(err, &e) || e.Kind != kube.Usage || e.Cluster != "b" || !strings.Contains(err.Error(), "has version v0.3.0, and this command the older v0.2.0") {
				t.Errorf("newer %s: %s: got %v", what, name, err)
			}
			kit.FatalIf(t, a.Writes+b.Writes > 0, "newer %s: %s has written", what, name)
		}
		for _, development := range []string{"dev", "076aa63-dirty"} {
			b.Version = development
			err := engine.CheckVersion(t.Context(), b.Cluster)
			kit.ErrorIf(t, err != nil, "newer %s: a command of version %s: %v", what, development, err)
		}
		b.Version = "v0.2.0"
		ofVersion(obj, "v0.1.9") // the previous version is accepted
		err := engine.CheckVersion(t.Context(), b.Cluster)
		kit.ErrorIf(t, err != nil, "older %s: %v", what, err)
	}
	ofVersion(agents, "v0.3.0")
	ofVersion(definition, "v0.3.0")
	if _, _, err := peering.Unpeer(t.Context(), a.Cluster, b.Cluster, kube.Quiet{}); err != nil {
		t.Fatal(err)
	}
	left := b.Ours(t)
	kit.ErrorIf(t, len(left) > 0, "unpeer of an older version has left %v", left)
}
