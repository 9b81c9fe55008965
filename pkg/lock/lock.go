// Package lock keeps commands from changing one cluster at the same time. It uses Leases in namespace kube-system, which
// always exists, and where agents have no rights on Leases.
//
// There is one Lease per peering and one per cluster. A command on one peering holds that peering's Lease in both
// clusters. A command on all peerings holds the cluster's Lease, and waits until no peering's Lease is alive. A command
// that has created a peering's Lease then looks for the cluster's Lease, and gives way to it. So of two commands at least
// one sees the other.
//
// Locks are taken in the order of cluster IDs, the cluster's before a peering's. No command waits for a lock that
// precedes one that it holds.
//
// A Lease that is not renewed is free. Only the observer's clock counts: the Lease must stay unchanged for [Expiry]. The
// holder may merely have been stopped for that long. So [BeginWrite] checks before each write when the Lease was last
// renewed, and reads it again if that is too long ago. A process may still be stopped between that check and its write:
// [Held.OvertakenClusters] returns the clusters where that is possible.
//
// Out of scope: the work under a lock, and how long a command waits.
package lock

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/samber/lo"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
)

const (
	// RenewInterval is how often a holder renews its Leases.
	RenewInterval = 2 * time.Second
	// Expiry is how long a Lease must stay unchanged before others take it.
	Expiry = 6 * time.Second

	// renewalValidity is how long after a renewal a write may begin without reading the Lease. It ends before the Lease
	// expires.
	renewalValidity = 4 * time.Second
	// pollInterval is the time between two reads of a waiting command.
	pollInterval = 500 * time.Millisecond

	clusterName   = "liqonet-cluster"
	peeringPrefix = "liqonet-peering-"
	// annotationReleaseRequest names the command that asked the holder to give up. annotationElapsed is how long the
	// holder has run.
	annotationReleaseRequest = "liqonet.io/give-up"
	annotationElapsed        = "liqonet.io/running"
)

// Cluster describes the locks in one cluster.
type Cluster struct {
	API client.Client
	// ID determines the order in which clusters are locked, Name is for messages.
	ID, Name string
	// Peer is the ID of the other cluster of the locked peering, empty for none.
	Peer string
	// Exclusive locks the cluster against commands on any peering.
	Exclusive bool
	// IfIdle takes the locks only if no other command is alive. It blocks no other command until that is certain.
	IfIdle bool
	// Timeout limits the time to take this cluster's locks, 0 for no limit but the context. With IfIdle, it starts once
	// it is certain that no other command is alive. It starts again while the holder also holds a lock in a cluster
	// without Timeout for which this command will have to wait there.
	Timeout time.Duration
	// Responsive ends when the command no longer waits for answers from the cluster. Nil means never.
	Responsive context.Context
}

// ErrOvertaken is the error of a command whose lock another command has taken over.
var ErrOvertaken = errors.New("overtaken")

// Busy is the error for a lock that was not free in time.
type Busy struct {
	// Cluster is the name of the cluster, Holder is the holder. Holder is empty if it is not known.
	Cluster, Holder string
	Err             error
}

func (b *Busy) Error() string {
	if b.Holder == "" {
		return fmt.Sprintf("the lock could not be taken: %v", b.Err)
	}
	return fmt.Sprintf("%s holds the lock (%v)", b.Holder, b.Err)
}

// Unwrap returns why the wait ended.
func (b *Busy) Unwrap() error { return b.Err }

// Wait calls until, and shows the user the reason for the wait.
type Wait func(ctx context.Context, reason string, until func(context.Context) error) error

// Held are the locks that one command holds.
type Held struct {
	verb, holder string
	started      time.Time
	// lost ends with the cause when a lock is lost, or when the locks are released.
	lost      context.Context
	markLost  context.CancelCauseFunc
	renewing  sync.WaitGroup
	leases    []*lease
	observers []*observer
	// mu makes sure that a write begins before lost ends, or not at all. Before the locks are released, all writes that
	// have begun end.
	mu       sync.Mutex
	writing  sync.WaitGroup
	released chan struct{}
}

