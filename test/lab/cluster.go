package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/samber/lo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/liqonet/liqonet/test/lab/internal/kubeapi"
	"github.com/liqonet/liqonet/test/lab/internal/nodeinit"
)

// Cluster is a cluster of a lab.
type Cluster struct {
	// Spec has all defaults filled in.
	Spec ClusterSpec
	// Port of 127.0.0.1 at which the API server is reached.
	Port int

	lab *Lab
}

// Clusters returns the lab's clusters, by name; none if the lab is not up.
func (l *Lab) Clusters() ([]*Cluster, error) {
	clusters, err := readAll[Cluster](l.clusterDir(), "cluster.json")
	for _, c := range clusters {
		c.lab = l
	}
	return clusters, err
}

// readAll reads the files of a name in all directories below one, by the directories' names. One that
// does not have it has only begun to exist, or ends.
func readAll[T any](dir, name string) (all []*T, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", name))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		v := new(T)
		switch err := readJSON(file, v); {
		case err == nil:
			all = append(all, v)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return all, nil
}

// Cluster returns the cluster of that name.
func (l *Lab) Cluster(name string) (*Cluster, error) {
	clusters, err := l.Clusters()
	if err != nil {
		return nil, err
	}
	if c, ok := lo.Find(clusters, func(c *Cluster) bool { return c.Spec.Name == name }); ok {
		return c, nil
	}
	return nil, fmt.Errorf("lab %s has no cluster %q", l.name, name)
}

// Server returns the URL of the API server, as seen from the machine.
func (c *Cluster) Server() string { return fmt.Sprintf("https://127.0.0.1:%d", c.Port) }

func (c *Cluster) dir() string      { return filepath.Join(c.lab.clusterDir(), c.Spec.Name) }
func (c *Cluster) nodesDir() string { return filepath.Join(c.dir(), "nodes") }

func (c *Cluster) controlPlaneAddress() netip.Addr { return nth(c.Spec.NodeSubnet, 2) }

func (c *Cluster) issuer() (*issuer, error) {
	return loadIssuer(filepath.Join(c.dir(), "pki"), c.internalServer())
}

func (c *Cluster) internalServer() string {
	return "https://" + netip.AddrPortFrom(c.controlPlaneAddress(), 6443).String()
}

func (c *Cluster) client() (*client.CoreV1Client, error) {
	i, err := c.issuer()
	if err != nil {
		return nil, err
	}
	return kubeapi.New(c.Server(), i.root.certificate, i.admin.certificate, i.admin.key)
}

func (l *Lab) startCluster(ctx context.Context, s ClusterSpec) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %s", startTimeout))
	defer cancel()
	start := time.Now()
	c := &Cluster{Spec: s, lab: l}
	// The kernel chooses a free port; the listener is handed to the control
	// plane, so nobody can take it in between.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	c.Port = listener.Addr().(*net.TCPAddr).Port
	i, err := newIssuer(c.internalServer())
	if err != nil {
		return err
	}
	if err := errors.Join(i.save(filepath.Join(c.dir(), "pki")), writeJSON(filepath.Join(c.dir(), "cluster.json"), c)); err != nil {
		return err
	}
	if err := addBridge(l.underlay(), s); err != nil {
		return err
	}

	boots := newBoots(ctx)
	defer boots.close()
	cp, err := c.newControlPlane(i)
	if err != nil {
		return err
	}
	if err := boots.start(cp, listener); err != nil {
		return err
	}
	for n := range s.Workers {
		worker, err := c.newWorker(i, n+1)
		if err != nil {
			return err
		}
		if err := boots.start(worker, nil); err != nil {
			return err
		}
	}
	if err := boots.wait(boots.all[:1]); err != nil {
		return err
	}
	l.log.Printf("cluster %s: API server ready (%s)", s.Name, since(start))
	if err := c.applyNetwork(boots.ctx); err != nil {
		return err
	}
	if err := boots.wait(boots.all); err != nil {
		return err
	}
	l.log.Printf("cluster %s: kubelets and kube-proxies started (%s)", s.Name, since(start))
	if err := c.waitReady(boots.ctx); err != nil {
		return err
	}
	l.log.Printf("cluster %s: %d nodes Ready (%s)", s.Name, s.Workers, since(start))
	return nil
}

