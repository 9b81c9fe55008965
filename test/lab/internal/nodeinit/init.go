package nodeinit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/liqonet/liqonet/test/lab/internal/kubeapi"
)

// startTimeout bounds the start of all components of a node. It is far above
// what a start takes, for machines that do other things as well.
const startTimeout = 4 * time.Minute

// Main is the node's first process. It returns only if the node cannot start,
// or if the lab died before it connected the node.
func Main(configFile string) error {
	// Components must not inherit these, or the lab would not see their end.
	for _, fd := range []int{EventFD, ListenerFD} {
		syscall.CloseOnExec(fd)
	}
	events := os.NewFile(EventFD, "events")
	err := run(configFile, events)
	event := Event{Error: err.Error()}
	var ce componentError
	if errors.As(err, &ce) {
		event.Component, event.Error = ce.component, ce.err.Error()
	}
	// If the lab is gone, nobody reads it; the log says it as well.
	_, _ = events.Write(encode(event))
	return err
}

func run(configFile string, events io.Writer) error {
	if n, err := os.Stdin.Read(make([]byte, 1)); n != 1 {
		return fmt.Errorf("the lab ended before the node was connected (%v)", err)
	}
	b, err := os.ReadFile(configFile)
	if err != nil {
		return err
	}
	var cfg Config
	if err := json.Unmarshal(b, &cfg); err != nil {
		return fmt.Errorf("read %s: %w", configFile, err)
	}
	n := &node{cfg: cfg, events: events}
	if cfg.ControlPlane {
		if n.listener, err = listenerFrom(ListenerFD); err != nil {
			return err
		}
	}
	if err := makeRoot(cfg); err != nil {
		return err
	}
	if err := setSysctls(); err != nil {
		return err
	}
	if n.api, err = n.client(); err != nil {
		return err
	}
	path := binDir + ":" + cmp.Or(cfg.Programs, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	if err := os.Setenv("PATH", path); err != nil {
		return err
	}
	n.reaper = newReaper([]string{"PATH=" + path, "HOME=/root", "LANG=C"})
	n.reaper.writeExited() // of an earlier start nothing is true any more
	go n.reaper.run()

	ctx, cancel := context.WithTimeoutCause(context.Background(), startTimeout,
		fmt.Errorf("the node did not start within %s", startTimeout))
	defer cancel()
	start := n.startWorker
	if cfg.ControlPlane {
		start = n.startControlPlane
	}
	if err := start(ctx); err != nil {
		return err
	}
	n.tell(Event{})
	if cfg.Network.Routes {
		n.keepRoutes()
	}
	select {} // what runs now runs until the node is killed
}

type node struct {
	cfg      Config
	events   io.Writer
	listener net.Listener
	reaper   *reaper
	api      *client.CoreV1Client
}

func (n *node) tell(e Event) {
	_, _ = n.events.Write(encode(e)) // the lab may be gone
}

// component starts a component and tells the lab when it ends.
func (n *node) component(name string, args ...string) (*process, error) {
	p, err := n.reaper.start(name, true, filepath.Join(binDir, name), args...)
	if err != nil {
		return nil, err
	}
	go func() {
		<-p.done
		n.tell(Event{Component: name, Error: p.describe()})
	}()
	return p, nil
}

func listenerFrom(fd uintptr) (net.Listener, error) {
	f := os.NewFile(fd, "listener")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("use listener: %w", err)
	}
	return l, nil
}

func (n *node) apiServer() string { return netip.AddrPortFrom(n.cfg.APIServer, apiPort).String() }

func (n *node) client() (*client.CoreV1Client, error) {
	var pem [3][]byte
	for i, name := range []string{"ca.crt", "admin.crt", "admin.key"} {
		var err error
		if pem[i], err = os.ReadFile(filepath.Join(pkiDir, name)); err != nil {
			return nil, err
		}
	}
	return kubeapi.New("https://"+n.apiServer(), pem[0], pem[1], pem[2])
}

