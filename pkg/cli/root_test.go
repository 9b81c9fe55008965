package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/test/kit"
)

func TestExitCode(t *testing.T) {
	interrupted, cancel := context.WithCancel(context.Background())
	cancel()
	kind := func(k kube.Kind) error { return &kube.Error{Kind: k, Op: "x"} }
	tests := []struct {
		name string
		ctx  context.Context
		err  error
		want int
	}{
		{"no error", nil, nil, 0},
		{"anything", nil, errors.New("x"), 1},
		{"without a class", nil, kind(kube.Unexpected), 1},
		{"wrong input", nil, failure.Usagef("", "x"), 2},
		{"wrong input, wrapped", nil, fmt.Errorf("y: %w", failure.Usagef("", "x")), 2},
		{"unreachable", nil, kind(kube.Unreachable), 3},
		{"forbidden", nil, kind(kube.Forbidden), 4},
		{"not ready", nil, kind(kube.NotReady), 5},
		{"ranges", nil, kind(kube.Ranges), 6},
		{"unhealthy", nil, errUnhealthy, 7},
		{"wrapped", nil, fmt.Errorf("y: %w", kind(kube.Ranges)), 6},
		{"joined with a failed roll back", nil, errors.Join(kind(kube.NotReady), kind(kube.Unreachable)), 5},
		{"interrupted", interrupted, kind(kube.NotReady), 130},
		{"interrupted, and done all the same", interrupted, nil, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			kit.Check(t, "ExitCode", ExitCode(cmp.Or(tt.ctx, t.Context()), tt.err), tt.want)
		})
	}
}

