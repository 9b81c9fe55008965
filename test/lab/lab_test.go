package lab_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
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
	l := kit.Must(lab.New(opts))(t)
	kit.NoError(t, l.Preflight())
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
	kit.NoError(t, l.Up(ctx, lab.ClusterSpec{Name: "one", Workers: 1, MTU: 1400}))
	if err := l.Up(ctx); !errors.Is(err, lab.ErrExists) {
		t.Errorf("a second start: got %v, want ErrExists", err)
	}

	// As another process would find it.
	other := kit.Must(lab.New(lab.Options{Name: l.Name()}))(t)
	status, err := other.Status()
	if err != nil || !status.Healthy() {
		t.Errorf("status: %+v, %v", status, err)
	}
	kubectl := func(args ...string) string {
		t.Helper()
		path := kit.Must(other.Kubectl())(t)
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
	kit.CheckContains(t, "exec", kubectl("exec", "tester", "--", "/tester", "call", "tcp", "127.0.0.1:9000"), `"hostname":"tester"`)
	kit.CheckContains(t, "logs", kubectl("logs", "tester"), "serving tcp")
	node := kit.Must(other.Node("one-w1"))(t)
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
	kit.CheckNoError(t, node.Restart(ctx))
	kubectl("wait", "pod/tester", "--for=condition=Ready", "--timeout=60s")

	checkNodes(ctx, t, other, kubectl)

	for range 2 {
		kit.NoError(t, other.Down(ctx))
	}
	compare(t, before, snapshot(t))
}

// checkNodes has nodes of cluster one, which has one worker, come, go and change.
func checkNodes(ctx context.Context, t *testing.T, l *lab.Lab, kubectl func(...string) string) {
	t.Helper()
	c := kit.Must(l.Cluster("one"))(t)
	// ready are the Nodes of Kubernetes, and whether they are ready.
	ready := func() string {
		t.Helper()
		return kubectl("get", "nodes", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.addresses[0].address} {.status.conditions[?(@.type=="Ready")].status},{end}`)
	}
	// inLab are the lab's nodes, and whether they run.
	inLab := func() string {
		t.Helper()
		nodes := kit.Must(c.Nodes())(t)
		out := ""
		for _, n := range nodes {
			out += fmt.Sprint(n.Name, " ", n.Address, " ", n.Running(), ",")
		}
		return out
	}
	expect := func(what, wantReady, wantInLab string) {
		t.Helper()
		kit.Check(t, what+": the Nodes", ready(), wantReady)
		if got, want := inLab(), "one-cp 172.18.1.2 true,"+wantInLab; got != want {
			t.Errorf("%s: the lab's nodes are %q, want %q", what, got, want)
		}
	}
	n := kit.Must(c.AddNode(ctx))(t)
	expect("added", "one-w1 172.18.1.11 True,one-w2 172.18.1.12 True,", "one-w1 172.18.1.11 true,one-w2 172.18.1.12 true,")

	// A name that is not possible changes nothing.
	for name, want := range map[string]string{"one-w1": `has a node "one-w1"`, "one-cp": `has a node "one-cp"`, "A": "want at most", strings.Repeat("a", 41): "want at most"} {
		_, err := n.Rename(ctx, name, false)
		kit.CheckError(t, "rename to "+name, err, want)
	}
	cp := kit.Must(l.Node("one-cp"))(t)
	_, err := cp.Rename(ctx, "other", false)
	kit.CheckError(t, "rename the control plane", err, "only workers")
	if !n.Running() {
		t.Fatal("a rename that is not possible killed the node")
	}

	marker := func(n *lab.Node) string {
		out, err := n.NetCommand(ctx, "ip", "-br", "link", "show", "type", "bridge").CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		return string(out)
	}
	if out, err := n.NetCommand(ctx, "ip", "link", "add", "marker", "type", "bridge").CombinedOutput(); err != nil || !strings.Contains(marker(n), "marker") {
		t.Fatalf("%s: %v", out, err)
	}
	n = kit.Must(n.Rename(ctx, "blue", false))(t)
	if strings.Contains(marker(n), "marker") {
		t.Error("the state of the kernel is still there after a rename")
	}
	expect("renamed", "blue 172.18.1.12 True,one-w1 172.18.1.11 True,one-w2 172.18.1.12 Unknown,", "one-w1 172.18.1.11 true,blue 172.18.1.12 true,")
	n = kit.Must(n.Rename(ctx, "green", true))(t)
	expect("renamed and unregistered", "green 172.18.1.12 True,one-w1 172.18.1.11 True,one-w2 172.18.1.12 Unknown,", "one-w1 172.18.1.11 true,green 172.18.1.12 true,")

	// No address is given out twice.
	third := kit.Must(c.AddNode(ctx))(t)
	expect("another one", "green 172.18.1.12 True,one-w1 172.18.1.11 True,one-w2 172.18.1.12 Unknown,one-w3 172.18.1.13 True,",
		"one-w1 172.18.1.11 true,green 172.18.1.12 true,one-w3 172.18.1.13 true,")
	kit.CheckNoError(t, third.Kill(ctx))
	for _, n := range []*lab.Node{third, n} {
		kit.CheckNoError(t, n.Remove(ctx))
		if _, err := l.Node(n.Name); err == nil {
			t.Errorf("node %s is there after it was removed", n.Name)
		}
	}
	kubectl("delete", "node", "one-w2")
	expect("removed", "one-w1 172.18.1.11 True,", "one-w1 172.18.1.11 true,")
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
