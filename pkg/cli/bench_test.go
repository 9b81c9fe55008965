package cli

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkStatus prints both sides of ten peerings: eleven clusters with fake API servers.
func BenchmarkStatus(b *testing.B) {
	const n = 10
	_, _, file := hubAndSpokes(b, n)
	isolate(b)
	b.Setenv("KUBECONFIG", file)
	clusters := []string{"hub"}
	for i := range n {
		clusters = append(clusters, fmt.Sprintf("spoke-%d", i+1))
	}
	if code, _, stderr := run(b, "peer", "hub", "--spokes", strings.Join(clusters[1:], ","), "--timeout", "9m"); code != ExitOK {
		b.Fatal(stderr)
	}
	for b.Loop() {
		code, stdout, stderr := run(b, append([]string{"status"}, clusters...)...)
		if code != ExitOK || strings.Count(stdout, "Connected") != 2*n {
			b.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
		}
	}
}
