package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// BenchmarkStatus prints both sides of ten peerings: eleven clusters with fake API servers.
func BenchmarkStatus(b *testing.B) {
	const n = 10
	hubAndSpokes(b, n)
	clusters := []string{"hub"}
	for i := range n {
		clusters = append(clusters, fmt.Sprintf("spoke-%d", i+1))
	}
	code, _, stderr := run(b, "peer", "hub", "--spokes", strings.Join(clusters[1:], ","), "--timeout", "9m")
	kit.FatalIf(b, code != ExitOK, "%v", stderr)
	for b.Loop() {
		code, stdout, stderr := run(b, append([]string{"status"}, clusters...)...)
		kit.FatalIf(b, code != ExitOK || strings.Count(stdout, "Connected") != 2*n, "exit code %d\n%s%s", code, stdout, stderr)
	}
}
