package lab

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/test/lab/internal/kubeapi"
	"github.com/liqonet/liqonet/test/lab/internal/nodeinit"
)

// Node is a node of a cluster, or its control plane, which runs no pods and is
// no Node of Kubernetes.
type Node struct {
	Name         string
	Address      netip.Addr
	ControlPlane bool

	cluster *Cluster
	config  nodeinit.Config
}

func (c *Cluster) node(cfg nodeinit.Config) *Node {
	return &Node{Name: cfg.Node, Address: cfg.Address, ControlPlane: cfg.ControlPlane, cluster: c, config: cfg}
}

// newNode writes a node's directory. Pods are what a worker's pods get addresses
// of; the control plane has none.
func (c *Cluster) newNode(name string, address netip.Addr, pods netip.Prefix, pki files) (*Node, error) {
	cni, err := cniDir()
	if err != nil {
		return nil, err
	}
	s := c.Spec
	n := c.node(nodeinit.Config{
		Cluster: s.Name, Node: name, ControlPlane: !pods.IsValid(),
		Address: address, APIServer: c.controlPlaneAddress(),
		NodeCIDRMaskSize: s.NodeCIDRMaskSize, ServiceCIDR: s.ServiceCIDR, DNS: nth(s.ServiceCIDR, 10),
		NodeGrace: s.NodeGrace, ProxyMode: string(s.ProxyMode),
		Dir: filepath.Join(c.nodesDir(), name), BinDir: c.lab.binDir(), CNIDir: cni, ImageDir: c.lab.imageDir(),
		Programs:   os.Getenv("LIQONET_LAB_PROGRAMS"),
		CgroupPath: c.lab.cgroupPath() + "/" + name,
		Network:    c.lab.podNetwork(s, name, address),
	})
	if s.NoNodeCIDRs {
		n.config.Network.NodeCIDR, n.config.OwnPodCIDR = netip.Prefix{}, pods
	}
	if err := os.MkdirAll(filepath.Join(n.dir(), nodeinit.LogDir), 0o755); err != nil {
		return nil, err
	}
	if err := pki.write(filepath.Join(n.dir(), nodeinit.PKIDir)); err != nil {
		return nil, err
	}
	return n, writeJSON(filepath.Join(n.dir(), nodeinit.ConfigFile), n.config)
}

func (c *Cluster) newControlPlane(i *issuer) (*Node, error) {
	address := c.controlPlaneAddress()
	pki, err := i.controlPlane(address, nth(c.Spec.ServiceCIDR, 1))
	if err != nil {
		return nil, err
	}
	return c.newNode(c.Spec.Name+"-cp", address, netip.Prefix{}, pki)
}

func (c *Cluster) newWorker(i *issuer, number int) (*Node, error) {
	name := c.Spec.Name + "-w" + strconv.Itoa(number)
	address := nth(c.Spec.NodeSubnet, firstWorker-1+number)
	// The last address of a subnet is for broadcasts.
	if !c.Spec.NodeSubnet.Contains(address.Next()) {
		return nil, fmt.Errorf("node subnet %s has no address for node %q", c.Spec.NodeSubnet, name)
	}
	pki, err := i.worker(name, address)
	if err != nil {
		return nil, err
	}
	return c.newNode(name, address, c.Spec.workerCIDR(number), pki)
}

// Netns returns the name of the node's network namespace, as in `ip netns`.
func (n *Node) Netns() string { return n.cluster.lab.nodeNetns(n.Name) }

func (n *Node) dir() string { return n.config.Dir }

// LogFile returns the path of the log of a component, such as "kubelet".
func (n *Node) LogFile(component string) string {
	return filepath.Join(n.dir(), nodeinit.LogDir, component+".log")
}

// pid returns the number of the node's first process.
func (n *Node) pid() (int, error) {
	found, err := nodeProcesses([]string{n.Netns()})
	if err != nil {
		return 0, err
	}
	pids := found[n.Netns()]
	if len(pids) == 0 {
		return 0, fmt.Errorf("node %q does not run", n.Name)
	}
	return pids[0], nil
}

