package services

import (
	"context"
	"hash/maphash"
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
	// turns has an element while a service is processed: two sources may have the same one. Others may have the same place.
	turns [64]chan struct{}
	seed  maphash.Seed
}

func newQueues(process func(context.Context, services.Key) error) *queues {
	q := &queues{process: process, all: map[string]workqueue.TypedRateLimitingInterface[services.Key]{}, seed: maphash.MakeSeed()}
	for i := range q.turns {
		q.turns[i] = make(chan struct{}, 1)
	}
	return q
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
		turn := q.turns[maphash.Comparable(q.seed, k)%uint64(len(q.turns))]
		turn <- struct{}{}
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
		<-turn
		queue.Done(k)
	}
}
