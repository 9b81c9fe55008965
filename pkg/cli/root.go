// Package cli implements the command line: `kubectl liqonet`, also installed as liqonetctl. A command parses flags, calls a function of
// another package such as pkg/peering, and prints the result. Related commands share a file.
//
// Data goes to stdout, everything else to stderr. No command prompts. Every error has an exit code (see ExitCode) for scripts.
package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/samber/lo"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
	"golang.org/x/net/http/httpguts"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/output"
	"github.com/liqonet/liqonet/pkg/version"
)

// Run runs a command line and returns its exit code. The context ends if the user interrupts the command.
func Run(ctx context.Context, args []string, streams Streams) int {
	// Log messages of libraries do not concern the user.
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())

	out := output.NewPage(streams.Out, streams.Out) // its writer keeps the first write error
	g := &globals{streams: Streams{Out: out, Err: streams.Err}, started: time.Now()}
	root := g.command()
	root.SetArgs(args)
	root.Use = strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") // shell completion is for the name under which the program runs
	root.InitDefaultCompletionCmd()
	// Cobra does not validate the arguments of a command that does nothing, such as an unknown shell.
	completion, _, _ := root.Find([]string{"completion"})
	completion.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	started := false
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		started = true
		return logRequests(streams.Err, g.verbosity)
	}
	// The cause replaces that of signal.NotifyContext, which names the signal.
	command, interrupt := context.WithCancelCause(context.WithoutCancel(ctx))
	defer interrupt(nil)
	defer context.AfterFunc(ctx, func() { interrupt(errInterrupted) })()
	command = kube.WithAuthentication(command, g.source.IsAuthenticating)
	var reported sync.Map
	command = kube.WithConflictReports(command, func(notice string) {
		if _, before := reported.LoadOrStore(notice, true); !before {
			output.To(streams.Err).Printf("Note: %s\n", notice)
		}
	})
	cmd := root
	err := failure.RecoverPanic(func() (err error) {
		cmd, err = root.ExecuteContextC(command)
		return err
	})
	if err != nil && !started { // cobra's error about the command line
		err = commandLineError(cmd, err)
	}
	lost := out.Flush()
	if err == lost {
		err = nil // it has done everything else
	}
	if changes := changesClusters(cmd); lost != nil && (changes || !errors.Is(lost, syscall.EPIPE)) { // otherwise the reader has ended, as in `| head`
		done := lo.Ternary(err == nil && changes, "; the command itself has ended without an error", "")
		output.To(streams.Err).Printf("Error: print the result: %s%s\n", lost, done)
	}
	if err != nil && !errors.As(err, new(exitError)) {
		output.To(streams.Err).Printf("Error: %s\n", explain(err, "  "))
	}
	return ExitCode(ctx, cmp.Or(err, lost))
}

// changesClusters reports whether the command line is one that changes clusters.
func changesClusters(cmd *cobra.Command) bool {
	is := func(flag string) bool {
		value, err := cmd.Flags().GetBool(flag)
		return err == nil && value
	}
	changes := slices.Contains([]string{"peer", "unpeer", "upgrade", "rotate-keys", "expose-host", "enable", "disable", "export", "unexport"}, cmd.Name())
	return changes && !is("dry-run") && !is("list") || is("fix")
}

// NewCommand returns the root command with all subcommands.
func NewCommand(streams Streams) *cobra.Command {
	return (&globals{streams: streams, started: time.Now()}).command()
}

// allCommands returns the commands below a command, and those below them.
func allCommands(of *cobra.Command) []*cobra.Command {
	return lo.FlatMap(of.Commands(), func(cmd *cobra.Command, _ int) []*cobra.Command { return append(allCommands(cmd), cmd) })
}

