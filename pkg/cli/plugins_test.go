package cli

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

// credential is the end of a script of a credential plugin that works.
const credential = `; echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t"}}'`

// usePlugins isolates the test, with a kubeconfig that has a context for each server, a, b and so on. Each has the script of that index.
func usePlugins(t *testing.T, servers []http.Handler, scripts ...string) (home string) {
	t.Helper()
	home = isolate(t)
	text := "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters:\n"
	users, contexts := "users:\n", "contexts:\n"
	for i, server := range servers {
		name := string(rune('a' + i))
		secure := httptest.NewTLSServer(server) // client-go runs no plugin without TLS
		secure.Config.ErrorLog = log.New(io.Discard, "", 0)
		t.Cleanup(secure.Close)
		text += fmt.Sprintf("- {name: %s, cluster: {server: %q, insecure-skip-tls-verify: true}}\n", name, secure.URL)
		contexts += fmt.Sprintf("- {name: %s, context: {cluster: %s, user: u%d}}\n", name, name, min(i, len(scripts)-1))
	}
	for i, script := range scripts {
		users += fmt.Sprintf("- {name: u%d, user: {exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: %s, command: /bin/sh, args: [-c, %q]}}}\n",
			i, interactiveMode(script), strings.ReplaceAll(script, "HOME", home))
	}
	write(t, filepath.Join(home, "kubeconfig"), text+users+contexts)
	t.Setenv("KUBECONFIG", filepath.Join(home, "kubeconfig"))
	return home
}

// interactiveMode returns what a script needs: one that reads has a terminal, if there is one.
func interactiveMode(script string) string {
	switch {
	case strings.HasPrefix(script, "#always"):
		return "Always"
	case strings.Contains(script, "read "):
		return "IfAvailable"
	}
	return "Never"
}

// expiring is the script of a plugin whose first credentials, t1, have expired when it ends. Those of its second run, t2, are valid. More
// is run first, with the number of the run in $n.
func expiring(name, more string) string {
	return "echo x >> HOME/ran-" + name + "; n=$(wc -l < HOME/ran-" + name + "); " + more +
		`; case $n in 1) at=$(date -u +%FT%TZ);; *) at=2999-01-01T00:00:00Z;; esac
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t'$n'","expirationTimestamp":"'$at'"}}'`
}

// onText calls do when a text has been written.
type onText struct {
	buffer lockedBuffer
	text   string
	do     func()
}

func (o *onText) Write(p []byte) (int, error) {
	n, err := o.buffer.Write(p)
	if strings.Contains(string(p), o.text) {
		o.do()
	}
	return n, err
}

// The time for requests begins when a credential plugin has ended. A command that waits for one says so.
func TestSlowPlugin(t *testing.T) {
	a := startCluster(t, "a")
	home := usePlugins(t, []http.Handler{a}, "until [ -e HOME/go ] || [ ! -d HOME ]; do sleep 0.05; done"+credential)
	var out lockedBuffer
	said := 0
	stderr := &onText{text: "Waiting for the credential plugin sh of a\n", do: func() { said++; write(t, filepath.Join(home, "go"), "") }}
	code := Run(t.Context(), []string{"status", "a", "--request-timeout", "1s", "--timeout", "60s"}, Streams{Out: &out, Err: stderr})
	kit.ErrorIf(t, code != ExitOK || said != 1, "exit code %d, said %d times\n%s%s", code, said, out.String(), stderr.buffer.String())
}

// Plugins run one after the other, as they may need the same port.
func TestPluginsRunOneByOne(t *testing.T) {
	a, b := startCluster(t, "a"), startCluster(t, "b")
	script := func(name string) string {
		return "mkdir HOME/lock || exit 1; sleep 0.3; rmdir HOME/lock; echo " + name + " >> HOME/ran" + credential
	}
	home := usePlugins(t, []http.Handler{a, b}, script("a"), script("b"))
	command(t, "status", "a", "b", "--timeout", "60s").ends(ExitOK)
	kit.Check(t, "plugins that ran", string(kit.Must(os.ReadFile(filepath.Join(home, "ran")))(t)), "a\nb\n")
}

// A plugin that fails, or does not end, is named. It runs only once for contexts that share it.
func TestPluginThatFails(t *testing.T) {
	a, b := startCluster(t, "a"), startCluster(t, "b")
	home := usePlugins(t, []http.Handler{a, b}, "echo x >> HOME/ran; exit 7")
	command(t, "peer", "a", "b").ends(ExitForbidden).warns(`cluster "a": run the credential plugin sh: `, `cluster "b": run the credential plugin sh: `, "exit code 7", "try: kubectl --context a get nodes")
	kit.Check(t, "how often it ran", string(kit.Must(os.ReadFile(filepath.Join(home, "ran")))(t)), "x\n")
	home = usePlugins(t, []http.Handler{a}, "until [ -e HOME/go ] || [ ! -d HOME ]; do sleep 0.05; done"+credential)
	t.Cleanup(func() { write(t, filepath.Join(home, "go"), "") })
	for _, line := range []string{"status a", "doctor a", "upgrade a"} {
		o := command(t, append(strings.Fields(line), "--timeout", "300ms")...)
		o.is("the plugin's name", !strings.Contains(o.stdout+o.stderr, "run the credential plugin sh: timed out after 300ms"))
		o.is("its hint", !strings.Contains(strings.Join(strings.Fields(o.stdout+o.stderr), " "), "find out what the plugin waits for"))
	}
	kit.Check(t, "requests", a.Requests()+b.Requests(), 0)
}

