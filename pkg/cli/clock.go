package cli

import (
	"net/http"
	"sync/atomic"
	"time"
)

// serverClock is the API server's clock, to the second, read from its answers. Objects are
// dated by it, while the clock of this machine may be wrong.
type serverClock struct{ ahead atomic.Int64 }

func (c *serverClock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// watch reads the clock from every answer.
func (c *serverClock) watch(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err == nil {
			if date, dateErr := http.ParseTime(resp.Header.Get("Date")); dateErr == nil {
				c.ahead.Store(int64(time.Until(date)))
			}
		}
		return resp, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
