package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/test/kit"
)

var loopback = netip.MustParseAddr("127.0.0.1")

// freePort returns a TCP port without a listener.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l := kit.Must(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

// serving runs a probe that serves until the test ends.
func serving(t *testing.T, token string) netip.AddrPort {
	t.Helper()
	at := netip.AddrPortFrom(loopback, freePort(t))
	lines := start(t, probe.Task{Token: token, Serve: &probe.Serve{Name: "server", Port: at.Port()}})
	if l := <-lines; !l.Ready {
		t.Fatalf("it is not ready: %+v", l)
	}
	return at
}

// start runs a probe until the test ends, and returns its output.
func start(t *testing.T, task probe.Task) <-chan probe.Line {
	t.Helper()
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	lines := make(chan probe.Line, 16)
	go func() { defer close(ended); defer w.Close(); _ = Run(ctx, task, w) }()
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			var l probe.Line
			if err := json.Unmarshal(s.Bytes(), &l); err != nil {
				l.Error = err.Error()
			}
			lines <- l
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return lines
}

// closedPort returns a port without a listener, which nothing else can get while the test runs.
func closedPort(t *testing.T) uint16 {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	kit.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	kit.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: loopback.As4()}))
	at, err := unix.Getsockname(fd)
	kit.NoError(t, err)
	return uint16(at.(*unix.SockaddrInet4).Port)
}

func TestCallsAreAnswered(t *testing.T) {
	at := serving(t, "secret")
	closed := netip.AddrPortFrom(loopback, closedPort(t))
	answered := probe.Answer{Answered: true, From: "server", Source: loopback, Tries: 1}
	tests := []struct {
		name  string
		token string
		call  probe.Call
		want  probe.Answer
	}{
		{"TCP", "secret", probe.Call{Protocol: probe.TCP, To: at}, answered},
		{"TCP with much data", "secret", probe.Call{Protocol: probe.TCP, To: at, Size: 300_000}, answered},
		{"UDP", "secret", probe.Call{Protocol: probe.UDP, To: at}, answered},
		{"UDP in fragments", "secret", probe.Call{Protocol: probe.UDP, To: at, Size: 40_000}, answered},
		{"a connection is enough", "", probe.Call{Protocol: probe.TCP, To: at, ConnectOnly: true}, probe.Answer{Answered: true, Tries: 1}},
		{"another run's UDP", "guessed", probe.Call{Protocol: probe.UDP, To: at}, probe.Answer{Error: "no answer"}},
		{"no listener", "secret", probe.Call{Protocol: probe.TCP, To: closed}, probe.Answer{Error: "connection refused"}},
		{"no listener, UDP", "secret", probe.Call{Protocol: probe.UDP, To: closed}, probe.Answer{
			Error: "connection refused", Refusal: &probe.Refusal{Type: 3, Code: 3, From: loopback},
		}},
		{"a missing interface", "secret", probe.Call{Protocol: probe.UDP, To: at, Link: "loq9-9"}, probe.Answer{
			Error: "interface loq9-9: route ip+net: no such network interface",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.call.Timeout = 700
			got := call(t.Context(), tt.token, tt.call)
			ignored := cmp.Options{cmpopts.EquateComparable(netip.Addr{})}
			if !tt.want.Answered {
				ignored = append(ignored, cmpopts.IgnoreFields(probe.Answer{}, "Tries"))
			}
			kit.Check(t, "result", got, tt.want, ignored)
		})
	}
}

// A caller without the token gets no answer over TCP either.
func TestStrangersAreNotAnswered(t *testing.T) {
	conn := kit.Must(net.Dial("tcp4", serving(t, "secret").String()))(t)
	defer conn.Close()
	kit.NoError(t, kit.Err(conn.Write(encodeRequest("guessed", modeAnswer, 0))))
	if raw, err := io.ReadAll(conn); len(raw) > 0 {
		t.Errorf("a caller without the token got %q, %v", raw, err)
	}
}

func TestTaskThatCannotBeDone(t *testing.T) {
	at := serving(t, "secret")
	lines := start(t, probe.Task{Token: "other", Serve: &probe.Serve{Port: at.Port()}})
	if l := <-lines; l.Ready || !strings.Contains(l.Error, "address already in use") {
		t.Errorf("got %+v", l)
	}
}

// A task with only calls ends by itself, and its result is in its last line.
func TestCallingEnds(t *testing.T) {
	at := serving(t, "secret")
	task, err := probe.Parse(probe.Task{Token: "secret", Calls: []probe.Call{{ID: "one", Protocol: probe.UDP, To: at, Timeout: 2000}}}.String())
	kit.NoError(t, err)
	var got probe.Result
	for l := range start(t, task) {
		if l.Result != nil && l.Result.Answers != nil {
			got = *l.Result
		}
	}
	kit.ErrorIf(t, len(got.Answers) != 1 || got.Answers[0].ID != "one" || !got.Answers[0].Answered, "got %+v", got)
}
