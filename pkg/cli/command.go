package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liqonet/liqonet/pkg/connect"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/identity"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/output"
	"github.com/liqonet/liqonet/pkg/peering"
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
	// ExitProblems is for doctor: a check has failed.
	ExitProblems = 11
	// ExitDiffers is for peer --dry-run --exit-code: something would be changed.
	ExitDiffers = 12
	// ExitBusy is for a cluster that another command is changing, or a command that was overtaken by another one.
	ExitBusy        = 13
	ExitInterrupted = 130
)

// Streams are the output streams of a command. Several goroutines write to Err concurrently.
type Streams struct {
	Out, Err io.Writer
}

// globals holds the streams and the flags that all commands share.
type globals struct {
	streams Streams
	// source is where the named clusters are found.
	source connect.Source
	// verbosity is --verbose.
	verbosity int
	// started is when the command started.
	started time.Time
}

// seconds returns the seconds since the command started.
func (g *globals) seconds() float64 { return time.Since(g.started).Seconds() }

// out prints text, unlike documents for programs, to stdout.
func (g *globals) out() output.Text { return output.To(g.streams.Out) }

// err prints text to stderr.
func (g *globals) err() output.Text { return output.To(g.streams.Err) }

// commandLineError returns an error about an invalid command line.
func commandLineError(cmd *cobra.Command, err error) error {
	usage := lo.Ternary(cmd.HasSubCommands(), cmd.CommandPath()+" COMMAND", cmd.UseLine())
	message, suggested, _ := strings.Cut(err.Error(), "\n\nDid you mean this?\n")
	if names := strings.Fields(suggested); len(names) > 0 {
		message += fmt.Sprintf("; did you mean %s?", strings.Join(names, " or "))
	}
	if strings.HasSuffix(message, "unknown flag: --context") {
		message += "; name each cluster, by its context or its kubeconfig"
	}
	return failure.Usagef(fmt.Sprintf("usage: %s; see %s --help", usage, cmd.CommandPath()), "%s", message)
}

// exactArgs returns an error that says what to name, unless there are so many arguments.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return fmt.Errorf("name %s; got %d", what, len(args))
		}
		return nil
	}
}

// errInterrupted is the cause for which a command's context ends if the user interrupts the command.
var errInterrupted = errors.New("interrupted")

// exitError is the exit code of a command that has already printed the reason for it.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// explain returns the error's message, and its hint on a second line. A pairsError already contains the hints.
func explain(err error, indent string) output.Lines {
	if p := (*pairsError)(nil); errors.As(err, &p) {
		return p.text
	}
	text := output.OneLine(err.Error())
	if e := (*kube.Error)(nil); errors.As(err, &e) && e.Hint != "" {
		text += "\n" + indent + output.OneLine(e.Hint)
	}
	return output.Lines(text)
}

// pairsError lists the failed ones of several pairs or clusters.
type pairsError struct {
	text output.Lines
	// partial is true if others did not fail.
	partial bool
	// first is the first of the errors.
	first error
}

func (e *pairsError) Error() string { return string(e.text) }

func (e *pairsError) Unwrap() error { return e.first }

// failuresOf returns a pairsError of the failed elements, or nil if none failed. For a single element, it returns that element's error.
func failuresOf[T any](kind string, all []T, result func(T) (name string, err error)) error {
	var first error
	var failed []string
	for _, one := range all {
		if name, err := result(one); err != nil {
			first = cmp.Or(first, err)
			failed = append(failed, fmt.Sprintf("  %s: %s", output.OneLine(name), explain(err, "    ")))
		}
	}
	if first == nil || len(all) == 1 {
		return first
	}
	text := fmt.Sprintf("%d of %d %s failed\n%s", len(failed), len(all), kind, strings.Join(failed, "\n"))
	return &pairsError{output.Lines(text), len(failed) < len(all), first}
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

// addTimeout adds the --timeout flag to a command, and enforces it.
func addTimeout(cmd *cobra.Command, d time.Duration) *cobra.Command {
	timeout, run := timeoutFlag(cmd, d), cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withTimeout(cmd, *timeout, func(ctx context.Context) error {
			cmd.SetContext(ctx)
			return run(cmd, args)
		})
	}
	return cmd
}

func timeoutFlag(cmd *cobra.Command, d time.Duration) *time.Duration {
	return cmd.Flags().Duration("timeout", d, "give up after this time")
}

// withTimeout calls fn with a context that ends after the timeout. It returns an error if the timeout is not positive.
func withTimeout(cmd *cobra.Command, timeout time.Duration, fn func(context.Context) error) error {
	if timeout <= 0 {
		return commandLineError(cmd, fmt.Errorf("--timeout %s is not a positive duration such as 90s or 2m", timeout))
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, timedOut(timeout))
	defer cancel()
	return fn(ctx)
}

func timedOut(after time.Duration) error {
	return failure.TimeoutError(fmt.Sprintf("timed out after %s", after))
}

// timeoutPerNode extends the default timeout for each node whose agent a command installs or removes. Kubernetes creates, schedules and
// terminates about 20 pods per second, fewer on slow machines.
const timeoutPerNode = 200 * time.Millisecond

// extendTimeout returns a context with the default timeout extended for the nodes of the pairs, or the command's own one if the user has
// set --timeout.
type extendTimeout func([]peering.Pair) (context.Context, context.CancelFunc)

