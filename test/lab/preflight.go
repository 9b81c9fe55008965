package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/test/lab/internal/cgroup"
)

// cgroupRoot is where Linux has its control groups.
const cgroupRoot = "/sys/fs/cgroup"

// cniDirs are where distributions put the CNI plugins.
var cniDirs = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

// preflight returns all that this machine lacks for a lab, each with what to do
// about it, or nil.
func (l *Lab) preflight() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if os.Geteuid() != 0 {
		return errors.New("a lab makes network namespaces and mounts: run it as root (sudo)")
	}
	var packages []string
	for program, pkg := range map[string]string{
		"runc": "runc", "iptables": "iptables", "iptables-save": "iptables", "nft": "nftables",
		"ip": "iproute2", "nsenter": "util-linux", "mount": "mount",
	} {
		if _, err := exec.LookPath(program); err != nil && !slices.Contains(packages, pkg) {
			packages = append(packages, pkg)
		}
	}
	if _, err := cniDir(); err != nil {
		packages = append(packages, "containernetworking-plugins")
	}
	if len(packages) > 0 {
		slices.Sort(packages)
		bad("packages are missing: %s: run scripts/install-packages.sh", strings.Join(packages, ", "))
	}
	if _, err := cgroup.NewHost(cgroupRoot).Hierarchies(); err != nil {
		bad("%w: mount the cgroup file systems", err)
	}
	loadModules()
	for _, fstype := range []string{"overlay", "mqueue"} {
		if b, err := os.ReadFile("/proc/filesystems"); err == nil && !strings.Contains(string(b), "\t"+fstype+"\n") {
			bad("the kernel has no %s file system: load the module %s", fstype, fstype)
		}
	}
	if _, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables"); err != nil {
		bad("the kernel does not filter bridged packets: modprobe br_netfilter")
	}
	dir := l.stateDir
	for { // the nearest that exists
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if errors.Is(err, unix.ENOENT) {
			dir = filepath.Dir(dir)
			continue
		}
		if err == nil && (st.Type == unix.OVERLAYFS_SUPER_MAGIC || st.Type == unix.TMPFS_MAGIC && st.Blocks == 0) {
			bad("%s is on an overlay, on which containerd cannot put another: choose a state directory on a disk", dir)
		}
		break
	}
	return errors.Join(errs...)
}

// loadModules loads what a distribution's kernel has as modules. Kernels that
// have it built in, or that lack it, are told apart by what follows.
func loadModules() {
	modprobe, err := exec.LookPath("modprobe")
	if err != nil {
		return
	}
	_ = exec.Command(modprobe, "--all", "--quiet", "overlay", "br_netfilter", "veth", "bridge", "nf_conntrack", "nf_nat",
		"iptable_nat", "nf_tables", "vxlan", "macvlan").Run()
}

func cniDir() (string, error) {
	for _, dir := range cniDirs {
		if _, err := os.Stat(filepath.Join(dir, "host-local")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no CNI plugins in %s: run scripts/install-packages.sh", strings.Join(cniDirs, ", "))
}