// lease is a Lease that is held.
type lease struct {
	observer *observer
	// released ends when the Lease is released.
	released context.Context
	release  context.CancelFunc

	// sem guards the following fields, even during a request.
	sem       chan struct{}
	object    *coordinationv1.Lease
	renewedAt time.Time

	// overtaker is the command named by a Lease without a holder that this Lease replaced: a command that was overtaken
	// earlier may still have to learn it.
	overtaker string
}

type (
	heldKey    struct{}
	clusterKey struct{}
)

// Acquire takes the locks in all of the clusters, or in none. The context that it returns ends with ErrOvertaken when
// one of them is lost. The caller must release the locks in any case.
func Acquire(ctx context.Context, verb string, wait Wait, clusters ...Cluster) (context.Context, *Held, error) {
	h := &Held{verb: verb, holder: fmt.Sprintf("%s of %s (%s)", verb, userAndHost(), strings.ToLower(rand.Text()[:8])), started: time.Now(), released: make(chan struct{})}
	var cancel context.CancelCauseFunc
	h.lost, cancel = context.WithCancelCause(WithoutLock(context.WithoutCancel(ctx)))
	h.markLost = func(why error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		cancel(why)
	}
	for _, c := range slices.SortedFunc(slices.Values(clusters), func(a, b Cluster) int { return cmp.Compare(a.ID, b.ID) }) {
		c.Responsive = cmp.Or(c.Responsive, context.Background())
		h.observers = append(h.observers, &observer{Cluster: c, releaseRequested: map[types.UID]time.Time{}})
	}
	taking, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(h.lost, func() { stop(context.Cause(h.lost)) })()
	// While it waits for one cluster, it watches the others too, so that abandoned Leases expire at the same time.
	watch := sync.OnceFunc(func() {
		for _, o := range h.observers {
			go o.watch(taking)
		}
	})
	for _, o := range h.observers {
		if err := h.acquireIn(taking, o, wait, watch); err != nil {
			h.markLost(context.Canceled)
			h.releaseAll()
			return ctx, h, fmt.Errorf("cluster %q: %w", o.Name, err)
		}
	}
	locked, end := context.WithCancelCause(context.WithValue(ctx, heldKey{}, h))
	context.AfterFunc(h.lost, func() {
		end(context.Cause(h.lost))
		h.releaseAll() // now: others that wait for the locks need not wait until the whole command has ended
	})
	return locked, h, nil
}

// acquireIn takes the locks in one cluster.
func (h *Held) acquireIn(ctx context.Context, o *observer, wait Wait, watch func()) error {
	if o.IfIdle {
		all, err := o.holders(ctx, true)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(all, func(other Holder) bool { return !other.IsExpired }); i >= 0 {
			return &Busy{Cluster: o.Name, Holder: all[i].Name, Err: errors.New("this command does not wait for it")}
		}
	}
	var limit *time.Timer
	if o.Timeout > 0 {
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		limit = time.AfterFunc(o.Timeout, func() { cancel(fmt.Errorf("not free within %s: %w", o.Timeout, context.DeadlineExceeded)) })
		defer limit.Stop()
	}
	for {
		by, err := h.tryAcquire(ctx, o)
		if err == nil && by != nil {
			watch()
			err = wait(ctx, fmt.Sprintf("%s: waiting for %s", o.Name, describeHolder(by)), func(ctx context.Context) error {
				for holder := holderOf(by); err == nil && by != nil && holderOf(by) == holder; by, err = h.tryAcquire(ctx, o) {
					if limit != nil && h.isTrusted(holder) {
						limit.Reset(o.Timeout)
					}
					if !failure.Pause(ctx, pollInterval) {
						return context.Cause(ctx)
					}
				}
				return err
			})
		}
		switch {
		case h.lost.Err() != nil:
			return context.Cause(h.lost)
		case ctx.Err() != nil:
			busy := &Busy{Cluster: o.Name, Err: context.Cause(ctx)}
			if by != nil {
				busy.Holder = describeHolder(by)
			}
			return busy
		case err != nil || by == nil:
			return err
		}
	}
}

// isTrusted tells whether a holder is another command that also holds a lock for which this command waits without a
// limit. Others may give a lock the name of any command that they know.
func (h *Held) isTrusted(holder string) bool {
	return holder != h.holder && slices.ContainsFunc(h.observers, func(o *observer) bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.Timeout == 0 && time.Since(o.read) < Expiry && lo.SomeBy([]string{peeringPrefix + o.Peer, clusterName}, func(name string) bool {
			l := o.observed[name]
			return holderOf(l.Lease) == holder && !l.expired
		})
	})
}

