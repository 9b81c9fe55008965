package feed

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/pkg/notify"
	"github.com/liqonet/liqonet/pkg/services/feed"
	"github.com/liqonet/liqonet/test/kit"
)

// flood sends the bytes of a message again and again for some time, and returns how often the gateway has read them.
func flood(t *testing.T, raw []byte, d time.Duration) int {
	t.Helper()
	here, there := net.Pipe()
	ctx, end := context.WithCancel(t.Context())
	f := &Feed{cfg: Config{Log: slog.New(slog.DiscardHandler)}, changed: notify.NewSignal(), left: make(chan struct{}), state: State{Peering: side("62", "61")}}
	f.told, f.store = newTold(), newStore(f.cfg)
	ended := make(chan error, 1)
	go func() { ended <- f.use(ctx, here) }()
	go func() { _, _ = io.Copy(io.Discard, there) }()
	var sent atomic.Int32
	go func() {
		for {
			if _, err := there.Write(raw); err != nil {
				return
			}
			sent.Add(1)
		}
	}()
	time.Sleep(d)
	n := int(sent.Load())
	end()
	kit.ErrorIf(t, <-ended == nil, "a session ends without a reason")
	kit.NoError(t, there.Close())
	return n
}

// A peer that sends as much as it can is read slowly, whatever it sends.
func TestFloodIsSlow(t *testing.T) {
	const d = 10 * time.Second
	small := (&feed.Message{Type: feed.TypeSynced, Digest: "abc"}).Encode()
	unknown := (&feed.Message{Type: feed.TypeSynced, Digest: "abc"}).Encode()
	unknown[5] = 99 // the type
	record := recordOf("10.61.1.5")
	record.Annotations = map[string]string{"a": strings.Repeat("x", feed.MaxRecordBytes-1024)}
	large := (&feed.Message{Type: feed.TypePut, Key: "shop.web", Hash: "abc", Record: record}).Encode()
	seconds := int(d / time.Second)
	for name, tt := range map[string]struct {
		raw  []byte
		most int
	}{
		"small messages":    {small, messagesAtOnce + seconds*messagesPerSecond},
		"messages to skip":  {unknown, messagesAtOnce + seconds*messagesPerSecond},
		"messages of a lot": {large, (bytesAtOnce + seconds*bytesPerSecond) / len(large)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// One more may be waiting for its budget.
				n := flood(t, tt.raw, d)
				kit.ErrorIf(t, n > tt.most+2 || n < tt.most-2, "%d messages in %s, want about %d", n, d, tt.most)
			})
		})
	}
}

// A peer that reads nothing loses its connection.
func TestPeerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		f := &Feed{cfg: Config{Log: slog.New(slog.DiscardHandler)}, changed: notify.NewSignal(), left: make(chan struct{}), state: State{Peering: side("62", "61")}}
		f.told, f.store = newTold(), newStore(f.cfg)
		start := time.Now()
		err := f.use(t.Context(), here)
		kit.ErrorIf(t, err == nil || time.Since(start) != writeTimeout, "it ends after %s: %v", time.Since(start), err)
		kit.NoError(t, there.Close())
	})
}
