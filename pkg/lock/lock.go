package lock

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
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
)

const (
	// Renewal is how often a holder renews its Leases.
	Renewal = 2 * time.Second
	// Expiry is how long a Lease has to stay unchanged until others take it.
	Expiry = 6 * time.Second

	// fresh is how long after a renewal a write may begin without a look at the Lease. It ends before the Lease does.
	fresh = 4 * time.Second
	// interval is how often somebody who waits looks.
	interval = 500 * time.Millisecond

	clusterName   = "liqonet-cluster"
	peeringPrefix = "liqonet-peering-"
	// annotationGiveUp names who has asked the holder to give up, annotationRunning says how long the holder has worked.
	annotationGiveUp  = "liqonet.io/give-up"
	annotationRunning = "liqonet.io/running"
)

// Cluster says what is locked in one cluster.
type Cluster struct {
	API client.Client
	// ID gives the order in which clusters are locked, Name is for messages.
	ID, Name string
	// Peer is the ID of the cluster with which the peering is that is locked. Empty for none.
	Peer string
	// Exclusive locks the cluster against commands on any peering.
	Exclusive bool
	// IfIdle takes the locks only where nobody else works. It looks until that is certain, before it holds up anybody.
	IfIdle bool
	// Within is how long this cluster's locks may take, 0 as long as the context lasts. With IfIdle, that begins when it is certain.
	Within time.Duration
	// Responsive ends when nobody waits for an answer of the cluster any more. Nil for never.
	Responsive context.Context
}

// ErrOvertaken is why a command ends whose lock another one has taken.
var ErrOvertaken = errors.New("overtaken")

// Busy is the error of a lock that was not free in time.
type Busy struct {
	// Cluster is the name of the cluster, By who works there. Empty if the cluster has not told.
	Cluster, By string
	Err         error
}

func (b *Busy) Error() string {
	if b.By == "" {
		return fmt.Sprintf("the lock could not be taken: %v", b.Err)
	}
	return fmt.Sprintf("%s works on it (%v)", b.By, b.Err)
}

// Unwrap returns why there was no more time.
func (b *Busy) Unwrap() error { return b.Err }

// Wait calls until, and tells the user for whom it waits.
type Wait func(ctx context.Context, reason string, until func(context.Context) error) error

// Held are locks that one command holds.
type Held struct {
	verb, holder string
	began        time.Time
	// lost ends with the reason when a lock is lost, or when the locks are released.
	lost      context.Context
	lose      context.CancelCauseFunc
	renewing  sync.WaitGroup
	leases    []*lease
	observers []*observer
	// mu has a write begin before lost has ended, or not at all. What has begun is waited for before the locks are given back.
	mu       sync.Mutex
	writing  sync.WaitGroup
	released chan struct{}
}

// lease is one that is held.
type lease struct {
	in *observer
	// given ends when the Lease is given back.
	given context.Context
	give  context.CancelFunc

	// turn is taken by whoever reads or writes what follows, also while a request is under way.
	turn      chan struct{}
	object    *coordinationv1.Lease
	confirmed time.Time
}

type (
	heldKey struct{}
	onlyKey struct{}
)

// Take takes locks in all of the clusters, or in none. The context that it returns ends when one of them is lost, with
// ErrOvertaken. The locks have to be released, with any outcome of what is done under them.
func Take(ctx context.Context, verb string, wait Wait, clusters ...Cluster) (context.Context, *Held, error) {
	h := &Held{verb: verb, holder: fmt.Sprintf("%s of %s (%s)", verb, whoami(), strings.ToLower(rand.Text()[:8])), began: time.Now(), released: make(chan struct{})}
	var cancel context.CancelCauseFunc
	h.lost, cancel = context.WithCancelCause(Outside(context.WithoutCancel(ctx)))
	h.lose = func(why error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		cancel(why)
	}
	for _, c := range slices.SortedFunc(slices.Values(clusters), func(a, b Cluster) int { return cmp.Compare(a.ID, b.ID) }) {
		c.Responsive = cmp.Or(c.Responsive, context.Background())
		h.observers = append(h.observers, &observer{Cluster: c, asked: map[types.UID]time.Time{}})
	}
	taking, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(h.lost, func() { stop(context.Cause(h.lost)) })()
	// The others are watched while one is waited for, so that Leases that nobody renews expire at the same time.
	watch := sync.OnceFunc(func() {
		for _, o := range h.observers {
			go o.watch(taking)
		}
	})
	for _, o := range h.observers {
		if err := h.take(taking, o, wait, watch); err != nil {
			h.lose(context.Canceled)
			h.giveAllBack()
			return ctx, h, fmt.Errorf("cluster %q: %w", o.Name, err)
		}
	}
	locked, end := context.WithCancelCause(context.WithValue(ctx, heldKey{}, h))
	context.AfterFunc(h.lost, func() {
		end(context.Cause(h.lost))
		h.giveAllBack() // now: who asks for the locks need not wait until all of the command has ended
	})
	return locked, h, nil
}

