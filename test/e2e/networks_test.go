package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/workload"
)

// networks are clusters with different pod networks, and what the CLI has to find
// out about them by itself.
func networks() []struct {
	spec          lab.ClusterSpec
	cni, provider string
	pods, source  string
} {
	return []struct {
		spec          lab.ClusterSpec
		cni, provider string
		pods, source  string
	}{
		{
			spec: lab.ClusterSpec{Name: "flannel", Network: lab.NetworkFlannel},
			cni:  discovery.CNIFlannel, pods: "10.244.0.0/16", source: "net-conf.json",
		},
		{
			spec: lab.ClusterSpec{Name: "calico", Network: lab.NetworkCalico, ProxyMode: lab.ProxyNFTables},
			cni:  discovery.CNICalico, pods: "192.168.0.0/16", source: "IPPool default-ipv4-ippool",
		},
		{
			spec: lab.ClusterSpec{Name: "eks", Network: lab.NetworkEKS, ServiceCIDR: netip.MustParsePrefix("10.100.0.0/16")},
			cni:  discovery.CNIAWS, provider: discovery.ProviderEKS, pods: "", source: "nodes' and pods' addresses",
		},
		{
			spec: lab.ClusterSpec{Name: "aks", Network: lab.NetworkAKS, ServiceCIDR: netip.MustParsePrefix("10.0.0.0/16")},
			cni:  discovery.CNIKubenet, provider: discovery.ProviderAKS, pods: "10.244.0.0/16", source: "kube-proxy's --cluster-cidr",
		},
		{
			spec: lab.ClusterSpec{Name: "gke", Network: lab.NetworkGKE, PodCIDR: netip.MustParsePrefix("10.4.0.0/14"), ProxyMode: lab.ProxyNFTables},
			cni:  discovery.CNIGKE, provider: discovery.ProviderGKE, pods: "10.4.0.0/14", source: "kube-proxy's --cluster-cidr",
		},
	}
}

// Clusters of any two networks can be peered: here each with all the others at
// once, and with a cluster of the bridge plugin. The CLI finds out their ranges
// by itself. Their own traffic goes on meanwhile, and in the end their kernels are
// as they were.
func TestNetworks(t *testing.T) {
	useNetworks(t)
	ctx := begin(t)
	for _, n := range networks() {
		c := fx.named(t, n.spec.Name)
		f, err := c.facts(ctx)
		if err != nil {
			t.Error(err)
			continue
		}
		pods, sources := discovery.Values(f.PodCIDRs), []string{}
		for _, p := range f.PodCIDRs {
			sources = append(sources, p.Source)
		}
		want := n.pods
		if want == "" { // what a VPC can be at most
			want = netip.PrefixFrom(c.spec.NodeSubnet.Addr(), 16).Masked().String()
		}
		if f.CNI.Value != n.cni || f.Provider.Value != n.provider || fmt.Sprint(pods) != "["+want+"]" || !strings.Contains(strings.Join(sources, " "), n.source) {
			t.Errorf("%s: found CNI %q, provider %q, pods %v (%s); want %q, %q, %s (%s)",
				c.Name, f.CNI.Value, f.Provider.Value, pods, strings.Join(sources, ", "), n.cni, n.provider, want, n.source)
		}
	}
	start := time.Now()
	// The lab has no load balancers, which the clouds' clusters are known to have.
	fx.together(t, ctx, "peer", "--service-type=NodePort")
	peered := time.Now()
	for i, a := range fx.clusters {
		for _, b := range fx.clusters[:i] {
			checkPair(t, ctx, a, b)
		}
	}
	fx.checkOwnTraffic(t)
	checked := time.Now()
	fx.together(t, ctx, "unpeer")
	unpeered := time.Now()
	checkNothingLeft(t, ctx)
	fx.checkOwnTraffic(t)
	t.Logf("%d clusters, all pairs: peered in %.1f s, checked in %.1f s, unpeered in %.1f s", len(fx.clusters),
		peered.Sub(start).Seconds(), checked.Sub(peered).Seconds(), unpeered.Sub(checked).Seconds())
}

