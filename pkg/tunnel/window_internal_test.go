package tunnel

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/liqonet/liqonet/test/kit"
)

// A reader waits while there is no room for more packets in flight.
func TestWindow(t *testing.T) {
	// The first call reads packets 0 to 3. This may exceed the limit of 3, as bundles do. Then something happens to
	// them. The second call reads when there is room, or when all of them count as dropped.
	const dropped = dropSteps * dropStep
	for name, tt := range map[string]struct {
		left     []int
		stay     []int // buffers that are still in their place at the second call
		data     string
		idle     bool // wireguard-go processes at most the last batch
		waits    time.Duration
		inFlight int // after the second call
	}{
		"nothing leaves":                           {waits: dropped, inFlight: 1},
		"the first one leaves":                     {left: []int{0}, waits: dropped, inFlight: 1},
		"the second one leaves":                    {left: []int{1}, inFlight: 3},
		"the last one leaves":                      {left: []int{3}, inFlight: 1},
		"they leave one by one":                    {left: []int{0, 1, 2, 3}, inFlight: 1},
		"a later one leaves first":                 {left: []int{3, 1}, inFlight: 1},
		"two were dropped at once":                 {stay: []int{0, 2}, inFlight: 3},
		"one was dropped at once":                  {stay: []int{2}, waits: dropped, inFlight: 1},
		"wireguard-go is idle":                     {idle: true, inFlight: 5},
		"one was dropped at once, and it is idle":  {idle: true, stay: []int{0}, inFlight: 4},
		"two are no data":                          {data: "d--d", inFlight: 3},
		"one is no data":                           {data: "dd-d", waits: dropped, inFlight: 1},
		"a message of WireGuard's own leaves":      {left: []int{99}, waits: dropped, inFlight: 1},
		"dropped at once, and the last one leaves": {stay: []int{0}, left: []int{3}, inFlight: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &window{limit: 3, left: make(chan struct{}, 1), idle: func() bool { return tt.idle }}
				r := reader{window: w}
				buffers := make([][]byte, 4)
				for i := range buffers {
					buffers[i] = []byte{'d'}
					if tt.data != "" {
						buffers[i][0] = tt.data[i]
					}
				}
				first := slices.Clone(buffers)
				read := func(n int) {
					_, err := r.read(buffers, func(b []byte) bool { return b[0] == 'd' }, func() (int, error) { return n, nil })
					kit.NoError(t, err)
				}
				read(4)
				for i := range buffers {
					if !slices.Contains(tt.stay, i) {
						buffers[i] = []byte{'d'}
					}
				}
				for _, i := range tt.left {
					packet := make([]byte, 1)
					if i < len(first) {
						packet = first[i]
					}
					kit.NoError(t, w.leave([][]byte{make([]byte, 1), packet}, func() error { return nil }))
				}
				start := time.Now()
				read(1)
				type outcome struct {
					Waits    time.Duration
					OnTheWay int
				}
				kit.Check(t, "outcome", outcome{time.Since(start), len(w.inFlight)}, outcome{tt.waits, tt.inFlight})
			})
		})
	}
}

// Packets that take long to leave do not count as dropped.
func TestWindowIsPatient(t *testing.T) {
	for name, tt := range map[string]struct{ before, while time.Duration }{
		"a pause before each":  {dropSteps*dropStep - dropStep/2, 0},
		"each takes very long": {0, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &window{limit: 1, left: make(chan struct{}, 1)}
				packets := [][]byte{make([]byte, 1), make([]byte, 1), make([]byte, 1)}
				for _, p := range packets {
					w.enter([]*byte{&p[0]})
				}
				go func() {
					for i := range packets {
						time.Sleep(tt.before)
						_ = w.leave(packets[i:i+1], func() error {
							time.Sleep(tt.while)
							return nil
						})
					}
				}()
				start := time.Now()
				w.wait()
				if got, want := time.Since(start), 3*(tt.before+tt.while); got != want {
					t.Errorf("waited for %s, want %s", got, want)
				}
			})
		})
	}
}

func TestEndOfLoad(t *testing.T) {
	var l loads
	var got []bool
	peaks := []int{0, 1, idlePeak, 0, idlePeak + 1, 200, 2, 0, 100, 100, 0}
	for _, most := range peaks {
		got = append(got, l.ended(most))
	}
	want := []bool{false, false, false, false, false, false, true, false, false, false, true}
	kit.Check(t, fmt.Sprintf("peaks of %v", peaks), got, want)
}

// The length of wireguard-go's queue is not exported. The tunnel knows it once it has a peer, and when that is replaced.
func TestIdle(t *testing.T) {
	u, windows := newUserspaceOn(tuntest.NewChannelTUN().TUN(), device.NewLogger(device.LogLevelSilent, ""))
	defer u.device.Close()
	received := windows[1]
	kit.ErrorIf(t, received.idle(), "idle without a peer")
	peer := wgtypes.PeerConfig{PublicKey: wgtypes.Key{1}}
	for range 2 {
		kit.NoError(t, u.ConfigureDevice("", wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: peer.PublicKey, Remove: true}, peer}}))
		kit.ErrorIf(t, !received.idle(), "not idle, although nothing was received")
	}
}
