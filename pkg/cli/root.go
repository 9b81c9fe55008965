package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/liqonet/liqonet/pkg/peering"
)

// Streams are where a command reads and writes.
type Streams struct {
	Out, Err io.Writer
}

// Exit codes, documented in docs/cli.md.
const (
	ExitOK          = 0
	ExitUnexpected  = 1
	ExitUsage       = 2
	ExitUnreachable = 3
	ExitForbidden   = 4
	ExitNotReady    = 5
	ExitRanges      = 6
	// ExitUnhealthy is status' own: it could look, and something is not well.
	ExitUnhealthy = 7
	// ExitPartial is for several pairs of which some failed and some did not.
	ExitPartial     = 8
	ExitInterrupted = 130
)

// globals are the flags of every command.
type globals struct {
	streams Streams
	// kubeconfig is --kubeconfig; empty for $KUBECONFIG or the default file.
	kubeconfig string
	timeout    time.Duration
}

// Run runs a command line and returns its exit code.
func Run(ctx context.Context, args []string, streams Streams) int {
	// What libraries log does not concern the user.
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())

	root := NewCommand(streams)
	root.SetArgs(args)
	err := knownCommand(root, args)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if err == nil {
		return ExitOK
	}
	if !errors.Is(err, errUnhealthy) {
		fmt.Fprintf(streams.Err, "Error: %s\n", explain(err, "  "))
	}
	return ExitCode(ctx, err)
}

// knownCommand looks whether the command exists. Cobra would look too, but its error could
// not be told from others.
func knownCommand(root *cobra.Command, args []string) error {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		return nil
	}
	if _, _, err := root.Find(args); err != nil {
		return usageError{fmt.Errorf("%w\nSee %s --help", err, root.CommandPath())}
	}
	return nil
}

// usageError is wrong input, found by cobra or by a command.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// errUnhealthy is returned by status after it has printed what is not well.
var errUnhealthy = errors.New("not all peerings are connected")

// ExitCode maps an error to the exit code of the process.
func ExitCode(ctx context.Context, err error) int {
	if err == nil {
		return ExitOK
	}
	if errors.Is(context.Cause(ctx), errInterrupted) {
		return ExitInterrupted
	}
	if errors.As(err, &usageError{}) {
		return ExitUsage
	}
	if errors.Is(err, errUnhealthy) {
		return ExitUnhealthy
	}
	if p := (*pairsError)(nil); errors.As(err, &p) && p.failed < p.all {
		return ExitPartial
	}
	if e := (*peering.Error)(nil); errors.As(err, &e) {
		return cmp.Or(map[peering.Kind]int{
			peering.Usage: ExitUsage, peering.Unreachable: ExitUnreachable, peering.Forbidden: ExitForbidden,
			peering.NotReady: ExitNotReady, peering.Ranges: ExitRanges,
		}[e.Kind], ExitUnexpected)
	}
	return ExitUnexpected
}

// explain is an error, and below it what the user can do, where it says so. The errors of
// several pairs have that already.
func explain(err error, indent string) string {
	text := err.Error()
	if e := (*peering.Error)(nil); !errors.As(err, new(*pairsError)) && errors.As(err, &e) && e.Hint != "" {
		text += "\n" + indent + e.Hint
	}
	return text
}

