package tunnel

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/test/kit"
)

// The variables by which a test starts its own program as an attacker: see TestFlooder.
const floodTo, floodRate, floodPacket, floodNew, floodPorts = "FLOOD_TO", "FLOOD_RATE", "FLOOD_PACKET", "FLOOD_NEW", "FLOOD_PORTS"

// step is the time between two bursts of packets.
const step = 2 * time.Millisecond

// TestFlooder is not a test, but an attacker in another process. It sends a packet again and again, with another
// counter each time if floodNew is set: then it cannot be decrypted. It takes turns on its ports, and writes a line when
// they are open.
func TestFlooder(t *testing.T) {
	if os.Getenv(floodTo) == "" {
		t.Skip("a part of TestGarbageDelaysNothing")
	}
	runtime.GOMAXPROCS(1)
	rate := kit.Must(strconv.Atoi(os.Getenv(floodRate)))(t)
	packet := kit.Must(hex.DecodeString(os.Getenv(floodPacket)))(t)
	var ports []net.Conn
	for range kit.Must(strconv.Atoi(os.Getenv(floodPorts)))(t) {
		ports = append(ports, kit.Must(net.Dial("udp4", os.Getenv(floodTo)))(t))
	}
	fmt.Println("ready")
	for start, n := time.Now(), 0; time.Since(start) < time.Minute; time.Sleep(step) {
		for ; n < int(time.Since(start).Seconds()*float64(rate)); n++ {
			if os.Getenv(floodNew) != "" {
				binary.LittleEndian.PutUint64(packet[8:], 1<<40+uint64(n))
			}
			_, _ = ports[n%len(ports)].Write(packet) // a full queue refuses it
		}
	}
}

// gatewayPair is a server, and a client whose packets pass a relay that reads them.
type gatewayPair struct {
	address string
	client  *tuntest.ChannelTUN
	// arrived are the packets that left the server's tunnel. recorded is one of the client's packets with data.
	mu       sync.Mutex
	arrived  int
	recorded []byte
}

