package failure_test

import (
	"os/exec"
	"testing"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/test/kit"
)

// A shell takes a quoted name as one word, and runs nothing.
func TestQuote(t *testing.T) {
	for _, plain := range []string{"", "cluster-a", "kubernetes-admin@kubernetes", "arn:aws:eks:eu-west-1:1:cluster/prod", "/home/u/a.conf", "a=b,c"} {
		kit.Check(t, plain, failure.Quote(plain), plain)
	}
	kit.Check(t, "an option", failure.Quote("--kubeconfig=x"), "NAME")
	for _, name := range []string{"x; exit 7", "$(exit 7)", "`exit 7`", "a'b'; exit 7 #", "a b", "~", "*", "a\nb", `a\'b`, "x&", "x|y", "!x", "{a,b}"} {
		out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", "printf '%s' "+failure.Quote(name)).CombinedOutput()
		kit.ErrorIf(t, err != nil || string(out) != name, "%q became %q, %v", name, out, err)
	}
}
