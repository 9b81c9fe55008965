package manifests

import (
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

func TestAgentsOf(t *testing.T) {
	want := Agents{Image: "image", Version: "v0.9.0"}
	_, daemonSet := NodeAgent(want, []int32{1})
	got := AgentsOf(daemonSet, &daemonSet.Spec.Template.Spec)
	kit.ErrorIf(t, got != want, "got %+v, want %+v", got, want)
	_, deployment := Gateway{Peering: "b", Agents: want, OverlayKey: 1}.Objects()
	got = AgentsOf(deployment, &deployment.Spec.Template.Spec)
	kit.ErrorIf(t, got != want, "got %+v, want %+v", got, want)
}
