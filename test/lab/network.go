package lab

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/liqonet/liqonet/test/lab/internal/nodeinit"
)

// Network is how the pods of a cluster are connected.
type Network string

// The networks that the lab knows. Those with -like behave like what they are
// named after, and are not it: see docs/lab.md for what is emulated.
const (
	// NetworkBridge is Debian's bridge and host-local, and static routes.
	NetworkBridge Network = "bridge"
	// NetworkRouted is the same, and pods leave the nodes with their own addresses:
	// nobody outside of the cluster knows a way back to them.
	NetworkRouted Network = "routed"
	// NetworkFlannel is flannel itself, by VXLAN, with its CNI plugin.
	NetworkFlannel Network = "flannel"
	// NetworkCalico has single routes to pods, whose addresses are from blocks
	// that Kubernetes does not know of.
	NetworkCalico Network = "calico-like"
	// NetworkEKS has pods with addresses of the nodes' subnet, on a second
	// interface of the node, and policy rules.
	NetworkEKS Network = "eks-like"
	// NetworkAKS is like AKS with kubenet: a bridge and ip-masq-agent.
	NetworkAKS Network = "aks-like"
	// NetworkGKE is like GKE, VPC-native: point-to-point links and ip-masq-agent.
	NetworkGKE Network = "gke-like"
)

// Networks returns all that the lab knows.
func Networks() []Network {
	return []Network{NetworkBridge, NetworkRouted, NetworkFlannel, NetworkCalico, NetworkEKS, NetworkAKS, NetworkGKE}
}

const (
	// blockBits is the length of Calico's blocks, one for each node.
	blockBits = 26
	// sharedBits is the length of each node's part of the subnet where pods have
	// addresses of the nodes' subnet.
	sharedBits = 27
	// linkLocal is the pods' gateway where each pod has a link of its own.
	linkLocal = "169.254.1.1"
)

// podCIDR is the default of a network.
func (n Network) podCIDR() netip.Prefix {
	if n == NetworkCalico {
		return netip.MustParsePrefix("192.168.0.0/16") // Calico's own
	}
	return netip.MustParsePrefix("10.244.0.0/16")
}

// nodeSubnet is the n-th default, counted from 1. Pods of EKS are in the nodes'
// subnet, and a VPC is at most a /16: no two of them may share one. They are in the
// shared address space, of which peers are not given ranges.
func (n Network) nodeSubnet(number int) netip.Prefix {
	if n == NetworkEKS {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(63 + number), 0, 0}), 22)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 18, byte(number), 0}), 24)
}

// sharedPods is the part of the nodes' subnet that has the pods: its upper half.
func (s ClusterSpec) sharedPods() netip.Prefix {
	return block(s.NodeSubnet, s.NodeSubnet.Bits()+1, 1, false)
}

// block returns the n-th part of a range. Where they are scattered, nodes that
// follow each other have parts that do not.
func block(p netip.Prefix, bits, n int, scattered bool) netip.Prefix {
	if scattered {
		n = (n*37 + 5) % (1 << min(bits-p.Bits(), 16)) // odd, so no two are equal
	}
	return netip.PrefixFrom(nth(p, n<<(32-bits)), bits)
}

// maxBlocks is how many nodes may have a block.
func (s ClusterSpec) maxBlocks() int { return min(1<<(blockBits-s.PodCIDR.Bits()), 64) }

// podBlocks returns each node's block by its address, for all addresses that the
// cluster's nodes may have.
func (s ClusterSpec) podBlocks() map[netip.Addr]netip.Prefix {
	out := map[netip.Addr]netip.Prefix{}
	for n := range s.maxBlocks() {
		out[nth(s.NodeSubnet, firstWorker+n)] = block(s.PodCIDR, blockBits, n, true)
	}
	return out
}

// unused is a range that nothing of the cluster uses: what Kubernetes gives to
// nodes where the network does not care.
func (s ClusterSpec) unused() netip.Prefix {
	for n := byte(244); ; n-- {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, n, 0, 0}), 16)
		if !p.Overlaps(s.PodCIDR) && !p.Overlaps(s.ServiceCIDR) && !p.Overlaps(s.NodeSubnet) || n == 0 {
			return p
		}
	}
}

