// Package cli implements the command line: `kubectl liqonet`, also installed as liqonetctl. A command parses flags, calls a function of
// another package such as pkg/peering, and prints the result. Related commands share a file.
//
// Data goes to stdout, everything else to stderr. No command prompts. Every error has an exit code (see ExitCode) for scripts.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/version"
)

// Exit codes, documented in docs/cli.md.
const (
	ExitOK          = 0
	ExitUnexpected  = 1
	ExitUsage       = 2
	ExitUnreachable = 3
	ExitForbidden   = 4
	ExitNotReady    = 5
	ExitRanges      = 6
	// ExitUnhealthy is for status and graph: the clusters were read, and not all peerings are connected.
	ExitUnhealthy = 7
	// ExitPartial is for several pairs or clusters of which some failed, and for a peering that was removed from only one cluster.
	ExitPartial = 8
	// ExitIdentity is for a cluster that claims the ID of a known peer and cannot prove it.
	ExitIdentity = 9
	// ExitChecks is for verify: a check has failed.
	ExitChecks = 10
	// ExitFound is for doctor: a check has failed.
	ExitFound = 11
	// ExitDiffers is for peer --dry-run --exit-code: something would be changed.
	ExitDiffers = 12
	// ExitBusy is for a cluster that another command is changing, or a command that was overtaken by another one.
	ExitBusy        = 13
	ExitInterrupted = 130
)

// Run runs a command line and returns its exit code. The context ends if the user interrupts the command.
func Run(ctx context.Context, args []string, streams Streams) int {
	// Log messages of libraries do not concern the user.
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())

	out := newPage(streams.Out, streams.Out) // its writer keeps the first write error
	root := NewCommand(Streams{Out: out, Err: streams.Err})
	root.SetArgs(args)
	root.Use = strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") // shell completion is for the name under which the program runs
	started := false
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	// The cause replaces that of signal.NotifyContext, which names the signal.
	command, interrupt := context.WithCancelCause(context.WithoutCancel(ctx))
	defer interrupt(nil)
	defer context.AfterFunc(ctx, func() { interrupt(errInterrupted) })()
	var reported sync.Map
	command = kube.WithNotices(command, func(notice string) {
		if _, before := reported.LoadOrStore(notice, true); !before {
			text{streams.Err}.printf("Note: %s\n", notice)
		}
	})
	cmd := root
	err := failure.Caught(func() (err error) {
		cmd, err = root.ExecuteContextC(command)
		return err
	})
	if err != nil && !started { // cobra's error about the command line
		err = commandLineError(cmd, err)
	}
	err = cmp.Or(err, out.Flush())
	if err != nil && !errors.As(err, new(exitError)) {
		text{streams.Err}.printf("Error: %s\n", explain(err, "  "))
	}
	return ExitCode(ctx, err)
}

// ExitCode returns the exit code of the process for an error.
func ExitCode(ctx context.Context, err error) int {
	if err == nil {
		return ExitOK
	}
	if ctx.Err() != nil {
		return ExitInterrupted
	}
	if e := exitError(0); errors.As(err, &e) {
		return int(e)
	}
	if p := (*pairsError)(nil); errors.As(err, &p) && p.partial {
		return ExitPartial
	}
	if e := (*kube.Error)(nil); errors.As(err, &e) {
		return cmp.Or(map[kube.Kind]int{
			kube.Usage: ExitUsage, kube.Unreachable: ExitUnreachable, kube.Forbidden: ExitForbidden,
			kube.NotReady: ExitNotReady, kube.Ranges: ExitRanges, kube.Identity: ExitIdentity, kube.OneSided: ExitPartial,
			kube.Busy: ExitBusy,
		}[e.Kind], ExitUnexpected)
	}
	return ExitUnexpected
}