func (g *globals) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "liqonet",
		Short: "Connect the pod networks of Kubernetes clusters",
		Long: `Connect the pod networks of Kubernetes clusters: pods of one cluster reach pods
of the other as if they were in the same cluster, even if both use the same
addresses.

A CLUSTER is a context of the kubeconfig ($KUBECONFIG, --kubeconfig), a
kubeconfig FILE (its current context), or FILE#CONTEXT. A FILE is a path with a
separator, such as ./FILE.

Every flag can also be set in the environment (--agent-image as
LIQONET_AGENT_IMAGE) or in a configuration file (agent-image: …).`,
		Example: `  kubectl liqonet peer cluster-a cluster-b
  kubectl liqonet status cluster-a
  kubectl liqonet map cluster-a cluster-b default/web-0
  kubectl liqonet unpeer cluster-a cluster-b`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: output.WithProgramName(output.PluginCommand)},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	const widest = 100 // longer lines are hard to read
	width := min(cmp.Or(output.Width(g.streams.Out), widest), widest)
	template := strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", width))
	local := regexp.MustCompile(`Flags:\n{{(\.LocalFlags)\.FlagUsagesWrapped (\d+)`)
	root.SetUsageTemplate(local.ReplaceAllString(template, "{{flagGroups $1 $2"))
	root.SetOut(g.streams.Out)
	root.SetErr(g.streams.Err)
	g.source.Notify = func(sentence string) { g.err().Printf("%s\n", sentence) }
	flags := root.PersistentFlags()
	flags.StringVar(&g.source.Kubeconfig, "kubeconfig", "", "kubeconfig `FILE` to use instead of $KUBECONFIG or ~/.kube/config")
	overrides := &g.source.Overrides
	flags.StringVar(&overrides.AuthInfo.Impersonate, "as", "", "`USER` to impersonate in all clusters")
	flags.StringArrayVar(&overrides.AuthInfo.ImpersonateGroups, "as-group", nil, "`GROUP` to impersonate in all clusters; can be repeated")
	flags.StringVar(&overrides.Timeout, "request-timeout", "", "give up on a single request to an API server after this `TIME`, such as 30s")
	flags.IntVarP(&g.verbosity, "verbose", "v", 0, "log to stderr: 1, or no value, how long each step of peer took; 6 and 7, requests to API servers")
	flags.Lookup("verbose").NoOptDefVal = "1"
	flags.String("config", "", "`FILE` with values for flags (default $XDG_CONFIG_HOME/liqonet/config.yaml, if it exists)")
	root.AddCommand(newPeer(g), newUnpeer(g), newUpgrade(g), newRotateKeys(g), newStatus(g), newVerify(g), newDoctor(g), newGraph(g),
		newMap(g), newExposeHost(g), newExport(g), newUnexport(g), newServices(g), newVersion(g))
	root.Example = output.WithProgramName(root.Example)
	for _, cmd := range allCommands(root) {
		if cmd.ValidArgsFunction == nil && strings.Contains(cmd.Use, "CLUSTER") {
			cmd.ValidArgsFunction = g.completeContexts(math.MaxInt)
		}
		cmd.Long, cmd.Example = output.WithProgramName(cmd.Long), output.WithProgramName(cmd.Example)
		// The validation of arguments depends on flags, so all of them are loaded first.
		check := cmd.Args
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := cmp.Or(loadFlags(cmd), g.checkAccess()); err != nil {
				return err
			}
			return check(cmd, args)
		}
		g.completeFlags(cmd)
	}
	return root
}

// checkAccess returns an error about flags that client-go ignores, or with which it fails only at the first request.
func (g *globals) checkAccess() error {
	o := &g.source.Overrides
	if after, err := time.ParseDuration(o.Timeout); err == nil && after < 0 {
		return fmt.Errorf("--request-timeout %s is negative", o.Timeout)
	}
	if !lo.EveryBy(append(o.AuthInfo.ImpersonateGroups, o.AuthInfo.Impersonate), httpguts.ValidHeaderFieldValue) {
		return errors.New("--as and --as-group: control characters are invalid")
	}
	return nil
}

// loadFlags sets each flag that the command line does not set, from the environment or else from the configuration file.
func loadFlags(cmd *cobra.Command) error {
	config := viper.New()
	config.SetEnvPrefix("LIQONET")
	config.SetEnvKeyReplacer(strings.NewReplacer("-", "_"))
	config.AutomaticEnv()
	isKey := func(cmd *cobra.Command, key string) bool {
		return cmd.Flag(key) != nil && !slices.Contains([]string{"config", fileFlag, "help"}, key)
	}
	err := readConfig(config, cmp.Or(cmd.Flag("config").Value.String(), config.GetString("config")), func(key string) bool {
		return slices.ContainsFunc(cmd.Root().Commands(), func(cmd *cobra.Command) bool { return isKey(cmd, key) })
	})
	if f := cmd.Flag(fileFlag); f != nil && err == nil {
		if name := cmp.Or(f.Value.String(), config.GetString(fileFlag)); name != "" {
			file := viper.New()
			err = readConfig(file, name, func(key string) bool { return key == clustersKey || isKey(cmd, key) })
			for key, value := range file.AllSettings() {
				config.Set(key, value) // takes precedence over the environment
			}
			f.Annotations = map[string][]string{clustersKey: file.GetStringSlice(clustersKey)}
		}
	}
	var errs []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) { errs = append(errs, setFlag(f, cmd.Flags(), config)) })
	return cmp.Or(err, errors.Join(errs...))
}

