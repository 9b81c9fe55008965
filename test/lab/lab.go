package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/samber/lo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/liqonet/liqonet/test/lab/internal/cgroup"
)

// Options say which lab is meant and where things are. The zero value is the
// lab "default".
type Options struct {
	// Name tells labs on one machine apart: a DNS label of at most 20
	// characters. Default: "default".
	Name string
	// StateDir holds the labs' directories, on a real disk. Default:
	// /var/lib/liqonet-lab.
	StateDir string
	// Images are docker-archives that every node has, in addition to
	// TesterImage.
	Images []string
	// Log takes lines of progress. Default: none.
	Log io.Writer
}

// Lab is a set of clusters that reach each other's nodes. It holds no state of
// its own: several values, in several processes, may mean the same lab.
type Lab struct {
	opts     Options
	name     string
	stateDir string
	cacheDir string // liqonet-lab in $XDG_CACHE_HOME, or in ~/.cache
	dir      string // of this lab, in stateDir
	cgroups  cgroup.Host
	log      *log.Logger
}

// startTimeout bounds the start of a cluster: twenty times what it takes on two free cores.
const startTimeout = 5 * time.Minute

// ErrExists says that a lab is up already, or that something of it is left.
var ErrExists = errors.New("the lab exists already: take it down first")

// ErrNotUp says that a lab is not up.
var ErrNotUp = errors.New("the lab is not up")

// New returns the lab that the options mean. It changes nothing.
func New(opts Options) (*Lab, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find the cache directory: %w", err)
	}
	l := &Lab{
		opts: opts, name: cmp.Or(opts.Name, "default"), cacheDir: filepath.Join(cache, "liqonet-lab"), cgroups: cgroup.NewHost(cgroupRoot),
		log: log.New(cmp.Or(opts.Log, io.Discard), "", 0),
	}
	if len(l.name) > 20 || !label.MatchString(l.name) {
		return nil, fmt.Errorf("lab name %q: want at most 20 lower case letters, digits and dashes", l.name)
	}
	if l.stateDir, err = filepath.Abs(cmp.Or(opts.StateDir, "/var/lib/liqonet-lab")); err != nil {
		return nil, err
	}
	l.dir = filepath.Join(l.stateDir, l.name)
	return l, nil
}

// Name returns the lab's name.
func (l *Lab) Name() string { return l.name }

// Kubeconfig returns the path of the kubeconfig, with a context for each
// cluster, of its name.
func (l *Lab) Kubeconfig() string { return filepath.Join(l.dir, "kubeconfig") }

// The names in the kernel. A dot separates, as no name of a lab, a cluster or
// a node has one.

func (l *Lab) netnsPrefix() string          { return "lab." + l.name + "." }
func (l *Lab) underlay() string             { return l.netnsPrefix() + "underlay" }
func (l *Lab) nodeNetns(node string) string { return l.netnsPrefix() + node }
func (l *Lab) cgroupPath() string           { return "/liqonet-lab." + l.name }

func (l *Lab) imageDir() string   { return filepath.Join(l.dir, "images") }
func (l *Lab) clusterDir() string { return filepath.Join(l.dir, "clusters") }
func (l *Lab) binDir() string     { return filepath.Join(l.dir, "bin") } // a link
func (l *Lab) program() string    { return filepath.Join(l.dir, "lab") } // of this package

// Up starts a lab with the given clusters, or DefaultClusters if there are
// none, and returns when their nodes are Ready. Programs are built first if
// they are not cached. If a cluster does not start, or the context ends,
// nothing is left, and the error says why. ErrExists: the lab is up.
func (l *Lab) Up(ctx context.Context, specs ...ClusterSpec) error {
	if len(specs) == 0 {
		specs = DefaultClusters()
	}
	specs, err := complete(specs, nil)
	if err != nil {
		return err
	}
	if err := l.preflight(); err != nil {
		return fmt.Errorf("this machine lacks something: %w", err)
	}
	if left, err := l.traces(); err != nil || left {
		return cmp.Or(err, fmt.Errorf("lab %s: %w", l.name, ErrExists))
	}
	programs, err := l.Build(ctx)
	if err != nil {
		return err
	}
	if err := l.makeDir(); err != nil {
		return err
	}
	lock, err := lockDir(ctx, l.dir)
	if err != nil {
		return errors.Join(err, os.Remove(l.dir))
	}
	defer lock.Close()
	start := time.Now()
	if err := l.up(ctx, programs, specs); err != nil {
		l.log.Printf("the start failed: taking everything down")
		// The context may have ended, which is no reason to leave anything.
		downCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return errors.Join(err, l.down(downCtx))
	}
	l.log.Printf("lab %s: up (%s)", l.name, since(start))
	return nil
}

