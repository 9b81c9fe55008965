package loop

import (
	"os"
	"strconv"
	"strings"
)

const (
	// pressureFile is of the agent's own container: its cgroup is the root that it sees (Documentation/accounting/psi.rst).
	pressureFile = "/sys/fs/cgroup/cpu.pressure"
	// starvedLeast is from how many percent on it is told.
	starvedLeast = 10
)

// starved is for how many percent of the last minute all of the agent had to wait for a processor, 0 if that is not known.
func starved() int {
	raw, err := os.ReadFile(pressureFile)
	if err != nil {
		return 0
	}
	return parsePressure(string(raw))
}

// parsePressure reads the average of a minute from the line "full".
func parsePressure(text string) int {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != "full" {
			continue
		}
		for _, w := range words[1:] {
			if value, is := strings.CutPrefix(w, "avg60="); is {
				percent, _ := strconv.ParseFloat(value, 64)
				return int(percent)
			}
		}
	}
	return 0
}