// useNetworks adds clusters of all networks to the lab, and has the test see
// these and alpha, until it ends.
func useNetworks(t *testing.T) {
	t.Helper()
	main := fx
	if main.broken != "" {
		t.Fatal(main.broken)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	start := time.Now()
	var specs []lab.ClusterSpec
	var names []string
	for _, n := range networks() {
		n.spec.Workers = 1
		specs, names = append(specs, n.spec), append(names, n.spec.Name)
	}
	if err := main.lab.AddCluster(ctx, specs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		fx = main
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := main.lab.RemoveCluster(ctx, names...); err != nil {
			t.Error(err)
		}
	})
	own := &fixture{lab: main.lab, alpha: main.alpha, clusters: []*cluster{main.alpha}}
	for _, name := range names {
		lc, err := main.lab.Cluster(name)
		if err != nil {
			t.Fatal(err)
		}
		c := &cluster{
			Cluster: &workload.Cluster{Name: name, Kubeconfig: main.alpha.Kubeconfig, Kubectl: main.alpha.Kubectl},
			spec:    lc.Spec,
			server:  netip.AddrPortFrom(lc.Spec.ServiceCIDR.Addr().Next(), 443),
		}
		if err := c.start(ctx, lc); err != nil {
			t.Fatal(err)
		}
		own.clusters = append(own.clusters, c)
	}
	for _, c := range own.clusters {
		for _, n := range c.nodes {
			own.nodes = append(own.nodes, n.Node)
		}
	}
	var err error
	if own.before, err = workload.SettledSnapshots(ctx, own.nodes); err != nil {
		t.Fatal(err)
	}
	fx = own
	t.Logf("%d clusters were added in %.1f s", len(names), time.Since(start).Seconds())
}

func (f *fixture) named(t *testing.T, name string) *cluster {
	t.Helper()
	i := slices.IndexFunc(f.clusters, func(c *cluster) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no cluster %s", name)
	}
	return f.clusters[i]
}

// facts are what the CLI finds out about the cluster.
func (c *cluster) facts(ctx context.Context) (discovery.Facts, error) {
	cfg, err := c.restConfig()
	if err != nil {
		return discovery.Facts{}, err
	}
	ctrllog.SetLogger(logr.Discard()) // or it warns that there is none
	r, err := client.New(cfg, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		return discovery.Facts{}, err
	}
	return discovery.Discover(ctx, r, discovery.Overrides{Name: c.Name})
}

// checkOwnTraffic asks once what goes on inside of each cluster.
func (f *fixture) checkOwnTraffic(t *testing.T) {
	t.Helper()
	for _, c := range f.clusters {
		for _, s := range c.ownTraffic() {
			if err := s.from.do(func() error {
				a, err := s.open()
				if err != nil {
					return err
				}
				defer a.Close()
				return a.ask()
			}); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		}
	}
}

// together runs a command for all pairs of clusters, several at the same time.
func (f *fixture) together(t *testing.T, ctx context.Context, command string, flags ...string) {
	t.Helper()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 3)
	var mu sync.Mutex
	var failures []string
	for i, a := range f.clusters {
		for _, b := range f.clusters[:i] {
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				r := liqonet(t, ctx, "", append([]string{command, a.Name, b.Name}, flags...)...)
				if r.code != 0 {
					mu.Lock()
					defer mu.Unlock()
					failures = append(failures, fmt.Sprintf("%s %s %s: exit code %d\n%s%s", command, a.Name, b.Name, r.code, r.stdout, r.stderr))
				}
			})
		}
	}
	wg.Wait()
	if len(failures) > 0 {
		t.Fatal(strings.Join(failures, "\n"))
	}
}