func TestUsageErrors(t *testing.T) {
	home := useContexts(t, "one", "two")
	write(t, filepath.Join(home, "bad.yaml"), "a: b: c")
	write(t, filepath.Join(home, "pair.yaml"), "clusters: [one, two]")
	write(t, filepath.Join(home, "typo.yaml"), "plane: 2")
	type usageTest struct{ args, want, env string }
	tests := []usageTest{
		{args: "peer", want: "name two clusters; got 0\n  usage: kubectl liqonet peer CLUSTER CLUSTER [flags]; see kubectl liqonet peer --help\n"},
		{args: "unpeer one two -o json", want: "--output requires --dry-run"},
		{args: "unpeer one two --peer two"},
		{args: "unpeer one --force"},
		{args: "unpeer one two --force --mesh"},
		{args: "unpeer one --spokes two --peer two"},
		{args: "unpeer --peer two"},
		{args: "map one two", want: "name two clusters, and a pod, a service or an address; got 2"},
		{args: "version x", want: "name nothing else; got 1"},
		{args: "completion tcsh", want: "unknown command"},
		{args: "peer one two --timeout 0s", want: "--timeout"},
		{args: "peer one two --context one", want: "name each cluster, by its context or its kubeconfig"},
		{args: "peer one two -f " + filepath.Join(home, "missing.yaml"), want: "missing.yaml"},
		{args: "peer -f " + filepath.Join(home, "pair.yaml") + " two", want: "more than 2 clusters need"},
		{args: "peer -f " + filepath.Join(home, "typo.yaml"), want: "there is no flag --plane"},
		{args: "status one --context two", want: "--context is for commands without a CLUSTER argument"},
		{args: "status --wait --watch", want: "cannot be combined"},
		{args: "statsu", want: `unknown command "statsu" for "kubectl liqonet"; did you mean status?` + "\n  usage: kubectl liqonet COMMAND;"},
		{args: "status --config " + filepath.Join(home, "typo.yaml"), want: "there is no flag --plane"},
		{args: "expose-host one two --list --remove", want: "cannot be combined"},
		{args: "peer one two --overlay gre", want: "must be one of auto, geneve, vxlan"},
		{args: "peer one two --service-type ExternalName", want: "must be one of auto, NodePort"},
		{args: "status -o xml", want: "must be one of table, wide, name, json"},
		{args: "status --no-such-flag", want: "no-such-flag"},
		{args: "status --request-timeout -1s", want: "--request-timeout -1s is negative"},
		{args: "status --as a\x1b[2J", want: "--as and --as-group: control characters are invalid"},
		{args: "status --as a --as-group b\x7f", want: "--as and --as-group: control characters are invalid"},
		{args: "status three", want: `"three" is neither`},
		{args: "expose-host one two three", want: `"three" is not an address`},
		{args: "status --config " + filepath.Join(home, "missing.yaml"), want: "missing.yaml"},
		{args: "status --config " + filepath.Join(home, "bad.yaml"), want: "bad.yaml"},
		{args: "status --kubeconfig " + filepath.Join(home, "missing"), want: "missing"},
		{args: "status", env: "LIQONET_TIMEOUT=soon", want: "--timeout"},
		{args: "status", env: "LIQONET_OUTPUT=xml", want: "output, from the environment"},
		{args: "status", env: "LIQONET_CONFIG=/does/not/exist", want: "/does/not/exist"},
		{args: "peer one two", env: "LIQONET_OVERLAY=banana", want: "must be one of auto"},
		{args: "peer", env: "LIQONET_CLUSTERS=one two", want: "name two clusters; got 0"},
		{args: "peer --clusters one,two", want: "unknown flag: --clusters"},
		{args: "status --config " + filepath.Join(home, "pair.yaml"), want: "there is no flag --clusters"},
	}
	for text, want := range map[string]string{
		"clusters: [one, two]\n---\nplanes: 3":   "more than one YAML document",
		"clusters: [one, two]\n--- # x\nnext: 3": "more than one YAML document",
		"clusters: [one, two]\n--- {":            "document.yaml",
		"clusters: [one, two]\nplanes:":          "planes: it must have a value",
		"clusters: [one, two]\nplanes: []":       "planes: it must have a value",
		"clusters: [one, two]\nmap: {a: b}":      "map: it must have a value",
		"clusters: [one, two]\nmap: [[a, b]]":    "map: it must have a value",
		"clusters: [one, two]\nplanes: two":      "planes, from the environment or a file",
		"clusters: [one, two]\nplanes: [1, ~]":   "planes: it must have a value",
		"clusters: [one, two]\nconfig: a.yaml":   "there is no flag --config",
		"clusters: [one, two]\nfilename: a.yaml": "there is no flag --filename",
		"clusters: [one, two]\nhelp: true":       "there is no flag --help",
		"clusters: [one, two]\nclusters: [one]":  "already defined",
		"clusters: [\"one,two\"]":                "clusters: it must have names of clusters, without commas",
		"clusters: [one, 2]":                     "clusters: it must have names of clusters, without commas",
		"clusters: [one, '']":                    "clusters: it must have names of clusters, without commas",
		"clusters: [&a one, *a]":                 "clusters: it must have names of clusters, without commas",
		"clusters: [one, two]\nserver: [a, b]":   "server, from a file: it takes one value, not 2",
		"clusters: [one, two]\nplanes: [1, 2]":   "planes, from a file: it takes one value, not 2",
		"clusters: [one, two]\npod-cidr: ''":     "--pod-cidr \"\": must be CLUSTER=VALUE",
		"clusters: one two":                      "name two clusters; got 1",
		"clusters: {one: two}":                   "clusters: it must have names of clusters, without commas",
		"- one":                                  "document.yaml",
	} {
		file := filepath.Join(home, fmt.Sprint(len(tests)), "document.yaml")
		write(t, file, text)
		tests = append(tests, usageTest{args: "peer -f " + file, want: want})
	}
	for _, tt := range tests {
		t.Run(tt.args+tt.env, func(t *testing.T) {
			if k, v, ok := strings.Cut(tt.env, "="); ok {
				t.Setenv(k, v)
			}
			code, stdout, stderr := run(t, strings.Fields(tt.args)...)
			kit.ErrorIf(t, code != ExitUsage || stdout != "", "exit code %d, stdout %q", code, stdout)
			kit.ErrorIf(t, !strings.Contains(stderr, tt.want) || strings.Count(stderr, "Error:") != 1 || !strings.HasPrefix(stderr, "Error: "),
				"want one message with %q, got %q", tt.want, stderr)
			kit.ErrorIf(t, strings.Count(stderr, "\n") < 2, "it does not say what to do: %q", stderr)
			kit.ErrorIf(t, strings.Contains(stderr, "liqonetctl") || strings.Contains(stderr, "Usage:"), "got %q", stderr)
		})
	}
}