// take takes the locks in one cluster.
func (h *Held) take(ctx context.Context, o *observer, wait Wait, watch func()) error {
	if o.IfIdle {
		all, err := o.holders(ctx, true)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(all, func(other Holding) bool { return !other.IsExpired }); i >= 0 {
			return &Busy{Cluster: o.Name, By: all[i].By, Err: errors.New("it is not waited for")}
		}
	}
	if o.Within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.Within, fmt.Errorf("not free within %s: %w", o.Within, context.DeadlineExceeded))
		defer cancel()
	}
	for {
		by, err := h.attempt(ctx, o)
		if err == nil && by != nil {
			watch()
			err = wait(ctx, fmt.Sprintf("%s: waiting for %s", o.Name, describe(by)), func(ctx context.Context) error {
				for holder := holderOf(by); err == nil && by != nil && holderOf(by) == holder; by, err = h.attempt(ctx, o) {
					if pause(ctx); ctx.Err() != nil {
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
				busy.By = describe(by)
			}
			return busy
		case err != nil || by == nil:
			return err
		}
	}
}

// pause waits until it is time to look again, or ctx ends.
func pause(ctx context.Context) {
	select {
	case <-time.After(interval):
	case <-ctx.Done():
	}
}

// attempt takes what is free, and returns whose lock is in the way.
func (h *Held) attempt(ctx context.Context, o *observer) (by *coordinationv1.Lease, err error) {
	peering := peeringPrefix + o.Peer
	if o.Exclusive {
		if by, err := h.acquire(ctx, o, clusterName); by != nil || err != nil {
			return by, err
		}
	}
	leases, err := o.look(ctx)
	if err != nil {
		return nil, err
	}
	if holder := holderOf(leases[peering].Lease); h.verb == Unpeer && holder != "" && !strings.HasPrefix(holder, Unpeer+" ") {
		if err := o.overrule(ctx, leases[peering].Lease, h.holder); err != nil {
			return nil, err
		}
	}
	for name, l := range leases {
		// The cluster's lock is in the way, or those of all peerings. That of its own peering is acquired below.
		if name == peering || o.Exclusive == (name == clusterName) {
			continue
		}
		if by, err := o.free(ctx, l, h.holder); by != nil || err != nil {
			return by, err
		}
	}
	if o.Peer == "" {
		return nil, h.check(ctx)
	}
	if by, err := h.acquire(ctx, o, peering); by != nil || err != nil {
		return by, err
	}
	if !o.Exclusive {
		if leases, err = o.look(ctx); err == nil {
			by, err = o.free(ctx, leases[clusterName], h.holder)
		}
		if by != nil || err != nil { // whoever wants the cluster's waits for this one
			last := len(h.leases) - 1
			h.giveBack(h.leases[last])
			h.leases = h.leases[:last]
			return by, err
		}
	}
	return nil, h.check(ctx) // it may have taken longer than the Lease lasts
}

// acquire creates a Lease. It returns that of another holder.
func (h *Held) acquire(ctx context.Context, o *observer, name string) (by *coordinationv1.Lease, err error) {
	if slices.ContainsFunc(h.leases, func(l *lease) bool { return l.in == o && l.object.Name == name }) {
		return nil, nil
	}
	leases, err := o.look(ctx)
	if err != nil {
		return nil, err
	}
	there := leases[name]
	if by, err := o.free(ctx, there, h.holder); err != nil || by != nil {
		return by, err
	}
	if there.Lease != nil {
		err := client.IgnoreNotFound(o.API.Delete(ctx, there.Lease, client.Preconditions{UID: &there.UID}))
		if err != nil && !apierrors.IsConflict(err) {
			return nil, err
		}
	}
	began := time.Now()
	object := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: name, Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager},
			Annotations: map[string]string{annotationRunning: h.running()},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &h.holder, RenewTime: &metav1.MicroTime{Time: began}, LeaseDurationSeconds: new(int32(Expiry / time.Second))},
	}
	err = o.API.Create(ctx, object, client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsAlreadyExists(err) {
		pause(ctx) // somebody was faster
		return h.acquire(ctx, o, name)
	}
	if err != nil {
		return nil, err
	}
	l := &lease{in: o, turn: make(chan struct{}, 1), object: object, confirmed: began}
	l.given, l.give = context.WithCancel(h.lost)
	h.leases = append(h.leases, l)
	h.renewing.Go(func() { h.renew(l) })
	return nil, nil
}

