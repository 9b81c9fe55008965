// Package netns makes network namespaces for tests, connects them by veth
// pairs, and runs functions and processes inside of them. Namespaces have no
// name: they vanish with their last user, whatever happens to the test.
//
// It needs root, and fails tests without it; only `go test -short` skips them.
package netns

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns/enter"
)

// NS is a network namespace.
type NS struct {
	// Name is for messages only.
	Name string
	file *os.File
}

// New makes a namespace that lasts until the end of the test, with its
// loopback interface up.
func New(t testing.TB, name string) *NS {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root and namespaces")
	}
	ns := &NS{Name: name}
	err := enter.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		var err error
		ns.file, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Fatalf("make namespace %s: %v", name, err)
	}
	t.Cleanup(func() { _ = ns.file.Close() })
	ns.Up(t, "lo")
	return ns
}

// Run runs a function in the namespace, on a thread of its own. Goroutines
// that it starts are not in the namespace, but sockets opened by it are.
func (ns *NS) Run(f func() error) error { return enter.Do(ns.file, f) }

// Do is Run that fails the test on an error.
func (ns *NS) Do(t testing.TB, f func() error) {
	t.Helper()
	kit.NoError(t, ns.Run(f), "in namespace %s", ns.Name)
}

// In is Do for a function that returns something.
func In[T any](t testing.TB, ns interface {
	Do(t testing.TB, f func() error)
}, f func() (T, error),
) (out T) {
	t.Helper()
	ns.Do(t, func() (err error) {
		out, err = f()
		return err
	})
	return out
}

// Output runs a program in the namespace and returns what it prints.
func (ns *NS) Output(t testing.TB, name string, args ...string) string {
	t.Helper()
	return In(t, ns, func() (string, error) {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s %v: %w: %s", name, args, err, out)
		}
		return string(out), err
	})
}

func (ns *NS) String() string { return ns.Name }

// Start starts a process in the namespace. The caller waits for it.
func (ns *NS) Start(cmd *exec.Cmd) error {
	return ns.Run(cmd.Start)
}

// Sysctl writes a setting below /proc/sys/net of the namespace.
func (ns *NS) Sysctl(t testing.TB, path, value string) {
	t.Helper()
	ns.Do(t, func() error { return os.WriteFile("/proc/sys/net/"+path, []byte(value), 0o644) })
}

// Veth connects two namespaces by a pair of interfaces, both up.
func Veth(t testing.TB, a *NS, aName string, b *NS, bName string) {
	t.Helper()
	a.Do(t, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = aName
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: attrs, PeerName: bName, PeerNamespace: netlink.NsFd(b.file.Fd()),
		})
	})
	a.Up(t, aName)
	b.Up(t, bName)
}

// Bridge makes a bridge, up.
func (ns *NS) Bridge(t testing.TB, name string) {
	t.Helper()
	ns.Do(t, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	})
	ns.Up(t, name)
}

// Enslave makes an interface a port of a bridge.
func (ns *NS) Enslave(t testing.TB, port, bridge string) {
	t.Helper()
	ns.WithLink(t, port, func(l netlink.Link) error {
		b, err := netlink.LinkByName(bridge)
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(l, b)
	})
}

// Up sets an interface up.
func (ns *NS) Up(t testing.TB, name string) {
	t.Helper()
	ns.WithLink(t, name, netlink.LinkSetUp)
}

// MTU sets the MTU of an interface.
func (ns *NS) MTU(t testing.TB, name string, mtu int) {
	t.Helper()
	ns.WithLink(t, name, func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) })
}

// Addr adds an address with its prefix length to an interface.
func (ns *NS) Addr(t testing.TB, name string, addr netip.Prefix) {
	t.Helper()
	ns.WithLink(t, name, func(l netlink.Link) error {
		return netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(addr)})
	})
}

// Features switches features of an interface, by the names that `ethtool -k`
// gives those without a star below them; the program is not needed. See the
// kernel's document ethtool-netlink, FEATURES_SET.
func (ns *NS) Features(t testing.TB, name string, on bool, features ...string) {
	t.Helper()
	ns.Do(t, func() error {
		family, err := netlink.GenlFamilyGet(unix.ETHTOOL_GENL_NAME)
		if err != nil {
			return fmt.Errorf("the kernel's ethtool: %w", err)
		}
		req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
		req.AddData(&nl.Genlmsg{Command: unix.ETHTOOL_MSG_FEATURES_SET, Version: unix.ETHTOOL_GENL_VERSION})
		header := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_HEADER|unix.NLA_F_NESTED, nil)
		header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_NAME, nl.ZeroTerminated(name))
		req.AddData(header)
		wanted := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_WANTED|unix.NLA_F_NESTED, nil)
		bits := wanted.AddRtAttr(unix.ETHTOOL_A_BITSET_BITS|unix.NLA_F_NESTED, nil)
		for _, feature := range features {
			bit := bits.AddRtAttr(unix.ETHTOOL_A_BITSET_BITS_BIT|unix.NLA_F_NESTED, nil)
			bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_NAME, nl.ZeroTerminated(feature))
			if on {
				bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_VALUE, nil)
			}
		}
		req.AddData(wanted)
		if _, err := req.Execute(unix.NETLINK_GENERIC, 0); err != nil {
			return fmt.Errorf("switch %v of interface %s: %w", features, name, err)
		}
		return nil
	})
}

// Route adds a route to the main table.
func (ns *NS) Route(t testing.TB, dst netip.Prefix, via netip.Addr) {
	t.Helper()
	ns.Do(t, func() error {
		return netlink.RouteAdd(&netlink.Route{Dst: ipNet(dst), Gw: via.AsSlice()})
	})
}

// WithLink is Do for a function about an interface.
func (ns *NS) WithLink(t testing.TB, name string, f func(netlink.Link) error) {
	t.Helper()
	ns.Do(t, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		return f(l)
	})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Open takes a namespace that there is already, by a file such as
// /run/netns/NAME or /proc/PID/ns/net, until the end of the test.
func Open(t testing.TB, name, file string) *NS {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatalf("open namespace %s: %v", name, err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return &NS{Name: name, file: f}
}
