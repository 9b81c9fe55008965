package kube

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/lock"
)

// PodsHint is the command that shows why pods of ours do not start.
func (c *Cluster) PodsHint() string {
	return fmt.Sprintf("%s -n %s describe pods", c.Kubectl, v1alpha1.Namespace)
}

// ErrUnchanged says that there is nothing to change.
var ErrUnchanged = errors.New("unchanged")

// Patience is how long a request is repeated while an API server does not serve.
const Patience = 30 * time.Second

// conflictBackoff spreads writers of one object: twenty commands may change a
// ledger at the same time.
var conflictBackoff = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 1.15, Jitter: 0.5, Steps: 40}

// RetryOnConflict repeats what was refused because somebody else has changed the
// object meanwhile.
func RetryOnConflict(do func() error) error { return retry.RetryOnConflict(conflictBackoff, do) }

// Patient repeats requests that an API server, or the way to it, does not serve for a
// while, because it restarts, is overloaded, or has lost its own storage. A request may
// have been carried out without an answer, so whoever sends it has to stand repetition.
// A server that has not answered before is not waited for. A command that was overtaken repeats nothing.
func Patient(next http.RoundTripper) http.RoundTripper { return &patient{next: next} }

type patient struct {
	next     http.RoundTripper
	answered atomic.Bool
}

// RoundTrip implements http.RoundTripper.
func (p *patient) RoundTrip(req *http.Request) (*http.Response, error) {
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 30, Cap: 2 * time.Second}
	isWatch := req.URL.Query().Has("watch") // an informer has a back-off of its own
	start := time.Now()
	for isFirst := true; ; isFirst = false {
		resp, err := p.next.RoundTrip(req)
		serves := err == nil && isServed(resp.StatusCode, isFirst)
		if serves {
			p.answered.Store(true)
		}
		if serves || isWatch || !p.answered.Load() || errors.Is(err, lock.ErrOvertaken) || time.Since(start) > Patience {
			return resp, err
		}
		select {
		case <-time.After(backoff.Step()):
		case <-req.Context().Done():
			return resp, err
		}
		if resp != nil {
			_ = resp.Body.Close()
		}
		req = req.Clone(req.Context())
		if req.GetBody != nil {
			if req.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// isServed says that an answer is one to the request.
func isServed(status int, isFirst bool) bool {
	switch status {
	case http.StatusForbidden, http.StatusUnauthorized:
		// A server that has just started does not know permissions and tokens yet.
		return isFirst
	case http.StatusTooManyRequests:
		return false
	}
	return status < http.StatusInternalServerError || status == http.StatusNotImplemented
}
