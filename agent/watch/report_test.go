package watch_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/agent/watch"
)

func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := watch.NewReport(slog.New(slog.NewTextHandler(&log, nil)))
		silent := func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		for range 3 {
			if !r.Free() {
				t.Fatal("no write may begin")
			}
			r.Begin(t.Context(), silent)
			synctest.Wait()
			if r.Free() {
				t.Fatal("two writes at once")
			}
			err := <-r.Written
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			r.Note(err)
			if r.Free() {
				t.Error("the next write may begin at once")
			}
			time.Sleep(time.Second)
		}
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("the same failure was logged %d times", n)
		}
		r.Begin(t.Context(), func(context.Context) error { return nil })
		r.Note(<-r.Written)
		if !r.Free() {
			t.Error("after success a write has to wait")
		}
		r.Note(errors.New("again"))
		if !strings.Contains(log.String(), "again") {
			t.Error("a failure was not logged")
		}
	})
}
