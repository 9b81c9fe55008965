package dataplane

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/pkg/tunnel"
	"github.com/liqonet/liqonet/test/kit"
)

// childVariable is the environment variable that makes a test binary a process in a namespace: a tunnel with a backend
// and a name.
const childVariable = "LIQONET_TEST_CHILD"

// ChildMain must be the first call of TestMain. In a process started by StartTunnel, it serves requests and does not
// return.
//
// A tunnel needs a process instead of a thread, because wireguard-go opens its sockets on any thread.
func ChildMain() {
	wanted, ok := os.LookupEnv(childVariable)
	if !ok {
		return
	}
	backend, name, _ := strings.Cut(wanted, " ")
	if err := serveTunnel(tunnel.Backend(backend), name); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve replies to requests until there are no more.
func serve(answer func(request) response) error {
	decoder, encoder := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var req request
		if err := decoder.Decode(&req); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := encoder.Encode(answer(req)); err != nil {
			return err
		}
	}
}

// request is a request to a tunnel. An empty one requests its statistics.
type request struct {
	Configure *tunnel.Config
	Reset     bool
}

type response struct {
	Changed bool
	Stats   tunnel.Stats
	Error   string
}

// device has the methods of tunnel.Device that requests need.
type device interface {
	Configure(tunnel.Config) (changed bool, err error)
	Stats() (tunnel.Stats, error)
	Reset() error
	Close() error
}

func openTunnel(backend tunnel.Backend, name string) (device, error) {
	if backend == Upstream {
		return openUpstream(name)
	}
	return tunnel.Open(backend, name, func(err error) { fmt.Fprintln(os.Stderr, err) })
}

func serveTunnel(backend tunnel.Backend, name string) error {
	device, err := openTunnel(backend, name)
	if err != nil {
		return err
	}
	err = serve(func(req request) (res response) {
		var err error
		switch {
		case req.Configure != nil:
			res.Changed, err = device.Configure(*req.Configure)
		case req.Reset:
			err = device.Reset()
		default:
			res.Stats, err = device.Stats()
		}
		if err != nil {
			res.Error = err.Error()
		}
		return res
	})
	return errors.Join(err, device.Close())
}

// Namespace is a network namespace in which processes can be started.
type Namespace interface {
	fmt.Stringer
	Start(cmd *exec.Cmd) error
}

// Tunnel is a process in a namespace that has a tunnel device, and replies to requests.
type Tunnel struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// StartTunnel starts a process with a tunnel device of a name, and with additional environment variables. It runs until
// the end of the test.
func StartTunnel(t testing.TB, ns Namespace, backend tunnel.Backend, name string, env ...string) *Tunnel {
	t.Helper()
	p := &Tunnel{cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(append(os.Environ(), env...), childVariable+"="+string(backend)+" "+name)
	p.cmd.Stderr = os.Stderr
	in := kit.Must(p.cmd.StdinPipe())(t)
	out := kit.Must(p.cmd.StdoutPipe())(t)
	p.in, p.out = in, json.NewDecoder(bufio.NewReader(out))
	kit.NoError(t, ns.Start(p.cmd), "start tunnel %s in %s", name, ns)
	t.Cleanup(p.Stop)
	return p
}

// PID returns the process ID.
func (p *Tunnel) PID() int { return p.cmd.Process.Pid }

// Memory returns a process's memory in KiB, from a field of proc_pid_status(5).
func Memory(t testing.TB, pid int, field string) (kib int) {
	t.Helper()
	file := fmt.Sprintf("/proc/%d/status", pid)
	status := kit.Must(os.ReadFile(file))(t)
	_, value, _ := strings.Cut(string(status), "\n"+field+":")
	kit.NoError(t, kit.Err(fmt.Sscanf(value, "%d kB", &kib)), "read %s of %s", field, file)
	return kib
}

// Stop ends the process. A second call does nothing.
func (p *Tunnel) Stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

// Kill ends the process without cleanup.
func (p *Tunnel) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *Tunnel) request(t testing.TB, req request) (res response) {
	t.Helper()
	kit.NoError(t, json.NewEncoder(p.in).Encode(req), "call process %d", p.PID())
	kit.NoError(t, p.out.Decode(&res), "call process %d", p.PID())
	kit.FatalIf(t, res.Error != "", "tunnel: %s", res.Error)
	return res
}

// Configure calls tunnel.Device.Configure.
func (p *Tunnel) Configure(t testing.TB, c tunnel.Config) (changed bool) {
	t.Helper()
	return p.request(t, request{Configure: &c}).Changed
}

// Reset calls tunnel.Device.Reset.
func (p *Tunnel) Reset(t testing.TB) {
	t.Helper()
	p.request(t, request{Reset: true})
}

// Stats calls tunnel.Device.Stats.
func (p *Tunnel) Stats(t testing.TB) tunnel.Stats {
	t.Helper()
	return p.request(t, request{}).Stats
}
