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
)

// childVariable in the environment makes a test binary a tunnel process.
const childVariable = "LIQONET_TEST_TUNNEL"

// TunnelMain must be the first call of TestMain: in a process started by
// StartTunnel it serves and does not return.
//
// A tunnel needs a process, not only a thread, because wireguard-go opens its
// sockets on any.
func TunnelMain() {
	wanted, ok := os.LookupEnv(childVariable)
	if !ok {
		return
	}
	backend, name, _ := strings.Cut(wanted, " ")
	if err := serveTunnel(tunnel.Backend(backend), name, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

type request struct {
	Configure *tunnel.Config
	Reset     bool
}

type response struct {
	Changed bool
	Stats   tunnel.Stats
	Error   string
}

func serveTunnel(backend tunnel.Backend, name string, in io.Reader, out io.Writer) error {
	device, err := tunnel.Open(backend, name, func(err error) { fmt.Fprintln(os.Stderr, err) })
	if err != nil {
		return err
	}
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var req request
		if err := decoder.Decode(&req); errors.Is(err, io.EOF) {
			return device.Close()
		} else if err != nil {
			return err
		}
		var res response
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
		if err := encoder.Encode(res); err != nil {
			return err
		}
	}
}

// Tunnel is a process in a namespace that holds a tunnel device.
type Tunnel struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// Namespace is where processes can be started.
type Namespace interface {
	fmt.Stringer
	Start(cmd *exec.Cmd) error
}

// StartTunnel starts a process that holds a tunnel device of a name. It lasts
// until the end of the test.
func StartTunnel(t testing.TB, ns Namespace, backend tunnel.Backend, name string) *Tunnel {
	t.Helper()
	p := &Tunnel{cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), childVariable+"="+string(backend)+" "+name)
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = in, json.NewDecoder(bufio.NewReader(out))
	if err := ns.Start(p.cmd); err != nil {
		t.Fatalf("start tunnel in %s: %v", ns, err)
	}
	t.Cleanup(p.Stop)
	return p
}

// PID is the process's number.
func (p *Tunnel) PID() int { return p.cmd.Process.Pid }

// Stop ends the process; a second call does nothing.
func (p *Tunnel) Stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

// Kill ends the process without a chance to clean up.
func (p *Tunnel) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *Tunnel) call(t testing.TB, req request) response {
	t.Helper()
	if err := json.NewEncoder(p.in).Encode(req); err != nil {
		t.Fatalf("ask tunnel process: %v", err)
	}
	var res response
	if err := p.out.Decode(&res); err != nil {
		t.Fatalf("ask tunnel process: %v", err)
	}
	if res.Error != "" {
		t.Fatalf("tunnel: %s", res.Error)
	}
	return res
}

// Configure calls tunnel.Device.Configure.
func (p *Tunnel) Configure(t testing.TB, c tunnel.Config) (changed bool) {
	t.Helper()
	return p.call(t, request{Configure: &c}).Changed
}

// Reset calls tunnel.Device.Reset.
func (p *Tunnel) Reset(t testing.TB) {
	t.Helper()
	p.call(t, request{Reset: true})
}

// Stats calls tunnel.Device.Stats.
func (p *Tunnel) Stats(t testing.TB) tunnel.Stats {
	t.Helper()
	return p.call(t, request{}).Stats
}
