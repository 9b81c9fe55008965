package version_test

import (
	"testing"

	"github.com/liqonet/liqonet/pkg/version"
)

func TestLevelOf(t *testing.T) {
	for v, want := range map[string]version.Level{
		"v0.1.0": version.First, "v0.1.7": version.First,
		"v0.1.0-43-g2b7307f": version.Current, "v0.2.0-rc.1": version.Current, "v0.2.0": version.Current, "v7.0.0": version.Current,
		"dev": version.Current, "2b7307f": version.Current, "": version.Current,
	} {
		if got := version.LevelOf(v); got != want {
			t.Errorf("%q is of level %d, want %d", v, got, want)
		}
	}
}
