package lab

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/samber/lo"

	"github.com/liqonet/liqonet/test/lab/image"
	"github.com/liqonet/liqonet/test/lab/internal/nodeinit"
)

// module is a Go module below modules/ whose tools are programs of the lab.
type module struct {
	name     string
	versions string // the import path whose version counts
	tags     string
	cgo      bool
	ldflags  func(version string) []string
	programs []string
	// target is what is built: a pattern of packages. Default: the tools of go.mod.
	target string
	rename map[string]string // what `go build` calls it: what it is called
	// linked is the program that is all of programs, by the name that it is called as.
	linked string
}

// suite is a set of modules that are built into one directory, when they are
// needed first.
type suite struct {
	name    string // begins the directory's name
	what    string
	took    string // with nothing cached, on two cores
	modules []module
}

// kubernetesSuite is what every cluster needs.
func kubernetesSuite() suite {
	return suite{"bin", "Kubernetes and its parts", "five to ten minutes", []module{
		{
			name:     "etcd",
			versions: "go.etcd.io/etcd/server/v3",
			programs: []string{"etcd"},
			rename:   map[string]string{"server": "etcd"},
		},
		{
			name:     "containerd",
			versions: "github.com/containerd/containerd/v2",
			tags:     "no_btrfs,no_zfs,no_devmapper",
			programs: []string{"containerd", "containerd-shim-runc-v2", "ctr"},
			ldflags: func(version string) []string {
				return []string{"-X github.com/containerd/containerd/v2/version.Version=" + version}
			},
		},
		{
			name:     "kubernetes",
			versions: "k8s.io/kubernetes",
			programs: []string{
				"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl",
			},
			target:  ".",
			linked:  "kubernetes",
			ldflags: kubernetesVersion,
		},
	}}
}

// flannelSuite is what clusters with NetworkFlannel need. The CNI plugin is from
// the last module of CNI plugins that had it.
func flannelSuite() suite {
	return suite{"flannel", "flannel", "two minutes", []module{
		{
			name:     "flannel",
			versions: "github.com/flannel-io/flannel",
			tags:     "netgo,osusergo",
			cgo:      runtime.GOARCH == "amd64", // as flannel's own Makefile
			programs: []string{"flanneld"},
			rename:   map[string]string{"flannel": "flanneld"},
			ldflags: func(version string) []string {
				return []string{"-X github.com/flannel-io/flannel/pkg/version.Version=" + version}
			},
		},
		{
			name:     "flannel-cni",
			versions: "github.com/containernetworking/plugins",
			programs: []string{"flannel"},
		},
	}}
}

// policySuite is for tests of NetworkPolicies.
func policySuite() suite {
	return suite{"policy", "kube-router", "three minutes", []module{{
		name:     "kube-router",
		versions: "github.com/cloudnativelabs/kube-router/v2",
		programs: []string{"kube-router"},
	}}}
}

// balancerSuite is for tests of load balancers.
func balancerSuite() suite {
	return suite{"balancer", "MetalLB", "four minutes", []module{{
		name:     "metallb",
		versions: "go.universe.tf/metallb",
		programs: []string{"controller", "speaker"},
	}}}
}

// crowdSuite is for tests of clusters with more nodes than one machine has room for.
func crowdSuite() suite {
	return suite{"crowd", "kwok", "five minutes", []module{{
		name:     "kwok",
		versions: "sigs.k8s.io/kwok",
		programs: []string{"kwok"},
	}}}
}

// kubernetesVersion says what `kubectl version` shows. Without it, a server
// calls itself v0.0.0-master, and clients do not know what it can do.
func kubernetesVersion(version string) []string {
	var flags []string
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, v := range [][2]string{
			{"gitVersion", version},
			{"gitMajor", major},
			{"gitMinor", minor},
			{"gitTreeState", "clean"},
		} {
			flags = append(flags, fmt.Sprintf("-X %s.%s=%s", pkg, v[0], v[1]))
		}
	}
	return flags
}

// buildFormat is part of the name of the directory of programs: raise it when
// the same modules have to be built in another way.
const buildFormat = "1"

