// Lab starts real Kubernetes clusters on this machine; see package lab.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/liqonet/liqonet/test/lab"
	"github.com/liqonet/liqonet/test/lab/internal/cniveth"
	"github.com/liqonet/liqonet/test/lab/internal/nodeinit"
)

func main() {
	if filepath.Base(os.Args[0]) == nodeinit.VethPlugin {
		cniveth.Main()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err == nil {
		return
	}
	var exit exitStatus
	if errors.As(err, &exit) {
		os.Exit(int(exit)) // the command has said why
	}
	fmt.Fprintln(os.Stderr, "lab:", err)
	os.Exit(1)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	root := newRootCommand(stdout, stderr)
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

// app is what commands share.
type app struct {
	opts           lab.Options
	stdout, stderr io.Writer
}

func newRootCommand(stdout, stderr io.Writer) *cobra.Command {
	a := &app{opts: lab.Options{Log: stderr}, stdout: stdout, stderr: stderr}
	root := &cobra.Command{
		Use:           "lab",
		Short:         "Start real Kubernetes clusters on this machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	flags := root.PersistentFlags()
	flags.StringVar(&a.opts.Name, "name", "default", "name of the lab; labs of different names coexist")
	flags.StringVar(&a.opts.StateDir, "state-dir", "/var/lib/liqonet-lab", "where labs are kept, on a real disk")
	root.AddCommand(newUpCommand(a), newStatusCommand(a), newExecCommand(a), newNodeCommand(a), newNodeInitCommand())
	root.AddCommand(newOtherCommands(a)...)
	return root
}

// command completes a command that does something with the lab.
func (a *app) command(c *cobra.Command, run func(ctx context.Context, l *lab.Lab, args []string) error) *cobra.Command {
	c.RunE = func(cmd *cobra.Command, args []string) error {
		l, err := lab.New(a.opts)
		if err != nil {
			return err
		}
		return run(cmd.Context(), l, args)
	}
	return c
}

// nodeCommand completes a command that does something with the node that is its first argument.
func (a *app) nodeCommand(c *cobra.Command, run func(ctx context.Context, n *lab.Node, args []string) error) *cobra.Command {
	return a.command(c, func(ctx context.Context, l *lab.Lab, args []string) error {
		n, err := l.Node(args[0])
		if err != nil {
			return err
		}
		return run(ctx, n, args[1:])
	})
}

// print prints what a command was asked for, unless it failed.
func (a *app) print(what string, err error) error {
	if err == nil {
		_, err = fmt.Fprintln(a.stdout, what)
	}
	return err
}

const clusterFlag = "a cluster: name=NAME and, if wanted, workers=2,pods=10.244.0.0/16,nodemask=24,services=10.96.0.0/16," +
	"subnet=172.18.1.0/24,mtu=1500,proxy=iptables|nftables,cni=bridge|routed|flannel|calico-like|eks-like|aks-like|gke-like"

func newUpCommand(a *app) *cobra.Command {
	var clusters []string
	cmd := a.command(&cobra.Command{
		Use:   "up",
		Short: "Start clusters, and print the path of their kubeconfig",
		Long: "Start clusters, and print the path of their kubeconfig.\n\n" +
			"Without --cluster: cluster-a and cluster-b, with two workers each and the same pod and service CIDRs.",
		Example: "  lab up\n  lab up --cluster name=a,workers=1 --cluster name=b,pods=10.10.0.0/16,proxy=nftables --image bin/liqonet-agent.tar",
		Args:    cobra.NoArgs,
	}, func(ctx context.Context, l *lab.Lab, _ []string) error {
		var specs []lab.ClusterSpec
		for _, text := range clusters {
			s, err := lab.ParseClusterSpec(text)
			if err != nil {
				return err
			}
			specs = append(specs, s)
		}
		if err := a.print(l.Kubeconfig(), l.Up(ctx, specs...)); err != nil {
			return err
		}
		return a.next(l)
	})
	// An array, not a slice: the value has commas.
	cmd.Flags().StringArrayVar(&clusters, "cluster", nil, clusterFlag+"; repeat for more")
	cmd.Flags().StringArrayVar(&a.opts.Images, "image", nil, "a docker-archive that every node gets; repeat for more")
	return cmd
}

// next says what to type after a start.
func (a *app) next(l *lab.Lab) error {
	clusters, err := l.Clusters()
	if err != nil {
		return err
	}
	kubectl := "kubectl"
	if _, err := exec.LookPath(kubectl); err != nil {
		if kubectl, err = l.Kubectl(); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.stderr, "\nNext:\n  export KUBECONFIG=%s\n", l.Kubeconfig())
	for _, c := range clusters {
		fmt.Fprintf(a.stderr, "  %s --context %s get nodes -o wide\n", kubectl, c.Spec.Name)
	}
	return nil
}

// newOtherCommands are those without flags.
func newOtherCommands(a *app) []*cobra.Command {
	return []*cobra.Command{
		a.command(&cobra.Command{
			Use:   "down",
			Short: "Remove everything of the lab, in whatever state it is",
			Args:  cobra.NoArgs,
		}, func(ctx context.Context, l *lab.Lab, _ []string) error { return l.Down(ctx) }),
		a.command(&cobra.Command{
			Use:     "load IMAGE.tar...",
			Short:   "Give images (docker-archives) to all nodes",
			Example: "  lab load bin/liqonet-agent.tar",
			Args:    cobra.MinimumNArgs(1),
		}, func(ctx context.Context, l *lab.Lab, args []string) error {
			for _, tar := range args {
				if err := l.Load(ctx, tar); err != nil {
					return err
				}
			}
			return nil
		}),
		a.command(&cobra.Command{
			Use:   "kubeconfig",
			Short: "Print the path of the kubeconfig",
			Args:  cobra.NoArgs,
		}, func(_ context.Context, l *lab.Lab, _ []string) error {
			_, err := l.Kubectl() // it fails if the lab is not up
			return a.print(l.Kubeconfig(), err)
		}),
		a.command(&cobra.Command{
			Use:     "kubectl -- [ARG...]",
			Short:   "Run the kubectl that belongs to the clusters",
			Example: "  lab kubectl -- --context cluster-a get pods -A",
		}, func(_ context.Context, l *lab.Lab, args []string) error {
			kubectl, err := l.Kubectl()
			if err != nil {
				return err
			}
			command := exec.Command(kubectl, args...)
			command.Env = append(os.Environ(), "KUBECONFIG="+l.Kubeconfig())
			return a.attach(command)
		}),
		a.nodeCommand(&cobra.Command{
			Use:     "logs NODE COMPONENT",
			Short:   "Print the log of a program of a node",
			Example: "  lab logs cluster-a-cp kube-apiserver\n  lab logs cluster-a-w1 kubelet",
			Args:    cobra.ExactArgs(2),
		}, func(_ context.Context, n *lab.Node, args []string) error {
			f, err := os.Open(n.LogFile(args[0]))
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(a.stdout, f)
			return err
		}),
		a.command(&cobra.Command{
			Use:   "build",
			Short: "Build the programs of Kubernetes unless they are built, and print where they are",
			Args:  cobra.NoArgs,
		}, func(ctx context.Context, l *lab.Lab, _ []string) error { return a.print(l.Build(ctx)) }),
	}
}

func newStatusCommand(a *app) *cobra.Command {
	return a.command(&cobra.Command{
		Use:   "status",
		Short: "Show the clusters and whether all of their programs run; fail if not",
		Args:  cobra.NoArgs,
	}, func(_ context.Context, l *lab.Lab, _ []string) error {
		clusters, err := l.Clusters()
		if err != nil {
			return err
		}
		table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "CLUSTER\tNODE\tADDRESS\tSTATE\tPODS\tSERVICES\tSERVER")
		for _, c := range clusters {
			nodes, err := c.Nodes()
			if err != nil {
				return err
			}
			for _, n := range nodes {
				state, err := n.State()
				if err != nil {
					return err
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.Spec.Name, n.Name, n.Address, state, c.Spec.PodCIDR, c.Spec.ServiceCIDR, c.Server())
			}
		}
		if err := errors.Join(l.Healthy(), table.Flush()); err != nil {
			return err
		}
		return a.print("\nkubeconfig: "+l.Kubeconfig(), nil)
	})
}

func newExecCommand(a *app) *cobra.Command {
	var netOnly bool
	cmd := a.nodeCommand(&cobra.Command{
		Use:     "exec NODE -- COMMAND [ARG...]",
		Short:   "Run a command on a node",
		Example: "  lab exec cluster-a-w1 -- ip -br addr\n  lab exec --net cluster-a-w1 -- ./some-program-of-this-directory",
		Args:    cobra.MinimumNArgs(2),
	}, func(_ context.Context, n *lab.Node, args []string) error {
		// Signals of the terminal go to the command, which decides; so
		// its end is not ours to force.
		command := n.Command
		if netOnly {
			command = n.NetCommand
		}
		return a.attach(command(context.Background(), args[0], args[1:]...))
	})
	cmd.Flags().BoolVar(&netOnly, "net", false, "enter the node's network only, and see this machine's files")
	return cmd
}

func (a *app) attach(command *exec.Cmd) error {
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, a.stdout, a.stderr
	err := command.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exitStatus(exit.ExitCode())
	}
	return err
}

// exitStatus is how a command ended that was run for the user.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func newNodeCommand(a *app) *cobra.Command {
	node := &cobra.Command{Use: "node", Short: "Add, lose, reboot or remove a node"}
	node.AddCommand(a.command(&cobra.Command{
		Use:   "add CLUSTER",
		Short: "Add a worker, and print its name",
		Args:  cobra.ExactArgs(1),
	}, func(ctx context.Context, l *lab.Lab, args []string) error {
		c, err := l.Cluster(args[0])
		if err != nil {
			return err
		}
		n, err := c.AddNode(ctx)
		if err != nil {
			return err
		}
		return a.print(n.Name, nil)
	}))
	for _, c := range []struct {
		use, short string
		do         func(*lab.Node, context.Context) error
	}{
		{"kill", "Take a node's power away", (*lab.Node).Kill},
		{"restart", "Reboot a node, or start one that was killed", (*lab.Node).Restart},
		{"remove", "Remove a worker for good", (*lab.Node).Remove},
	} {
		node.AddCommand(a.nodeCommand(&cobra.Command{
			Use:   c.use + " NODE",
			Short: c.short,
			Args:  cobra.ExactArgs(1),
		}, func(ctx context.Context, n *lab.Node, _ []string) error { return c.do(n, ctx) }))
	}
	return node
}

// newNodeInitCommand is how the lab starts a node's first process.
func newNodeInitCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "node-init CONFIG",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if os.Getpid() != 1 {
				return errors.New("node-init is for the lab only, as the first process of a node")
			}
			return nodeinit.Main(args[0])
		},
	}
}