// readConfig reads a file with values for flags. Without a name, it reads the default file. That file and the home directory may be
// missing. Whatever in the file would have no effect is an error.
func readConfig(config *viper.Viper, file string, isKey func(string) bool) error {
	dir, dirErr := os.UserConfigDir()
	name := cmp.Or(file, filepath.Join(dir, "liqonet", "config.yaml"))
	raw, err := os.ReadFile(name)
	if file == "" && (dirErr != nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) {
		return nil
	}
	document, decoder := map[string]yaml.Node{}, yaml.NewDecoder(bytes.NewReader(raw))
	if err == nil {
		err = decoder.Decode(&document)
	}
	if err == nil && !errors.Is(decoder.Decode(&yaml.Node{}), io.EOF) {
		err = errors.New("it has more than one YAML document")
	}
	settings := map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(document)) {
		values, valueErr := valuesOf(key, document[key], isKey)
		err, settings[key] = cmp.Or(err, valueErr), values
	}
	if err != nil && !errors.Is(err, io.EOF) { // the file may be empty
		return fmt.Errorf("read configuration file %s: %w", name, err)
	}
	return config.MergeConfigMap(settings)
}

// valuesOf returns the value, or the list of values, that a key of a file has.
func valuesOf(key string, node yaml.Node, isKey func(string) bool) ([]string, error) {
	nodes := lo.Ternary(node.Kind == yaml.SequenceNode, node.Content, []*yaml.Node{&node})
	isValid := len(nodes) > 0 && lo.EveryBy(nodes, func(n *yaml.Node) bool {
		isName := n.ShortTag() == "!!str" && n.Value != "" && !strings.Contains(n.Value, ",")
		return n.Kind == yaml.ScalarNode && n.ShortTag() != "!!null" && (key != clustersKey || isName)
	})
	switch {
	case !isKey(key):
		return nil, fmt.Errorf("there is no flag --%s that this file can set", key)
	case !isValid && key == clustersKey:
		return nil, fmt.Errorf("%s: it must have names of clusters, without commas", key)
	case !isValid:
		return nil, fmt.Errorf("%s: it must have a value or a list of values", key)
	}
	return lo.Map(nodes, func(n *yaml.Node, _ int) string { return n.Value }), nil
}

// maxLogged is the highest level of messages that are logged. At higher ones, client-go logs the bodies of requests, which may have keys.
const maxLogged = 7

// logRequests has client-go log to w, if the verbosity is high enough.
func logRequests(w io.Writer, verbosity int) error {
	const requests = 6
	if verbosity < requests {
		return nil
	}
	klog.ClearLogger()
	klog.LogToStderr(false)
	klog.SetOutput(output.Sanitized(w)) // it logs what API servers answer
	return new(klog.Level).Set(strconv.Itoa(min(verbosity, maxLogged)))
}

// setFlag sets a flag from the environment or the file, unless the command line has set it.
func setFlag(f *pflag.Flag, flags *pflag.FlagSet, config *viper.Viper) error {
	if f.Changed || f.Name == "help" || !config.IsSet(f.Name) {
		return nil
	}
	_, isList := f.Value.(listFlag)
	values, isFromFile := config.Get(f.Name).([]string)
	switch {
	case isList:
		values = config.GetStringSlice(f.Name)
	case !isFromFile:
		values = []string{config.GetString(f.Name)}
	case len(values) > 1:
		return fmt.Errorf("%s, from a file: it takes one value, not %d", f.Name, len(values))
	}
	for _, value := range values {
		if err := flags.Set(f.Name, value); err != nil {
			return fmt.Errorf("%s, from the environment or a file: %w", f.Name, err)
		}
	}
	return flags.SetAnnotation(f.Name, loadedKey, values)
}

// loadedKey is the annotation of flags that the command line has not set.
const loadedKey = "liqonet_loaded"

func newVersion(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version and the image of its agents",
		Example: `  kubectl liqonet version
  kubectl liqonet version -o json`,
		Args: exactArgs(0, "nothing else"),
	}
	out := output.AddFlag(cmd.Flags())
	cmd.RunE = func(*cobra.Command, []string) error {
		v := versionDocument{version.String(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, version.AgentImage(version.String())}
		if !out.HumanReadable() {
			return out.Print(g.streams.Out, "Version", v, []versionDocument{v}, []string{v.Version})
		}
		g.out().Printf("kubectl liqonet %s (%s, %s)\nagents %s\n", v.Version, v.GoVersion, v.Platform, v.AgentImage)
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