// ready returns nil if the API server calls itself ready.
func (n *node) ready(ctx context.Context) error {
	return n.api.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

const apiPort = 6443

func (n *node) startControlPlane(ctx context.Context) error {
	cfg := n.cfg
	etcd, err := n.component("etcd", etcdArgs()...)
	if err != nil {
		return err
	}
	// An API server that finds no etcd waits longer than etcd takes.
	if err := etcd.wait(ctx, dialable("tcp", "127.0.0.1:2379")); err != nil {
		return err
	}
	if err := os.WriteFile(auditPolicyFile, []byte(auditPolicy), 0o644); err != nil {
		return err
	}
	apiServer, err := n.component("kube-apiserver", apiServerArgs(cfg)...)
	if err != nil {
		return err
	}
	if err := apiServer.wait(ctx, n.ready); err != nil {
		return err
	}
	// The listener is in the namespace of the lab, the dialer in this one: no
	// address of the lab is known outside of it.
	go forward(n.listener, n.apiServer())
	// These two are not waited for: nodes that are Ready and pods that are
	// scheduled show that they work, and their end is reported at any time.
	if _, err := n.component("kube-controller-manager", controllerManagerArgs(cfg)...); err != nil {
		return err
	}
	_, err = n.component("kube-scheduler", schedulerArgs()...)
	return err
}

func (n *node) startWorker(ctx context.Context) error {
	cfg := n.cfg
	if err := writeWorkerFiles(cfg); err != nil {
		return err
	}
	if err := n.setUpNetwork(ctx); err != nil {
		return err
	}
	containerd, err := n.component("containerd", "--config", "/etc/containerd/config.toml")
	if err != nil {
		return err
	}
	if err := containerd.wait(ctx, dialable("unix", containerdSocket)); err != nil {
		return err
	}
	images, err := filepath.Glob(filepath.Join(imageDir, "*.tar"))
	if err != nil {
		return err
	}
	for _, image := range images {
		if err := n.reaper.once(ctx, "import", filepath.Join(binDir, "ctr"), "--address", containerdSocket,
			"--namespace", "k8s.io", "images", "import", image); err != nil {
			return err
		}
	}
	// A kubelet that finds no API server comes back only after a while.
	if err := (&process{name: "kubelet", done: make(chan struct{})}).wait(ctx, n.ready); err != nil {
		return fmt.Errorf("wait for the API server: %w", err)
	}
	if _, err := n.component("kubelet", kubeletArgs(cfg)...); err != nil {
		return err
	}
	proxy, err := n.component("kube-proxy", "--config=/etc/kube-proxy.yaml", "--v=1")
	if err != nil {
		return err
	}
	// Healthy means that all rules were written once.
	if err := proxy.wait(ctx, healthy("http://127.0.0.1:10256/healthz")); err != nil {
		return err
	}
	return n.annotate(ctx)
}

func dialable(network, address string) func(context.Context) error {
	return func(ctx context.Context) error {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

func healthy(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New("health: " + resp.Status)
		}
		return nil
	}
}

// forward connects each client of the listener with the address.
func forward(listener net.Listener, address string) {
	for {
		client, err := listener.Accept()
		if err != nil {
			fmt.Println("forwarder:", err)
			time.Sleep(100 * time.Millisecond) // out of descriptors; do not spin
			continue
		}
		go func() {
			defer client.Close()
			server, err := net.DialTimeout("tcp", address, 5*time.Second)
			if err != nil {
				return // the client sees the end of its connection
			}
			defer server.Close()
			done := make(chan struct{}, 2)
			for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					// The other direction may still carry something.
					_ = pair[0].(*net.TCPConn).CloseWrite()
					done <- struct{}{}
				}()
			}
			<-done
			<-done
		}()
	}
}

// routeProtocol marks this package's routes; a free number of
// /etc/iproute2/rt_protos.
const routeProtocol = 199

// keepRoutes routes each other node's pod CIDR to that node, for as long as the
// node lives.
func (n *node) keepRoutes() {
	for {
		err := kubeapi.FollowNodes(context.Background(), n.api, func(nodes map[string]kubeapi.Node) bool {
			if err := n.setRoutes(nodes); err != nil {
				fmt.Println("routes:", err)
			}
			return true
		})
		fmt.Println("routes:", err)
	}
}

func (n *node) setRoutes(nodes map[string]kubeapi.Node) error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	want := map[string]bool{}
	var errs []error
	for name, other := range nodes {
		// One with this node's address is what it was called before.
		pods := n.cfg.Network.PodsOf(other)
		if name == n.cfg.Node || other.Internal == n.cfg.Address || !pods.IsValid() || !other.Internal.IsValid() {
			continue
		}
		want[pods.String()] = true
		dst := &net.IPNet{
			IP:   pods.Addr().AsSlice(),
			Mask: net.CIDRMask(pods.Bits(), pods.Addr().BitLen()),
		}
		if err := netlink.RouteReplace(&netlink.Route{
			LinkIndex: link.Attrs().Index, Dst: dst, Gw: other.Internal.AsSlice(), Protocol: routeProtocol,
		}); err != nil {
			errs = append(errs, fmt.Errorf("route pods of %s: %w", name, err))
		}
	}
	have, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return err
	}
	for _, r := range have {
		if r.Dst != nil && !want[r.Dst.String()] {
			errs = append(errs, netlink.RouteDel(&r))
		}
	}
	return errors.Join(errs...)
}

func itoa(i int) string { return strconv.Itoa(i) }