// podNetwork is what a node of that address has to do for the cluster's network.
func (l *Lab) podNetwork(s ClusterSpec, node string, address netip.Addr) nodeinit.Network {
	switch s.Network {
	case NetworkFlannel:
		return nodeinit.Network{
			CNIConfig: flannelCNI,
			Mounts:    map[string]string{"/lab/flannel": l.flannelDir()},
			Plugins:   map[string]string{"flannel": "/lab/flannel/flannel"},
			NodeCIDR:  s.PodCIDR,
			ProxyCIDR: s.PodCIDR.String(),
			ReadyFile: "/run/flannel/subnet.env",
		}
	case NetworkCalico:
		blocks := s.podBlocks()
		own := blocks[address]
		return nodeinit.Network{
			CNIConfig: fmt.Sprintf(vethCNI, "k8s-pod-network", `"prefix":"cali","mac":"ee:ee:ee:ee:ee:ee","sysctls":`+
				`{"ipv4/conf/LINK/proxy_arp":"1","ipv4/neigh/LINK/proxy_delay":"0","ipv4/conf/LINK/rp_filter":"1","ipv4/conf/LINK/forwarding":"1"}`, s.MTU, own),
			Plugins:   map[string]string{nodeinit.VethPlugin: nodeinit.Program},
			NodeCIDR:  s.unused(),
			ProxyCIDR: s.PodCIDR.String(),
			Routes:    true,
			Blocks:    blocks,
			Setup: commands(`
				sysctl -q -w net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1 net.ipv4.conf.eth0.rp_filter=1
				ip route add blackhole %[1]s proto bird
				iptables -w -t nat -N cali-nat-outgoing
				iptables -w -t nat -A cali-nat-outgoing -s %[2]s ! -d %[2]s -j MASQUERADE --random-fully
				iptables -w -t nat -N cali-POSTROUTING
				iptables -w -t nat -A cali-POSTROUTING -j cali-nat-outgoing
				iptables -w -t nat -I POSTROUTING -j cali-POSTROUTING
			`, own, s.PodCIDR),
			Annotations: map[string]string{
				"projectcalico.org/IPv4Address": netip.PrefixFrom(address, s.NodeSubnet.Bits()).String(),
			},
		}
	case NetworkEKS:
		own := block(s.sharedPods(), sharedBits, place(s, address), false)
		return nodeinit.Network{
			CNIConfig: fmt.Sprintf(vethCNI, "aws-cni", `"prefix":"eni","static":true,"proxy":"eth1",`+
				`"rules":[{"priority":512,"to":true,"table":254},{"priority":1536,"from":true,"table":2}],"sysctls":{"ipv4/conf/LINK/rp_filter":"2"}`, s.MTU, own),
			Plugins: map[string]string{nodeinit.VethPlugin: nodeinit.Program},
			// eth1 is the second network interface, which has the pods' addresses: it
			// asks and answers for them and nothing else, as a VPC's does.
			Setup: commands(`
				sysctl -q -w net.ipv4.conf.default.rp_filter=2 net.ipv4.conf.eth0.rp_filter=2
				ip link add eth1 link eth0 mtu %[1]d type macvlan mode bridge
				sysctl -q -w net.ipv4.conf.eth1.rp_filter=2 net.ipv4.conf.eth1.arp_ignore=1 net.ipv4.conf.eth0.arp_ignore=1 net.ipv4.neigh.eth1.proxy_delay=0
				ip addr add %[2]s/32 dev eth1
				ip link set eth1 up
				ip route add %[4]s dev eth1 scope link table 2
				ip route add default via %[3]s dev eth1 table 2
				ip rule add priority 1024 fwmark 0x80/0x80 lookup main
				iptables -w -t mangle -A PREROUTING -i eth0 -m addrtype --dst-type LOCAL --limit-iface-in -j CONNMARK --set-xmark 0x80/0x80
				iptables -w -t mangle -A PREROUTING -i eni+ -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80
				iptables -w -t nat -N AWS-CONNMARK-CHAIN-0
				iptables -w -t nat -A AWS-CONNMARK-CHAIN-0 -d %[4]s -j RETURN
				iptables -w -t nat -A AWS-CONNMARK-CHAIN-0 -j CONNMARK --set-xmark 0x80/0x80
				iptables -w -t nat -A PREROUTING -i eni+ -j AWS-CONNMARK-CHAIN-0
				iptables -w -t nat -A PREROUTING -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80
				iptables -w -t nat -N AWS-SNAT-CHAIN-0
				iptables -w -t nat -A AWS-SNAT-CHAIN-0 -d %[4]s -j RETURN
				iptables -w -t nat -A AWS-SNAT-CHAIN-0 ! -o vlan+ -m addrtype ! --dst-type LOCAL -j SNAT --to-source %[5]s --random-fully
				iptables -w -t nat -A POSTROUTING -j AWS-SNAT-CHAIN-0
			`, s.MTU, s.eniAddress(address), nth(s.NodeSubnet, 1), s.NodeSubnet, address),
			KubeletArgs: []string{"--node-labels=eks.amazonaws.com/nodegroup=lab", "--provider-id=aws:///lab-1a/i-" + node},
		}
	case NetworkRouted:
		n := bridgeNetwork(s)
		n.Setup = nil
		return n
	case NetworkAKS:
		n := bridgeNetwork(s)
		n.Setup = masqAgent(s)
		n.KubeletArgs = []string{"--node-labels=kubernetes.azure.com/cluster=MC_lab_lab_lab", "--provider-id=azure:///subscriptions/lab/" + node}
		return n
	case NetworkGKE:
		n := bridgeNetwork(s)
		n.CNITemplate = fmt.Sprintf(ptpCNI, s.MTU)
		n.Setup = masqAgent(s)
		n.KubeletArgs = []string{"--node-labels=cloud.google.com/gke-nodepool=lab", "--provider-id=gce://lab/lab/" + node}
		return n
	default:
		return bridgeNetwork(s)
	}
}

