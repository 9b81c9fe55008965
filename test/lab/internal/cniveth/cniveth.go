// Package cniveth is a CNI plugin that connects each pod by a link of its own and
// a single route, as Calico and Amazon's VPC CNI do. Addresses are given out by
// another plugin, such as host-local.
//
// It does what a lab needs and no more: IPv4, one address for each pod, and no
// CHECK.
package cniveth

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/test/netns/enter"
)

// config is the plugin's part of a CNI configuration.
type config struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	// Prefix begins the name of the host's end of the link.
	Prefix string `json:"prefix"`
	MTU    int    `json:"mtu"`
	// MAC of the host's end, if not a random one.
	MAC string `json:"mac"`
	// Gateway is the pod's, an address that nobody has: the host's end answers for
	// it by proxy ARP, or the pod has a static entry for it.
	Gateway netip.Addr `json:"gateway"`
	Static  bool       `json:"static"`
	// Proxy is an interface of the host that answers for the pod's address.
	Proxy string `json:"proxy"`
	// Rules are policy rules about the pod's address.
	Rules []struct {
		Priority, Table int
		To, From        bool
	} `json:"rules"`
	// Sysctls are settings below /proc/sys/net, in whose names LINK is the host's
	// end.
	Sysctls map[string]string `json:"sysctls"`
	IPAM    struct {
		Type string `json:"type"`
	} `json:"ipam"`
	PrevResult *result `json:"prevResult"`
}

type result struct {
	CNIVersion string           `json:"cniVersion"`
	Interfaces []cniInterface   `json:"interfaces,omitempty"`
	IPs        []cniIP          `json:"ips"`
	DNS        *json.RawMessage `json:"dns,omitempty"`
}

type cniInterface struct {
	Name    string `json:"name"`
	MAC     string `json:"mac,omitempty"`
	Sandbox string `json:"sandbox,omitempty"`
}

type cniIP struct {
	Version   string       `json:"version,omitempty"`
	Interface *int         `json:"interface,omitempty"`
	Address   netip.Prefix `json:"address"`
}

// Main is the plugin, which ends the process.
func Main() {
	input, err := io.ReadAll(os.Stdin)
	var output any
	if err == nil {
		output, err = run(os.Getenv("CNI_COMMAND"), input)
	}
	if err != nil {
		// (https://www.cni.dev/docs/spec/#error)
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": "0.4.0", "code": 999, "msg": err.Error()})
		os.Exit(1)
	}
	if output != nil {
		if err := json.NewEncoder(os.Stdout).Encode(output); err != nil {
			os.Exit(1)
		}
	}
	os.Exit(0)
}

func run(command string, input []byte) (any, error) {
	if command == "VERSION" {
		return map[string]any{"cniVersion": "0.4.0", "supportedVersions": []string{"0.3.0", "0.3.1", "0.4.0"}}, nil
	}
	var c config
	if err := json.Unmarshal(input, &c); err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	switch command {
	case "ADD":
		r, err := c.add(input)
		if err != nil {
			c.PrevResult = r
			return nil, errors.Join(err, c.remove(input))
		}
		return r, nil
	case "DEL":
		return nil, c.remove(input)
	case "CHECK":
		return nil, nil
	default:
		return nil, fmt.Errorf("unknown command %q", command)
	}
}

// hostLink is the name of the host's end: the same whenever it is asked for.
func (c config) hostLink() string {
	sum := sha256.Sum256([]byte(os.Getenv("CNI_CONTAINERID") + os.Getenv("CNI_IFNAME")))
	return (c.Prefix + hex.EncodeToString(sum[:]))[:min(15, len(c.Prefix)+11)]
}

// ipam has the plugin for addresses give one out (ADD), or get it back (DEL).
func (c config) ipam(command string, input []byte) ([]byte, error) {
	for dir := range strings.SplitSeq(os.Getenv("CNI_PATH"), ":") {
		program := filepath.Join(dir, c.IPAM.Type)
		if _, err := os.Stat(program); err != nil {
			continue
		}
		cmd := exec.Command(program)
		cmd.Stdin, cmd.Env = bytes.NewReader(input), append(os.Environ(), "CNI_COMMAND="+command)
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %s", c.IPAM.Type, err, strings.TrimSpace(string(out)))
		}
		return out, nil
	}
	return nil, fmt.Errorf("no plugin %q in %s", c.IPAM.Type, os.Getenv("CNI_PATH"))
}

// add connects a pod. With an error, the result has what was given out by then.
func (c config) add(input []byte) (*result, error) {
	out, err := c.ipam("ADD", input)
	if err != nil {
		return nil, err
	}
	var r result
	if err := json.Unmarshal(out, &r); err != nil || len(r.IPs) != 1 {
		return nil, fmt.Errorf("%s answered %q: want one address (%w)", c.IPAM.Type, out, err)
	}
	pod := r.IPs[0].Address.Addr()
	sandbox, ifname := os.Getenv("CNI_NETNS"), os.Getenv("CNI_IFNAME")
	link, err := c.link(sandbox, ifname)
	if err != nil {
		return &r, err
	}
	mac, err := c.connectPod(sandbox, ifname, pod, link.Attrs().HardwareAddr)
	if err != nil {
		return &r, fmt.Errorf("connect the pod: %w", err)
	}
	if err := c.connectHost(link, pod); err != nil {
		return &r, fmt.Errorf("connect the node: %w", err)
	}
	one := 1
	r.CNIVersion = c.CNIVersion
	r.Interfaces = []cniInterface{
		{Name: link.Attrs().Name, MAC: link.Attrs().HardwareAddr.String()},
		{Name: ifname, MAC: mac.String(), Sandbox: sandbox},
	}
	r.IPs[0].Interface = &one
	return &r, nil
}