func TestNoArguments(t *testing.T) {
	isolate(t)
	for _, args := range [][]string{{}, {"help"}, {"--help"}, {"help", "peer"}, {"peer", "--help"}} {
		command(t, args...).ends(ExitOK).stderrIs("").prints("kubectl liqonet")
	}
}

func TestUnreachable(t *testing.T) {
	useContexts(t, "one", "two")
	for _, args := range []string{"status", "status one", "peer one two", "unpeer one two", "unpeer one two --dry-run -o json", "map one two default/web", "expose-host one two 192.0.2.1"} {
		t.Run(args, func(t *testing.T) {
			o := command(t, strings.Fields(args)...).ends(ExitUnreachable).stdoutIs("").warns("(try: kubectl --context one cluster-info)\n")
			o.is("one error", strings.Count(o.stderr, "Error:") != 1)
		})
	}
}

// A server that accepts connections and never responds does not delay a command beyond --timeout.
func TestSilentServer(t *testing.T) {
	kit.NotShort(t)
	server := silentServer(t)
	useContexts(t, "one="+server.URL, "two="+server.URL)
	for _, args := range []string{"status", "peer one two", "unpeer one two", "unpeer one two --dry-run -o json", "map one two default/web"} {
		t.Run(args, func(t *testing.T) {
			start := time.Now()
			o := command(t, append(strings.Fields(args), "--timeout", "200ms")...).ends(ExitUnreachable).stdoutIs("")
			o.is("one error", strings.Count(o.stderr, "Error:") != 1)
			o.is("an end in time", time.Since(start) > 5*time.Second)
		})
	}
}

// commands returns the command and all of its subcommands, except those that cobra adds.
func commands(root *cobra.Command) []*cobra.Command {
	out := []*cobra.Command{root}
	for _, c := range root.Commands() {
		if c.Name() != "help" && c.Name() != "completion" {
			out = append(out, commands(c)...)
		}
	}
	return out
}

func TestHelp(t *testing.T) {
	t.Chdir(isolate(t))
	write(t, "peering.yaml", "clusters: [a, b]\n")
	for _, c := range commands(NewCommand(Streams{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})) {
		t.Run(c.CommandPath(), func(t *testing.T) {
			kit.ErrorIf(t, c.Short == "" || strings.HasSuffix(c.Short, ".") || c.Example == "", "short %q, example %q", c.Short, c.Example)
			for line := range strings.Lines(c.Example) {
				kit.ErrorIf(t, !strings.HasPrefix(line, "  kubectl liqonet "), "example %q", line)
				// Examples use only commands and flags that exist.
				words := strings.Fields(line)[2:]
				found, rest, err := NewCommand(Streams{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}).Find(words)
				kit.NoError(t, err, "example %q", line)
				found.InitDefaultHelpFlag()
				kit.NoError(t, found.ParseFlags(rest), "example %q", line)
				if found.Args != nil {
					kit.CheckNoError(t, found.Args(found, found.Flags().Args()), "example %q", line)
				}
			}
			args := append(strings.Fields(c.CommandPath())[2:], "--help")
			command(t, args...).ends(ExitOK).stderrIs("").prints("Usage:\n  kubectl liqonet").stdoutLacks("liqonetctl")
		})
	}
}