func bridgeNetwork(s ClusterSpec) nodeinit.Network {
	return nodeinit.Network{
		CNITemplate: fmt.Sprintf(bridgeCNI, s.MTU),
		NodeCIDR:    s.PodCIDR,
		ProxyCIDR:   s.PodCIDR.String(),
		Routes:      true,
		// Pods hide behind their node's address where they leave the cluster, as with flannel and ip-masq-agent.
		Setup: commands(`
				iptables -w -t nat -N LAB-MASQUERADE
				iptables -w -t nat -A LAB-MASQUERADE -d %[1]s -j RETURN
				iptables -w -t nat -A LAB-MASQUERADE -d 224.0.0.0/4 -j RETURN
				iptables -w -t nat -A LAB-MASQUERADE -j MASQUERADE --random-fully
				iptables -w -t nat -A POSTROUTING -s %[1]s -j LAB-MASQUERADE
			`, s.PodCIDR),
	}
}

const (
	bridgeCNI = `{"cniVersion":"0.4.0","name":"lab","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"hairpinMode":true,"ipMasq":false,"mtu":%d,
  "ipam":{"type":"host-local","dataDir":"/run/cni-ipam","ranges":[[{"subnet":"{{.PodCIDR}}"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true},"snat":true}]}
`
	ptpCNI = `{"cniVersion":"0.4.0","name":"k8s-pod-network","plugins":[
 {"type":"ptp","ipMasq":false,"mtu":%d,
  "ipam":{"type":"host-local","dataDir":"/run/cni-ipam","ranges":[[{"subnet":"{{.PodCIDR}}"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true},"snat":true}]}
`
	// flannelCNI is that of kube-flannel.yml, at a version that the plugin knows.
	flannelCNI = `{"cniVersion":"0.3.1","name":"cbr0","plugins":[
 {"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}
`
	// vethCNI is that of the lab's own plugin.
	vethCNI = `{"cniVersion":"0.4.0","name":%q,"plugins":[
 {"type":"` + nodeinit.VethPlugin + `","gateway":"` + linkLocal + `",%s,"mtu":%d,
  "ipam":{"type":"host-local","dataDir":"/run/cni-ipam","ranges":[[{"subnet":"%s"}]]}},
 {"type":"portmap","capabilities":{"portMappings":true},"snat":true}]}
`
)

