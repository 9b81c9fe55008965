package lab_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/lab"
)

const pod = `
apiVersion: v1
kind: Pod
metadata: {name: tester}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: tester
    image: ` + lab.TesterImage + `
    args: [serve]
`

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
	l, err := lab.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Preflight(); err != nil {
		t.Fatal(err)
	}
	down := func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.Down(ctx); err != nil {
			t.Error(err)
		}
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
	if err := l.Up(ctx, lab.ClusterSpec{Name: "one", Workers: 1, MTU: 1400}); err != nil {
		t.Fatal(err)
	}
	if err := l.Up(ctx); !errors.Is(err, lab.ErrExists) {
		t.Errorf("a second start: got %v, want ErrExists", err)
	}

	// As another process would find it.
	other, err := lab.New(lab.Options{Name: l.Name()})
	if err != nil {
		t.Fatal(err)
	}
	status, err := other.Status()
	if err != nil || !status.Healthy() {
		t.Errorf("status: %+v, %v", status, err)
	}
	kubectl := func(args ...string) string {
		t.Helper()
		path, err := other.Kubectl()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(ctx, path, append([]string{"--kubeconfig", other.Kubeconfig(), "--context", "one"}, args...)...)
		cmd.Stdin = strings.NewReader(pod)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	kubectl("apply", "-f", "-")
	kubectl("wait", "pod/tester", "--for=condition=Ready", "--timeout=60s")
	if out := kubectl("exec", "tester", "--", "/tester", "call", "tcp", "127.0.0.1:9000"); !strings.Contains(out, `"hostname":"tester"`) {
		t.Errorf("exec: got %s", out)
	}
	if out := kubectl("logs", "tester"); !strings.Contains(out, "serving tcp") {
		t.Errorf("logs: got %s", out)
	}
	node, err := other.Node("one-w1")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := node.Command(ctx, "ip", "link", "show", "eth0").CombinedOutput(); err != nil || !strings.Contains(string(out), "mtu 1400") {
		t.Errorf("eth0 of the node: %s, %v", out, err)
	}
	if out, err := node.NetCommand(ctx, "ip", "route", "get", "192.0.2.1").CombinedOutput(); err != nil || !strings.Contains(string(out), "via 172.18.1.1") {
		t.Errorf("default route of the node: %s, %v", out, err)
	}

	// The end of a command's context ends what it runs on the node.
	sleepCtx, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	defer stop()
	if err := node.Command(sleepCtx, "sleep", "12345").Run(); err == nil || sleepCtx.Err() == nil {
		t.Errorf("sleep on the node: %v", err)
	}
	if out, err := node.Command(ctx, "pgrep", "-f", "sleep 12345").CombinedOutput(); err == nil {
		t.Errorf("still runs on the node: %s", out)
	}

	// A reboot: the pod comes back, and so does the node.
	if err := node.Restart(ctx); err != nil {
		t.Error(err)
	}
	kubectl("wait", "pod/tester", "--for=condition=Ready", "--timeout=60s")

	for range 2 {
		if err := other.Down(ctx); err != nil {
			t.Fatal(err)
		}
	}
	compare(t, before, snapshot(t))
}

// A start that fails says which program of which node failed, shows its log,
// and leaves nothing.
func TestLabFailedStart(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.tar")
	if err := os.WriteFile(broken, []byte("not a tar file"), 0o644); err != nil {
		t.Fatal(err)
	}
	l := newLab(t, lab.Options{Images: []string{broken}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	before := snapshot(t)
	err := l.Up(ctx, lab.ClusterSpec{Name: "one", Workers: 1})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`cluster "one"`, `node "one-w1"`, "import", "unexpected EOF"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not contain %q: %v", want, err)
		}
	}
	compare(t, before, snapshot(t))
}

// snapshot lists what the test's lab could leave on this machine, on which
// there may be other labs.
func snapshot(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	add := func(kind, what string) { all[kind+" "+what] = true }
	for _, c := range []struct{ kind, dir, prefix string }{
		{"network namespace", "/run/netns", "lab.labtest."},
		{"lab", "/var/lib/liqonet-lab", "labtest"},
		{"link", "/sys/class/net", "ve-"},
		{"link", "/sys/class/net", "br-"},
		{"link", "/sys/class/net", "cni"},
		{"temporary file", os.TempDir(), "tester-"},
	} {
		entries, err := os.ReadDir(c.dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), c.prefix) {
				add(c.kind, e.Name())
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "labtest") {
			add("mount", line)
		}
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, "labtest") {
			add("cgroup", path)
		}
		return nil // others come and go
	})
	if err != nil {
		t.Fatal(err)
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
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
