package nodeinit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Where the node finds what is not the distribution's, in its own root.
const (
	nodeDir  = "/lab/node"
	binDir   = "/lab/bin"
	imageDir = "/lab/images"
	logDir   = nodeDir + "/" + LogDir
	pkiDir   = nodeDir + "/" + PKIDir
)

// fakeSysctls are host-wide settings which the kubelet would write unless they
// already read as it wants: the node sees files that do.
var fakeSysctls = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// mounts makes mounts and remembers the first failure, so that the steps can be
// read one after the other.
type mounts struct{ err error }

func (m *mounts) mount(source, target, fstype string, flags uintptr, data string) {
	if m.err == nil {
		if err := unix.Mount(source, target, fstype, flags, data); err != nil {
			m.err = fmt.Errorf("mount %s on %s (%s %s): %w", source, target, fstype, data, err)
		}
	}
}

func (m *mounts) mkdir(dirs ...string) {
	for _, dir := range dirs {
		if m.err == nil {
			m.err = os.MkdirAll(dir, 0o755)
		}
	}
}

func (m *mounts) write(path, content string) {
	if m.err == nil {
		// What is there may be a link to something of the host.
		_ = os.Remove(path)
		m.err = os.WriteFile(path, []byte(content), 0o644)
	}
}

func (m *mounts) symlink(target, link string) {
	if m.err == nil {
		if err := os.Symlink(target, link); err != nil && !errors.Is(err, fs.ErrExist) {
			m.err = err
		}
	}
}

// bind shows source at target, with all that is mounted below it.
func (m *mounts) bind(source, target string, readOnly bool) {
	m.mkdir(target)
	m.mount(source, target, "", unix.MS_BIND|unix.MS_REC, "")
	if readOnly {
		m.mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
}

// makeRoot gives the node a root file system of its own and enters it. The
// programs are the host's and read-only, /etc is a layer over the host's, /var
// is on the disk of the node's directory, and all else is new. What else is
// mounted on the host, such as other nodes' network namespaces, is let go: it
// could not be removed otherwise while this node lives.
func makeRoot(cfg Config) error {
	var m mounts
	m.mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	root := filepath.Join(cfg.Dir, "root")
	m.mkdir(root)
	m.mount("tmpfs", root, "tmpfs", 0, "mode=755")
	in := func(path string) string { return filepath.Join(root, path) }

	for _, name := range []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		info, err := os.Lstat("/" + name)
		switch {
		case err != nil: // not on this architecture
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink("/" + name)
			if err != nil {
				return err
			}
			m.symlink(target, in(name))
		default:
			m.bind("/"+name, in(name), true)
		}
	}
	m.bind("/dev", in("dev"), false)
	m.mkdir(in("dev/shm"), in("dev/mqueue"))
	m.mount("tmpfs", in("dev/shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	m.mount("mqueue", in("dev/mqueue"), "mqueue", unix.MS_NOSUID|unix.MS_NODEV, "")
	m.mkdir(in("proc"))
	m.mount("proc", in("proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	// A sysfs of this network namespace, with the host's cgroups.
	m.mkdir(in("sys"))
	m.mount("sysfs", in("sys"), "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	m.mount("/sys/fs/cgroup", in("sys/fs/cgroup"), "", unix.MS_BIND|unix.MS_REC, "")
	if _, err := os.Stat("/sys/fs/bpf"); err == nil {
		m.mount("bpf", in("sys/fs/bpf"), "bpf", 0, "")
	}

	disk := func(path string) string { return filepath.Join(cfg.Dir, "disk", path) }
	m.mkdir(disk("etc"), disk("etc.work"), disk("var"), disk("opt/cni/bin"), in("etc"))
	m.mount("overlay", in("etc"), "overlay", 0,
		"lowerdir=/etc,upperdir="+disk("etc")+",workdir="+disk("etc.work"))
	m.bind(disk("var"), in("var"), false)
	m.bind(disk("opt"), in("opt"), false)
	for _, dir := range []string{"run", "tmp", "root", "home", "mnt", "srv", "old"} {
		m.mkdir(in(dir))
	}
	m.mount("tmpfs", in("run"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755")
	m.mount("tmpfs", in("tmp"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	m.mkdir(in("run/lock"),
		in("var/lib/kubelet"), in("var/lib/containerd"), in("var/lib/cni"), in("var/lib/etcd"),
		in("var/log/pods"), in("var/log/containers"), in("var/tmp"),
		in("etc/cni/net.d"), in("etc/containerd"))
	m.symlink("/run", in("var/run"))
	m.symlink("/run/lock", in("var/lock"))

	m.mkdir(in(nodeDir))
	// Not recursively: the new root is in that directory.
	m.mount(cfg.Dir, in(nodeDir), "", unix.MS_BIND, "")
	m.bind(cfg.BinDir, in(binDir), true)
	m.bind(cfg.ImageDir, in(imageDir), true)
	if cfg.Programs != "" {
		m.bind(cfg.Programs, in(cfg.Programs), true)
	}
	m.mountNetwork(cfg, in)
	if m.err != nil {
		return m.err
	}
	plugins, err := os.ReadDir(cfg.CNIDir)
	if err != nil {
		return fmt.Errorf("list CNI plugins: %w", err)
	}
	for _, p := range plugins {
		// Links, so that an installer in a pod may put its own in their place.
		m.symlink(filepath.Join(cfg.CNIDir, p.Name()), in("opt/cni/bin/"+p.Name()))
	}

	m.write(in("etc/resolv.conf"), "")
	m.write(in("etc/hosts"), fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", cfg.Address, cfg.Node))
	m.write(in("etc/hostname"), cfg.Node+"\n")
	m.mkdir(in("run/sysctl"))
	for name, value := range fakeSysctls {
		target := in("proc/sys/" + name)
		if _, err := os.Stat(target); err != nil {
			continue // not in this kernel
		}
		file := in("run/sysctl/" + strings.ReplaceAll(name, "/", "."))
		m.write(file, value+"\n")
		m.mount(file, target, "", unix.MS_BIND, "")
	}
	if m.err != nil {
		return m.err
	}

	if err := unix.PivotRoot(root, in("old")); err != nil {
		return fmt.Errorf("enter the node's root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/old", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's root: %w", err)
	}
	if err := os.Remove("/old"); err != nil {
		return err
	}
	// Pods may ask for mount propagation. Only now: what was unmounted above
	// would otherwise be unmounted in the copies as well.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts: %w", err)
	}
	if err := unix.Sethostname([]byte(cfg.Node)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	return nil
}

// sysctls are of the node's network namespace.
var sysctls = []struct {
	name, value string
	optional    bool // not in every kernel
}{
	{"net/ipv4/ip_forward", "1", false},
	{"net/ipv4/conf/all/rp_filter", "0", false},
	{"net/ipv4/conf/default/rp_filter", "0", false},
	{"net/ipv6/conf/all/forwarding", "1", true},
	// Without it, an answer between two pods of one node bypasses the
	// translation of Services.
	{"net/bridge/bridge-nf-call-iptables", "1", true},
	{"net/bridge/bridge-nf-call-ip6tables", "1", true},
}

func setSysctls() error {
	for _, s := range sysctls {
		if err := os.WriteFile("/proc/sys/"+s.name, []byte(s.value), 0o644); err != nil && !s.optional {
			return fmt.Errorf("set sysctl: %w", err)
		}
	}
	return nil
}
