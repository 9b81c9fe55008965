// Package cli is the command line: `kubectl liqonet`, also installed as
// liqonetctl. A command is flags in, a plain function of pkg/peering, printing
// out. Commands that belong together share a file.
//
// Data goes to stdout, everything else to stderr. Nothing prompts. Every error
// has an exit code (see ExitCode) that a script can react to.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/peering"
	"github.com/liqonet/liqonet/pkg/version"
)

// Streams are where a command writes. Several goroutines write to Err at the same time.
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
	// ExitPartial is for several pairs of which some failed and some did not, and for a
	// peering that was removed from one cluster only.
	ExitPartial = 8
	// ExitIdentity is for a cluster that says it is another one, and cannot prove it.
	ExitIdentity = 9
	// ExitChecks is for checks that could be made, and of which one has failed.
	ExitChecks = 10
	// ExitFound is doctor's own: a check has failed.
	ExitFound = 11
	// ExitDiffers is that of peer --dry-run --exit-code, where something would be changed.
	ExitDiffers = 12
	// ExitBusy is for a cluster in which another command works.
	ExitBusy        = 13
	ExitInterrupted = 130
)

// globals are the flags of every command.
type globals struct {
	streams Streams
	// kubeconfig is --kubeconfig; empty for $KUBECONFIG or the default file.
	kubeconfig string
	// began is when the command did.
	began time.Time
}

// seconds is how long the command has taken.
func (g *globals) seconds() float64 { return time.Since(g.began).Seconds() }

// out and err print text, as opposed to documents for programs.
func (g *globals) out() text { return text{g.streams.Out} }
func (g *globals) err() text { return text{g.streams.Err} }

// Run runs a command line and returns its exit code. The context ends where the user
// interrupts the command.
func Run(ctx context.Context, args []string, streams Streams) int {
	// Messages of libraries do not concern the user.
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())

	out := newPage(streams.Out, streams.Out) // it keeps the first error of all that is written
	root := NewCommand(Streams{Out: out, Err: streams.Err})
	root.SetArgs(args)
	root.Use = strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") // shells complete what is typed
	started := false
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	// An error says that the command was interrupted, and not by which signal.
	command, interrupt := context.WithCancelCause(context.WithoutCancel(ctx))
	defer interrupt(nil)
	defer context.AfterFunc(ctx, func() { interrupt(errInterrupted) })()
	var told sync.Map
	command = kube.WithNotices(command, func(notice string) {
		if _, before := told.LoadOrStore(notice, true); !before {
			text{streams.Err}.printf("Note: %s\n", notice)
		}
	})
	cmd := root
	err := failure.Caught(func() (err error) {
		cmd, err = root.ExecuteContextC(command)
		return err
	})
	if err != nil && !started { // cobra has found what is wrong with the command line
		err = commandLineError(cmd, err)
	}
	err = cmp.Or(err, out.Flush())
	if err != nil && !errors.As(err, new(ending)) {
		text{streams.Err}.printf("Error: %s\n", explain(err, "  "))
	}
	return ExitCode(ctx, err)
}

// usageError is wrong input. The hint says what to do about it.
func usageError(hint, format string, args ...any) error {
	return &kube.Error{Kind: kube.Usage, Doing: fmt.Sprintf(format, args...), Hint: hint}
}

// commandLineError is a wrong command line.
func commandLineError(cmd *cobra.Command, err error) error {
	return usageError(fmt.Sprintf("usage: %s; see %s --help", cmd.UseLine(), cmd.CommandPath()), "%v", err)
}

// errInterrupted is why a command ends that the user interrupts.
var errInterrupted = errors.New("interrupted")

// ending is returned by a command that has done its work, and has printed what its exit code is for.
type ending struct {
	code int
	text string
}

func (e ending) Error() string { return e.text }