// Running reports whether the node runs, Ready or not.
func (n *Node) Running() bool {
	_, err := n.pid()
	return err == nil
}

// Command returns a command that runs in all of the node's namespaces: it sees
// the node's files (the machine's /usr, the node's /etc, /var and /run),
// processes and network. If the node does not run, the command fails when it
// is started.
func (n *Node) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	pid, err := n.pid()
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{
		"--target=" + strconv.Itoa(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--", name,
	}, args...)...)
	if err != nil {
		cmd.Err = err
	}
	// To enter a pid namespace nsenter forks, and its child would outlive it.
	cmd.Cancel = func() error {
		nsenter := cmd.Process.Pid
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", nsenter, nsenter))
		for child := range strings.FieldsSeq(string(children)) {
			if pid, atoiErr := strconv.Atoi(child); atoiErr == nil {
				err = errors.Join(err, syscall.Kill(pid, syscall.SIGKILL))
			}
		}
		return errors.Join(err, cmd.Process.Kill())
	}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// NetCommand returns a command that runs in the node's network namespace, and
// sees the machine's files and processes.
func (n *Node) NetCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{
		"--net=" + filepath.Join(netnsDir, n.Netns()), "--", name,
	}, args...)...)
}

func (n *Node) importImage(ctx context.Context, tar []byte) error {
	cmd := n.Command(ctx, "/lab/bin/ctr", "--namespace", "k8s.io", "images", "import", "-")
	cmd.Stdin = bytes.NewReader(tar)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import image into node %q: %w: %s", n.Name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// checkRoutes returns an error while the node lacks the route to the pods of
// another of the nodes.
func (n *Node) checkRoutes(nodes map[string]kubeapi.Node) error {
	if !n.config.Network.Routes {
		return nil
	}
	return inNetns(n.Netns(), func() error {
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		have := map[string]bool{}
		for _, r := range routes {
			if r.Dst != nil && r.Gw != nil {
				have[r.Dst.String()+" via "+r.Gw.String()] = true
			}
		}
		for name, other := range nodes {
			pods := n.config.Network.PodsOf(other)
			want := pods.String() + " via " + other.Internal.String()
			if name != n.Name && other.Internal != n.Address && pods.IsValid() && other.Internal.IsValid() && !have[want] {
				return fmt.Errorf("no route %s", want)
			}
		}
		return nil
	})
}

// Kill is the loss of power: everything on the node ends at once, and its
// network goes. Its disk stays. A node that does not run is no error.
func (n *Node) Kill(ctx context.Context) error {
	return n.cluster.lab.locked(ctx, func() error { return n.kill(ctx) })
}

func (n *Node) kill(ctx context.Context) error {
	if err := killNodes(ctx, []string{n.Netns()}); err != nil {
		return fmt.Errorf("kill node %q: %w", n.Name, err)
	}
	l, device := n.cluster.lab, deviceName("ve", n.Address)
	err := errors.Join(
		disconnect(l.underlay(), func(link netlink.Link) bool { return link.Attrs().Name == device }),
		deleteNetns(n.Netns()),
		l.cgroups.Remove(ctx, n.config.CgroupPath),
	)
	if err != nil {
		return fmt.Errorf("kill node %q: %w", n.Name, err)
	}
	return nil
}

// Restart reboots the node: all state of its kernel is gone, its disk is not.
// It also starts a node that was killed, and returns when it is Ready again.
func (n *Node) Restart(ctx context.Context) error {
	err := n.cluster.lab.locked(ctx, func() error {
		if err := n.kill(ctx); err != nil {
			return err
		}
		if !n.ControlPlane {
			if err := n.forgetReady(ctx); err != nil {
				return err
			}
		}
		return n.bootAndWait(ctx)
	})
	if err != nil {
		return fmt.Errorf("restart node %q: %w", n.Name, err)
	}
	return nil
}

// Rename reboots the machine under another node name: address and disk stay, and
// all state of its kernel is gone. The Node of the old name stays, not ready,
// until somebody deletes it. It returns the new node when that is Ready. If it
// does not start, it stays, dead, under its new name.
func (n *Node) Rename(ctx context.Context, name string) (renamed *Node, err error) {
	err = n.cluster.lab.locked(ctx, func() error {
		if renamed, err = n.rename(ctx, name); err != nil {
			return err
		}
		return renamed.bootAndWait(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("rename node %q to %q: %w", n.Name, name, err)
	}
	return renamed, nil
}

// rename takes the machine's power away and writes its new name on its disk.
func (n *Node) rename(ctx context.Context, name string) (*Node, error) {
	i, err := n.cluster.issuer()
	if err != nil {
		return nil, err
	}
	pki, err := i.worker(name, n.Address)
	if err != nil {
		return nil, err
	}
	if err := n.kill(ctx); err != nil {
		return nil, err
	}
	if err := n.forgetReady(ctx); err != nil {
		return nil, err
	}
	cfg := n.config
	cfg.Node, cfg.Dir, cfg.CgroupPath = name, filepath.Join(n.cluster.nodesDir(), name), n.cluster.lab.cgroupPath()+"/"+name
	// Its name is its directory's. A rename that was cut off between these is
	// found as a node of the new name with the old configuration.
	if err := errors.Join(writeJSON(filepath.Join(n.dir(), nodeinit.ConfigFile), cfg), os.Rename(n.dir(), cfg.Dir)); err != nil {
		return nil, err
	}
	return n.cluster.node(cfg), pki.write(filepath.Join(cfg.Dir, nodeinit.PKIDir))
}

// Remove takes the node out of the cluster for good, without draining it.
func (n *Node) Remove(ctx context.Context) error {
	if n.ControlPlane {
		return fmt.Errorf("node %q is the control plane of cluster %q", n.Name, n.cluster.Spec.Name)
	}
	return n.cluster.lab.locked(ctx, func() error {
		if err := n.remove(ctx); err != nil {
			return err
		}
		return n.unregister(ctx)
	})
}

// unregister deletes the Node of Kubernetes.
func (n *Node) unregister(ctx context.Context) error {
	api, err := n.cluster.client()
	if err != nil {
		return err
	}
	if err := api.Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("unregister node %q: %w", n.Name, err)
	}
	return nil
}

// forgetReady says in place of a node that was just killed what Kubernetes
// would find out after 40 s: that nothing is known of it. A kubelet that finds
// its node Ready has no reason to say so again for minutes.
func (n *Node) forgetReady(ctx context.Context) error {
	api, err := n.cluster.client()
	if err != nil {
		return err
	}
	const unknown = `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown","message":"the lab restarts the node"}]}}`
	_, err = api.Nodes().PatchStatus(ctx, n.Name, []byte(unknown))
	if apierrors.IsNotFound(err) {
		return nil // it will register
	}
	return err
}

func (n *Node) remove(ctx context.Context) error {
	if err := n.kill(ctx); err != nil {
		return err
	}
	return removeDir(n.dir())
}

// bootAndWait starts one node of a cluster whose control plane runs.
func (n *Node) bootAndWait(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %s", startTimeout))
	defer cancel()
	var listener net.Listener
	if n.ControlPlane {
		var err error
		// The port is in kubeconfigs by now.
		if listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", n.cluster.Port)); err != nil {
			return err
		}
		defer listener.Close()
	}
	boots := newBoots(ctx)
	defer boots.close()
	if err := boots.start(n, listener); err != nil {
		return err
	}
	if err := boots.wait(boots.all); err != nil {
		return err
	}
	return n.cluster.waitReady(boots.ctx)
}

// boot is the start of one node.
type boot struct {
	node   *Node
	events *os.File
	ready  chan struct{}
}

// boots are starts of nodes, of which none may fail.
type boots struct {
	ctx  context.Context // ends with the first failure, which is its cause
	fail context.CancelCauseFunc
	all  []*boot
}

func newBoots(ctx context.Context) *boots {
	ctx, fail := context.WithCancelCause(ctx)
	return &boots{ctx: ctx, fail: fail}
}

// close ends the watch over the nodes, which go on.
func (b *boots) close() {
	b.fail(nil)
	for _, boot := range b.all {
		boot.events.Close()
	}
}

// wait waits until the nodes are ready, or one of all has failed.
func (b *boots) wait(some []*boot) error {
	for _, boot := range some {
		select {
		case <-boot.ready:
		case <-b.ctx.Done():
			return fmt.Errorf("wait for node %q: %w", boot.node.Name, context.Cause(b.ctx))
		}
	}
	return nil
}

// start starts a node's first process, connects its network and lets it go on.
// It takes the listener over.
func (b *boots) start(n *Node, listener net.Listener) error {
	if b.ctx.Err() != nil {
		return context.Cause(b.ctx)
	}
	boot, err := n.boot(listener)
	if err != nil {
		return fmt.Errorf("start node %q: %w", n.Name, err)
	}
	b.all = append(b.all, boot)
	go b.follow(boot)
	return nil
}

func (n *Node) boot(listener net.Listener) (_ *boot, err error) {
	log, err := os.OpenFile(n.LogFile(nodeinit.InitLog), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	events, eventsWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer eventsWrite.Close()
	defer func() {
		if err != nil {
			events.Close()
		}
	}()
	cmd := exec.Command(n.cluster.lab.program(), "node-init", filepath.Join(n.dir(), nodeinit.ConfigFile))
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{eventsWrite} // nodeinit.EventFD
	if listener != nil {
		f, err := listener.(*net.TCPListener).File() // a duplicate
		listener.Close()
		if err != nil {
			return nil, err
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f) // ListenerFD
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, // the node outlives the terminal
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	// Closed without a byte, on any failure below and if this process dies, it
	// makes the node end.
	connected, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	defer connected.Close()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = cmd.Wait() }() // reaps; what happened is told by the events
	if err := n.connect(cmd.Process.Pid); err != nil {
		return nil, err
	}
	if _, err := connected.Write([]byte{1}); err != nil {
		return nil, fmt.Errorf("its first process has ended: %w\n%s", err, tail(n.LogFile(nodeinit.InitLog), logLines))
	}
	return &boot{node: n, events: events, ready: make(chan struct{})}, nil
}

// connect names the namespace of a node's first process, links it to its
// cluster, and puts the process into the node's control group.
func (n *Node) connect(pid int) error {
	l := n.cluster.lab
	if err := run(exec.Command("ip", "netns", "attach", n.Netns(), strconv.Itoa(pid))); err != nil {
		return err
	}
	if err := connectNode(l.underlay(), n.Netns(), n.Name, n.cluster.Spec, n.Address); err != nil {
		return err
	}
	// A group of its own: in cgroup v2 a group with processes cannot hand
	// controllers to others, as the node's must.
	group := n.config.CgroupPath + "/system"
	if err := l.cgroups.Create(group); err != nil {
		return err
	}
	// Real nodes have processors of their own. Here, API servers and the test
	// itself would take them from what passes packets on.
	if err := l.cgroups.Weigh(l.cgroupPath(), 64); err != nil {
		return err
	}
	if !n.ControlPlane {
		if err := l.cgroups.Weigh(n.config.CgroupPath, 16); err != nil {
			return err
		}
	}
	return l.cgroups.Enter(group, pid)
}

// logLines is how much of a log an error shows.
const logLines = 20

// follow reads a node's events until its end, or the end of boots.
func (b *boots) follow(boot *boot) {
	n := boot.node
	defer boot.events.Close()
	for events := json.NewDecoder(boot.events); ; {
		var e nodeinit.Event
		if err := events.Decode(&e); err != nil {
			b.fail(fmt.Errorf("node %q: its first process has ended; the end of %s:\n%s",
				n.Name, n.LogFile(nodeinit.InitLog), tail(n.LogFile(nodeinit.InitLog), logLines)))
			return
		}
		if e == (nodeinit.Event{}) {
			close(boot.ready)
			continue
		}
		log := n.LogFile(cmp.Or(e.Component, nodeinit.InitLog))
		b.fail(fmt.Errorf("node %q: %s: %s; the end of %s:\n%s", n.Name, e.Component, e.Error, log, tail(log, logLines)))
	}
}