// waitReady waits until all running workers are Ready and routed to each other,
// and pods can be created.
func (c *Cluster) waitReady(ctx context.Context) error {
	api, err := c.client()
	if err != nil {
		return err
	}
	all, err := c.Nodes()
	if err != nil {
		return err
	}
	running := lo.Filter(all, func(n *Node, _ int) bool { return n.Running() })
	var pending string
	var last map[string]kubeapi.Node
	err = kubeapi.FollowNodes(ctx, api, func(nodes map[string]kubeapi.Node) bool {
		pending, last = "", nodes
		for _, n := range running {
			if n.ControlPlane {
				continue
			}
			switch have, ok := nodes[n.Name]; {
			case !ok:
				pending = fmt.Sprintf("node %q has not registered", n.Name)
			case !have.Ready:
				pending = fmt.Sprintf("node %q is not Ready: %s", n.Name, have.Message)
			case !have.PodCIDR.IsValid() && n.config.Network.NodeCIDR.IsValid():
				pending = fmt.Sprintf("node %q has no pod CIDR", n.Name)
			}
		}
		return pending != ""
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, pending)
	}
	// Pods are refused until their service account exists.
	if err := poll(ctx, func() error {
		_, err := api.ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("wait for the default service account: %w", err)
	}
	for _, n := range running {
		if err := poll(ctx, func() error { return errors.Join(n.checkRoutes(last), n.checkNetwork()) }); err != nil {
			return fmt.Errorf("wait for the pod network of node %q: %w", n.Name, err)
		}
	}
	return nil
}

// poll asks until the answer is nil or the context ends.
func poll(ctx context.Context, ask func() error) error {
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Nodes returns the control plane and then the workers, also those that do not
// run.
func (c *Cluster) Nodes() ([]*Node, error) {
	configs, err := readAll[nodeinit.Config](c.nodesDir(), nodeinit.ConfigFile)
	nodes := lo.Map(configs, func(cfg *nodeinit.Config, _ int) *Node { return c.node(*cfg) })
	slices.SortFunc(nodes, func(a, b *Node) int { return a.Address.Compare(b.Address) })
	return nodes, err
}

// Node returns the node of that name.
func (c *Cluster) Node(name string) (*Node, error) {
	nodes, err := c.Nodes()
	return named(name, nodes, err)
}

// Node returns the node of that name, of whichever cluster.
func (l *Lab) Node(name string) (*Node, error) {
	nodes, err := l.Nodes()
	return named(name, nodes, err)
}

func named(name string, nodes []*Node, err error) (*Node, error) {
	n, ok := lo.Find(nodes, func(n *Node) bool { return n.Name == name })
	if err == nil && !ok {
		err = fmt.Errorf("there is no node %q", name)
	}
	return n, err
}

// Nodes returns the nodes of all clusters.
func (l *Lab) Nodes() (all []*Node, err error) {
	clusters, err := l.Clusters()
	for _, c := range clusters {
		nodes, nodesErr := c.Nodes()
		all, err = append(all, nodes...), errors.Join(err, nodesErr)
	}
	return all, err
}

// AddNode adds a worker and returns when it is Ready. If it does not start,
// nothing of it is left.
func (c *Cluster) AddNode(ctx context.Context) (*Node, error) {
	lock, err := c.lab.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	nodes, err := c.Nodes()
	if err != nil {
		return nil, err
	}
	number := nextNumber(c.Spec, nodes)
	i, err := c.issuer()
	if err != nil {
		return nil, err
	}
	n, err := c.newWorker(i, number)
	if err != nil {
		return nil, err
	}
	if err := n.bootAndWait(ctx); err != nil {
		downCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("add node %q: %w", n.Name, err), n.remove(downCtx), n.unregister(downCtx))
	}
	return n, nil
}

// nextNumber is the one after those of all workers, as their addresses tell: they may have been renamed.
func nextNumber(s ClusterSpec, nodes []*Node) int {
	number := 1
	for slices.ContainsFunc(nodes, func(n *Node) bool { return !n.Address.Less(nth(s.NodeSubnet, firstWorker-1+number)) }) {
		number++
	}
	return number
}

// removeCluster removes a cluster, in whatever state it is.
func (l *Lab) removeCluster(ctx context.Context, s ClusterSpec) error {
	c := &Cluster{Spec: s, lab: l}
	nodes, err := c.Nodes()
	if err != nil {
		return err
	}
	var group errgroup.Group
	for _, n := range nodes {
		group.Go(func() error { return n.remove(ctx) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	bridge := deviceName("br", s.NodeSubnet.Addr())
	return errors.Join(
		allowAgain(l.underlay(), s),
		disconnect(l.underlay(), func(link netlink.Link) bool { return link.Attrs().Name == bridge }),
		removeDir(c.dir()))
}
