// Command liqonet-agent runs in the clusters. `gateway` runs in a pod of its own and is one end of one tunnel. `node`
// runs on every node. `services` exports and imports services, in clusters that exchange some. `purge` cleans a node that
// an agent has left. `probe` runs for a few seconds in pods that a command starts.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/liqonet/liqonet/agent/gateway"
	"github.com/liqonet/liqonet/agent/logs"
	"github.com/liqonet/liqonet/agent/node"
	agentprobe "github.com/liqonet/liqonet/agent/probe"
	"github.com/liqonet/liqonet/agent/services"
	"github.com/liqonet/liqonet/agent/timerslack"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/pkg/version"
)

// terminationLog is the file from which Kubernetes reads why a container ended.
const terminationLog = "/dev/termination-log"

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	level := &logs.Level{}
	log := logs.New(os.Stderr, level)
	slog.SetDefault(log) // libraries log to it, such as net/http's server
	klog.SetLogger(logr.FromSlogHandler(log.Handler()))
	ctrllog.SetLogger(logr.FromSlogHandler(log.Handler()))
	if timerslack.Err != nil {
		log.Warn("this process is woken more often than necessary", "error", timerslack.Err)
	}
	err := newRoot(log, level).ExecuteContext(ctx)
	cancel()
	if err != nil {
		log.Error("the agent ends", "error", err)
		// Outside a container the file does not exist, and nothing would read it.
		if f, openErr := os.OpenFile(terminationLog, os.O_WRONLY, 0); openErr == nil {
			fmt.Fprintln(f, err)
			f.Close()
		}
		os.Exit(1)
	}
}

func newRoot(log *slog.Logger, level *logs.Level) *cobra.Command {
	root := &cobra.Command{
		Use: "liqonet-agent", Short: "The agents of liqonet", SilenceErrors: true, SilenceUsage: true,
		Version: version.String(), PersistentPreRun: func(*cobra.Command, []string) { limitProcs() },
	}
	root.PersistentFlags().Var(level, "log-level", "minimum level of logged lines: "+strings.Join(v1alpha1.LogLevels(), ", "))
	root.AddCommand(newGateway(log, level), newNode(log, level), newServices(log), newPurge(), newProbe())
	return root
}

// limitProcs limits this process to half of the processors that it may use, unless the environment sets a
// number. In a gateway, the kernel needs the others to route, encapsulate and receive the same packets. It makes an
// idle agent cheaper, too: with every packet, a Go program looks for work on all of its processors.
func limitProcs() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)/2))
	}
}

// garbagePercent is how much a gateway's heap may grow before a garbage collection, in percent of the live heap. Most
// of the heap is packet buffers, which are reused and cost a collection next to nothing.
const garbagePercent = 25

func newGateway(log *slog.Logger, level *logs.Level) *cobra.Command {
	cfg := gateway.Config{Log: log, Level: level}
	cmd := &cobra.Command{
		Use: "gateway", Short: "Run one end of a peering's tunnel", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(garbagePercent)
			}
			var err error
			if cfg.PodIPs, err = podIPs(); err != nil {
				return err
			}
			cfg.PodName, cfg.NodeName = os.Getenv("POD_NAME"), os.Getenv("NODE_NAME")
			return gateway.Run(cmd.Context(), cfg)
		},
	}
	cmd.Flags().StringVar(&cfg.Peering, "peering", "", "name of the Peering")
	cmd.Flags().IntVar(&cfg.Plane, "plane", 0, "index of the plane")
	cmd.Flags().StringVar(&cfg.KeyDir, "key-dir", "", "directory with the private key")
	cmd.Flags().StringVar(&cfg.PresharedKey, "preshared-key", "", "file with the tunnel's pre-shared key, empty if it has none")
	cmd.Flags().StringVar(&cfg.OverlayKeys, "overlay-keys", "", "directory with the gateway's overlay keys, named by generation")
	return cmd
}

// podIPs returns the addresses of this pod.
func podIPs() (out []netip.Addr, err error) {
	for ip := range strings.SplitSeq(os.Getenv("POD_IPS"), ",") {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return nil, fmt.Errorf("environment variable POD_IPS: %w", err)
		}
		out = append(out, addr)
	}
	return out, nil
}

func newServices(log *slog.Logger) *cobra.Command {
	return &cobra.Command{
		Use: "services", Short: "Export and import services", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ips, err := podIPs()
			if err != nil {
				return err
			}
			return services.Run(cmd.Context(), services.Config{PodName: os.Getenv("POD_NAME"), PodIPs: ips, Log: log})
		},
	}
}

func newNode(log *slog.Logger, level *logs.Level) *cobra.Command {
	cfg := node.Config{Log: log, Level: level}
	cmd := &cobra.Command{
		Use: "node", Short: "Connect this node to the gateways", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.NodeName = os.Getenv("NODE_NAME"); cfg.NodeName == "" {
				return errors.New("environment variable NODE_NAME is empty")
			}
			cfg.PodName = os.Getenv("POD_NAME")
			return node.Run(cmd.Context(), cfg)
		},
	}
	cmd.Flags().StringVar(&cfg.OverlayKeys, "overlay-keys", "", "directory with the keys of the cluster's overlay, named by generation")
	cmd.Flags().TextVar(&cfg.MetricsAddress, "metrics-address", netip.MustParseAddr("127.0.0.1"), "address of the node at which metrics are served")
	return cmd
}

func newPurge() *cobra.Command {
	return &cobra.Command{
		Use: "purge", Short: "Remove everything of liqonet from this machine's kernel", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return node.Purge(cmd.Context(), func(what string, _ ...any) { fmt.Println(what) })
		},
	}
}

func newProbe() *cobra.Command {
	return &cobra.Command{
		Use: "probe TASK", Short: "Run a task of verify or doctor in a short-lived pod", Args: cobra.ExactArgs(1), Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			task, err := probe.Parse(args[0])
			if err != nil {
				return fmt.Errorf("read the task: %w", err)
			}
			return agentprobe.Run(cmd.Context(), task, os.Stdout)
		},
	}
}
