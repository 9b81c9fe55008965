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

	for protocol, address := range map[string]string{
		"tcp": listener.Addr().String(), "udp": udp.LocalAddr().String(), "http": strings.TrimPrefix(web.URL, "http://"),
	} {
		t.Run(protocol, func(t *testing.T) {
			var out bytes.Buffer
			if err := call(context.Background(), []string{protocol, address}, &out); err != nil {
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
	err := call(context.Background(), []string{"tcp", "127.0.0.1:1"}, &out)
	if err == nil || !strings.Contains(out.String(), `"ok":false`) || !strings.Contains(out.String(), "refused") {
		t.Errorf("got error %v, and %s", err, &out)
	}
}

func TestChecksum(t *testing.T) {
	// The example of RFC 1071, section 3: the sum is ddf2.
	if got := checksum([]byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}); got != ^uint16(0xddf2) {
		t.Errorf("got %#x", got)
	}
}