// tryAcquire takes the free locks, and returns the Lease that blocks the rest.
func (h *Held) tryAcquire(ctx context.Context, o *observer) (by *coordinationv1.Lease, err error) {
	peering := peeringPrefix + o.Peer
	if o.Exclusive {
		if by, err := h.acquireLease(ctx, o, clusterName); by != nil || err != nil {
			return by, err
		}
	}
	leases, err := o.list(ctx)
	if err != nil {
		return nil, err
	}
	if holder := holderOf(leases[peering].Lease); h.verb == Unpeer && holder != "" && !strings.HasPrefix(holder, Unpeer+" ") {
		if err := o.requestRelease(ctx, leases[peering].Lease, h.holder); err != nil {
			return nil, err
		}
	}
	for name, l := range leases {
		// The cluster's lock conflicts with those of all peerings. The lock of its own peering is acquired below.
		if name == peering || o.Exclusive == (name == clusterName) {
			continue
		}
		if by, err := o.takeOver(ctx, l, h.holder); by != nil || err != nil {
			return by, err
		}
	}
	if o.Peer == "" {
		return nil, h.check(ctx)
	}
	if by, err := h.acquireLease(ctx, o, peering); by != nil || err != nil {
		return by, err
	}
	if !o.Exclusive {
		if leases, err = o.list(ctx); err == nil {
			by, err = o.takeOver(ctx, leases[clusterName], h.holder)
		}
		if by != nil || err != nil { // a command that wants the cluster's lock waits for this one
			last := len(h.leases) - 1
			h.release(h.leases[last])
			h.leases = h.leases[:last]
			return by, err
		}
	}
	return nil, h.check(ctx) // it may have taken longer than the Lease lasts
}

// acquireLease creates a Lease, or returns another holder's.
func (h *Held) acquireLease(ctx context.Context, o *observer, name string) (by *coordinationv1.Lease, err error) {
	if slices.ContainsFunc(h.leases, func(l *lease) bool { return l.observer == o && l.object.Name == name }) {
		return nil, nil
	}
	leases, err := o.list(ctx)
	if err != nil {
		return nil, err
	}
	current := leases[name]
	if by, err := o.takeOver(ctx, current, h.holder); err != nil || by != nil {
		return by, err
	}
	if current.Lease != nil {
		err := client.IgnoreNotFound(o.API.Delete(ctx, current.Lease, client.Preconditions{UID: &current.UID}))
		if err != nil && !apierrors.IsConflict(err) {
			return nil, err
		}
	}
	began := time.Now()
	object := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: name, Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager},
			Annotations: map[string]string{annotationElapsed: h.elapsed()},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &h.holder, RenewTime: &metav1.MicroTime{Time: began}, LeaseDurationSeconds: new(int32(Expiry / time.Second))},
	}
	err = o.API.Create(ctx, object, client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsAlreadyExists(err) {
		failure.Pause(ctx, pollInterval) // another command was faster
		return h.acquireLease(ctx, o, name)
	}
	if err != nil {
		return nil, err
	}
	l := &lease{observer: o, sem: make(chan struct{}, 1), object: object, renewedAt: began}
	if name == clusterName && holderOf(current.Lease) == "" {
		l.overtaker = requesterOf(current.Lease)
	}
	l.released, l.release = context.WithCancel(h.lost)
	h.leases = append(h.leases, l)
	h.renewing.Go(func() { h.renew(l) })
	return nil, nil
}

// renew renews a Lease until it is released or a lock is lost.
func (h *Held) renew(l *lease) {
	for failure.Pause(l.released, RenewInterval) {
		// A Lease that is not renewed because its API server does not answer is not lost: nobody else can take it there.
		_ = h.confirm(l.released, l, RenewInterval/2)
	}
}