func newGatewayPair(t *testing.T, bounded bool) *gatewayPair {
	t.Helper()
	serverKey, clientKey := kit.Must(wgtypes.GeneratePrivateKey())(t), kit.Must(wgtypes.GeneratePrivateKey())(t)
	server, client := tuntest.NewChannelTUN(), tuntest.NewChannelTUN()
	p := &gatewayPair{client: client}
	port := 0
	configure := func(u *userspace, own wgtypes.Key, peer Peer) {
		t.Cleanup(u.device.Close)
		kit.NoError(t, u.ConfigureDevice("", wgtypes.Config{
			PrivateKey: &own, ListenPort: &port, Peers: []wgtypes.PeerConfig{peerDifference(wgtypes.Peer{}, Config{Peer: peer}, netip.AddrPort{})},
		}))
		kit.NoError(t, u.device.Up())
	}
	logger := device.NewLogger(device.LogLevelSilent, "")
	u := &userspace{}
	if bounded {
		u, _ = newUserspaceOn(server.TUN(), logger)
	} else {
		u.device = device.NewDevice(server.TUN(), conn.NewDefaultBind(), logger)
	}
	configure(u, serverKey, Peer{PublicKey: clientKey.PublicKey(), AllowedIPs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32")}})
	p.address = fmt.Sprintf("127.0.0.1:%d", kit.Must(u.Device(""))(t).ListenPort)
	c := &userspace{device: device.NewDevice(client.TUN(), conn.NewDefaultBind(), logger)}
	configure(c, clientKey, Peer{
		PublicKey: serverKey.PublicKey(), Endpoint: p.relay(t), AllowedIPs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")},
	})
	go func() {
		for range server.Inbound {
			p.mu.Lock()
			p.arrived++
			p.mu.Unlock()
		}
	}()
	return p
}

// relay starts the relay, and returns its address.
func (p *gatewayPair) relay(t *testing.T) netip.AddrPort {
	t.Helper()
	listener := kit.Must(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	onward := kit.Must(net.Dial("udp4", p.address))(t)
	var back sync.Map
	t.Cleanup(func() { kit.CheckNoError(t, listener.Close()); kit.CheckNoError(t, onward.Close()) })
	go func() {
		for b := make([]byte, 1<<16); ; {
			n, from, err := listener.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			back.Store(0, from)
			if isData(b) && n > device.MessageTransportSize {
				p.mu.Lock()
				p.recorded = bytes.Clone(b[:n])
				p.mu.Unlock()
			}
			_, _ = onward.Write(b[:n]) // lost like any packet
		}
	}()
	go func() {
		for b := make([]byte, 1<<16); ; {
			n, err := onward.Read(b)
			if err != nil {
				return
			}
			if to, known := back.Load(0); known {
				_, _ = listener.WriteToUDPAddrPort(b[:n], to.(netip.AddrPort))
			}
		}
	}()
	return netip.MustParseAddrPort(listener.LocalAddr().String())
}

func (p *gatewayPair) state() (arrived int, recorded []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.arrived, p.recorded
}

// garbage is a flood, from that many ports.
type garbage struct {
	rate, ports int
	replayed    bool
}

// lost returns how many of the client's packets do not leave the server's tunnel during a flood.
func (p *gatewayPair) lost(t *testing.T, by garbage, duration time.Duration) (lost, sent int) {
	t.Helper()
	ping := tuntest.Ping(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"))
	kit.Within(t, 20*time.Second, "the tunnel works", func() string {
		p.client.Outbound <- ping
		if arrived, recorded := p.state(); arrived == 0 || recorded == nil {
			return "nothing has arrived"
		}
		return ""
	})
	_, packet := p.state()
	flooder := exec.Command(os.Args[0], "-test.run=^TestFlooder$")
	flooder.Env = append(os.Environ(), floodTo+"="+p.address, fmt.Sprintf("%s=%d", floodRate, by.rate), fmt.Sprintf("%s=%d", floodPorts, by.ports),
		floodPacket+"="+hex.EncodeToString(packet))
	if !by.replayed {
		flooder.Env = append(flooder.Env, floodNew+"=1")
	}
	ready := kit.Must(flooder.StdoutPipe())(t)
	kit.NoError(t, flooder.Start())
	defer func() {
		kit.CheckNoError(t, flooder.Process.Kill())
		_ = flooder.Wait() // it was killed
	}()
	kit.NoError(t, kit.Err(ready.Read(make([]byte, 1))), "the flood has not begun")
	before, _ := p.state()
	for start := time.Now(); time.Since(start) < duration; time.Sleep(step) {
		p.client.Outbound <- ping
		sent++
	}
	time.Sleep(200 * time.Millisecond) // the last ones
	after, _ := p.state()
	return sent - (after - before), sent
}

// Anyone who has seen one packet of the tunnel can send others that wireguard-go drops only after it has tried to
// decrypt them, or replays. They take no room from the peer's packets: without the bound on packets in flight, no fewer
// of these arrive. There is one thread, as on a node with two processors, and the attacker is another process.
func TestGarbageDelaysNothing(t *testing.T) {
	if !kit.Full() {
		t.Skip("proves nothing on a machine that is busy with other tests; TestWindow and TestIdle cover the bound")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const rounds, duration, tolerated = 10, 4 * time.Second, 0.001
	// A round proves nothing if the machine is too busy to send or to process all packets without the bound.
	const mostLost, leastSent = 0.005, int(duration / step / 2)
	const manyPorts = 18000 // nothing is remembered about them
	for _, by := range []garbage{
		{20000, 1, false},
		{20000, 1, true},
		{60000, 1, false},
		{60000, 1, true},
		{60000, manyPorts, false},
	} {
		t.Run(fmt.Sprintf("%d packets per second from %d ports, replayed: %t", by.rate, by.ports, by.replayed), func(t *testing.T) {
			var share [2]float64
			for done, tries := 0, 0; done < rounds; tries++ {
				kit.FatalIf(t, tries == 3*rounds, "the machine was too busy in %d of %d rounds", tries-done, tries)
				var round [2]float64
				isBusy := false
				for i, bounded := range []bool{false, true} {
					lost, sent := newGatewayPair(t, bounded).lost(t, by, duration)
					t.Logf("bounded: %t, lost: %d of %d", bounded, lost, sent)
					round[i] = float64(lost) / float64(sent)
					isBusy = isBusy || sent < leastSent || !bounded && round[i] > mostLost
				}
				if isBusy {
					continue
				}
				done++
				share[0], share[1] = share[0]+round[0]/float64(rounds), share[1]+round[1]/float64(rounds)
			}
			if share[1] > share[0]+tolerated {
				t.Errorf("%.2f %% of the peer's packets are lost, and %.2f %% without the bound", 100*share[1], 100*share[0])
			}
		})
	}
}