// ExitCode maps an error to the exit code of the process.
func ExitCode(ctx context.Context, err error) int {
	if err == nil {
		return ExitOK
	}
	if ctx.Err() != nil {
		return ExitInterrupted
	}
	if e := (ending{}); errors.As(err, &e) {
		return e.code
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

// NewCommand returns the whole command, with all commands below it.
func NewCommand(streams Streams) *cobra.Command {
	g := &globals{streams: streams, began: time.Now()}
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
	const widest = 100 // longer lines are hard to read
	width := min(cmp.Or(columns(streams.Out), widest), widest)
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", width)))
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	flags := root.PersistentFlags()
	flags.StringVar(&g.kubeconfig, "kubeconfig", "", "kubeconfig file to use instead of $KUBECONFIG or ~/.kube/config")
	flags.String("config", "", "file with values for flags (default $XDG_CONFIG_HOME/liqonet/config.yaml, if it exists)")
	root.AddCommand(newPeer(g), newUnpeer(g), newUpgrade(g), newRotateKeys(g), newStatus(g), newVerify(g), newDoctor(g), newGraph(g),
		newMap(g), newExposeHost(g), newVersion(g))
	for _, cmd := range root.Commands() {
		// The check of arguments needs all flags, so they are loaded before it.
		check := cmd.Args
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := loadFlags(cmd); err != nil {
				return err
			}
			return check(cmd, args)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if known, is := f.Value.(completer); is {
				_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(known.completions(), cobra.ShellCompDirectiveNoFileComp)) // the flag is there
			}
		})
	}
	return root
}

// completer is a flag of which it is known what its values are, or what they begin with.
type completer interface{ completions() []cobra.Completion }

// loadFlags sets each flag that the command line does not set: from the environment, or
// else from the configuration file.
func loadFlags(cmd *cobra.Command) error {
	config := viper.New()
	config.SetEnvPrefix("LIQONET")
	config.SetEnvKeyReplacer(strings.NewReplacer("-", "_"))
	config.AutomaticEnv()
	if err := readConfig(config, cmp.Or(cmd.Flag("config").Value.String(), config.GetString("config"))); err != nil {
		return err
	}
	var errs []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) { errs = append(errs, setFlag(f, cmd.Flags(), config)) })
	return errors.Join(errs...)
}

// readConfig reads the configuration file. Without a name it is the default one, which
// may be missing, as may be the home directory that it is in.
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

// addTimeout gives a command the --timeout flag, and ends it after that time.
func addTimeout(cmd *cobra.Command, d time.Duration) *cobra.Command {
	timeout, run := timeoutFlag(cmd, d), cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return within(cmd, *timeout, func(ctx context.Context) error {
			cmd.SetContext(ctx)
			return run(cmd, args)
		})
	}
	return cmd
}

func timeoutFlag(cmd *cobra.Command, d time.Duration) *time.Duration {
	return cmd.Flags().Duration("timeout", d, "give up after this time")
}

// within ends what a command does after a time that the user has given.
func within(cmd *cobra.Command, timeout time.Duration, do func(context.Context) error) error {
	if timeout <= 0 {
		return commandLineError(cmd, fmt.Errorf("--timeout %s is not a positive duration such as 90s or 2m", timeout))
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, timedOut(timeout))
	defer cancel()
	return do(ctx)
}

func timedOut(after time.Duration) error {
	return fmt.Errorf("timed out after %s: %w", after, context.DeadlineExceeded)
}

// perNode is how much later a command gives up for each node whose agent it installs or removes. Kubernetes makes,
// places and ends some 20 pods a second, slow machines fewer.
const perNode = 200 * time.Millisecond

// moreTime gives what is done with pairs the time that agents on all nodes need, unless the user has said when to give up.
type moreTime func([]peering.Pair) (context.Context, context.CancelFunc)

// runByNodes gives a command that waits for agents on all nodes the --timeout flag, and something to do, which may take more time.
func runByNodes(cmd *cobra.Command, d time.Duration, run func(*cobra.Command, []string, moreTime) error) *cobra.Command {
	timeout := timeoutFlag(cmd, d)
	flag := cmd.Flag("timeout")
	flag.Usage += fmt.Sprintf("; unless this is given, %s more for each node", perNode)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		parent, start := cmd.Context(), time.Now()
		return within(cmd, *timeout, func(ctx context.Context) error {
			cmd.SetContext(ctx)
			return run(cmd, args, func(pairs []peering.Pair) (context.Context, context.CancelFunc) {
				if flag.Changed {
					return ctx, func() {}
				}
				after := d + perNode*time.Duration(peering.CountNodes(ctx, pairs))
				return context.WithDeadlineCause(parent, start.Add(after), timedOut(after))
			})
		})
	}
	return cmd
}

func newVersion(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version and the image of the agents that belongs to it",
		Example: `  kubectl liqonet version`,
		Args:    cobra.ExactArgs(0),
		Run: func(*cobra.Command, []string) {
			g.out().printf("kubectl liqonet %s (%s, %s/%s)\nagents %s\n",
				version.String(), runtime.Version(), runtime.GOOS, runtime.GOARCH, version.AgentImage(version.String()))
		},
	}
}