// confirm renews a Lease if the last renewal is older than after. It fails with ErrOvertaken if another command has it.
func (h *Held) confirm(ctx context.Context, l *lease, after time.Duration) error {
	select {
	case l.sem <- struct{}{}:
		defer func() { <-l.sem }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch {
	case h.lost.Err() != nil:
		return context.Cause(h.lost)
	case since(l.renewedAt) < after, l.released.Err() != nil:
		return nil
	case l.observer.Responsive.Err() != nil:
		return context.Cause(l.observer.Responsive)
	}
	ctx, cancel := l.observer.requestContext(WithoutLock(ctx))
	defer cancel()
	for {
		began, next := time.Now(), l.object.DeepCopy()
		next.Spec.RenewTime = &metav1.MicroTime{Time: began}
		next.Annotations[annotationElapsed] = h.elapsed()
		err := l.observer.API.Update(ctx, next, client.FieldOwner(v1alpha1.FieldManager))
		if err == nil {
			l.object, l.renewedAt = next, began
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
		now := &coordinationv1.Lease{}
		err = l.observer.API.Get(ctx, client.ObjectKeyFromObject(l.object), now)
		by := now.Annotations[annotationReleaseRequest]
		switch {
		case apierrors.IsNotFound(err):
			leases, _ := l.observer.list(ctx) // the other Lease in the cluster may name the command; without an answer it is unknown
			by = cmp.Or(requesterOf(leases[peeringPrefix+l.observer.Peer].Lease), requesterOf(leases[clusterName].Lease),
				"a command that has ended since, such as unpeer of the last peering, or someone who deleted the lock")
		case err != nil:
			return err
		case now.UID != l.object.UID:
			by = cmp.Or(holderOf(now), by, "another command")
		}
		if by != "" {
			err := fmt.Errorf("%w by %s", ErrOvertaken, by)
			h.markLost(err)
			return err
		}
		l.object = now // such as a renewal whose answer was lost
	}
}

// requestContext returns a context for a request about a Lease. It ends at once if the command no longer waits for
// answers from the cluster.
func (o *observer) requestContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, Expiry/2)
	stop := context.AfterFunc(o.Responsive, cancel)
	return ctx, func() { stop(); cancel() }
}

// check fails if a lock is lost, or if that is not certain.
func (h *Held) check(ctx context.Context) error {
	if h.lost.Err() != nil {
		return context.Cause(h.lost)
	}
	only, isOnly := ctx.Value(clusterKey{}).(string)
	for _, l := range h.leases {
		if isOnly && l.observer.ID != only {
			continue
		}
		if err := h.confirm(ctx, l, renewalValidity); err != nil {
			return err
		}
	}
	return nil
}

// BeginWrite must precede each write. It fails if the lock of this context is lost. The locks are not released until
// the caller calls end.
func BeginWrite(ctx context.Context) (end func(), err error) {
	h, _ := ctx.Value(heldKey{}).(*Held)
	if h == nil {
		return func() {}, nil
	}
	h.mu.Lock()
	if h.lost.Err() == nil {
		h.writing.Add(1)
		end = h.writing.Done
	}
	h.mu.Unlock()
	if err = h.check(ctx); err != nil && end != nil {
		end()
	}
	return end, err
}

// Lost returns why the lock of this context is lost, nil if it is not known to be. Unless the lock was renewed a moment
// ago, it reads the Lease: in a process that was stopped for long, pending requests fail first.
func Lost(ctx context.Context) error {
	h, _ := ctx.Value(heldKey{}).(*Held)
	if h == nil {
		return nil
	}
	if err := h.check(context.WithoutCancel(ctx)); errors.Is(err, ErrOvertaken) {
		return err
	}
	return nil
}

// OvertakenClusters returns the clusters in which this command overtook another one, which may be about to write once
// more.
func (h *Held) OvertakenClusters() []Cluster {
	return lo.FilterMap(h.observers, func(o *observer, _ int) (Cluster, bool) { return o.Cluster, o.hasOvertaken })
}

// WithoutLock returns a context in which no lock is held.
func WithoutLock(ctx context.Context) context.Context { return context.WithValue(ctx, heldKey{}, nil) }

// InCluster returns a context for work in one cluster only. A write then checks only the locks of that cluster, and
// needs no answer of another locked cluster.
func InCluster(ctx context.Context, clusterID string) context.Context {
	return context.WithValue(ctx, clusterKey{}, clusterID)
}

// Release releases the locks. A Lease that cannot be deleted expires.
func (h *Held) Release() {
	h.markLost(context.Canceled)
	<-h.released
}

