package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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
			ctx := tt.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			kit.Check(t, "ExitCode", ExitCode(ctx, tt.err), tt.want)
		})
	}
}

func TestUsageErrors(t *testing.T) {
	home := isolate(t)
	t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(home, "kubeconfig"), "one", "two"))
	write(t, filepath.Join(home, "bad.yaml"), "a: b: c")
	write(t, filepath.Join(home, "pair.yaml"), "clusters: [one, two]")
	write(t, filepath.Join(home, "typo.yaml"), "plane: 2")
	tests := []struct {
		args string
		want string
		env  string
	}{
		{args: "peer", want: "name two clusters; got 0\n  usage: kubectl liqonet peer CLUSTER CLUSTER [flags]; see kubectl liqonet peer --help\n"},
		{args: "peer one", want: "name two clusters; got 1"},
		{args: "peer one two three", want: "more than 2 clusters need --mesh or --spokes"},
		{args: "unpeer one two -o json", want: "--output requires --dry-run"},
		{args: "unpeer one", want: "name two clusters; got 1"},
		{args: "map one two", want: "name two clusters, and a pod, a service or an address; got 2"},
		{args: "version x", want: "name nothing else; got 1"},
		{args: "completion bash x", want: "unknown command"},
		{args: "completion tcsh", want: "unknown command"},
		{args: "peer one two --timeout 0s", want: "--timeout"},
		{args: "peer one two --timeout -1s", want: "--timeout"},
		{args: "peer one two --timeout soon", want: "--timeout"},
		{args: "peer one two --timeout 90", want: "--timeout"},
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
		{args: "peer one two --wireguard yes", want: "must be one of auto, kernel, userspace"},
		{args: "peer one two --service-type ExternalName", want: "must be one of auto, NodePort"},
		{args: "status -o xml", want: "must be one of table, wide, name, json"},
		{args: "status --no-such-flag", want: "no-such-flag"},
		{args: "status three", want: `"three" is neither`},
		{args: "peer one three", want: `"three" is neither`},
		{args: "unpeer three one", want: `"three" is neither`},
		{args: "pear one two", want: `"pear"`},
		{args: "expose-host one two three", want: `"three" is not an address`},
		{args: "", env: "", want: ""},
		{args: "status --config " + filepath.Join(home, "missing.yaml"), want: "missing.yaml"},
		{args: "status --config " + filepath.Join(home, "bad.yaml"), want: "bad.yaml"},
		{args: "status --kubeconfig " + filepath.Join(home, "missing"), want: "missing"},
		{args: "status", env: "LIQONET_TIMEOUT=soon", want: "--timeout"},
		{args: "status", env: "LIQONET_TIMEOUT=-5s", want: "--timeout"},
		{args: "status", env: "LIQONET_TIMEOUT=90", want: "--timeout"},
		{args: "status", env: "LIQONET_OUTPUT=xml", want: "output, from the environment"},
		{args: "status", env: "LIQONET_CONFIG=/does/not/exist", want: "/does/not/exist"},
		{args: "peer one two", env: "LIQONET_OVERLAY=banana", want: "must be one of auto"},
		{args: "peer one two", env: "LIQONET_WIREGUARD=banana", want: "must be one of auto"},
		{args: "peer one two", env: "LIQONET_SERVICE_TYPE=banana", want: "must be one of auto"},
	}
	for _, tt := range tests {
		if tt.args == "" {
			continue
		}
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
	home := isolate(t)
	t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(home, "kubeconfig"), "one=https://127.0.0.1:1", "two=https://127.0.0.1:1"))
	for _, args := range []string{"status", "status one", "peer one two", "unpeer one two", "map one two default/web", "expose-host one two 192.0.2.1"} {
		t.Run(args, func(t *testing.T) {
			code, stdout, stderr := run(t, strings.Fields(args)...)
			if code != ExitUnreachable || stdout != "" || strings.Count(stderr, "Error:") != 1 || !strings.Contains(stderr, "(try: kubectl --context one cluster-info)\n") {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
		})
	}
}

