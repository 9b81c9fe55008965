package cli

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

// peer -v prints how long each step took, and what it waited for.
func TestTimeline(t *testing.T) {
	defer func(least time.Duration) { minShownDuration = least }(minShownDuration)
	minShownDuration = 0
	startTwo(t)
	without := command(t, "peer", "a", "b").ends(ExitOK)
	without.is("no times without -v", strings.Contains(without.stderr, "FROM"))
	command(t, "unpeer", "a", "b").ends(ExitOK)
	code, stdout, stderr := run(t, "peer", "a", "b", "-v")
	kit.FatalIf(t, code != 0, "exit code %d\n%s", code, stderr)
	const times = `(?m)^\d+\.\d\d s +\d+\.\d\d s +`
	for _, row := range []string{
		`(?m)^FROM +TO +WHERE +WHAT$`,
		times + `a - b +Reading both clusters$`,
		times + `a +apply Namespace liqonet-system$`,
		times + `a +wait for the node agents`,
		times + `a - b +Waiting until packets pass$`,
	} {
		kit.ErrorIf(t, !regexp.MustCompile(row).MatchString(stderr), "no row is like %s:\n%s", row, stderr)
		kit.ErrorIf(t, regexp.MustCompile(row).MatchString(stdout), "stdout has it:\n%s", stdout)
	}
}