// releaseAll releases the locks once they are lost or no longer needed.
func (h *Held) releaseAll() {
	defer close(h.released)
	h.writing.Wait()
	h.renewing.Wait()
	var all sync.WaitGroup // one cluster does not wait for another's answer
	for _, l := range h.leases {
		all.Go(func() { h.release(l) })
	}
	all.Wait()
}

// release releases one Lease. If this command has overtaken another one, its name stays in the Lease, so that the other
// one learns it.
func (h *Held) release(l *lease) {
	ctx, cancel := l.observer.requestContext(context.WithoutCancel(h.lost))
	defer cancel()
	l.release()
	l.sem <- struct{}{}
	defer func() { <-l.sem }()
	if l.observer.hasOvertaken {
		l.overtaker = h.holder
	}
	if l.overtaker != "" {
		l.object.Annotations = map[string]string{annotationReleaseRequest: l.overtaker}
		l.object.Spec.HolderIdentity = nil
		if l.observer.API.Update(ctx, l.object, client.FieldOwner(v1alpha1.FieldManager)) == nil {
			return
		}
	}
	_ = l.observer.API.Delete(ctx, l.object, client.Preconditions{UID: &l.object.UID}) // otherwise it expires
}

// DeleteOvertakenLeases deletes the Leases in a cluster that only record which command was overtaken.
func DeleteOvertakenLeases(ctx context.Context, api client.Client) error {
	leases, err := (&observer{Cluster: Cluster{API: api}}).list(ctx)
	for _, l := range leases {
		if holderOf(l.Lease) == "" {
			err = errors.Join(err, client.IgnoreNotFound(api.Delete(ctx, l.Lease, client.Preconditions{UID: &l.UID})))
		}
	}
	return err
}

// Holder is a lock with a holder, which may be a command that was killed.
type Holder struct {
	Lease *coordinationv1.Lease
	// Name names the holder, and how long it has run, by its own clock.
	Name string
	// IsExpired means that the Lease was watched for [Expiry] without a renewal.
	IsExpired bool
}

func (h Holder) String() string {
	return fmt.Sprintf("%s (Lease %s/%s)", h.Name, h.Lease.Namespace, h.Lease.Name)
}

// Holders returns the locks of a cluster that have a holder. With untilCertain, it waits until each one is renewed or
// has expired.
func Holders(ctx context.Context, api client.Client, untilCertain bool) ([]Holder, error) {
	return (&observer{Cluster: Cluster{API: api}}).holders(ctx, untilCertain)
}

func (o *observer) holders(ctx context.Context, untilCertain bool) ([]Holder, error) {
	for {
		leases, err := o.list(ctx)
		if err != nil {
			return nil, err
		}
		var out []Holder
		isUnclear, isAlive := false, false
		for _, name := range slices.Sorted(maps.Keys(leases)) {
			if l := leases[name]; holderOf(l.Lease) != "" {
				out = append(out, Holder{l.Lease, describeHolder(l.Lease), l.expired})
				isUnclear = isUnclear || !l.expired && !l.renewed
				isAlive = isAlive || l.renewed
			}
		}
		if !untilCertain || !isUnclear || o.IfIdle && isAlive {
			return out, nil
		}
		if !failure.Pause(ctx, pollInterval) {
			return nil, context.Cause(ctx)
		}
	}
}

// Unpeer is the verb of commands that make others on the same peering give up, except other unpeers.
const Unpeer = "unpeer"

// observer watches the Leases of one cluster, and how long they have been unchanged.
type observer struct {
	Cluster
	mu       sync.Mutex
	observed map[string]observedLease
	// read is when the Leases were last read.
	read time.Time
	// releaseRequested is when holders were asked to give up.
	releaseRequested map[types.UID]time.Time
	// hasOvertaken means that a lock was taken from a holder that may be alive and not know it yet.
	hasOvertaken bool
}

// observedLease is a Lease, and the time since when it is unchanged. The zero value is a missing Lease.
type observedLease struct {
	*coordinationv1.Lease
	since time.Time
	// renewed means that it was created or renewed while it was watched, expired that it was not renewed for [Expiry].
	renewed, expired bool
}

// watch reads the Leases until ctx ends.
func (o *observer) watch(ctx context.Context) {
	for ; ctx.Err() == nil; failure.Pause(ctx, pollInterval) {
		_, _ = o.list(ctx) // a command that takes the lock reads them too
	}
}

