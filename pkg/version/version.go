// Package version identifies this build.
package version

import (
	"regexp"
	"strconv"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// version is set by the linker (see the Makefile).
var version = "dev"

// imageRepository is where the agents' image is published.
const imageRepository = "ghcr.io/liqonet/liqonet-agent"

// String returns the version, e.g. "v0.1.0".
func String() string { return version }

// AgentImage returns the reference of the agents' image of a version.
func AgentImage(version string) string { return imageRepository + ":" + version }

// DocURL returns the address of a page below docs, in this version, or in the newest one if this is a development build.
func DocURL(page string) string {
	ref := version
	if m := describePattern.FindStringSubmatch(ref); m == nil || m[1] != ref {
		ref = "main"
	}
	return "https://github.com/liqonet/liqonet/blob/" + ref + "/docs/" + page
}

// describePattern matches the output of `git describe`: a tag, and the number of commits since.
var describePattern = regexp.MustCompile(`^(v.+?)(?:-([0-9]+)-g[0-9a-f]+)?(?:-dirty)?$`)

// Older reports whether version a is older than b. Builds between two releases are ordered by their number of commits. It
// returns false if the versions cannot be compared.
func Older(a, b string) bool {
	x, y := describePattern.FindStringSubmatch(a), describePattern.FindStringSubmatch(b)
	if x == nil || y == nil {
		return false
	}
	release, err := utilversion.ParseSemantic(x[1])
	if err != nil {
		return false
	}
	if order, err := release.Compare(y[1]); err != nil || order != 0 {
		return order < 0
	}
	commitsA, _ := strconv.Atoi(x[2]) // none is 0
	commitsB, _ := strconv.Atoi(y[2])
	return commitsA < commitsB
}
