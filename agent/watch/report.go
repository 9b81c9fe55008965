package watch

import (
	"context"
	"log/slog"
	"time"
)

// writeTimeout is how long an API server may take to answer a write, retryWrite
// how long after a failure the next one waits.
const writeTimeout, retryWrite = 10 * time.Second, time.Second

// Report writes an agent's report beside its loop, one at a time: an API server
// that is silent must not keep an agent from looking after its kernel.
type Report struct {
	// Written receives the result of each write; Note wants it.
	Written chan error
	log     *slog.Logger
	writing bool
	failed  string
	next    time.Time
}

// NewReport makes one that writes nothing yet.
func NewReport(log *slog.Logger) *Report {
	return &Report{Written: make(chan error, 1), log: log}
}

// Free says whether a write may begin.
func (r *Report) Free() bool { return !r.writing && !time.Now().Before(r.next) }

// Begin lets a write run, for which there has to be no other.
func (r *Report) Begin(ctx context.Context, write func(context.Context) error) {
	r.writing = true
	go func() {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		r.Written <- write(ctx)
	}()
}

// Note ends a write, and logs why it has failed where that is news.
func (r *Report) Note(err error) {
	r.writing = false
	if err == nil {
		r.failed = ""
		return
	}
	r.next = time.Now().Add(retryWrite)
	if err.Error() != r.failed {
		r.log.Error("cannot report", "error", err)
	}
	r.failed = err.Error()
}
