package manifests

import "testing"

func TestAgentsOf(t *testing.T) {
	want := Agents{Image: "image", Version: "v0.9.0"}
	_, daemonSet := NodeAgent(want, []int32{1})
	if got := AgentsOf(daemonSet, &daemonSet.Spec.Template.Spec); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	_, deployment := Gateway{Peering: "b", Agents: want, OverlayKey: 1}.Objects()
	if got := AgentsOf(deployment, &deployment.Spec.Template.Spec); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