// A flag takes precedence over the environment, which takes precedence over the file.
func TestPrecedence(t *testing.T) {
	const file = "timeout: 3m\noverlay: vxlan\nagent-image: file\n"
	tests := []struct {
		name string
		args []string
		env  map[string]string
		file string
		want string
	}{
		{name: "defaults", want: "2m0s auto "},
		{name: "environment over file", file: file, env: map[string]string{"LIQONET_TIMEOUT": "4m"}, want: "4m0s vxlan file"},
		{
			name: "flag over all", file: file, env: map[string]string{"LIQONET_TIMEOUT": "4m", "LIQONET_OVERLAY": "geneve"},
			args: []string{"--timeout", "5m", "--overlay", "auto"}, want: "5m0s auto file",
		},
		{name: "flag that equals the default", file: file, args: []string{"--timeout", "2m"}, want: "2m0s vxlan file"},
		{name: "an empty variable is none", file: file, env: map[string]string{"LIQONET_TIMEOUT": ""}, want: "3m0s vxlan file"},
	}
	for _, tt := range tests {
		for _, where := range []string{"--config", "LIQONET_CONFIG", "default"} {
			t.Run(tt.name+"/"+where, func(t *testing.T) {
				home := isolate(t)
				args := tt.args
				if tt.file != "" {
					name := filepath.Join(home, "xdg", "liqonet", "config.yaml")
					switch where {
					case "--config":
						name = filepath.Join(home, "my.conf")
						args = append(slices.Clone(args), "--config", name)
					case "LIQONET_CONFIG":
						name = filepath.Join(home, "my.conf")
						t.Setenv("LIQONET_CONFIG", name)
					}
					write(t, name, tt.file)
				}
				for k, v := range tt.env {
					t.Setenv(k, v)
				}
				f := load(t, args...)
				got := fmt.Sprintf("%s %s %s", f.Lookup("timeout").Value, f.Lookup("overlay").Value, f.Lookup("agent-image").Value)
				kit.Check(t, "got", got, tt.want)
			})
		}
	}
}

// parse returns the flags of a command from a command line, the environment and the file.
func parse(t *testing.T, command string, args ...string) (*pflag.FlagSet, error) {
	t.Helper()
	cmd, _, err := NewCommand(Streams{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}).Find([]string{command})
	kit.NoError(t, err)
	if err := cmd.ParseFlags(args); err != nil {
		return nil, err
	}
	return cmd.Flags(), cmd.Args(cmd, cmd.Flags().Args())
}

// load returns the flags of peer.
func load(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	return kit.Must(parse(t, "peer", append([]string{"a", "b"}, args...)...))(t)
}

func isList(f *pflag.Flag) bool {
	_, is := f.Value.(listFlag)
	return is
}

// Every flag of every command can be set in the environment and in the file.
func TestEveryFlagByEnvironmentAndFile(t *testing.T) {
	for _, cmd := range commands(NewCommand(Streams{}))[1:] {
		cmd.InheritedFlags() // adds them to Flags
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			values := map[string][2]string{ // by type: the input, and the resulting value
				"bool": {"true", "true"}, "duration": {"7s", "7s"}, "string": {"v/w", "v/w"}, "FORMAT": {"json", "json"},
				"int": {"2", "2"}, "stringArray": {"x=1 y=2", "[x=1,y=2]"}, "stringSlice": {"x y,z", "[x,y,z]"},
			}
			value, ok := values[f.Value.Type()]
			switch c := f.Value.(type) {
			case *clusterFlag:
				value, ok = [2]string{"a=1 b=2", "a=1 b=2"}, true
				if c.allowed != nil {
					value = [2]string{"a=" + c.allowed[1], "a=" + c.allowed[1]}
				}
			case *enumFlag:
				value, ok = [2]string{c.allowed[1], c.allowed[1]}, true
			}
			if !ok {
				t.Fatalf("a flag of type %s: add a value here", f.Value.Type())
			}
			for _, from := range []string{"environment", "file"} {
				if f.Name == "help" || f.Name == "config" && from == "file" {
					continue
				}
				t.Run(cmd.Name()+" --"+f.Name+" by "+from, func(t *testing.T) {
					home := isolate(t)
					given := value
					switch {
					case f.Name == "config" || f.Name == fileFlag: // the file must exist
						given[0] = filepath.Join(home, "my.yaml")
						given[1] = given[0]
						write(t, given[0], "timeout: 9s\n")
						fallthrough
					case from == "environment":
						t.Setenv("LIQONET_"+strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_")), given[0])
					case isList(f):
						write(t, filepath.Join(home, "xdg", "liqonet", "config.yaml"), f.Name+":\n- "+strings.ReplaceAll(given[0], " ", "\n- ")+"\n")
					default:
						write(t, filepath.Join(home, "xdg", "liqonet", "config.yaml"), f.Name+": "+given[0]+"\n")
					}
					// Missing arguments are detected only after the flags are loaded.
					flags, _ := parse(t, cmd.Name())
					kit.Check(t, fmt.Sprintf("given %q", given[0]), flags.Lookup(f.Name).Value.String(), given[1])
				})
			}
		})
	}
}