// renew renews a Lease until the locks are released, or one of them is lost.
func (h *Held) renew(l *lease) {
	for {
		select {
		case <-time.After(Renewal):
		case <-l.given.Done():
			return
		}
		// One that is not renewed, since its API server does not answer, is not lost. Nobody else can take it there.
		_ = h.confirm(l.given, l, Renewal/2)
	}
}

// confirm renews a Lease that was not renewed for some time. It fails with ErrOvertaken if it is another one's.
func (h *Held) confirm(ctx context.Context, l *lease, after time.Duration) error {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch {
	case h.lost.Err() != nil:
		return context.Cause(h.lost)
	case since(l.confirmed) < after, l.given.Err() != nil:
		return nil
	case l.in.Responsive.Err() != nil:
		return context.Cause(l.in.Responsive)
	}
	ctx, cancel := l.in.briefly(Outside(ctx))
	defer cancel()
	for {
		began, next := time.Now(), l.object.DeepCopy()
		next.Spec.RenewTime = &metav1.MicroTime{Time: began}
		next.Annotations[annotationRunning] = h.running()
		err := l.in.API.Update(ctx, next, client.FieldOwner(v1alpha1.FieldManager))
		if err == nil {
			l.object, l.confirmed = next, began
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
		now := &coordinationv1.Lease{}
		err = l.in.API.Get(ctx, client.ObjectKeyFromObject(l.object), now)
		by := now.Annotations[annotationGiveUp]
		switch {
		case apierrors.IsNotFound(err):
			by = cmp.Or(l.in.overtaker(ctx), "unpeer of the last peering, or somebody has deleted the lock")
		case err != nil:
			return err
		case now.UID != l.object.UID:
			by = cmp.Or(holderOf(now), by, "another command")
		}
		if by != "" {
			err := fmt.Errorf("%w by %s", ErrOvertaken, by)
			h.lose(err)
			return err
		}
		l.object = now // such as a renewal without an answer
	}
}

// briefly is a context for a request about a Lease. It ends at once where nobody waits for an answer any more.
func (o *observer) briefly(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, Expiry/2)
	stop := context.AfterFunc(o.Responsive, cancel)
	return ctx, func() { stop(); cancel() }
}

// overtaker is by whom this command was overtaken, as far as its other Lease in a cluster tells.
func (o *observer) overtaker(ctx context.Context) string {
	leases, _ := o.look(ctx) // without an answer it is not known
	return cmp.Or(askedBy(leases[peeringPrefix+o.Peer].Lease), askedBy(leases[clusterName].Lease))
}

// check fails if a lock is lost, or if that is not certain.
func (h *Held) check(ctx context.Context) error {
	if h.lost.Err() != nil {
		return context.Cause(h.lost)
	}
	only, isOnly := ctx.Value(onlyKey{}).(string)
	for _, l := range h.leases {
		if isOnly && l.in.ID != only {
			continue
		}
		if err := h.confirm(ctx, l, fresh); err != nil {
			return err
		}
	}
	return nil
}

