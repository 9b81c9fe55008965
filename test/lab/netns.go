package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/samber/lo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
	"github.com/liqonet/liqonet/test/netns/enter"
)

// netnsDir is where iproute2 looks for named network namespaces.
const netnsDir = "/run/netns"

// ip runs ip(8) with one command in each line of a formatted text, in a named network namespace.
func ip(namespace, format string, args ...any) error {
	cmd := exec.Command("ip", "-netns", namespace, "-batch", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(format, args...))
	return run(cmd)
}

// run runs a command to its end. An error has what it printed.
func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// releaseNetnsDir removes what `ip netns add` made besides the namespaces, if none of these is left.
func releaseNetnsDir() error {
	entries, err := os.ReadDir(netnsDir)
	if err != nil || len(entries) > 0 {
		return nil // not there, or in use
	}
	if err := unix.Unmount(netnsDir, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", netnsDir, err)
	}
	return os.Remove(netnsDir)
}

// deleteNetns removes the name; the kernel removes the namespace when nothing
// else uses it. A name that does not exist is no error.
func deleteNetns(name string) error {
	if there, err := exists(filepath.Join(netnsDir, name)); err != nil || !there {
		return err
	}
	return run(exec.Command("ip", "netns", "del", name))
}

// namedNetns lists the names that begin with the prefix.
func namedNetns(prefix string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(netnsDir, prefix+"*"))
	return lo.Map(paths, func(path string, _ int) string { return filepath.Base(path) }), err
}

// inNetns runs f in the named namespace.
func inNetns(name string, f func() error) error { return enter.Path(filepath.Join(netnsDir, name), f) }

// The underlay is a network namespace with a bridge for each cluster's nodes,
// and routes between them.

func setUpUnderlay(name string) error {
	if err := run(exec.Command("ip", "netns", "add", name)); err != nil {
		return err
	}
	if err := ip(name, "link set lo up"); err != nil {
		return err
	}
	return inNetns(name, func() error {
		// Packets between nodes are not the underlay's to filter. The setting
		// exists only where the kernel has that feature.
		_ = os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("0"), 0o644)
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
	})
}

// deviceName makes an interface name of at most 15 characters that is unique
// among the addresses of a lab.
func deviceName(kind string, a netip.Addr) string {
	return fmt.Sprintf("%s-%x", kind, a.As4())
}

// router is the underlay's address on a cluster's bridge.
func (s ClusterSpec) router() netip.Prefix {
	return netip.PrefixFrom(nth(s.NodeSubnet, 1), s.NodeSubnet.Bits())
}

// addBridge gives a cluster its network in the underlay.
func addBridge(underlay string, s ClusterSpec) error {
	batch := fmt.Sprintf(`
		link add %[1]s mtu %[2]d type bridge
		link set %[1]s alias %[3]s
		addr add %[4]s brd + dev %[1]s
		link set %[1]s up
	`, deviceName("br", s.NodeSubnet.Addr()), s.MTU, s.Name, s.router())
	if s.Network == NetworkEKS { // no other cluster reaches its pods
		batch += "route add blackhole " + s.sharedPods().String()
	}
	return ip(underlay, "%s", batch)
}

// allowAgain undoes what addBridge did besides the bridge.
func allowAgain(underlay string, s ClusterSpec) error {
	if s.Network != NetworkEKS {
		return nil
	}
	return ip(underlay, "route flush exact %s type blackhole", s.sharedPods())
}

// connectNode joins a node's namespace to its cluster's bridge.
func connectNode(underlay, node, alias string, s ClusterSpec, address netip.Addr) error {
	err := ip(underlay, `
		link add %[1]s mtu %[2]d master %[3]s type veth peer name eth0 mtu %[2]d netns %[4]s
		link set %[1]s alias %[5]s
		link set %[1]s up
	`, deviceName("ve", address), s.MTU, deviceName("br", s.NodeSubnet.Addr()), node, alias)
	if err != nil {
		return err
	}
	// Without a default route, programs on the node's network could not
	// reach ClusterIPs: a destination is routed before it is translated.
	return ip(node, `
		addr add %s brd + dev eth0
		link set lo up
		link set eth0 up
		route add default via %s
	`, netip.PrefixFrom(address, s.NodeSubnet.Bits()), s.router().Addr())
}

// disconnect deletes those links of the underlay that are doomed. Namespaces go
// some time after their last process; a link that is not deleted would go with
// them, too late for a node that takes the same name.
func disconnect(underlay string, doomed func(netlink.Link) bool) error {
	if _, err := os.Stat(filepath.Join(netnsDir, underlay)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return inNetns(underlay, func() error {
		links, err := link.Dump(netlink.LinkList) // other nodes go at the same time
		if err != nil {
			return fmt.Errorf("list links of the underlay: %w", err)
		}
		var errs []error
		for _, l := range links {
			if !doomed(l) {
				continue
			}
			err := netlink.LinkDel(l)
			if _, gone := netlink.LinkByIndex(l.Attrs().Index); err != nil && gone == nil {
				errs = append(errs, fmt.Errorf("delete link %s: %w", l.Attrs().Name, err))
			}
		}
		return errors.Join(errs...)
	})
}
