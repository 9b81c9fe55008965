package services

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/test/kit"
)

func key(name string) services.Key { return services.Key{Namespace: "ns", Name: name} }

// A source whose services change all the time does not delay those of another one.
func TestSourcesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		var others atomic.Int32
		done := make(chan time.Time, 1)
		q := newQueues(func(_ context.Context, k services.Key) error {
			time.Sleep(5 * time.Millisecond) // as an API server takes, in a played clock
			if k == key("quiet") {
				done <- time.Now()
			}
			others.Add(1)
			return nil
		})
		for i := range 100000 {
			q.add("noisy", key(fmt.Sprint(i)))
		}
		ended := make(chan struct{})
		go func() {
			q.run(ctx)
			close(ended)
		}()
		time.Sleep(time.Second)
		begin := time.Now()
		q.add("quiet", key("quiet"))
		took := (<-done).Sub(begin)
		kit.ErrorIf(t, took > 10*time.Millisecond, "it took %s", took)
		kit.ErrorIf(t, others.Load() < 100, "the noisy source was not served: %d", others.Load())
		end()
		<-ended
	})
}

// Two sources may have the same service. It is not processed twice at the same time, and again after a failure.
func TestOneServiceOfTwoSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		var mu sync.Mutex
		busy, calls := false, 0
		q := newQueues(func(context.Context, services.Key) error {
			mu.Lock()
			kit.ErrorIf(t, busy, "it is processed twice at the same time")
			busy = true
			calls++
			failed := calls == 1
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			if busy = false; failed {
				return errors.New("failed")
			}
			return nil
		})
		ended := make(chan struct{})
		go func() {
			q.run(ctx)
			close(ended)
		}()
		q.add("a", key("web"))
		q.add("b", key("web"))
		time.Sleep(time.Minute)
		mu.Lock()
		kit.Check(t, "calls", calls, 3)
		mu.Unlock()
		end()
		<-ended
	})
}
