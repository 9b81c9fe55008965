package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/link"
)

// netnsDir is where iproute2 looks for named network namespaces.
const netnsDir = "/run/netns"

// prepareNetnsDir makes netnsDir as `ip netns add` does: with a shared mount of
// its own, so that both may be used in any order.
func prepareNetnsDir() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	err := unix.Mount("", netnsDir, "", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // not a mount point yet
		if err := unix.Mount(netnsDir, netnsDir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s: %w", netnsDir, err)
		}
		err = unix.Mount("", netnsDir, "", unix.MS_SHARED|unix.MS_REC, "")
	}
	if err != nil {
		return fmt.Errorf("share %s: %w", netnsDir, err)
	}
	return nil
}

// releaseNetnsDir undoes prepareNetnsDir if no namespace is left.
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

// nameNetns gives the network namespace at the path source a name.
func nameNetns(source, name string) error {
	target := filepath.Join(netnsDir, name)
	f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("name network namespace: %w", err)
	}
	f.Close()
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		_ = os.Remove(target) // it would only be in the way of the next try
		return fmt.Errorf("name network namespace %s: %w", name, err)
	}
	return nil
}

// createNetns makes a named network namespace without a process in it.
func createNetns(name string) error {
	failed := make(chan error, 1)
	go func() {
		// Not unlocked: a thread that has left the namespace of the process
		// must not run anything else, and ends with this goroutine.
		runtime.LockOSThread()
		failed <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("create network namespace %s: %w", name, err)
			}
			return nameNetns(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), name)
		}()
	}()
	return <-failed
}

// deleteNetns removes the name; the kernel removes the namespace when nothing
// else uses it. A name that does not exist is no error.
func deleteNetns(name string) error {
	path := filepath.Join(netnsDir, name)
	// EINVAL: the name was made and not mounted when its maker was killed.
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount network namespace %s: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete network namespace: %w", err)
	}
	return nil
}

// namedNetns lists the names that begin with the prefix.
func namedNetns(prefix string) ([]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// inNetns runs f on a thread inside the named namespace. f must not start
// goroutines, as those would run outside of it.
func inNetns(name string, f func() error) error {
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and not unlocked, as in createNetns
		failed <- func() error {
			handle, err := netns.GetFromPath(filepath.Join(netnsDir, name))
			if err != nil {
				return fmt.Errorf("open network namespace %s: %w", name, err)
			}
			defer handle.Close()
			if err := netns.Set(handle); err != nil {
				return fmt.Errorf("enter network namespace %s: %w", name, err)
			}
			return f()
		}()
	}()
	return <-failed
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// The underlay is a network namespace with a bridge for each cluster's nodes,
// and routes between them.

func setUpUnderlay(name string) error {
	if err := createNetns(name); err != nil {
		return err
	}
	return inNetns(name, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find loopback: %w", err)
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return fmt.Errorf("set loopback up: %w", err)
		}
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
			return fmt.Errorf("let the underlay forward: %w", err)
		}
		// Packets between nodes are not the underlay's to filter. The setting
		// exists only where the kernel has that feature.
		_ = os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("0"), 0o644)
		return nil
	})
}

// deviceName makes an interface name of at most 15 characters that is unique
// among the addresses of a lab.
func deviceName(kind string, a netip.Addr) string {
	return fmt.Sprintf("%s-%x", kind, a.As4())
}

// addBridge gives a cluster its network in the underlay.
func addBridge(underlay string, s ClusterSpec) error {
	return inNetns(underlay, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = deviceName("br", s.NodeSubnet.Addr()), s.MTU
		bridge := &netlink.Bridge{LinkAttrs: attrs}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("create bridge %s: %w", attrs.Name, err)
		}
		if err := netlink.LinkSetAlias(bridge, s.Name); err != nil {
			return fmt.Errorf("label bridge %s: %w", attrs.Name, err)
		}
		router := netip.PrefixFrom(nth(s.NodeSubnet, 1), s.NodeSubnet.Bits())
		if err := netlink.AddrAdd(bridge, &netlink.Addr{IPNet: ipNet(router)}); err != nil {
			return fmt.Errorf("add %s to bridge %s: %w", router, attrs.Name, err)
		}
		if err := netlink.LinkSetUp(bridge); err != nil {
			return fmt.Errorf("set bridge %s up: %w", attrs.Name, err)
		}
		if s.Network == NetworkEKS { // no other cluster reaches its pods
			if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(s.sharedPods()), Type: unix.RTN_BLACKHOLE}); err != nil {
				return fmt.Errorf("keep the pods of %s to themselves: %w", s.Name, err)
			}
		}
		return nil
	})
}

// allowAgain undoes what addBridge did besides the bridge.
func allowAgain(underlay string, s ClusterSpec) error {
	if s.Network != NetworkEKS {
		return nil
	}
	return inNetns(underlay, func() error {
		err := netlink.RouteDel(&netlink.Route{Dst: ipNet(s.sharedPods()), Type: unix.RTN_BLACKHOLE})
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		return err
	})
}

// connectNode joins a node's namespace to its cluster's bridge.
func connectNode(underlay, node, alias string, s ClusterSpec, address netip.Addr) error {
	handle, err := netns.GetFromPath(filepath.Join(netnsDir, node))
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", node, err)
	}
	defer handle.Close()
	err = inNetns(underlay, func() error {
		bridge, err := netlink.LinkByName(deviceName("br", s.NodeSubnet.Addr()))
		if err != nil {
			return fmt.Errorf("find the cluster's bridge: %w", err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.MasterIndex = deviceName("ve", address), s.MTU, bridge.Attrs().Index
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(handle)}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("create link %s: %w", attrs.Name, err)
		}
		if err := netlink.LinkSetAlias(veth, alias); err != nil {
			return fmt.Errorf("label link %s: %w", attrs.Name, err)
		}
		if err := netlink.LinkSetUp(veth); err != nil {
			return fmt.Errorf("set link %s up: %w", attrs.Name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return inNetns(node, func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return fmt.Errorf("find eth0: %w", err)
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find loopback: %w", err)
		}
		if err := netlink.LinkSetMTU(eth0, s.MTU); err != nil {
			return fmt.Errorf("set MTU of eth0: %w", err)
		}
		if err := netlink.AddrAdd(eth0, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(address, s.NodeSubnet.Bits()))}); err != nil {
			return fmt.Errorf("add %s to eth0: %w", address, err)
		}
		for _, link := range []netlink.Link{lo, eth0} {
			if err := netlink.LinkSetUp(link); err != nil {
				return fmt.Errorf("set %s up: %w", link.Attrs().Name, err)
			}
		}
		// Without a default route, programs on the node's network could not
		// reach ClusterIPs: a destination is routed before it is translated.
		router := nth(s.NodeSubnet, 1)
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: router.AsSlice()}); err != nil {
			return fmt.Errorf("add default route: %w", err)
		}
		return nil
	})
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