// A server that accepts connections and never responds does not delay a command beyond --timeout.
func TestSilentServer(t *testing.T) {
	kit.NotShort(t)
	home := isolate(t)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer server.Close()
	defer server.CloseClientConnections()
	t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(home, "kubeconfig"), "one="+server.URL, "two="+server.URL))
	for _, args := range []string{"status", "peer one two", "unpeer one two", "map one two default/web"} {
		t.Run(args, func(t *testing.T) {
			done := make(chan int, 1)
			go func() {
				code, stdout, stderr := run(t, append(strings.Fields(args), "--timeout", "200ms")...)
				kit.ErrorIf(t, stdout != "" || strings.Count(stderr, "Error:") != 1, "stdout %q, stderr %q", stdout, stderr)
				done <- code
			}()
			select {
			case code := <-done:
				kit.Check(t, "exit code", code, ExitUnreachable)
			case <-time.After(5 * time.Second):
				t.Fatal("it does not end")
			}
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
	var names []string
	for _, c := range commands(NewCommand(Streams{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})) {
		names = append(names, c.CommandPath())
		t.Run(c.CommandPath(), func(t *testing.T) {
			kit.ErrorIf(t, c.Short == "" || strings.HasSuffix(c.Short, ".") || c.Example == "", "short %q, example %q", c.Short, c.Example)
			for line := range strings.Lines(c.Example) {
				kit.ErrorIf(t, !strings.HasPrefix(line, "  kubectl liqonet "), "example %q", line)
				// Examples use only commands and flags that exist.
				words := strings.Fields(line)[2:]
				found, rest, err := NewCommand(Streams{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}).Find(words)
				if err != nil {
					t.Errorf("example %q: %v", line, err)
					continue
				}
				found.InitDefaultHelpFlag()
				if err := found.ParseFlags(rest); err != nil {
					t.Errorf("example %q: %v", line, err)
					continue
				}
				if found.Args != nil {
					err := found.Args(found, found.Flags().Args())
					kit.ErrorIf(t, err != nil, "example %q: %v", line, err)
				}
			}
			args := append(strings.Fields(c.CommandPath())[2:], "--help")
			code, stdout, stderr := run(t, args...)
			kit.ErrorIf(t, code != 0 || stderr != "", "exit code %d, stderr %q", code, stderr)
			kit.ErrorIf(t, !strings.Contains(stdout, "Usage:\n  kubectl liqonet") || strings.Contains(stdout, "liqonetctl"),
				"usage of %q:\n%s", args, stdout)
		})
	}
	want := []string{"kubectl liqonet", "kubectl liqonet map", "kubectl liqonet peer", "kubectl liqonet status", "kubectl liqonet unpeer", "kubectl liqonet version"}
	for _, w := range want {
		kit.ErrorIf(t, !slices.Contains(names, w), "there is no %q in %q", w, names)
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
		{name: "file", file: file, want: "3m0s vxlan file"},
		{name: "environment", env: map[string]string{"LIQONET_TIMEOUT": "4m", "LIQONET_OVERLAY": "geneve", "LIQONET_AGENT_IMAGE": "env"}, want: "4m0s geneve env"},
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
	f := kit.Must(parse(t, "peer", append([]string{"a", "b"}, args...)...))(t)
	return f
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
	home := isolate(t)
	t.Setenv("KUBECONFIG", kubeconfig(t, filepath.Join(home, "kubeconfig"), "a", "b", "c"))
	for _, tt := range []struct{ env, file, args, pairs string }{
		{env: "LIQONET_SPOKES=b,c", args: "unpeer a", pairs: "a - b: |a - c: "},
		{env: "LIQONET_MESH=true", args: "unpeer a b c", pairs: "a - b: |a - c: |b - c: "},
		{file: "spokes: [b, c]", args: "peer a", pairs: "a - b: |a - c: "},
		{file: "mesh: true", args: "peer a b c", pairs: "a - b: |a - c: |b - c: "},
	} {
		t.Run(tt.env+tt.file, func(t *testing.T) {
			if k, v, ok := strings.Cut(tt.env, "="); ok {
				t.Setenv(k, v)
			}
			write(t, filepath.Join(home, "xdg", "liqonet", "config.yaml"), tt.file+"\n")
			code, _, stderr := run(t, strings.Fields(tt.args)...)
			kit.ErrorIf(t, code != ExitUnreachable, "exit code %d: %s", code, stderr)
			for pair := range strings.SplitSeq(tt.pairs, "|") {
				kit.ErrorIf(t, !strings.Contains(stderr, pair), "%q is not in %s", pair, stderr)
			}
		})
	}
}

func TestPeerOptions(t *testing.T) {
	clusters := []*kube.Cluster{{Name: "a", ID: "1"}, {Name: "b", ID: "2"}}
	t.Run("several ranges of several clusters", func(t *testing.T) {
		isolate(t)
		f := load(t, "--pod-cidr", "a=10.0.0.0/16,10.1.0.0/16", "--pod-cidr", "b=10.2.0.0/16", "--pod-cidr", "a=10.3.0.0/16", "--reserve", "b=10.4.0.0/16")
		o := kit.Must(peerOptions(f, []string{"a", "b"}, clusters))(t)
		got := fmt.Sprint(o.Facts["1"].PodCIDRs, o.Facts["2"].PodCIDRs, o.Facts["2"].Reserved, o.Facts["1"].Reserved)
		kit.Check(t, "got", got, "[10.0.0.0/16 10.1.0.0/16 10.3.0.0/16] [10.2.0.0/16] [10.4.0.0/16] []")
	})
	for _, from := range []string{"environment", "file"} {
		t.Run("ranges from the "+from, func(t *testing.T) {
			home := isolate(t)
			if from == "file" {
				write(t, filepath.Join(home, "xdg", "liqonet", "config.yaml"), "pod-cidr:\n- a=10.0.0.0/16,10.1.0.0/16\n")
			} else {
				t.Setenv("LIQONET_POD_CIDR", "a=10.0.0.0/16,10.1.0.0/16")
			}
			o, err := peerOptions(load(t), []string{"a", "b"}, clusters)
			got := fmt.Sprint(o.Facts["1"].PodCIDRs)
			kit.ErrorIf(t, err != nil || got != "[10.0.0.0/16 10.1.0.0/16]", "got %s, %v", got, err)
		})
	}
	t.Run("upper and lower case", func(t *testing.T) {
		isolate(t)
		t.Setenv("LIQONET_SERVICE_TYPE", "nodeport")
		o, err := peerOptions(load(t, "--overlay", "VXLAN"), []string{"a", "b"}, clusters)
		kit.ErrorIf(t, err != nil || o.ServiceType != "NodePort" || o.Overlay != "VXLAN", "got %+v, %v", o, err)
	})
}

func TestPlainProgress(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out)
	_, ok := p.(plainReporter)
	kit.FatalIf(t, !ok, "a buffer is no terminal: %T", p)
	kit.CheckNoError(t, p.Step(t.Context(), "One", func(context.Context) error { return nil }))
	failed := errors.New("failed")
	kit.FailsWith(t, p.Step(t.Context(), "Two", func(context.Context) error { return failed }), failed)
	kit.Check(t, "String", out.String(), "One ...\nTwo ...\nTwo failed after 0.0 s\n")
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
	if code := Run(t.Context(), []string{"version"}, Streams{Out: fullDisk{}, Err: &stderr}); code != ExitUnexpected || !strings.Contains(stderr.String(), "no space left") {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
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
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Error(err)
	}
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
