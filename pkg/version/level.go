package version

// Level is a compatibility level: it counts what agents have learned that changes what they have to be told. Commands
// know those of all releases before them.
type Level int

const (
	// First is that of v0.1.0: an agent is given one key of the overlay, and nothing is noted.
	First Level = iota + 1
	// Current is that of this version: keys of the overlay by their generations, temporary planes, histories, Events and metrics.
	Current
)

// LevelOf is the level of the agents of a release. A build between two releases may have learned something already, and counts as
// this version, as does one of which that is not known.
func LevelOf(version string) Level {
	v := described.FindStringSubmatch(version)
	if v == nil || v[2] != "" {
		return Current
	}
	if Older(version, "v0.2.0-0") {
		return First
	}
	return Current
}
