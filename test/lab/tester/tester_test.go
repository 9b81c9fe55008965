package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

func TestCall(t *testing.T) {
	listener := kit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	go func() { _ = serveTCP(listener, "server") }()
	udp := kit.Must(net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	defer udp.Close()
	go func() { _ = serveUDP(udp, "server") }()
	web := httptest.NewServer(handler("server"))
	defer web.Close()

	for _, tc := range []struct{ protocol, address, size string }{
		{"tcp", listener.Addr().String(), "100"},
		{"tcp", listener.Addr().String(), "4000000"},
		{"udp", udp.LocalAddr().String(), "100"},
		{"udp", udp.LocalAddr().String(), "60000"},
		{"http", strings.TrimPrefix(web.URL, "http://"), "0"},
	} {
		t.Run(tc.protocol+" "+tc.size, func(t *testing.T) {
			var out bytes.Buffer
			if err := call(context.Background(), []string{tc.protocol, tc.address, "--size", tc.size, "--timeout", "10s"}, &out); err != nil {
				t.Fatalf("%v: %s", err, &out)
			}
			var got answer
			kit.NoError(t, json.Unmarshal(out.Bytes(), &got))
			if !got.OK || got.Server.Hostname != "server" || !strings.HasPrefix(got.Server.Source, "127.0.0.1:") {
				t.Errorf("got %s", &out)
			}
		})
	}
}

func TestCallWithoutAnswer(t *testing.T) {
	var out bytes.Buffer
	// Port 1 of the loopback address is closed.
	err := call(context.Background(), []string{"--count=2", "--interval=1ms", "tcp", "127.0.0.1:1"}, &out)
	if err == nil || !strings.Contains(err.Error(), "2 of 2") {
		t.Errorf("got error %v", err)
	}
	if n := strings.Count(out.String(), `"ok":false`); n != 2 {
		t.Errorf("got %d failures in %s, want 2", n, &out)
	}
}

func TestChecksum(t *testing.T) {
	// The example of RFC 1071, section 3: the sum is ddf2.
	if got := checksum([]byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}); got != ^uint16(0xddf2) {
		t.Errorf("got %#x", got)
	}
}
