package watch

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/test/kit"
)

// Requests that wait for an absent API server dial one at a time, with increasing pauses, and all get a connection
// soon after it is back.
func TestOneDialForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int32
		start, down := time.Now(), 10*time.Minute
		d := dialUntilAnswered(t.Context(), func(context.Context, string, string) (net.Conn, error) {
			dials.Add(1)
			if time.Since(start) < down {
				return nil, errors.New("refused")
			}
			return nil, nil
		})
		const requests = 6
		took := make(chan time.Duration, requests)
		for range requests {
			go func() {
				kit.CheckNoError(t, kit.Err(d(context.Background(), "tcp", "")))
				took <- time.Since(start)
			}()
		}
		for range requests {
			if late := <-took - down; late < 0 || late > 8*time.Second {
				t.Errorf("connected %v after the API server was back", late)
			}
		}
		if n := dials.Load(); n > 200 {
			t.Errorf("%d attempts in %v", n, down)
		}
	})
}

// A transport continues to dial after its request was canceled. That must not outlast the cache for which it dials.
func TestDialEndsWithItsCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d := dialUntilAnswered(ctx, func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") })
		ended := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := d(context.WithoutCancel(ctx), "tcp", "")
				ended <- err
			}()
		}
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		for range 2 {
			select {
			case err := <-ended:
				kit.ErrorIf(t, err == nil, "a dial succeeded")
			default:
				t.Error("a dial continues after its cache has ended")
			}
		}
	})
}
