package cli

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

// TestCompletion types commands into each shell on a terminal, followed by the tab key.
func TestCompletion(t *testing.T) {
	kit.NotShort(t)
	const prompt = "ready> "
	for shell, tt := range map[string]struct {
		args  []string
		setup string
	}{
		"bash": {
			[]string{"--norc", "--noprofile"},
			"bind 'set enable-bracketed-paste off'; . /usr/share/bash-completion/bash_completion; . <(kubectl-liqonet completion bash); PS1='%s'",
		},
		"zsh":  {[]string{"-f"}, "unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -u -D; . <(kubectl-liqonet completion zsh); PS1='%s'"},
		"fish": {[]string{"--no-config"}, "kubectl-liqonet completion fish | source; function fish_prompt; printf '%s'; end"},
	} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			kit.NoError(t, os.Symlink(os.Args[0], filepath.Join(dir, "kubectl-liqonet")))
			file := kubeconfig(t, filepath.Join(dir, "kubeconfig"), "first-cluster=https://127.0.0.1:1", "second-cluster=https://127.0.0.1:1")
			cmd := exec.CommandContext(t.Context(), shell, append(tt.args, "-i")...)
			cmd.Env = []string{commandEnv + "=1", "HOME=" + dir, "TMPDIR=" + dir, "XDG_RUNTIME_DIR=" + dir, "KUBECONFIG=" + file, "TERM=xterm", "PATH=" + dir + ":" + os.Getenv("PATH"), "LANG=C.UTF-8"}
			cmd.Dir = dir // without files that could complete the arguments
			master, slave := openTerminal(t, 80)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			err := cmd.Start()
			kit.FatalIf(t, err != nil, "%v: make packages installs what is missing", err)
			_ = slave.Close()
			t.Cleanup(func() { // the reader gets an error when the shell ends
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			screen := make(chan byte)
			go func() {
				defer close(screen)
				for r := bufio.NewReader(master); ; {
					b, err := r.ReadByte()
					if err != nil {
						return
					}
					screen <- b
				}
			}()
			// expect reads the output until it contains what.
			expect := func(what string) {
				t.Helper()
				var seen strings.Builder
				for late := time.After(20 * time.Second); !strings.Contains(seen.String(), what); {
					select {
					case b, ok := <-screen:
						kit.FatalIf(t, !ok, "%s has ended without %q: %q", shell, what, seen.String())
						seen.WriteByte(b)
					case <-late:
						t.Fatalf("no %q in %q", what, seen.String())
					}
				}
			}
			write := func(keys string) {
				t.Helper()
				kit.Must(master.WriteString(keys))(t)
			}
			// The echo of the typed command must not contain the prompt.
			write(fmt.Sprintf(tt.setup, prompt[:3]+"''"+prompt[3:]) + "\n")
			expect(prompt)
			for _, line := range []struct{ typed, completed string }{
				{"kubectl-liqonet stat", "us"},
				{"kubectl-liqonet peer fir", "st-cluster"},
				{"kubectl-liqonet peer first-cluster sec", "ond-cluster"},
				{"kubectl-liqonet peer --overlay gen", "eve"},
				{"kubectl-liqonet status --output ya", "ml"},
			} {
				write(line.typed)
				expect(line.typed[len(line.typed)-3:])
				write("\t")
				expect(line.completed)
				write("\x15") // erases the line
			}
		})
	}
}
