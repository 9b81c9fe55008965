package probe

import (
	"encoding/json"
	"net"
	"testing"
	"time"

	"github.com/liqonet/liqonet/pkg/probe"
	"github.com/liqonet/liqonet/test/kit"
)

// packets is a socket at which one packet has arrived.
type packets struct {
	net.PacketConn
	left [][]byte
}

func (p *packets) SetReadDeadline(time.Time) error { return nil }

func (p *packets) ReadFrom(b []byte) (int, net.Addr, error) {
	if len(p.left) == 0 {
		return 0, nil, net.ErrClosed
	}
	n := copy(b, p.left[0])
	p.left = p.left[1:]
	return n, nil, nil
}

// Answers to pings, UDP requests and scrapes may come from anyone.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 7, 0, 1, 'x'})
	f.Add([]byte{3, 1, 0, 0, 0, 0, 0, 0, 0x45})
	f.Add([]byte{0, 0})
	f.Add([]byte(`{"n":"node","s":"10.244.0.1"}`))
	f.Add([]byte("liqonet_gateway_drops_total{hook=\"input\",reason=\"nested\"} 1e99\n"))
	f.Fuzz(func(t *testing.T, packet []byte) {
		missing := map[int]echo{1: {&probe.Ping{}, 56}}
		receivePings(&packets{left: [][]byte{packet}}, 7, missing, time.Second)
		isAnswer := len(packet) >= 8 && packet[0] == 0 && packet[4] == 0 && packet[5] == 7 && packet[6] == 0 && packet[7] == 1
		kit.ErrorIf(t, isAnswer == (len(missing) == 1), "% x: missing %v", packet, missing)
		var a probe.Answer
		if parseReply(packet, &a) == nil {
			kit.NoError(t, kit.Err(json.Marshal(a)))
		}
		token := "0123456789abcdef"
		kit.ErrorIf(t, isOfRun(packet, token) && string(packet[1:1+len(token)]) != token, "% x", packet)
		for _, m := range drop.FindAllSubmatch(packet, -1) {
			kit.ErrorIf(t, len(m) != 4, "%q", m)
		}
	})
}
