package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

// Completion is for the name under which the program runs. The scripts for shells, which are cobra's, ask the program what completes words.
func TestCompletion(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "kubectl-liqonet")
	kit.NoError(t, os.Symlink(os.Args[0], program))
	file := kubeconfig(t, filepath.Join(dir, "kubeconfig"), "first-cluster", "second-cluster")
	output := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = []string{commandEnv + "=1", "HOME=" + dir, "KUBECONFIG=" + file}
		return string(kit.Must(cmd.Output())(t))
	}
	for shell, line := range map[string]string{
		"bash": "-F __start_kubectl-liqonet kubectl-liqonet\n", "zsh": "#compdef kubectl-liqonet\n", "fish": "complete -c kubectl-liqonet ",
	} {
		kit.CheckContains(t, shell, output("completion", shell), line)
	}
	for words, want := range map[string]string{
		"stat": "status\t", "peer fir": "first-cluster\n", "peer first-cluster sec": "second-cluster\n", "peer --overlay gen": "geneve\n", "status --output ya": "yaml\n",
	} {
		got := output(append([]string{"__complete"}, strings.Fields(words)...)...)
		kit.CheckContains(t, words, "\n"+got, "\n"+want) // a line; the script selects those that begin with the last word
	}
}
