// Package version says which build this is.
package version

// version is set by the linker (see the Makefile).
var version = "dev"

// imageRepository is where the agents' image is published.
const imageRepository = "ghcr.io/liqonet/liqonet-agent"

// String returns the version, e.g. "v0.1.0".
func String() string { return version }

// AgentImage returns the reference of the agents' image of this version.
func AgentImage() string { return imageRepository + ":" + version }