// runsOf returns how often plugins have run.
func runsOf(t *testing.T, home string, names ...string) (out []int) {
	t.Helper()
	for _, name := range names {
		out = append(out, strings.Count(string(kit.Must(os.ReadFile(filepath.Join(home, "ran-"+name)))(t)), "x"))
	}
	return out
}

// Plugins also run one after the other when credentials of several clusters expire during a command.
func TestExpiredCredentialsAreRenewedOneByOne(t *testing.T) {
	a, b := startCluster(t, "a"), startCluster(t, "b")
	const alone = "mkdir HOME/lock || exit 1; sleep 0.3; rmdir HOME/lock"
	home := usePlugins(t, []http.Handler{a, b}, expiring("a", alone), expiring("b", alone))
	command(t, "status", "a", "b", "--timeout", "60s").ends(ExitOK)
	kit.Check(t, "runs", runsOf(t, home, "a", "b"), []int{2, 2})
}

// The time of a request does not include that of a plugin that runs during a command, and the command says what it waits for.
func TestSlowRenewal(t *testing.T) {
	a := startCluster(t, "a")
	home := usePlugins(t, []http.Handler{a}, expiring("a", "[ $n = 1 ] || until [ -e HOME/go ] || [ ! -d HOME ]; do sleep 0.05; done"))
	var out lockedBuffer
	said := 0
	stderr := &onText{text: "Waiting for the credential plugin sh of a\n", do: func() { said++; write(t, filepath.Join(home, "go"), "") }}
	code := Run(t.Context(), []string{"status", "a", "--request-timeout", "1s", "--timeout", "60s"}, Streams{Out: &out, Err: stderr})
	kit.ErrorIf(t, code != ExitOK || said != 1, "exit code %d, said %d times\n%s%s", code, said, out.String(), stderr.buffer.String())
	kit.Check(t, "runs", runsOf(t, home, "a"), []int{2})
}

// Credentials that a server no longer accepts are renewed once, and the request is sent again.
func TestRejectedCredentialsAreRenewed(t *testing.T) {
	for _, accepted := range []string{"Bearer t2", "none"} {
		t.Run(accepted, func(t *testing.T) {
			a := startCluster(t, "a")
			seen := 0
			rejecting := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if seen++; r.Header.Get("Authorization") != accepted {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				a.ServeHTTP(w, r)
			})
			valid := strings.ReplaceAll(expiring("a", ":"), "$(date -u +%FT%TZ)", "2999-01-01T00:00:00Z")
			home := usePlugins(t, []http.Handler{rejecting}, valid)
			o := command(t, "status", "a")
			if accepted == "none" {
				o.ends(ExitForbidden).warns("does not accept the credentials")
				kit.Check(t, "requests", seen, 2)
			} else {
				o.ends(ExitOK)
			}
			kit.Check(t, "runs", runsOf(t, home, "a"), []int{2})
		})
	}
}

// On a terminal, nothing is drawn over what a plugin asks, and the answer reaches it. Without a terminal, it cannot ask.
func TestPluginAsksTheUser(t *testing.T) {
	const asks = `printf '\nPassword: ' >&2; read answer || exit 9; [ "$answer" = sesame ] || exit 8`
	a, b := startCluster(t, "a"), startNumbered(t, 1, "id-of-b", "b")
	changes := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // the first credentials are valid until the first change
		if r.Method != http.MethodGet && r.Header.Get("Authorization") == "Bearer t1" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		a.ServeHTTP(w, r)
	})
	valid := strings.ReplaceAll(expiring("a", asks), "$(date -u +%FT%TZ)", "2999-01-01T00:00:00Z")
	home := usePlugins(t, []http.Handler{changes, b}, valid, "true"+credential)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "peer", "a", "b")
	cmd.Env = []string{commandEnv + "=1", "HOME=" + home, "KUBECONFIG=" + filepath.Join(home, "kubeconfig"), "TERM=xterm-256color", "PATH=" + os.Getenv("PATH")}
	master, slave := openTerminal(t, 100)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	kit.NoError(t, cmd.Start())
	_ = slave.Close() // so that reading ends when the process does
	read := make(chan string)
	go func() {
		defer close(read)
		buffer := make([]byte, 4096)
		for n, err := master.Read(buffer); err == nil; n, err = master.Read(buffer) {
			read <- string(buffer[:n])
		}
	}()
	var all strings.Builder
	for asked := false; ; {
		silence := (<-chan time.Time)(nil)
		if asked {
			silence = time.After(5 * spinnerDelay) // nothing is drawn while the plugin waits
		}
		select {
		case text, more := <-read:
			if !more {
				kit.Check(t, "exit code", exitCode(t, cmd.Wait()), ExitOK)
				kit.Check(t, "runs", runsOf(t, home, "a"), []int{2})
				kit.CheckContains(t, "screen", shown(all.String()), "a and b are peered")
				return
			}
			kit.FatalIf(t, asked && text != "", "after the question: %q", text)
			all.WriteString(text)
			asked = strings.HasSuffix(all.String(), "Password: ")
		case <-silence:
			asked = false
			kit.NoError(t, kit.Err(master.WriteString("sesame\n")))
		}
	}
}

// spinnerDelay is the time between two frames of a spinner.
const spinnerDelay = 200 * time.Millisecond

// Without a terminal, plugins that want to ask the user something fail at once.
func TestPluginCannotAsk(t *testing.T) {
	a := startCluster(t, "a")
	for script, want := range map[string]string{
		"read answer || exit 9" + credential:          "exit code 9",
		"#always\nread answer || exit 9" + credential: "cannot support interactive mode",
	} {
		usePlugins(t, []http.Handler{a}, script)
		command(t, "status", "a").ends(ExitForbidden).warns("run the credential plugin sh: ", want)
	}
}
