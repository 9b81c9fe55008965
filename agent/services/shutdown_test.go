package services

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/pkg/services"
	"github.com/liqonet/liqonet/test/kit"
)

// When the controller ends, what is in work ends, and nothing else begins.
func TestQueuesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		var calls atomic.Int32
		q := newQueues(func(ctx context.Context, _ services.Key) error {
			calls.Add(1)
			<-ctx.Done()
			return ctx.Err()
		})
		ended := make(chan struct{})
		go func() {
			q.run(ctx)
			close(ended)
		}()
		for i := range 10 {
			q.add("a", key(fmt.Sprint(i)))
		}
		synctest.Wait()
		kit.Check(t, "services in work", int(calls.Load()), workers)
		end()
		<-ended
		q.add("a", key("late"))
		q.add("b", key("late"))
		synctest.Wait()
		kit.Check(t, "services after the end", int(calls.Load()), workers)
		kit.Check(t, "queues", len(q.all), 1)
	})
}

// A service that cannot be written for an hour is tried less and less often. It does not delay others, and is written soon after it can be.
func TestFailedServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		const outage = time.Hour
		start := time.Now()
		var attempts, others atomic.Int32
		written := make(chan time.Duration, 1)
		q := newQueues(func(_ context.Context, k services.Key) error {
			if k != key("web") {
				others.Add(1)
				return nil
			}
			attempts.Add(1)
			if time.Since(start) < outage {
				return errors.New("the API server is busy")
			}
			written <- time.Since(start)
			return nil
		})
		ended := make(chan struct{})
		go func() {
			q.run(ctx)
			close(ended)
		}()
		q.add("a", key("web"))
		time.Sleep(time.Second)
		q.add("a", key("other"))
		synctest.Wait()
		kit.Check(t, "another service", int(others.Load()), 1)
		late := <-written - outage
		kit.ErrorIf(t, late > time.Minute, "it is written %s after the outage", late)
		kit.ErrorIf(t, attempts.Load() > 1000, "%d attempts", attempts.Load())
		end()
		<-ended
	})
}