// The validation of arguments takes flags from the environment and the file into account.
func TestArgumentsAreCheckedAfterAllFlags(t *testing.T) {
	home := useContexts(t, "a", "b", "c")
	for _, tt := range []struct{ env, file, args, pairs string }{
		{env: "LIQONET_SPOKES=b,c", args: "unpeer a", pairs: "a - b: |a - c: "},
		{env: "LIQONET_MESH=true", args: "unpeer a b c", pairs: "a - b: |a - c: |b - c: "},
		{file: "spokes: [b, c]", args: "peer a", pairs: "a - b: |a - c: "},
		{env: "LIQONET_OUTPUT=json", args: "unpeer a b", pairs: `cluster "a": `},
		{file: "output: json", args: "unpeer a b", pairs: `cluster "a": `},
		{file: "mesh: true", args: "peer a b c", pairs: "a - b: |a - c: |b - c: "},
	} {
		t.Run(tt.env+tt.file, func(t *testing.T) {
			if k, v, ok := strings.Cut(tt.env, "="); ok {
				t.Setenv(k, v)
			}
			write(t, filepath.Join(home, "xdg", "liqonet", "config.yaml"), tt.file+"\n")
			o := command(t, strings.Fields(tt.args)...).ends(ExitUnreachable).stdoutIs("").warns(strings.Split(tt.pairs, "|")...)
			o.is("one error", strings.Count(o.stderr, "Error:") != 1)
		})
	}
}

func TestExplain(t *testing.T) {
	tests := []struct {
		err  error
		want string
	}{
		{errors.New("x"), "x"},
		{errors.Join(errors.New("x"), errors.New("y")), "x; y"},
		{&kube.Error{Cluster: "a", Op: "read", Hint: "try this"}, "cluster \"a\": read\n  try this"},
		{fmt.Errorf("y: %w", &kube.Error{Op: "read", Hint: "try this"}), "y: read\n  try this"},
	}
	for _, tt := range tests {
		kit.Check(t, "explain", string(explain(tt.err, "  ")), tt.want)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// A write error is an error of the command: a script would take the partial output for the whole.
func TestFullDisk(t *testing.T) {
	isolate(t)
	var stderr bytes.Buffer
	kit.Check(t, "exit code", Run(t.Context(), []string{"version"}, Streams{Out: fullDisk{}, Err: &stderr}), ExitUnexpected)
	kit.CheckContains(t, "stderr", stderr.String(), "no space left")
}

func TestTimeout(t *testing.T) {
	var err error
	cmd := &cobra.Command{RunE: func(cmd *cobra.Command, _ []string) error {
		<-cmd.Context().Done()
		err = context.Cause(cmd.Context())
		return nil
	}}
	addTimeout(cmd, time.Minute)
	cmd.SetArgs([]string{"--timeout", "1ns"})
	kit.CheckNoError(t, cmd.ExecuteContext(t.Context()))
	kit.ErrorIf(t, !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "timed out after 1ns"), "got %v", err)
}

// A default configuration file whose directory cannot exist counts as missing.
func TestNoHome(t *testing.T) {
	isolate(t)
	for _, dir := range []string{"/dev/null", "/does/not/exist", "relative"} {
		t.Setenv("XDG_CONFIG_HOME", dir)
		load(t)
	}
}