// NewCommand returns the root command with all subcommands.
func NewCommand(streams Streams) *cobra.Command {
	g := &globals{streams: streams, began: time.Now()}
	root := &cobra.Command{
		Use:   "liqonet",
		Short: "Connect the pod networks of Kubernetes clusters",
		Long: `Connect the pod networks of Kubernetes clusters: pods of one cluster reach pods
of the other as if they were in the same cluster, even if both use the same
addresses.

A CLUSTER is a context of the kubeconfig ($KUBECONFIG, --kubeconfig), a
kubeconfig FILE (its current context), or FILE#CONTEXT.

Every flag can also be set in the environment (--agent-image as
LIQONET_AGENT_IMAGE) or in a configuration file (agent-image: …).`,
		Example: `  kubectl liqonet peer cluster-a cluster-b
  kubectl liqonet status cluster-a
  kubectl liqonet map cluster-a cluster-b default/web-0
  kubectl liqonet unpeer cluster-a cluster-b`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: program},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	const widest = 100 // longer lines are hard to read
	width := min(cmp.Or(terminalWidth(streams.Out), widest), widest)
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", width)))
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	flags := root.PersistentFlags()
	flags.StringVar(&g.source.Kubeconfig, "kubeconfig", "", "kubeconfig file to use instead of $KUBECONFIG or ~/.kube/config")
	access := clientcmd.RecommendedConfigOverrideFlags("")
	access.AuthOverrideFlags.Impersonate.BindStringFlag(flags, &g.source.Overrides.AuthInfo.Impersonate)
	access.AuthOverrideFlags.ImpersonateGroups.BindStringArrayFlag(flags, &g.source.Overrides.AuthInfo.ImpersonateGroups)
	access.Timeout.BindStringFlag(flags, &g.source.Overrides.Timeout)
	flags.String("config", "", "file with values for flags (default $XDG_CONFIG_HOME/liqonet/config.yaml, if it exists)")
	root.AddCommand(newPeer(g), newUnpeer(g), newUpgrade(g), newRotateKeys(g), newStatus(g), newVerify(g), newDoctor(g), newGraph(g),
		newMap(g), newExposeHost(g), newVersion(g))
	root.Example = named(root.Example)
	for _, cmd := range root.Commands() {
		cmd.Long, cmd.Example = named(cmd.Long), named(cmd.Example)
		// The validation of arguments depends on flags, so all of them are loaded first.
		check := cmd.Args
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := loadFlags(cmd); err != nil {
				return err
			}
			return check(cmd, args)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if known, is := f.Value.(completer); is {
				_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(known.completions(), cobra.ShellCompDirectiveNoFileComp)) // it fails only for unknown flags
			}
		})
	}
	return root
}

// completer is a flag with known values, or known prefixes of values.
type completer interface{ completions() []cobra.Completion }

// loadFlags sets each flag that the command line does not set, from the environment or else from the configuration file.
func loadFlags(cmd *cobra.Command) error {
	config := viper.New()
	config.SetEnvPrefix("LIQONET")
	config.SetEnvKeyReplacer(strings.NewReplacer("-", "_"))
	config.AutomaticEnv()
	if err := readConfig(config, cmp.Or(cmd.Flag("config").Value.String(), config.GetString("config"))); err != nil {
		return err
	}
	if err := checkKeys(cmd.Root(), config); err != nil {
		return err
	}
	var errs []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) { errs = append(errs, setFlag(f, cmd.Flags(), config)) })
	return errors.Join(errs...)
}

// readConfig reads the configuration file. Without a name, it reads the default file. That file and the home directory may be missing.
func readConfig(config *viper.Viper, file string) error {
	dir, dirErr := os.UserConfigDir()
	config.SetConfigFile(cmp.Or(file, filepath.Join(dir, "liqonet", "config.yaml")))
	config.SetConfigType("yaml")
	err := config.ReadInConfig()
	if file == "" && (dirErr != nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read configuration file %s: %w", config.ConfigFileUsed(), err)
	}
	return nil
}

// checkKeys returns an error if the configuration file has a key that is a flag of no command.
func checkKeys(root *cobra.Command, config *viper.Viper) error {
	for _, key := range config.AllKeys() {
		if !slices.ContainsFunc(root.Commands(), func(cmd *cobra.Command) bool { return cmd.Flag(key) != nil }) {
			return fmt.Errorf("configuration file %s: no command has a flag --%s", config.ConfigFileUsed(), key)
		}
	}
	return nil
}

// setFlag sets a flag from the environment or the file, unless the command line has set it.
func setFlag(f *pflag.Flag, flags *pflag.FlagSet, config *viper.Viper) error {
	if f.Changed || f.Name == "help" || !config.IsSet(f.Name) {
		return nil
	}
	values := []string{config.GetString(f.Name)}
	if _, isList := f.Value.(listFlag); isList {
		values = config.GetStringSlice(f.Name)
	}
	for _, value := range values {
		if err := flags.Set(f.Name, value); err != nil {
			return fmt.Errorf("%s, from the environment or the configuration file: %w", f.Name, err)
		}
	}
	return nil
}

func newVersion(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version and the image of its agents",
		Example: `  kubectl liqonet version
  kubectl liqonet version -o json`,
		Args: exactly(0, "nothing else"),
	}
	out := addOutputFlag(cmd.Flags())
	cmd.RunE = func(*cobra.Command, []string) error {
		v := versionDocument{version.String(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, version.AgentImage(version.String())}
		if !out.humanReadable() {
			return out.print(g.streams.Out, "Version", v, []versionDocument{v}, []string{v.Version})
		}
		g.out().printf("kubectl liqonet %s (%s, %s)\nagents %s\n", v.Version, v.GoVersion, v.Platform, v.AgentImage)
		return nil
	}
	return cmd
}

// versionDocument is the output of version for programs.
type versionDocument struct {
	Version    string `json:"version"`
	GoVersion  string `json:"goVersion"`
	Platform   string `json:"platform"`
	AgentImage string `json:"agentImage"`
}
