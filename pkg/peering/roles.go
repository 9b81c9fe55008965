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

// errUnanswered says that one gateway called the other in vain, and that there is another candidate.
var errUnanswered = errors.New("no answer")

// defaultPatience is longer than a call of all endpoints takes, and the time that
// a Service needs to work.
const defaultPatience = 12 * time.Second

// roleExchange decides when the gateway that was called in vain becomes the one
// that calls.
type roleExchange struct {
	// patience is how long the first call may take, 0 for the default.
	patience time.Duration

	mu sync.Mutex
	// silent says which gateways have applied everything and get no answer, since says
	// since when both do.
	silent [2]bool
	since  time.Time
	// tried are the calls that were in vain.
	tried []string
	// candidates are the plans that are tried one after the other.
	candidates []*plan.Plan
}

// note takes what one side's gateway reports. It says whether both have got no
// answer for so long that the next candidate should be tried, if there is one.
func (x *roleExchange) note(side int, silent bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.silent[side] = silent
	if !x.silent[0] || !x.silent[1] {
		x.since = time.Time{}
		return false
	}
	if x.since.IsZero() {
		x.since = time.Now()
	}
	// Longer each time: on a slow machine the first way may have been right.
	return len(x.candidates) > 1 && time.Since(x.since) > cmp.Or(x.patience, defaultPatience)<<min(len(x.tried), 4)
}

// next notes that the call was in vain, and returns the plan that is tried next: after the last one, the first one again.
func (x *roleExchange) next(p *plan.Plan) *plan.Plan {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tried = append(x.tried, x.call(p))
	x.silent, x.since = [2]bool{}, time.Time{}
	return x.candidates[len(x.tried)%len(x.candidates)]
}

// explain adds to the error of a wait who called whom, if nobody got an answer.
func (x *roleExchange) explain(err error, p *plan.Plan) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := (*kube.Error)(nil)
	if err == nil || !errors.As(err, &e) || e.Kind != kube.NotReady || x.since.IsZero() && len(x.tried) == 0 {
		return err
	}
	if !x.since.IsZero() {
		x.tried = append(x.tried, x.call(p))
	}
	return &kube.Error{
		Kind: kube.NotReady, Cluster: e.Cluster, Doing: e.Doing,
		Err: fmt.Errorf("no gateway reaches the other: %s; %w", strings.Join(x.tried, "; "), e.Err),
		Hint: "open the way for UDP to one of these addresses, or say how a cluster can be called: --service-type CLUSTER=LoadBalancer, " +
			"--service-type CLUSTER=NodePort:PORT with --endpoint CLUSTER=ADDRESS:PORT, --server CLUSTER",
	}
}

// call says who calls whom, and since when.
func (x *roleExchange) call(p *plan.Plan) string {
	server, caller := p.Clusters[p.Server()], p.Clusters[1-p.Server()]
	var endpoints []string
	for _, plane := range caller.Peering.Spec.Planes {
		endpoints = append(endpoints, plane.Endpoints...)
	}
	return fmt.Sprintf("%s called %s at %s (%s) for %s", caller.Cluster, server.Cluster,
		strings.Join(endpoints, ", "), server.Service.Spec.Type, time.Since(x.since).Round(time.Second))
}