// link makes the pair and returns the host's end.
func (c config) link(sandbox, ifname string) (netlink.Link, error) {
	namespace, err := os.Open(sandbox)
	if err != nil {
		return nil, fmt.Errorf("open the pod's network namespace: %w", err)
	}
	defer namespace.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = c.hostLink(), c.MTU
	if c.MAC != "" {
		if attrs.HardwareAddr, err = net.ParseMAC(c.MAC); err != nil {
			return nil, err
		}
	}
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: ifname, PeerNamespace: netlink.NsFd(namespace.Fd()), PeerMTU: uint32(c.MTU)}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("create link %s: %w", attrs.Name, err)
	}
	for name, value := range c.Sysctls {
		path := filepath.Join("/proc/sys/net", strings.ReplaceAll(name, "LINK", attrs.Name))
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			return nil, err
		}
	}
	return netlink.LinkByName(attrs.Name) // with its MAC
}

func host(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)}
}

// connectPod gives the pod its address, and a default route by the gateway.
func (c config) connectPod(sandbox, ifname string, pod netip.Addr, hostMAC net.HardwareAddr) (mac net.HardwareAddr, err error) {
	return mac, enter.Path(sandbox, func() error {
		link, err := netlink.LinkByName(ifname)
		if err != nil {
			return err
		}
		mac = link.Attrs().HardwareAddr
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: host(pod)}); err != nil {
			return fmt.Errorf("add address %s: %w", pod, err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		index, gateway := link.Attrs().Index, c.Gateway.AsSlice()
		if c.Static {
			if err := netlink.NeighAdd(&netlink.Neigh{
				LinkIndex: index, IP: gateway, HardwareAddr: hostMAC, State: netlink.NUD_PERMANENT,
			}); err != nil {
				return fmt.Errorf("add neighbour %s: %w", c.Gateway, err)
			}
		}
		for _, r := range []*netlink.Route{
			{LinkIndex: index, Dst: host(c.Gateway), Scope: netlink.SCOPE_LINK},
			{LinkIndex: index, Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, Gw: gateway},
		} {
			if err := netlink.RouteAdd(r); err != nil {
				return fmt.Errorf("add route %s: %w", r, err)
			}
		}
		return nil
	})
}

// connectHost leads the node's packets for the pod to its link.
func (c config) connectHost(link netlink.Link, pod netip.Addr) error {
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	if err := netlink.RouteReplace(&netlink.Route{
		LinkIndex: link.Attrs().Index, Dst: host(pod), Scope: netlink.SCOPE_LINK,
	}); err != nil {
		return fmt.Errorf("route %s: %w", pod, err)
	}
	for _, rule := range c.rules(pod) {
		if err := netlink.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add rule %s: %w", rule, err)
		}
	}
	return c.proxy(pod, netlink.NeighSet)
}

// rules are the node's policy rules about the pod.
func (c config) rules(pod netip.Addr) []*netlink.Rule {
	var out []*netlink.Rule
	for _, r := range c.Rules {
		rule := netlink.NewRule()
		rule.Family, rule.Priority, rule.Table = netlink.FAMILY_V4, r.Priority, r.Table
		if r.To {
			rule.Dst = host(pod)
		}
		if r.From {
			rule.Src = host(pod)
		}
		out = append(out, rule)
	}
	return out
}

// proxy has another interface answer for the pod's address, or not any more.
func (c config) proxy(pod netip.Addr, do func(*netlink.Neigh) error) error {
	if c.Proxy == "" {
		return nil
	}
	link, err := netlink.LinkByName(c.Proxy)
	if err != nil {
		return err
	}
	if err := do(&netlink.Neigh{LinkIndex: link.Attrs().Index, Family: netlink.FAMILY_V4, Flags: netlink.NTF_PROXY, IP: pod.AsSlice()}); err != nil {
		return fmt.Errorf("answer for %s on %s: %w", pod, c.Proxy, err)
	}
	return nil
}

// remove takes away what add has made, as much as there is of it.
func (c config) remove(input []byte) error {
	var errs []error
	if c.PrevResult != nil {
		for _, ip := range c.PrevResult.IPs {
			for _, rule := range c.rules(ip.Address.Addr()) {
				if err := netlink.RuleDel(rule); err != nil && !errors.Is(err, unix.ENOENT) {
					errs = append(errs, fmt.Errorf("delete rule %s: %w", rule, err))
				}
			}
			if err := c.proxy(ip.Address.Addr(), netlink.NeighDel); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, err)
			}
		}
	}
	if link, err := netlink.LinkByName(c.hostLink()); err == nil {
		if err := netlink.LinkDel(link); err != nil {
			errs = append(errs, fmt.Errorf("delete link %s: %w", link.Attrs().Name, err))
		}
	}
	// Last: an address that is given back may be given to another pod at once.
	_, err := c.ipam("DEL", input)
	return errors.Join(append(errs, err)...)
}