// runPerNode sets the function of a command that waits for agents on all nodes, and adds its --timeout flag.
func runPerNode(cmd *cobra.Command, d time.Duration, run func(*cobra.Command, []string, extendTimeout) error) *cobra.Command {
	timeout := timeoutFlag(cmd, d)
	flag := cmd.Flag("timeout")
	flag.Usage += fmt.Sprintf("; by default, %s longer for each node", timeoutPerNode)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		parent, start := cmd.Context(), time.Now()
		return withTimeout(cmd, *timeout, func(ctx context.Context) error {
			cmd.SetContext(ctx)
			return run(cmd, args, func(pairs []peering.Pair) (context.Context, context.CancelFunc) {
				if flag.Changed {
					return ctx, func() {}
				}
				after := d + timeoutPerNode*time.Duration(peering.CountNodes(ctx, pairs))
				return context.WithDeadlineCause(parent, start.Add(after), timedOut(after))
			})
		})
	}
	return cmd
}

// clusters connects to the named clusters and identifies them. It fails if any of them does not respond.
func (g *globals) clusters(ctx context.Context, refs ...string) ([]*kube.Cluster, error) {
	out, err := g.source.Identify(ctx, refs)
	return out, cmp.Or(interrupted(ctx, "identify the clusters"), err, identifyErrors(out...))
}

// identifyErrors returns an error that names all of the clusters that did not respond, or nil if all did.
func identifyErrors(clusters ...*kube.Cluster) error {
	skipped := lo.Filter(clusters, func(c *kube.Cluster, _ int) bool { return c.SkipReason != nil })
	return failuresOf("clusters", skipped, func(c *kube.Cluster) (string, error) { return c.Name, c.SkipReason })
}

// addContext adds the flag --context to a command that needs no CLUSTER argument.
func addContext(f *pflag.FlagSet, source *connect.Source) {
	f.StringVar(&source.Context, "context", "", "kubeconfig `CONTEXT` to use instead of the current one, without a CLUSTER argument")
}

// pairFunc runs a command on two clusters.
type pairFunc func(ctx context.Context, a, b *kube.Cluster, args []string) error

// pairCommand completes a command whose first two arguments are clusters, and adds the --timeout flag.
func (g *globals) pairCommand(cmd *cobra.Command, d time.Duration, run pairFunc) *cobra.Command {
	cmd.ValidArgsFunction = g.completeContexts(2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		clusters, err := g.clusters(cmd.Context(), args[:2]...)
		if err != nil {
			return err
		}
		return run(cmd.Context(), clusters[0], clusters[1], args)
	}
	return addTimeout(cmd, d)
}

// compareIdentities returns an error if one of two clusters is not the one that the other was peered with. It warns if that is not known.
func compareIdentities(ctx context.Context, warn output.Text, a, b *kube.Cluster) error {
	unverified, err := identity.Compare(ctx, a, b)
	warn.PrintEach("Warning: %s\n", unverified)
	return err
}

// compareAll compares the identities of all pairs of clusters that may be peers. It returns sentences about those that are not known, and
// errors about clusters that are not the peer.
func compareAll(ctx context.Context, clusters []*kube.Cluster, mayBePeers func(a, b *kube.Cluster) bool) (unverified []string, wrong []error) {
	for i, a := range clusters {
		for _, b := range clusters[i+1:] {
			if !mayBePeers(a, b) {
				continue
			}
			unknown, err := identity.Compare(ctx, a, b)
			if e, is := errors.AsType[*kube.Error](err); is && e.Kind == kube.Identity {
				wrong = append(wrong, err)
			} else if err != nil {
				unknown = append(unknown, identity.Unverified(a, b, err))
			}
			unverified = append(unverified, unknown...)
		}
	}
	return unverified, wrong
}

// interrupted returns an error if the user has interrupted the command. It replaces the errors of the requests that this has canceled.
func interrupted(ctx context.Context, doing string) error {
	if !errors.Is(context.Cause(ctx), errInterrupted) {
		return nil
	}
	return &failure.Error{Kind: failure.NotReady, Op: doing, Err: errInterrupted, Hint: "run the command again"}
}

// completeContexts completes the first n arguments with the contexts of the kubeconfig, and with files.
func (g *globals) completeContexts(n int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		_, raw, err := connect.Kubeconfig(g.source.Kubeconfig)
		if err != nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return lo.Without(slices.Sorted(maps.Keys(raw.Contexts)), args...), cobra.ShellCompDirectiveDefault
	}
}

// completeFlags completes the values of a command's flags, as far as they are known.
func (g *globals) completeFlags(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		complete := cobra.CompletionFunc(nil)
		if known, is := f.Value.(interface{ Completions() []cobra.Completion }); is {
			complete = cobra.FixedCompletions(known.Completions(), cobra.ShellCompDirectiveNoFileComp)
		} else if slices.Contains([]string{"context", "server", "spokes"}, f.Name) {
			complete = g.completeContexts(math.MaxInt)
		}
		if complete != nil {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // it fails only for unknown flags
		}
	})
}

// newProgress returns a reporter that shows steps as they happen, except while a credential plugin may ask the user something.
func newProgress(g *globals) kube.Reporter {
	return output.NewProgress(g.streams.Err, g.source.IsAuthenticating)
}

// minShownDuration is the duration below which a wait is omitted from the timeline. Tests reduce it, to see all waits.
var minShownDuration = 10 * time.Millisecond

// printTimeline prints each wait with its start and end, in seconds since the command started.
func (g *globals) printTimeline(waits []kube.Wait) {
	at := func(t time.Time) string { return fmt.Sprintf("%.2f s", t.Sub(g.started).Seconds()) }
	shown := lo.Filter(waits, func(w kube.Wait, _ int) bool { return w.End.Sub(w.Start) >= minShownDuration })
	rows := lo.Map(shown, func(w kube.Wait, _ int) []any {
		return []any{at(w.Start), at(w.End), w.Scope, strings.Join(lo.Compact([]string{w.Operation, w.Reason}), ": ")}
	})
	(&output.Format{}).Table(g.streams.Err, []string{"from", "to", "where", "what"}, rows)
}
