package cli

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
		users += fmt.Sprintf("- {name: u%d, user: {exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: /bin/sh, args: [-c, %q]}}}\n",
			i, strings.ReplaceAll(script, "HOME", home))
	}
	write(t, filepath.Join(home, "kubeconfig"), text+users+contexts)
	t.Setenv("KUBECONFIG", filepath.Join(home, "kubeconfig"))
	return home
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
	}
	kit.Check(t, "requests", a.Requests()+b.Requests(), 0)
}
