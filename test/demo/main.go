// Command demo shows the product on this machine: it starts two real clusters
// with equal pod and service ranges, peers them, shows status, lets every pod of
// each call every pod of the other, cuts a gateway's node off, unpeers, shows that the nodes are as before,
// and stops the clusters.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/workload"
)

// downTimeout is the time that stopping the clusters may need, also after an
// interrupt.
const downTimeout = time.Minute

// restoreTimeout is the time within which the nodes have to be as before.
const restoreTimeout = 10 * time.Second

func main() {
	keep := flag.Bool("keep", false, "leave the clusters running and peered")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *keep)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// demo is what the steps share.
type demo struct {
	lab      *lab.Lab
	clusters []*workload.Cluster
	pods     map[*workload.Cluster][]workload.Pod
	nodes    []*lab.Node
	before   workload.Snapshots
}

func run(ctx context.Context, keep bool) (err error) {
	l, err := lab.New(lab.Options{Name: "demo", Images: []string{"bin/liqonet-agent.tar"}, Log: os.Stderr})
	if err != nil {
		return err
	}
	if _, err := l.Build(ctx); err != nil {
		return err
	}
	title("Two Kubernetes clusters, cluster-a and cluster-b, both with pods in 10.244.0.0/16")
	start := time.Now()
	if err := l.Up(ctx, lab.DefaultClusters()...); err != nil {
		return fmt.Errorf("start the clusters: %w (are some running? make demo-down)", err)
	}
	done := false
	defer func() {
		if keep && done {
			return
		}
		title("Stopping the clusters")
		down, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTimeout)
		defer cancel()
		err = errors.Join(err, l.Down(down))
		fmt.Printf("%.0f s in all.\n", time.Since(start).Seconds())
	}()
	d := &demo{lab: l, pods: map[*workload.Cluster][]workload.Pod{}}
	if err := d.deploy(ctx); err != nil {
		return err
	}
	if err := d.peered(ctx); err != nil {
		return err
	}
	if err := d.failover(ctx); err != nil {
		return err
	}
	if keep {
		done = true
		next(l)
		return nil
	}
	return d.unpeered(ctx)
}

// deploy starts a test pod on every node, and looks at the nodes.
func (d *demo) deploy(ctx context.Context) error {
	kubectl, err := d.lab.Kubectl()
	if err != nil {
		return err
	}
	for _, name := range []string{"cluster-a", "cluster-b"} {
		d.clusters = append(d.clusters, &workload.Cluster{Name: name, Kubeconfig: d.lab.Kubeconfig(), Kubectl: kubectl})
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, c := range d.clusters {
		g.Go(func() error { return c.Deploy(gctx) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, c := range d.clusters {
		if d.pods[c], err = c.Pods(ctx); err != nil {
			return err
		}
	}
	if d.nodes, err = d.lab.Nodes(); err != nil {
		return err
	}
	d.before, err = workload.SettledSnapshots(ctx, d.nodes)
	return err
}

// peered peers the clusters and has their pods call each other.
func (d *demo) peered(ctx context.Context) error {
	if err := d.liqonet(ctx, "peer", "cluster-a", "cluster-b"); err != nil {
		return err
	}
	if err := d.liqonet(ctx, "status"); err != nil {
		return err
	}
	title("Every pod calls every pod of the other cluster")
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "FROM\tITS ADDRESS\tCALLED\tAT\tWHOSE OWN IS\tAND WAS SEEN AS\tTCP\tUDP\tICMP")
	failed := 0
	for i, from := range d.clusters {
		to := d.clusters[1-i]
		known, err := d.known(ctx, to, from)
		if err != nil {
			return err
		}
		contacts := workload.EveryToEvery(ctx, d.pods[from], d.pods[to], []string{"tcp", "udp", "icmp"},
			func(p workload.Pod) netip.Addr { return known[p.Name] })
		for len(contacts) > 0 {
			three := contacts[:3]
			contacts = contacts[3:]
			c := three[0]
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s", c.From.Node, c.From.IP, c.To.Node, c.Address, c.To.IP, c.Answer.Source())
			for _, c := range three {
				if c.Err != nil {
					failed++
					fmt.Fprintf(table, "\tfailed: %v", c.Err)
				} else {
					fmt.Fprintf(table, "\t%.1f ms", c.Answer.RTTMilliseconds)
				}
			}
			fmt.Fprintln(table)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d calls failed", failed)
	}
	return nil
}

// known asks by which addresses the pods of a cluster are known in another one.
func (d *demo) known(ctx context.Context, of, in *workload.Cluster) (map[string]netip.Addr, error) {
	out := map[string]netip.Addr{}
	for _, p := range d.pods[of] {
		cmd := d.command(ctx, "map", of.Name, in.Name, "default/"+p.Name)
		cmd.Stdout = nil
		raw, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", p, err)
		}
		if out[p.Name], err = netip.ParseAddr(strings.TrimSpace(string(raw))); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// unpeered unpeers the clusters and looks at the nodes again.
func (d *demo) unpeered(ctx context.Context) error {
	if err := d.liqonet(ctx, "unpeer", "cluster-a", "cluster-b"); err != nil {
		return err
	}
	title("What is different on the nodes: links, addresses, rules, routes, neighbours, nftables, iptables, sysctls")
	// kube-proxy removes the rules of the gateway's Service in its own time.
	restored, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	diff, err := d.before.Restored(restored, d.nodes)
	if err != nil {
		return err
	}
	if diff != "" {
		fmt.Print(diff)
		return errors.New("the nodes are not as before")
	}
	fmt.Printf("Nothing: all %d nodes are as before.\n", len(d.nodes))
	return nil
}

// liqonet runs the CLI as a user would.
func (d *demo) liqonet(ctx context.Context, args ...string) error {
	title("$ kubectl liqonet " + strings.Join(args, " "))
	if err := d.command(ctx, args...).Run(); err != nil {
		return fmt.Errorf("kubectl liqonet %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

func (d *demo) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join("bin", "kubectl-liqonet"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+d.lab.Kubeconfig())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

func next(l *lab.Lab) {
	title("The clusters are left running. Type, for example:")
	fmt.Printf(`  export KUBECONFIG=%s PATH=$PWD/bin:$PATH
  kubectl --context cluster-a get pods -o wide
  kubectl liqonet status
  kubectl liqonet map cluster-b cluster-a default/$(kubectl --context cluster-b get pods -l app=tester -o jsonpath='{.items[0].metadata.name}')
  kubectl liqonet unpeer cluster-a cluster-b
and in the end:
  make demo-down
`, l.Kubeconfig())
}

func title(s string) { fmt.Printf("\n== %s\n", s) }