// makeDir makes the lab's directory, which must not exist.
func (l *Lab) makeDir() error {
	for {
		if err := os.MkdirAll(l.stateDir, 0o755); err != nil {
			return err
		}
		// Where it does not exist, the last other lab has just gone, and stateDir with it.
		if err := os.Mkdir(l.dir, 0o755); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}

func (l *Lab) up(ctx context.Context, programs string, specs []ClusterSpec) error {
	if err := l.raiseLimits(ctx); err != nil {
		return err
	}
	source, err := l.sourceDir(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(l.imageDir(), 0o755); err != nil {
		return err
	}
	if err := l.buildImages(ctx, source, l.imageDir()); err != nil {
		return err
	}
	for _, image := range l.opts.Images {
		content, err := os.ReadFile(image)
		if err != nil {
			return fmt.Errorf("read image: %w", err)
		}
		if err := writeFile(l.imageFile(image), content, 0o644); err != nil {
			return err
		}
	}
	// It becomes the nodes' first process.
	if err := goBuild(ctx, source, l.program(), "./cmd/lab"); err != nil {
		return fmt.Errorf("build the lab's program: %w", err)
	}
	if err := l.BuildFor(ctx, specs...); err != nil {
		return err
	}
	if err := setUpUnderlay(l.underlay()); err != nil {
		return err
	}
	if err := os.Symlink(programs, l.binDir()); err != nil {
		return err
	}
	if err := l.startClusters(ctx, specs); err != nil {
		return err
	}
	return l.writeKubeconfig()
}

// AddCluster adds clusters to a lab that is up, all at the same time. If one does
// not start, nothing of any of them is left.
func (l *Lab) AddCluster(ctx context.Context, specs ...ClusterSpec) error {
	return l.locked(ctx, func() error { return l.addClusters(ctx, specs) })
}

func (l *Lab) addClusters(ctx context.Context, specs []ClusterSpec) error {
	clusters, err := l.Clusters()
	if err != nil {
		return err
	}
	have := lo.Map(clusters, func(c *Cluster, _ int) ClusterSpec { return c.Spec })
	if specs, err = complete(specs, have); err != nil {
		return err
	}
	if err := l.BuildFor(ctx, specs...); err != nil {
		return err
	}
	if err := l.startClusters(ctx, specs); err != nil {
		downCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		for _, s := range specs {
			err = errors.Join(err, l.removeCluster(downCtx, s))
		}
		return err
	}
	return l.writeKubeconfig()
}

// RemoveCluster takes clusters out of a lab, which goes on without them.
func (l *Lab) RemoveCluster(ctx context.Context, names ...string) error {
	return l.locked(ctx, func() error {
		for _, name := range names {
			c, err := l.Cluster(name)
			if err != nil {
				return err
			}
			if err := l.removeCluster(ctx, c.Spec); err != nil {
				return fmt.Errorf("remove cluster %q: %w", name, err)
			}
		}
		return l.writeKubeconfig()
	})
}

func (l *Lab) startClusters(ctx context.Context, specs []ClusterSpec) error {
	group, groupCtx := errgroup.WithContext(ctx)
	for _, s := range specs {
		group.Go(func() error {
			if err := l.startCluster(groupCtx, s); err != nil {
				return fmt.Errorf("start cluster %q: %w", s.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// Kubectl returns the path of a kubectl of the clusters' version. The lab has
// to be up.
func (l *Lab) Kubectl() (string, error) {
	kubectl := filepath.Join(l.binDir(), "kubectl")
	if _, err := os.Stat(kubectl); err != nil {
		return "", fmt.Errorf("lab %s: %w (%w)", l.name, ErrNotUp, err)
	}
	return kubectl, nil
}

// locked does something while no other process can change the lab.
func (l *Lab) locked(ctx context.Context, do func() error) error {
	lock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	return do()
}

// lock keeps other processes from changing the lab at the same time. It fails
// with ErrNotUp if there is no lab.
func (l *Lab) lock(ctx context.Context) (*os.File, error) {
	f, err := lockDir(ctx, l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("lab %s: %w", l.name, ErrNotUp)
	}
	return f, err
}

// traces reports whether anything of the lab exists.
func (l *Lab) traces() (bool, error) {
	names, err := namedNetns(l.netnsPrefix())
	if err != nil {
		return false, err
	}
	dir, err := exists(l.dir)
	return dir || len(names) > 0, err
}

// Down removes everything of the lab: processes, namespaces, links, control
// groups, files. The cache of programs stays. It may be called at any time, in
// any state of the lab, as often as wanted.
func (l *Lab) Down(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("take the lab down as root (sudo)")
	}
	lock, err := l.lock(ctx)
	switch {
	case errors.Is(err, ErrNotUp): // of files, at least, there are none
	case err != nil:
		return err
	default:
		defer lock.Close()
	}
	return l.down(ctx)
}

func (l *Lab) down(ctx context.Context) error {
	start := time.Now()
	names, err := namedNetns(l.netnsPrefix())
	if err != nil {
		return err
	}
	if err := killNodes(ctx, names); err != nil {
		return fmt.Errorf("lab %s: %w", l.name, err)
	}
	err = disconnect(l.underlay(), func(link netlink.Link) bool { return link.Attrs().Name != "lo" })
	for _, name := range names {
		err = errors.Join(err, deleteNetns(name))
	}
	if err := errors.Join(err, l.cgroups.Remove(ctx, l.cgroupPath()), removeDir(l.dir)); err != nil {
		return fmt.Errorf("lab %s: %w", l.name, err)
	}
	if err := releaseNetnsDir(); err != nil {
		return err
	}
	if err := l.leaveStateDir(ctx); err != nil {
		return fmt.Errorf("lab %s: %w", l.name, err)
	}
	l.log.Printf("lab %s: down (%s)", l.name, since(start))
	return nil
}

// killNodes kills the nodes in the named network namespaces, all at once.
func killNodes(ctx context.Context, names []string) error {
	processes, err := nodeProcesses(names)
	if err != nil {
		return err
	}
	var group errgroup.Group
	for name, pids := range processes {
		id, err := netnsOf(filepath.Join(netnsDir, name))
		if err != nil {
			return err
		}
		for _, pid := range pids {
			group.Go(func() error {
				return kill(ctx, pid, func(pid int) bool {
					now, err := netnsOf(fmt.Sprintf("/proc/%d/ns/net", pid))
					return err == nil && now == id && isFirst(pid)
				})
			})
		}
	}
	return group.Wait()
}

// removeDir removes a directory, unless something is mounted below it that
// cannot be unmounted: the nodes' mounts are in their own namespaces, but what
// would be deleted otherwise is the host's.
func removeDir(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var below []string
	for line := range strings.Lines(string(b)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			below = append(below, fields[4])
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(below))) // inner ones first
	for _, target := range below {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s, which has to be unmounted before %s is removed: %w", target, dir, err)
		}
	}
	return os.RemoveAll(dir)
}

// imageFile is where nodes find the image of a file.
func (l *Lab) imageFile(tar string) string {
	return filepath.Join(l.imageDir(), strings.TrimSuffix(filepath.Base(tar), ".tar")+".tar")
}

// Load gives an image, a docker-archive, to all nodes of all clusters, also to
// those that come later.
func (l *Lab) Load(ctx context.Context, tar string) error {
	lock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	content, err := os.ReadFile(tar)
	if err != nil {
		return err
	}
	nodes, err := l.Nodes()
	if err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, n := range nodes {
		if !n.ControlPlane && n.Running() {
			group.Go(func() error { return n.importImage(groupCtx, content) })
		}
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("load %s: %w", tar, err)
	}
	// Last: an image that cannot be imported would keep later nodes from starting.
	return writeFile(l.imageFile(tar), content, 0o644)
}

func (l *Lab) writeKubeconfig() error {
	clusters, err := l.Clusters()
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	for _, c := range clusters {
		i, err := c.issuer()
		if err != nil {
			return err
		}
		addContext(config, c.Spec.Name, c.Server(), i.root.certificate, i.admin)
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return writeFile(l.Kubeconfig(), text, 0o600)
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(path, append(b, '\n'), 0o600)
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// writeFile replaces a file at once: nobody reads half of it.
func writeFile(path string, content []byte, mode os.FileMode) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, content, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
