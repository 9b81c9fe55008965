// Package version says which build this is.
package version

import "runtime/debug"

// version is set by the linker (see the Makefile).
var version = "dev"

// imageRepository is where the agents' image is published.
const imageRepository = "ghcr.io/liqonet/liqonet-agent"

// String returns the version, e.g. "v0.1.0".
func String() string { return version }

// Revision returns the commit that the program was built from, if known.
func Revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}

// AgentImage returns the reference of the agents' image of this version.
func AgentImage() string { return imageRepository + ":" + version }