// Begin precedes each write. It fails if what is done in this context is done under a lock that is lost. Until end is called, the locks are
// not given back.
func Begin(ctx context.Context) (end func(), err error) {
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

// Lost is why the lock is lost under which something is done in this context, nil if nobody has taken it as far as is known. It
// looks, unless the lock was renewed a moment ago: what was stopped for long fails with requests that were under way.
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

// Overtook are the clusters in which another command was overtaken. It may be about to write once more.
func (h *Held) Overtook() []Cluster {
	return lo.FilterMap(h.observers, func(o *observer, _ int) (Cluster, bool) { return o.Cluster, o.overtook })
}

// Outside is a context in which no lock is held.
func Outside(ctx context.Context) context.Context { return context.WithValue(ctx, heldKey{}, nil) }

// In is a context for what is done in one cluster only. It needs no answer of another one that is locked, too: the locks of that cluster
// are looked at before a write.
func In(ctx context.Context, clusterID string) context.Context {
	return context.WithValue(ctx, onlyKey{}, clusterID)
}

// Release gives the locks back. One that cannot be expires.
func (h *Held) Release() {
	h.lose(context.Canceled)
	<-h.released
}

// giveAllBack gives the locks back after they are lost, or not needed any more.
func (h *Held) giveAllBack() {
	defer close(h.released)
	h.writing.Wait()
	h.renewing.Wait()
	var all sync.WaitGroup // one cluster does not wait for another's answer
	for _, l := range h.leases {
		all.Go(func() { h.giveBack(l) })
	}
	all.Wait()
}

// giveBack gives one Lease back. Where another command was overtaken its name stays, so that this one learns by whom.
func (h *Held) giveBack(l *lease) {
	ctx, cancel := l.in.briefly(context.WithoutCancel(h.lost))
	defer cancel()
	l.give()
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.in.overtook {
		l.object.Annotations = map[string]string{annotationGiveUp: h.holder}
		l.object.Spec.HolderIdentity = nil
		if l.in.API.Update(ctx, l.object, client.FieldOwner(v1alpha1.FieldManager)) == nil {
			return
		}
	}
	_ = l.in.API.Delete(ctx, l.object, client.Preconditions{UID: &l.object.UID}) // it expires
}

// Forget deletes what tells in a cluster who was overtaken by whom.
func Forget(ctx context.Context, api client.Client) error {
	leases, err := (&observer{Cluster: Cluster{API: api}}).look(ctx)
	for _, l := range leases {
		if holderOf(l.Lease) == "" {
			err = errors.Join(err, client.IgnoreNotFound(api.Delete(ctx, l.Lease, client.Preconditions{UID: &l.UID})))
		}
	}
	return err
}

// Holding is a lock that somebody holds. It may be a command that was killed.
type Holding struct {
	Lease *coordinationv1.Lease
	// By says who holds it, and for how long they have worked, by their own clock.
	By string
	// IsExpired says that it was looked at for [Expiry], and not renewed.
	IsExpired bool
}

func (h Holding) String() string {
	return fmt.Sprintf("%s (Lease %s/%s)", h.By, h.Lease.Namespace, h.Lease.Name)
}

// Holders are the locks of a cluster that somebody holds. To be sure takes until each was renewed, or has expired.
func Holders(ctx context.Context, api client.Client, beSure bool) ([]Holding, error) {
	return (&observer{Cluster: Cluster{API: api}}).holders(ctx, beSure)
}

func (o *observer) holders(ctx context.Context, beSure bool) ([]Holding, error) {
	for {
		leases, err := o.look(ctx)
		if err != nil {
			return nil, err
		}
		var out []Holding
		isUnclear, isAlive := false, false
		for _, name := range slices.Sorted(maps.Keys(leases)) {
			if l := leases[name]; holderOf(l.Lease) != "" {
				out = append(out, Holding{l.Lease, describe(l.Lease), l.expired})
				isUnclear = isUnclear || !l.expired && !l.renewed
				isAlive = isAlive || l.renewed
			}
		}
		if !beSure || !isUnclear || o.IfIdle && isAlive {
			return out, nil
		}
		if pause(ctx); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// Unpeer is the verb of those who have others give up that work on the peering, unless these do the same.
const Unpeer = "unpeer"

// observer knows since when the Leases of one cluster are as they are.
type observer struct {
	Cluster
	mu   sync.Mutex
	seen map[string]seen
	// asked is when holders were asked to give up.
	asked map[types.UID]time.Time
	// overtook says that a lock was taken from somebody who may live, and not know yet.
	overtook bool
}

// seen is a Lease, and since when it is as it is. The zero value is one that is not there.
type seen struct {
	*coordinationv1.Lease
	since time.Time
	// renewed says that it was made or renewed while it was looked at, expired that it was not for [Expiry].
	renewed, expired bool
}

// watch looks until ctx ends.
func (o *observer) watch(ctx context.Context) {
	for ; ctx.Err() == nil; pause(ctx) {
		_, _ = o.look(ctx) // whoever takes the lock looks, too
	}
}

// look lists the Leases, by their names.
func (o *observer) look(ctx context.Context) (map[string]seen, error) {
	var list coordinationv1.LeaseList
	asked := time.Now()
	err := o.API.List(ctx, &list, client.InNamespace(metav1.NamespaceSystem), client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.FieldManager})
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := map[string]seen{}
	for i := range list.Items {
		l := &list.Items[i]
		if l.Name != clusterName && !strings.HasPrefix(l.Name, peeringPrefix) {
			continue
		}
		s := o.seen[l.Name]
		if s.Lease == nil || s.UID != l.UID || s.ResourceVersion != l.ResourceVersion {
			s = seen{Lease: l, since: time.Now(), renewed: s.renewed || o.seen != nil}
		}
		// Only time of this process counts, and none while it was stopped: both answers are from within it.
		s.expired = s.expired || asked.Sub(s.since) >= Expiry
		now[l.Name] = s
	}
	o.seen = now
	return now, nil
}

// free has a Lease say by whom it was taken if its holder does not live any more, or was asked to give up for long. It returns one that
// is not free.
func (o *observer) free(ctx context.Context, l seen, by string) (holder *coordinationv1.Lease, err error) {
	if holderOf(l.Lease) == "" {
		return nil, nil
	}
	asked, wasAsked := o.asked[l.UID]
	if isOver := wasAsked && time.Since(asked) >= Expiry; !isOver && !l.expired {
		return l.Lease, nil
	}
	next := l.DeepCopy()
	next.Spec.HolderIdentity, next.Annotations = nil, map[string]string{annotationGiveUp: by}
	switch err := o.API.Update(ctx, next, client.FieldOwner(v1alpha1.FieldManager)); {
	case apierrors.IsConflict(err):
		return l.Lease, nil // its holder has just renewed it, and the next look tells what follows from that
	case err != nil:
		return nil, client.IgnoreNotFound(err)
	}
	o.overtook = true
	return nil, nil
}

// overrule asks who holds a Lease to give up, once.
func (o *observer) overrule(ctx context.Context, l *coordinationv1.Lease, by string) error {
	if _, asked := o.asked[l.UID]; asked {
		return nil
	}
	next := l.DeepCopy()
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, annotationGiveUp, by)
	patch := client.MergeFromWithOptions(l, client.MergeFromWithOptimisticLock{})
	err := o.API.Patch(ctx, next, patch, client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the next look tells
	}
	if err == nil {
		o.asked[l.UID] = time.Now()
	}
	return err
}

// holderOf is who holds a Lease, empty for nobody, and for a Lease that is not there.
func holderOf(l *coordinationv1.Lease) string {
	if l == nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return short(*l.Spec.HolderIdentity)
}

// askedBy is who has asked the holder of a Lease to give up, or has taken it.
func askedBy(l *coordinationv1.Lease) string {
	if l == nil {
		return ""
	}
	return short(l.Annotations[annotationGiveUp])
}

// describe says who holds a Lease, and for how long they have worked, by their own clock.
func describe(l *coordinationv1.Lease) string {
	return holderOf(l) + ", which has run for " + short(cmp.Or(l.Annotations[annotationRunning], "an unknown time"))
}

// short bounds what others may have written.
func short(s string) string { return s[:min(len(s), 128)] }

func (h *Held) running() string { return since(h.began).Round(time.Second).String() }

// since counts time while the machine was suspended, too: the monotonic clock need not. A wall clock that was set back does not count.
func since(t time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(t), now.Round(0).Sub(t.Round(0)))
}

// whoami is the user and the machine.
func whoami() string {
	name := "somebody"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	machine, _ := os.Hostname()
	return name + "@" + cmp.Or(machine, "an unknown machine")
}
