package agents

import (
	"bytes"
	"encoding/pem"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/liqonet/liqonet/pkg/overlay"
	"github.com/liqonet/liqonet/test/kit"
	"github.com/liqonet/liqonet/test/netns"
)

// plantedToken is the token of all agents. The API does not check it, and no agent may reveal it.
const plantedToken = "eyJ-planted-token-of-an-agent"

// program is the path of the agents' program, which is built once.
var program string

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		os.Exit(m.Run()) // no test needs the program
	}
	dir, err := os.MkdirTemp("", "agents")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "liqonet-agent")
	out, err := exec.Command("go", "build", "-o", program, "../../agent").CombinedOutput()
	code := 1
	if err != nil {
		fmt.Fprintf(os.Stderr, "build the agents: %v: %s\n", err, out)
	} else {
		code = m.Run()
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// process is an agent that can be stopped and restarted.
type process struct {
	*netns.NS
	args   []string
	script string
	env    []string
	log    output
	cmd    *exec.Cmd
}

// output is the output of a process until now.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write appends to the output.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

// String returns the whole output.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// newProcess returns an agent in a namespace, a program with its arguments, which runs as in its pod once it is started. Its environment and the
// files of its service account refer to the API server. Files are placed next to the overlay's key, in the directory
// that replaces DIR in the arguments.
func newProcess(t testing.TB, ns *netns.NS, api http.Handler, env []string, files map[string][]byte, args ...string) *process {
	t.Helper()
	listener := netns.In(t, ns, func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") })
	server := httptest.NewUnstartedServer(api)
	_ = server.Listener.Close() // the default one is in another namespace
	server.Listener = listener
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	dir := t.TempDir()
	all := map[string][]byte{
		"token": []byte(plantedToken), "ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		"1": bytes.Repeat([]byte{7}, overlay.KeyBytes), // the overlay's key
	}
	maps.Copy(all, files)
	for name, content := range all {
		kit.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	host, port, err := net.SplitHostPort(listener.Addr().String())
	kit.NoError(t, err)
	const account = "/run/secrets/kubernetes.io/serviceaccount"
	command := strings.ReplaceAll(strings.Join(args, " "), "DIR", dir)
	p := &process{
		NS:     ns,
		args:   args,
		script: "mount -t tmpfs none /run; mkdir -p " + account + "; mount --bind " + dir + " " + account + "; exec " + command + " --overlay-keys=" + dir,
		env:    slices.Concat(os.Environ(), []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}, env),
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(args, " "), &p.log)
		}
	})
	return p
}

// start starts the agent.
func (p *process) start(t testing.TB) {
	t.Helper()
	p.cmd = exec.Command("unshare", "--mount", "sh", "-ec", p.script)
	p.cmd.Env = p.env
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	kit.NoError(t, p.Start(p.cmd))
}

func (p *process) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	kit.NoError(t, p.cmd.Process.Signal(s))
}

// kill ends the agent without cleanup, if it runs.
func (p *process) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
	p.cmd = nil
}
