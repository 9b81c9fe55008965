package cli

import (
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

// peer -v prints how long each step took, and what it waited for.
func TestTimeline(t *testing.T) {
	home := isolate(t)
	defer func(least time.Duration) { minShownDuration = least }(minShownDuration)
	minShownDuration = 0
	var contexts []string
	for i, name := range []string{"a", "b"} {
		s := kit.Must(fakeapi.New(fakeapi.Objects("id-of-"+name, name+"-1", "172.18."+strconv.Itoa(i)+".11", "10.244.0.0/16")...))(t)
		t.Cleanup(s.Close)
		contexts = append(contexts, name+"="+s.URL)
	}
	t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(home, "kubeconfig"), contexts...))
	if code, _, stderr := run(t, "peer", "a", "b"); code != 0 || regexp.MustCompile(`FROM`).MatchString(stderr) {
		t.Fatalf("without -v: exit code %d\n%s", code, stderr)
	}
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
