package lab_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/lab"
)

// newLab returns a lab of the test's own, which is down when the test ends.
func newLab(t *testing.T, opts lab.Options) *lab.Lab {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	if os.Geteuid() != 0 {
		t.Skip("starts a cluster, as root")
	}
	opts.Name, opts.Log = "labtest", t.Output()
	l := kit.Must(lab.New(opts))(t)
	down := func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		kit.CheckNoError(t, l.Down(ctx))
	}
	down() // what an earlier run may have left
	t.Cleanup(down)
	return l
}

func TestLab(t *testing.T) {
	l := newLab(t, lab.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // with a build
	defer cancel()
	before := snapshot(t)
	kit.NoError(t, l.Up(ctx, lab.ClusterSpec{Name: "one", Workers: 1}))
	if err := l.Up(ctx); !errors.Is(err, lab.ErrExists) {
		t.Errorf("a second start: got %v, want ErrExists", err)
	}

	// As another process would find it.
	other := kit.Must(lab.New(lab.Options{Name: l.Name()}))(t)
	kit.CheckNoError(t, other.Healthy())
	for _, args := range [][]string{
		{"run", "tester", "--image=" + lab.TesterImage, "--restart=Never", "--", "serve"},
		{"wait", "pod/tester", "--for=condition=Ready", "--timeout=60s"},
		{"exec", "tester", "--", "/tester", "call", "tcp", "127.0.0.1:9000"},
	} {
		cmd := exec.CommandContext(ctx, kit.Must(other.Kubectl())(t), append([]string{"--kubeconfig", other.Kubeconfig(), "--context", "one"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("kubectl %v: %v\n%s", args, err, out)
		}
	}

	// The end of a command's context ends what it runs on the node.
	node := kit.Must(other.Node("one-w1"))(t)
	sleepCtx, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	defer stop()
	if err := node.Command(sleepCtx, "sleep", "12345").Run(); err == nil || sleepCtx.Err() == nil {
		t.Errorf("sleep on the node: %v", err)
	}
	if out, err := node.Command(ctx, "pgrep", "-f", "sleep 12345").CombinedOutput(); err == nil {
		t.Errorf("still runs on the node: %s", out)
	}

	for range 2 {
		kit.NoError(t, other.Down(ctx))
	}
	compare(t, before, snapshot(t))
}

// A start that fails says which program of which node failed, shows its log,
// and leaves nothing.
func TestLabFailedStart(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.tar")
	kit.NoError(t, os.WriteFile(broken, []byte("not a tar file"), 0o644))
	l := newLab(t, lab.Options{Images: []string{broken}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	before := snapshot(t)
	kit.CheckContains(t, "error", fmt.Sprint(l.Up(ctx, lab.ClusterSpec{Name: "one", Workers: 1})), `cluster "one"`, `node "one-w1"`, "import", "unexpected EOF")
	compare(t, before, snapshot(t))
}

// snapshot lists what the test's lab could leave on this machine, on which
// there may be other labs.
func snapshot(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	add := func(kind, what string) { all[kind+" "+what] = true }
	for _, pattern := range []string{
		"/run/netns/lab.labtest.*", "/var/lib/liqonet-lab/labtest*", "/sys/class/net/ve-*", "/sys/class/net/br-*", "/sys/class/net/cni*",
		filepath.Join(os.TempDir(), "tester-*"), "/sys/fs/cgroup/*labtest", "/sys/fs/cgroup/*/*labtest",
	} {
		for _, file := range kit.Must(filepath.Glob(pattern))(t) {
			add("file", file)
		}
	}
	for _, limit := range []string{"max_user_instances", "max_user_watches"} {
		add(limit, string(kit.Must(os.ReadFile("/proc/sys/fs/inotify/"+limit))(t)))
	}
	for line := range strings.Lines(string(kit.Must(os.ReadFile("/proc/self/mountinfo"))(t))) {
		if strings.Contains(line, "labtest") {
			add("mount", line)
		}
	}
	for _, p := range kit.Must(filepath.Glob("/proc/[0-9]*"))(t) {
		// Programs of nodes are in cgroups of the lab.
		if b, err := os.ReadFile(filepath.Join(p, "cgroup")); err == nil && strings.Contains(string(b), "labtest") {
			add("process", p)
		}
	}
	return all
}

func compare(t *testing.T, before, after map[string]bool) {
	t.Helper()
	for what := range after {
		if !before[what] {
			t.Errorf("left over: %s", what)
		}
	}
}