// NewCommand returns the whole command, with all commands below it.
func NewCommand(streams Streams) *cobra.Command {
	g := &globals{streams: streams}
	root := &cobra.Command{
		Use:   "liqonet",
		Short: "Connect the pod networks of Kubernetes clusters",
		Long: `Connect the pod networks of Kubernetes clusters: pods of one reach pods of the
other as if they were in one, also where both use the same addresses.

A CLUSTER is a context of the kubeconfig ($KUBECONFIG, --kubeconfig), a
kubeconfig FILE (its current context), or FILE#CONTEXT.

Every flag can also be given by the environment (--agent-image as
LIQONET_AGENT_IMAGE) or in a configuration file (agent-image: …).`,
		Example: `  kubectl liqonet peer cluster-a cluster-b
  kubectl liqonet status cluster-a
  kubectl liqonet map cluster-a cluster-b default/web-0
  kubectl liqonet unpeer cluster-a cluster-b`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl liqonet"},
		SilenceErrors: true,
		// Suggestions would make the error many lines long.
		DisableSuggestions: true,
		SilenceUsage:       true,
	}
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 100"))
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w\nSee %s --help", err, cmd.CommandPath())}
	})
	flags := root.PersistentFlags()
	flags.StringVar(&g.kubeconfig, "kubeconfig", "", "kubeconfig file to use instead of $KUBECONFIG or ~/.kube/config")
	flags.String("config", "", "file with values for flags (default $XDG_CONFIG_HOME/liqonet/config.yaml, if it exists)")
	root.AddCommand(newPeer(g), newUnpeer(g), newStatus(g), newMap(g), newExposeHost(g), newVersion(g))
	for _, cmd := range root.Commands() {
		// The check of arguments needs all flags, so they are loaded before it.
		check := cmd.Args
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := g.load(cmd); err != nil {
				return usageError{fmt.Errorf("%w\nSee %s --help", err, cmd.CommandPath())}
			}
			return check(cmd, args)
		}
	}
	return root
}

// load sets each flag that the command line does not set: from the environment, or
// else from the configuration file.
func (g *globals) load(cmd *cobra.Command) error {
	config := viper.New()
	config.SetEnvPrefix("LIQONET")
	config.SetEnvKeyReplacer(strings.NewReplacer("-", "_"))
	config.AutomaticEnv()
	if err := setFlag(cmd.Flags().Lookup("config"), cmd.Flags(), config); err != nil {
		return err
	}
	if err := readConfig(config, cmd.Flags().Lookup("config").Value.String()); err != nil {
		return err
	}
	var errs []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) { errs = append(errs, setFlag(f, cmd.Flags(), config)) })
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if cmd.Flags().Lookup("timeout") == nil {
		return nil
	}
	var err error
	if g.timeout, err = cmd.Flags().GetDuration("timeout"); err == nil && g.timeout <= 0 {
		err = fmt.Errorf("--timeout %s is not a positive duration such as 90s or 2m", g.timeout)
	}
	return err
}

// readConfig reads the configuration file. Without a name it is the default one, which
// may be missing.
func readConfig(config *viper.Viper, file string) error {
	config.SetConfigType("yaml")
	if file == "" {
		dir, err := os.UserConfigDir()
		if err != nil {
			return nil // without a home directory there is no default file
		}
		file = filepath.Join(dir, "liqonet", "config.yaml")
		if _, err := os.Stat(file); err != nil {
			return nil
		}
	}
	config.SetConfigFile(file)
	if err := config.ReadInConfig(); err != nil {
		return fmt.Errorf("read configuration file %s: %w", file, err)
	}
	return nil
}

// setFlag gives a flag its value from the environment or the file, unless the command
// line has set it.
func setFlag(f *pflag.Flag, flags *pflag.FlagSet, config *viper.Viper) error {
	if f.Changed || f.Name == "help" || !config.IsSet(f.Name) {
		return nil
	}
	values := []string{config.GetString(f.Name)}
	if _, isList := f.Value.(lister); isList {
		values = config.GetStringSlice(f.Name)
	}
	for _, value := range values {
		if err := flags.Set(f.Name, value); err != nil {
			return fmt.Errorf("%s, from the environment or the configuration file: %w", f.Name, err)
		}
	}
	return nil
}

// addTimeout gives a command the --timeout flag.
func addTimeout(cmd *cobra.Command, d time.Duration) {
	cmd.Flags().Duration("timeout", d, "give up after this time")
}

// withTimeout limits a command to --timeout.
func (g *globals) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, g.timeout, fmt.Errorf("timed out after %s: %w", g.timeout, context.DeadlineExceeded))
}

// exactArgs is cobra.ExactArgs with an error that tells what is missing.
func exactArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("%d arguments given, %d expected: %s\nSee %s --help", len(args), n, cmd.UseLine(), cmd.CommandPath())}
		}
		return nil
	}
}