// moduleVersion reads the version of a requirement from a go.mod.
func moduleVersion(gomod, path string) (string, error) {
	b, err := os.ReadFile(gomod)
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^(?:require)?\s+` + regexp.QuoteMeta(path) + `\s+(v\S+)`).FindSubmatch(b)
	if m == nil {
		return "", fmt.Errorf("%s does not require %s", gomod, path)
	}
	return string(m[1]), nil
}

// sourceDir returns the directory of this package, which holds the modules.
func (l *Lab) sourceDir(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", "github.com/liqonet/liqonet/test/lab")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("find the lab's sources (run it inside the checkout): %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// binDirFor returns where the programs of the given sources are, or will be.
func (l *Lab) binDirFor(source string, of suite) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, buildFormat, runtime.GOARCH)
	for _, m := range of.modules {
		fmt.Fprintln(sum, m.name, m.tags)
		dir := filepath.Join(source, "modules", m.name)
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return "", err
		}
		for _, file := range append(files, filepath.Join(dir, "go.mod"), filepath.Join(dir, "go.sum")) {
			b, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			sum.Write(b)
		}
	}
	return filepath.Join(l.cacheDir, of.name+"-"+hex.EncodeToString(sum.Sum(nil))[:12]), nil
}

// Build builds the programs that every cluster needs, unless they are there, and
// returns their directory. Up builds what its clusters need.
func (l *Lab) Build(ctx context.Context) (binDir string, err error) {
	return l.buildSuite(ctx, kubernetesSuite())
}

// BuildPolicies builds kube-router, which enforces NetworkPolicies, unless it is there, and returns its directory.
func (l *Lab) BuildPolicies(ctx context.Context) (dir string, err error) {
	return l.buildSuite(ctx, policySuite())
}

// BuildCrowd builds kwok, unless it is there, and returns its path. kwok does what the kubelets of Nodes and Pods would do that
// are objects only.
func (l *Lab) BuildCrowd(ctx context.Context) (kwok string, err error) {
	dir, err := l.buildSuite(ctx, crowdSuite())
	return filepath.Join(dir, "kwok"), err
}

// BuildBalancer builds MetalLB's controller and speaker, unless they are there, and returns their directory, and that
// of the manifests of their custom resources.
func (l *Lab) BuildBalancer(ctx context.Context) (dir, manifests string, err error) {
	of := balancerSuite()
	if dir, err = l.buildSuite(ctx, of); err != nil {
		return "", "", err
	}
	source, err := l.sourceDir(ctx)
	if err != nil {
		return "", "", err
	}
	m := of.modules[0]
	m.target = m.versions
	cmd := m.command(ctx, filepath.Join(source, "modules", m.name), "list", "-m", "-f", "{{.Dir}}")
	out, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("find the sources of %s: %w", m.name, err)
	}
	return dir, filepath.Join(strings.TrimSpace(string(out)), "config", "crd", "bases"), nil
}

// buildSuite builds the programs of a suite, unless they are there, and returns
// their directory.
func (l *Lab) buildSuite(ctx context.Context, of suite) (string, error) {
	source, err := l.sourceDir(ctx)
	if err != nil {
		return "", err
	}
	dir, err := l.buildPrograms(ctx, source, of)
	if err != nil {
		return "", fmt.Errorf("build the lab's programs: %w", err)
	}
	return dir, nil
}

func (l *Lab) buildPrograms(ctx context.Context, source string, of suite) (string, error) {
	dir, err := l.binDirFor(source, of)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(l.cacheDir, 0o755); err != nil {
		return "", err
	}
	lock, err := lockDir(ctx, l.cacheDir)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil // by whoever had the lock
	}
	// Under the lock, what is there of temporary directories is of the dead.
	old, err := filepath.Glob(filepath.Join(l.cacheDir, "*.tmp"))
	if err != nil {
		return "", err
	}
	tmp := dir + ".tmp"
	for _, d := range append(old, tmp) {
		if err := os.RemoveAll(d); err != nil {
			return "", err
		}
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp) // nothing to remove after the rename
	start := time.Now()
	l.log.Printf("building %s, once: about %s with nothing cached", of.what, of.took)
	// The network is idle while packages are built.
	var fetches sync.WaitGroup
	defer fetches.Wait()
	fetchCtx, stop := context.WithCancel(ctx)
	defer stop()
	for _, m := range of.modules[1:] {
		fetches.Go(func() { m.fetch(fetchCtx, filepath.Join(source, "modules", m.name)) })
	}
	for _, m := range of.modules {
		if err := l.buildModule(ctx, m, filepath.Join(source, "modules", m.name), tmp); err != nil {
			return "", fmt.Errorf("%s: %w", m.name, err)
		}
	}
	if err := os.Rename(tmp, dir); err != nil {
		return "", err
	}
	l.log.Printf("built %s (%s)", dir, since(start))
	return dir, nil
}

// command is a go command on what is built of the module in a directory.
func (m module) command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", append(append(args, "-mod=readonly", "-tags="+m.tags), cmp.Or(m.target, "tool"))...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+lo.Ternary(m.cgo, "1", "0"), "GOFLAGS=", "GOWORK=off", "GOOS=linux", "GOARCH="+runtime.GOARCH)
	gracefully(cmd)
	return cmd
}

// fetch gets the modules that a build needs into Go's cache. The build says it if
// that fails.
func (m module) fetch(ctx context.Context, dir string) {
	_ = m.command(ctx, dir, "list", "-deps").Run()
}

func (l *Lab) buildModule(ctx context.Context, m module, dir, out string) error {
	version, err := moduleVersion(filepath.Join(dir, "go.mod"), m.versions)
	if err != nil {
		return err
	}
	start := time.Now()
	l.log.Printf("building %s %s", m.name, version)
	flags := []string{"-s", "-w"}
	if m.ldflags != nil {
		flags = append(flags, m.ldflags(version)...)
	}
	// One command for all, so that packages are built on every core.
	cmd := m.command(ctx, dir, "build", "-trimpath", "-buildvcs=false", "-ldflags="+strings.Join(flags, " "), "-o", out+"/")
	if err := runBuild(ctx, cmd); err != nil {
		return err
	}
	for from, to := range m.rename {
		if err := os.Rename(filepath.Join(out, from), filepath.Join(out, to)); err != nil {
			return err
		}
	}
	for _, p := range m.programs {
		if m.linked != "" {
			if err := os.Symlink(m.linked, filepath.Join(out, p)); err != nil {
				return err
			}
		}
		if _, err := os.Stat(filepath.Join(out, p)); err != nil {
			return fmt.Errorf("the build made no %s: %w", p, err)
		}
	}
	l.log.Printf("built %s %s (%s)", m.name, version, since(start))
	return nil
}

// runBuild runs a command that ends when the context does. An error has the end of what it printed.
func runBuild(ctx context.Context, cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("go build: %w\n%s", err, lastLines(string(out), logLines))
}

// gracefully makes a command end by a signal that lets it clean up.
func gracefully(cmd *exec.Cmd) {
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
}

// TesterImage is an image that every cluster of a lab has; see its sources in
// tester/ for what it does.
const TesterImage = "lab.local/tester:1"

// buildImages puts the lab's own images into the directory out.
func (l *Lab) buildImages(ctx context.Context, source, out string) error {
	tmp, err := os.MkdirTemp(l.dir, "tester-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	program := filepath.Join(tmp, "tester")
	if err := goBuild(ctx, source, program, "./tester"); err != nil {
		return fmt.Errorf("build the tester: %w", err)
	}
	content := map[string]string{"/tester": program}
	// Two images of one layer, which containerd unpacks once.
	if _, err := image.Build(filepath.Join(out, "pause.tar"), nodeinit.PauseImage, content, []string{"/tester", "pause"}); err != nil {
		return err
	}
	_, err = image.Build(filepath.Join(out, "tester.tar"), TesterImage, content, []string{"/tester"})
	return err
}

func goBuild(ctx context.Context, source, out, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out, pkg)
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	gracefully(cmd)
	return runBuild(ctx, cmd)
}

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// since formats the time from start as the lab's lines of progress do.
func since(start time.Time) time.Duration { return time.Since(start).Round(100 * time.Millisecond) }