// list returns the Leases by name.
func (o *observer) list(ctx context.Context) (map[string]observedLease, error) {
	var list coordinationv1.LeaseList
	asked := time.Now()
	err := o.API.List(ctx, &list, client.InNamespace(metav1.NamespaceSystem), client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.FieldManager})
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := map[string]observedLease{}
	for i := range list.Items {
		l := &list.Items[i]
		if l.Name != clusterName && !strings.HasPrefix(l.Name, peeringPrefix) {
			continue
		}
		s := o.observed[l.Name]
		if s.Lease == nil || s.UID != l.UID || s.ResourceVersion != l.ResourceVersion {
			s = observedLease{Lease: l, since: time.Now(), renewed: s.renewed || o.observed != nil}
		}
		// From the previous answer to this request, the Lease was unchanged, even if this process was stopped in between.
		s.expired = s.expired || asked.Sub(s.since) >= Expiry
		now[l.Name] = s
	}
	o.observed, o.read = now, time.Now()
	return now, nil
}

// takeOver records in a Lease who took it, if its holder has expired or was asked to give up long ago. It returns a Lease
// that is not free.
func (o *observer) takeOver(ctx context.Context, l observedLease, by string) (holder *coordinationv1.Lease, err error) {
	if holderOf(l.Lease) == "" {
		return nil, nil
	}
	asked, wasAsked := o.releaseRequested[l.UID]
	if isOver := wasAsked && time.Since(asked) >= Expiry; !isOver && !l.expired {
		return l.Lease, nil
	}
	next := l.DeepCopy()
	next.Spec.HolderIdentity, next.Annotations = nil, map[string]string{annotationReleaseRequest: by}
	switch err := o.API.Update(ctx, next, client.FieldOwner(v1alpha1.FieldManager)); {
	case apierrors.IsConflict(err):
		return l.Lease, nil // its holder has just renewed it: the next attempt decides
	case err != nil:
		return nil, client.IgnoreNotFound(err)
	}
	o.hasOvertaken = true
	return nil, nil
}

// requestRelease asks the holder of a Lease once to give up.
func (o *observer) requestRelease(ctx context.Context, l *coordinationv1.Lease, requester string) error {
	if _, asked := o.releaseRequested[l.UID]; asked {
		return nil
	}
	next := l.DeepCopy()
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, annotationReleaseRequest, requester)
	patch := client.MergeFromWithOptions(l, client.MergeFromWithOptimisticLock{})
	err := o.API.Patch(ctx, next, patch, client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the next attempt decides
	}
	if err == nil {
		o.releaseRequested[l.UID] = time.Now()
	}
	return err
}

// holderOf returns the holder of a Lease, empty if there is no holder or no Lease.
func holderOf(l *coordinationv1.Lease) string {
	return truncate(lo.FromPtr(lo.FromPtr(l).Spec.HolderIdentity))
}

// requesterOf returns the command that asked the holder of a Lease to give up, or that took the Lease.
func requesterOf(l *coordinationv1.Lease) string {
	return truncate(lo.FromPtr(l).Annotations[annotationReleaseRequest])
}

// describeHolder names the holder of a Lease, and how long it has run, by its own clock.
func describeHolder(l *coordinationv1.Lease) string {
	return holderOf(l) + ", which has run for " + truncate(cmp.Or(l.Annotations[annotationElapsed], "an unknown time"))
}

// truncate limits the length of what others may have written.
func truncate(s string) string { return s[:min(len(s), 128)] }

func (h *Held) elapsed() string { return since(h.started).Round(time.Second).String() }

// since counts the time while the machine was suspended too, which the monotonic clock may not. A wall clock that was set
// back does not count.
func since(t time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(t), now.Round(0).Sub(t.Round(0)))
}

// userAndHost returns the user and the machine.
func userAndHost() string {
	name := "somebody"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	machine, _ := os.Hostname()
	return name + "@" + cmp.Or(machine, "an unknown machine")
}

// Guard returns a RoundTripper that calls [BeginWrite] before each request that writes, including retries.
func Guard(next http.RoundTripper) http.RoundTripper { return guard{next} }

type guard struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet {
		end, err := BeginWrite(req.Context())
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
