package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/samber/lo"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/discovery"
	"github.com/liqonet/liqonet/pkg/plan"
	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/ledger"
	"github.com/liqonet/liqonet/test/workload"
)

// network is a cluster with a pod network, and what the CLI finds out about that.
type network struct {
	spec          lab.ClusterSpec
	cni, provider string
	pods, source  string
}

// networks are clusters with different pod networks, and what the CLI has to find
// out about them by itself.
func networks() []network {
	return []network{
		{
			spec: lab.ClusterSpec{Name: "flannel", Network: lab.NetworkFlannel},
			cni:  "flannel", pods: "10.244.0.0/16", source: "net-conf.json",
		},
		{
			spec: lab.ClusterSpec{Name: "calico", Network: lab.NetworkCalico, ProxyMode: lab.ProxyNFTables},
			cni:  "calico", pods: "192.168.0.0/16", source: "IPPool default-ipv4-ippool",
		},
		{
			spec: lab.ClusterSpec{Name: "eks", Network: lab.NetworkEKS, ServiceCIDR: netip.MustParsePrefix("10.100.0.0/16")},
			cni:  "amazon-vpc-cni", provider: discovery.ProviderEKS, pods: "", source: "nodes' and pods' addresses",
		},
		{
			spec:     lab.ClusterSpec{Name: "aks", Network: lab.NetworkAKS, ServiceCIDR: netip.MustParsePrefix("10.0.0.0/16")},
			provider: discovery.ProviderAKS, pods: "10.244.0.0/16", source: "kube-proxy's --cluster-cidr",
		},
		{
			spec: lab.ClusterSpec{Name: "gke", Network: lab.NetworkGKE, PodCIDR: netip.MustParsePrefix("10.4.0.0/14"), ProxyMode: lab.ProxyNFTables},
			cni:  "gke-vpc-native", provider: discovery.ProviderGKE, pods: "10.4.0.0/14", source: "kube-proxy's --cluster-cidr",
		},
	}
}

// Clusters of any two networks can be peered: here each with all the others at
// once, and with a cluster of the bridge plugin. The CLI finds out their ranges
// by itself. Their own traffic continues, and in the end their kernels are
// as they were.
func TestNetworks(t *testing.T) {
	added := useNetworks(t)
	t.Run("all pairs", func(t *testing.T) { checkAllPairs(t, append([]*cluster{fx.alpha}, added...)) })
	t.Run("twenty at once", twentyAtOnce)
}

