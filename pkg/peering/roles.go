package peering

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/liqonet/liqonet/pkg/kube"
	"github.com/liqonet/liqonet/pkg/plan"
)

// errUnanswered means that one gateway got no reply from the other, and that there is another candidate.
var errUnanswered = errors.New("no answer")

// defaultConnectTimeout exceeds the time to try all endpoints, and the time until a Service works.
const defaultConnectTimeout = 12 * time.Second

// roleExchange decides when client and server swap roles because the server does not reply.
type roleExchange struct {
	// timeout is the timeout of the first attempt, 0 for the default.
	timeout time.Duration

	mu sync.Mutex
	// unanswered marks the gateways that have applied everything and get no reply, since says since when both do.
	unanswered [2]bool
	since      time.Time
	// attempts describes the failed attempts.
	attempts []string
	// candidates are the plans to try in turn.
	candidates []*plan.Plan
}

// observe records the report of one side's gateway. It returns true if it is time to try the next candidate, if there is
// one.
func (x *roleExchange) observe(side int, silent bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.unanswered[side] = silent
	if !x.unanswered[0] || !x.unanswered[1] {
		x.since = time.Time{}
		return false
	}
	if x.since.IsZero() {
		x.since = time.Now()
	}
	// Longer each time: on a slow machine the first attempt may have been right.
	return len(x.candidates) > 1 && time.Since(x.since) > cmp.Or(x.timeout, defaultConnectTimeout)<<min(len(x.attempts), 4)
}

// next records a failed attempt, and returns the plan to try next, round robin.
func (x *roleExchange) next(p *plan.Plan) *plan.Plan {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.attempts = append(x.attempts, x.describeAttempt(p))
	x.unanswered, x.since = [2]bool{}, time.Time{}
	return x.candidates[len(x.attempts)%len(x.candidates)]
}

// explain adds the failed attempts to the error of a wait, if there were any.
func (x *roleExchange) explain(err error, p *plan.Plan) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := (*kube.Error)(nil)
	if err == nil || !errors.As(err, &e) || e.Kind != kube.NotReady || x.since.IsZero() && len(x.attempts) == 0 {
		return err
	}
	if !x.since.IsZero() {
		x.attempts = append(x.attempts, x.describeAttempt(p))
	}
	return &kube.Error{
		Kind: kube.NotReady, Cluster: e.Cluster, Doing: e.Doing,
		Err: fmt.Errorf("no gateway reaches the other: %s; %w", strings.Join(x.attempts, "; "), e.Err),
		Hint: "open UDP to one of these addresses, or set how a cluster can be reached: --service-type CLUSTER=LoadBalancer, " +
			"--service-type CLUSTER=NodePort:PORT with --endpoint CLUSTER=ADDRESS:PORT, --server CLUSTER",
	}
}

// describeAttempt describes the current attempt, and its duration.
func (x *roleExchange) describeAttempt(p *plan.Plan) string {
	server, caller := p.Clusters[p.Server()], p.Clusters[1-p.Server()]
	var endpoints []string
	for _, plane := range caller.Peering.Spec.Planes {
		endpoints = append(endpoints, plane.Endpoints...)
	}
	return fmt.Sprintf("%s called %s at %s (%s) for %s", caller.Cluster, server.Cluster,
		strings.Join(endpoints, ", "), server.Service.Spec.Type, time.Since(x.since).Round(time.Second))
}
