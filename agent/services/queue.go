package services

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/liqonet/liqonet/pkg/services"
)

// workers is how many services of one source are processed at the same time. They mostly wait for the API server.
const workers = 2

// firstRetry and lastRetry are the shortest and the longest pause before a service that has failed is processed again.
const firstRetry, lastRetry = 100 * time.Millisecond, 10 * time.Second

// queues have the services that are to be processed, in a queue for each source: a peering, or "" for this cluster. So a peer
// whose services change all the time delays only its own.
type queues struct {
	process func(context.Context, services.Key) error
	// processed is called after each, with its duration and error. It may be nil.
	processed func(took time.Duration, err error)

	mu      sync.Mutex
	all     map[string]workqueue.TypedRateLimitingInterface[services.Key]
	closed  bool
	started func(queue workqueue.TypedRateLimitingInterface[services.Key])
	// busy are the services that are being processed: two sources may have the same one.
	busy map[services.Key]chan struct{}
}

func newQueues(process func(context.Context, services.Key) error) *queues {
	return &queues{
		process: process, all: map[string]workqueue.TypedRateLimitingInterface[services.Key]{}, busy: map[services.Key]chan struct{}{},
	}
}

// add adds a service to the queue of a source.
func (q *queues) add(source string, k services.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	queue := q.all[source]
	if queue == nil {
		queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[services.Key](firstRetry, lastRetry))
		if q.all[source] = queue; q.started != nil {
			q.started(queue)
		}
	}
	queue.Add(k)
}

// run processes services until ctx ends.
func (q *queues) run(ctx context.Context) {
	var running sync.WaitGroup
	q.mu.Lock()
	q.started = func(queue workqueue.TypedRateLimitingInterface[services.Key]) {
		for range workers {
			running.Go(func() { q.work(ctx, queue) })
		}
	}
	for _, queue := range q.all {
		q.started(queue)
	}
	q.mu.Unlock()
	<-ctx.Done()
	q.mu.Lock()
	q.closed = true
	for _, queue := range q.all {
		queue.ShutDown()
	}
	q.mu.Unlock()
	running.Wait()
}

// work processes the services of one queue. One that fails is processed again, after a pause that grows.
func (q *queues) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[services.Key]) {
	for {
		k, shutDown := queue.Get()
		if shutDown || ctx.Err() != nil {
			return
		}
		release := q.reserve(k)
		start := time.Now()
		err := q.process(ctx, k)
		if q.processed != nil {
			q.processed(time.Since(start), err)
		}
		if err != nil && ctx.Err() == nil {
			queue.AddRateLimited(k)
		} else {
			queue.Forget(k)
		}
		release()
		queue.Done(k)
	}
}

// reserve waits until nobody else processes a service.
func (q *queues) reserve(k services.Key) (release func()) {
	for {
		q.mu.Lock()
		other := q.busy[k]
		if other == nil {
			done := make(chan struct{})
			q.busy[k] = done
			q.mu.Unlock()
			return func() {
				q.mu.Lock()
				delete(q.busy, k)
				q.mu.Unlock()
				close(done)
			}
		}
		q.mu.Unlock()
		<-other
	}
}