func checkAllPairs(t *testing.T, clusters []*cluster) {
	ctx := begin(t)
	for _, n := range networks() {
		c := fx.named(t, n.spec.Name)
		f, err := c.facts(ctx)
		if err != nil {
			t.Error(err)
			continue
		}
		pods, sources := f.PodCIDRs.Prefixes(), []string{}
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
	// The lab has no load balancers, which the clouds' clusters are known to have.
	eachPair(t, ctx, clusters, "peer", "--service-type=NodePort")
	for i, a := range clusters {
		for _, b := range clusters[:i] {
			checkPair(t, ctx, a, b)
		}
	}
	fx.checkOwnTraffic(t)
	eachPair(t, ctx, clusters, "unpeer")
	checkNothingLeft(t, ctx)
	fx.checkOwnTraffic(t)
}

// Twenty commands peer with one hub at the same time, and unpeer at the same time,
// most pairs twice or thrice and in both orders: all succeed, and nothing is given
// out twice.
func twentyAtOnce(t *testing.T) {
	ctx := begin(t)
	hub, spokes := fx.clusters[0], fx.clusters[1:]
	const processes = 20
	var peer, unpeer [][]string
	for i := range processes {
		pair := []string{hub.Name, spokes[i%len(spokes)].Name}
		if i/len(spokes)%2 == 1 {
			slices.Reverse(pair)
		}
		peer = append(peer, append([]string{"peer", "--service-type=NodePort", "--timeout=3m"}, pair...))
		unpeer = append(unpeer, append([]string{"unpeer", "--timeout=3m"}, pair...))
	}
	together(t, ctx, peer...)
	checkLedger := func(c *cluster, peers int) {
		t.Helper()
		r := must(c.reader())(t)
		used := []netip.Prefix{c.spec.ServiceCIDR, c.spec.NodeSubnet}
		if c.spec.Network != lab.NetworkEKS {
			used = append(used, c.spec.PodCIDR)
		}
		err := ledger.Check(ctx, r, peers, used...)
		expect(t, err == nil, "%s: %v", c.Name, err)
	}
	checkLedger(hub, len(spokes))
	for _, s := range spokes {
		checkLedger(s, 1)
		checkOnePacket(t, ctx, hub, s)
	}
	together(t, ctx, unpeer...)
	checkNothingLeft(t, ctx)
}

// useNetworks adds clusters of all networks to the lab, until the test ends.
func useNetworks(t *testing.T) (added []*cluster) {
	t.Helper()
	var specs []lab.ClusterSpec
	for _, n := range networks() {
		n.spec.Workers = 1
		specs = append(specs, n.spec)
	}
	return useClusters(t, specs...)
}

// useClusters adds clusters to the lab, until the test ends.
func useClusters(t *testing.T, specs ...lab.ClusterSpec) (added []*cluster) {
	t.Helper()
	main := fx
	if main.broken != "" {
		t.Fatal(main.broken)
	}
	// This takes minutes once.
	try(t, main.lab.BuildFor(t.Context(), specs...))
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	names := lo.Map(specs, func(s lab.ClusterSpec, _ int) string { return s.Name })
	try(t, main.lab.AddCluster(ctx, specs...))
	t.Cleanup(func() {
		main.broken = fx.broken
		fx = main
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		report(t, main.lab.RemoveCluster(ctx, names...))
	})
	all := *main
	all.clusters, all.nodes, all.before = slices.Clone(main.clusters), slices.Clone(main.nodes), maps.Clone(main.before)
	for _, name := range names {
		lc := must(main.lab.Cluster(name))(t)
		c := must(newCluster(main.lab, lc))(t)
		try(t, errors.Join(c.deploy(ctx), c.connect(ctx, lc)))
		added = append(added, c)
	}
	nodes := lo.FlatMap(added, func(c *cluster, _ int) []*lab.Node { return labNodes(c) })
	before := must(workload.SettledSnapshots(ctx, nodes))(t)
	maps.Copy(all.before, before)
	all.clusters, all.nodes = append(all.clusters, added...), append(all.nodes, nodes...)
	fx = &all
	return added
}

func (f *fixture) named(t *testing.T, name string) *cluster {
	t.Helper()
	i := slices.IndexFunc(f.clusters, func(c *cluster) bool { return c.Name == name })
	require(t, i >= 0, "there is no cluster %s", name)
	return f.clusters[i]
}

// facts are what the CLI finds out about the cluster.
func (c *cluster) facts(ctx context.Context) (plan.Network, error) {
	r, err := c.reader()
	if err != nil {
		return plan.Network{}, err
	}
	return discovery.Discover(ctx, r, discovery.Overrides{Name: c.Name})
}

func (c *cluster) reader() (client.Reader, error) {
	cfg, err := c.restConfig()
	if err != nil {
		return nil, err
	}
	kinds := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(kinds), v1alpha1.AddToScheme(kinds)); err != nil {
		return nil, err
	}
	ctrllog.SetLogger(logr.Discard()) // or it warns that there is none
	return client.New(cfg, client.Options{Scheme: kinds})
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

// eachPair runs a command for all pairs of clusters, several at the same time.
func eachPair(t *testing.T, ctx context.Context, clusters []*cluster, command string, flags ...string) {
	t.Helper()
	var commands [][]string
	for i, a := range clusters {
		for _, b := range clusters[:i] {
			commands = append(commands, append([]string{command, a.Name, b.Name}, flags...))
		}
	}
	togetherAtMost(t, ctx, 3, commands...)
}
