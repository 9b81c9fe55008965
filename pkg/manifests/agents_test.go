package manifests

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/version"
)

// fields are what an object has in JSON.
func fields(t *testing.T, obj any) (out map[string]any) {
	t.Helper()
	raw, err := json.Marshal(obj)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Agents of v0.1.0 are told what its own command told them, so pods that run are not replaced without need. The file has what
// that made.
func TestObjectsForAgentsOfV010(t *testing.T) {
	released := Agents{Image: "registry/image:1", Version: "v0.1.0", Level: version.LevelOf("v0.1.0")}
	account, daemonSet := NodeAgent(released, []int32{1})
	objs := append(account, daemonSet)
	for _, g := range []Gateway{
		{Peering: "b", Agents: released, Role: v1alpha1.Server, WireGuard: "kernel", Port: 51840, OverlayKey: 1, Planes: 1, KeyGeneration: 1},
		{Peering: "c", Plane: 1, Agents: released, Role: v1alpha1.Client, WireGuard: "userspace", Port: 51840, OverlayKey: 1, Planes: 2, KeyGeneration: 2, PresharedKey: 3},
	} {
		account, deployment := g.Objects()
		objs = append(append(objs, account...), deployment)
	}
	raw, err := os.ReadFile("testdata/v0.1.0.json")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if len(lines) != len(objs) {
		t.Fatalf("%d objects, v0.1.0 made %d", len(objs), len(lines))
	}
	for i, obj := range objs {
		got, want := fields(t, obj), map[string]any{}
		if err := json.Unmarshal([]byte(lines[i]), &want); err != nil {
			t.Fatal(err)
		}
		if got["kind"] != "DaemonSet" && got["kind"] != "Deployment" { // the command is another one
			for _, o := range []map[string]any{got, want} {
				delete(o["metadata"].(map[string]any), "annotations")
			}
		}
		if got["kind"] == "ValidatingAdmissionPolicy" { // what it permits now is a part
			got["spec"], want["spec"] = nil, nil
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s %s:\n%s", got["kind"], obj.GetName(), diff)
		}
	}
}

func TestAgentsOf(t *testing.T) {
	for _, want := range []Agents{
		{Image: "image", Version: "v0.1.0", Level: version.First},
		{Image: "image", Version: "v0.2.0", Level: version.Current},
		{Image: "image", Version: "v0.9.0", Level: version.Current + 7},
	} {
		_, daemonSet := NodeAgent(want, []int32{1})
		if got := AgentsOf(daemonSet, &daemonSet.Spec.Template.Spec); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		_, deployment := Gateway{Peering: "b", Agents: want, OverlayKey: 1}.Objects()
		if got := AgentsOf(deployment, &deployment.Spec.Template.Spec); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	// A build from before there were levels.
	_, daemonSet := NodeAgent(Agents{Image: "image"}, []int32{1})
	delete(daemonSet.Annotations, v1alpha1.AnnotationLevel)
	if got := AgentsOf(daemonSet, &daemonSet.Spec.Template.Spec).Level; got != version.Current {
		t.Errorf("without its level it is of level %d", got)
	}
	if got := AgentsOf(&appsv1.DaemonSet{}, &daemonSet.Spec.Template.Spec).Level; got != version.Current {
		t.Errorf("without annotations it is of level %d", got)
	}
}
