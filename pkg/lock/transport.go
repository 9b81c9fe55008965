package lock

import "net/http"

// Guard returns a RoundTripper that calls [Begin] before each request that writes, including retries.
func Guard(next http.RoundTripper) http.RoundTripper { return guard{next} }

type guard struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet {
		end, err := Begin(req.Context())
		if err != nil {
			if req.Body != nil {
				_ = req.Body.Close()
			}
			return nil, err
		}
		defer end()
	}
	return g.next.RoundTrip(req)
}