// masqAgent writes the chain of ip-masq-agent, which leaves the cluster's own
// ranges as they are.
// (https://github.com/kubernetes-sigs/ip-masq-agent)
func masqAgent(s ClusterSpec) [][]string {
	return commands(`
				iptables -w -t nat -N IP-MASQ-AGENT
				iptables -w -t nat -A IP-MASQ-AGENT -d 169.254.0.0/16 -j RETURN
				iptables -w -t nat -A IP-MASQ-AGENT -d %[1]s -j RETURN
				iptables -w -t nat -A IP-MASQ-AGENT -d %[2]s -j RETURN
				iptables -w -t nat -A IP-MASQ-AGENT -j MASQUERADE --random-fully
				iptables -w -t nat -A POSTROUTING -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT
			`, s.PodCIDR, s.NodeSubnet)
}

// commands formats command lines and splits each at its spaces.
func commands(format string, args ...any) [][]string {
	var out [][]string
	for line := range strings.Lines(fmt.Sprintf(format, args...)) {
		if words := strings.Fields(line); len(words) > 0 {
			out = append(out, words)
		}
	}
	return out
}

// place is a node's number, counted from 0; also the control plane's, which has
// no pods, is one.
func place(s ClusterSpec, address netip.Addr) int {
	return max(0, int(asNumber(address)-asNumber(s.NodeSubnet.Masked().Addr()))-firstWorker)
}

// maxWorkers is how many nodes there may be where the subnet is shared with pods.
func maxWorkers(s ClusterSpec) int {
	return 1 << min(sharedBits-s.NodeSubnet.Bits()-1, 6)
}

// eniAddress is the address of a node's second interface.
func (s ClusterSpec) eniAddress(node netip.Addr) netip.Addr {
	return nth(s.NodeSubnet, 2*firstWorker+maxWorkers(s)+place(s, node))
}

// flannelDir leads to flannel's programs.
func (l *Lab) flannelDir() string { return filepath.Join(l.dir, "flannel") }

// BuildFor builds what clusters need beyond Kubernetes, unless it is there, and links it into the
// lab's directory.
func (l *Lab) BuildFor(ctx context.Context, specs ...ClusterSpec) error {
	for _, s := range specs {
		if s.Network != NetworkFlannel {
			continue
		}
		dir, err := l.buildSuite(ctx, flannelSuite())
		if err != nil {
			return err
		}
		if err := os.Symlink(dir, l.flannelDir()); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

//go:embed networks/*.yaml
var networkManifests embed.FS

// applyNetwork creates what an installation of the network has in the API.
func (c *Cluster) applyNetwork(ctx context.Context) error {
	manifest, err := c.Spec.manifest()
	if err != nil || manifest == nil {
		return err
	}
	pki := filepath.Join(c.dir(), "pki")
	// Until the API server serves what a definition in it defines, this fails.
	return poll(ctx, func() error {
		cmd := exec.CommandContext(ctx, filepath.Join(c.lab.binDir(), "kubectl"),
			"--kubeconfig=/dev/null", "--cache-dir="+filepath.Join(c.dir(), "kubectl"), "--server="+c.Server(),
			"--certificate-authority="+filepath.Join(pki, "ca.crt"),
			"--client-certificate="+filepath.Join(pki, "admin.crt"), "--client-key="+filepath.Join(pki, "admin.key"),
			"apply", "--server-side", "--force-conflicts", "--field-manager=installer", "-f", "-")
		cmd.Stdin = bytes.NewReader(manifest)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("install %s: %w: %s", c.Spec.Network, err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}

// manifest is what an installation of the network has in the API; none if it has
// nothing there.
func (s ClusterSpec) manifest() ([]byte, error) {
	text, err := networkManifests.ReadFile("networks/" + string(s.Network) + ".yaml")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t, err := template.New(string(s.Network)).Option("missingkey=error").Parse(string(text))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, map[string]any{"Pods": s.PodCIDR, "Nodes": s.NodeSubnet, "Image": TesterImage, "BlockBits": blockBits})
	return out.Bytes(), err
}

// checkNetwork returns an error while what connects pods is not there.
func (n *Node) checkNetwork() error {
	file := n.config.Network.ReadyFile
	if file == "" || n.ControlPlane {
		return nil
	}
	pid, err := n.pid()
	if err != nil {
		return err
	}
	_, err = os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "root", file))
	return err
}
