// Package loop runs an agent. It reconciles when an object or the kernel changes, retries failures with increasing
// pauses, and compares everything periodically. It writes the agent's status when that changes, and renews its Lease.
//
// It knows nothing about networks: that is the job of its Agent.
package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/samber/lo"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	coordination "k8s.io/client-go/applyconfigurations/coordination/v1"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/failure"
	"github.com/liqonet/liqonet/pkg/version"
)

const (
	// Resync is how often everything is compared without a reason. MeasureInterval is how often measurements are read
	// while no change is expected.
	Resync, MeasureInterval = 30 * time.Second, time.Second
	// debounce is how long the loop waits after the kernel reports a change, because such changes come in bursts.
	debounce = 100 * time.Millisecond
	// compareGap is the minimum time between two comparisons that the kernel triggers, and failingGap the same while
	// comparisons fail.
	compareGap, failingGap = 500 * time.Millisecond, 2 * time.Second
	// burst is how many reconciliations may follow each other immediately. After that there is one per compareGap:
	// others can change objects and the kernel as often as they like.
	burst = 10
	// idleShare is how many times longer the loop pauses than a comparison takes.
	idleShare = 4
)

// Agent is run by a Loop, which calls its methods one at a time.
type Agent[T any] interface {
	// Reconcile makes the kernel match the objects. It compares the kernel's state if compare is set, or if the objects
	// ask for something else than at the last call. It returns whether the kernel matches completely. The error may
	// concern a part only, and ends the loop only if it is a Stop.
	Reconcile(ctx context.Context, compare bool) (inSync bool, err error)
	// Measure measures everything that sends no notifications. It returns whether the result changes what Reconcile
	// does, and how long to wait before the next look.
	Measure(ctx context.Context) (changed bool, next time.Duration)
	// Status returns the agent's current status. problem is the last error of Reconcile. It returns false if there is no
	// object to write the status to.
	Status(problem string) (status T, ok bool)
}

// Loop runs one agent.
type Loop[T any] struct {
	Agent Agent[T]
	Log   *slog.Logger
	// Objects signals that an object has changed, Kernel that others may have changed something in the kernel, and
	// Measure that there is something new to measure.
	Objects, Kernel, Measure <-chan struct{}
	Report                   Reporter[T]
	Health                   *Health
	// Reconciled is called after each Reconcile, with its duration and error.
	Reconciled func(took time.Duration, err error)
}

// Run runs the agent. It returns nil when ctx ends, and otherwise the agent's Stop.
func (l *Loop[T]) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer l.Health.iterationStart.Store(nil)
	statuses, reported := make(chan T, 1), make(chan error, 1)
	go func() { reported <- l.Report.run(ctx, l.Log, statuses) }()
	s := state{
		dirty: true, compareAt: time.Now(), retry: retries(time.Second, time.Minute),
		pace: rate.NewLimiter(rate.Every(compareGap), burst),
	}
	for {
		l.Health.iterationStart.Store(new(time.Now()))
		if err := l.reconcile(ctx, &s); err != nil {
			return err
		}
		changed, next := l.Agent.Measure(ctx)
		if changed {
			s.dirty = true
			continue
		}
		if status, ok := l.Agent.Status(s.problem); ok {
			select {
			case <-statuses: // outdated
			default:
			}
			statuses <- status
		}
		pause := min(next, time.Until(s.compareAt))
		if s.dirty || pause <= 0 {
			pause = debounce // the rate limit did not allow it yet
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-reported:
			return err
		case <-l.Objects:
			s.dirty = true
		case <-l.Kernel:
			s.kernelChanged()
		case <-l.Measure:
		case <-time.After(pause):
		}
	}
}

// state is the state of a running loop.
type state struct {
	// dirty requests a Reconcile. At compareAt, everything is compared.
	dirty     bool
	compareAt time.Time
	// compared is the time of the last comparison, and took its duration. failing is set while the kernel does not
	// match, and problem is the reason.
	compared time.Time
	took     time.Duration
	failing  bool
	problem  string
	retry    wait.Backoff
	// pace limits how often Reconcile is called.
	pace *rate.Limiter
}

func (s *state) kernelChanged() {
	gap := max(lo.Ternary(s.failing, failingGap, compareGap), idleShare*s.took)
	s.compareAt = lo.Earliest(s.compareAt, time.Now().Add(max(debounce, gap-time.Since(s.compared))))
}

func (l *Loop[T]) reconcile(ctx context.Context, s *state) error {
	compare := !time.Now().Before(s.compareAt)
	if !s.dirty && !compare || !s.pace.Allow() {
		return nil
	}
	start := time.Now()
	inSync, err := l.Agent.Reconcile(ctx, compare)
	if stop := (Stop{}); errors.As(err, &stop) {
		return stop
	}
	now := time.Now()
	l.Reconciled(now.Sub(start), err)
	if compare {
		s.compared, s.took, s.compareAt = now, now.Sub(start), now.Add(Resync)
	}
	switch {
	case inSync:
		s.retry = retries(time.Second, time.Minute)
	case compare || !s.failing:
		s.compareAt = now.Add(s.retry.Step())
	}
	s.dirty, s.failing = false, !inSync
	if err != nil {
		s.problem = err.Error()
		l.Log.Error("cannot apply", "error", err)
	} else if s.problem != "" {
		s.problem = ""
		l.Log.Info("the desired state is applied again")
	}
	return nil
}

// maxLogged is how many changes of one comparison are logged.
const maxLogged = 100

// LogChanges logs changes. If there are very many, it logs the first ones and their number, because others can make
// an agent repeat them endlessly.
func LogChanges(log *slog.Logger, changes []string) {
	for _, change := range changes[:min(len(changes), maxLogged)] {
		log.Info(change)
	}
	if len(changes) > maxLogged {
		log.Info("more changes", "changes", len(changes)-maxLogged)
	}
}

// stuckAfter is how long one turn of the loop may take. Name servers and the kernel answer much sooner, or not at
// all.
const stuckAfter = 2 * time.Minute

// Health answers the kubelet's health checks. The zero value is healthy.
type Health struct {
	// iterationStart is when the current turn of the loop began, nil while no loop runs.
	iterationStart atomic.Pointer[time.Time]
	// Details are what an agent adds to the answer, nil if nothing.
	Details atomic.Pointer[[]byte]
}

// ServeHTTP fails if the loop is stuck.
func (h *Health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if turned := h.iterationStart.Load(); turned != nil && time.Since(*turned) > stuckAfter {
		http.Error(w, "the agent's loop is stuck", http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write(ptr.Deref(h.Details.Load(), []byte("ok\n")))
}

// Serve serves HTTP at an address until ctx ends. It retries an address that cannot be used: another program of the
// host may occupy it for a while. what describes the server in errors.
func Serve(ctx context.Context, log *slog.Logger, what string, address netip.AddrPort, handler http.Handler) {
	RunForever(ctx, log, what, func(ctx context.Context) error {
		server := &http.Server{
			Handler: handler, ReadHeaderTimeout: time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, MaxHeaderBytes: 8 << 10,
		}
		server.SetKeepAlivesEnabled(false) // an idle connection would take the place of another one
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address.String())
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, func() { _ = server.Close() })()
		return server.Serve(&limitedListener{Listener: listener})
	})
}

// writeTimeout is how long an API server may take to answer a write. writeRetry and writeRetryMost are the shortest
// and the longest pause after a failure.
const writeTimeout, writeRetry, writeRetryMost = 10 * time.Second, time.Second, 5 * time.Second

// changePace is the mean time between changes of a status that are written immediately. The first ones may follow each
// other without a pause.
const changePace = 2 * time.Second

// Change is how much a status differs from the one last written.
type Change int

// A status is not written if it is Same, at most once per interval if it is Measured, and immediately if it has
// Changed.
const (
	Same Change = iota
	Measured
	Changed
)

// Reporter writes an agent's status when it changes, and renews the agent's Lease. It runs in parallel with the loop,
// one request at a time: an API server that does not answer must not stop an agent from maintaining its kernel.
//
// It renews the Lease only if the last write of the status succeeded. So a fresh Lease means that the status is
// current. The Lease's holder is the agent that wrote it.
type Reporter[T any] struct {
	// Interval is how often measured values are written and the Lease is renewed.
	Interval time.Duration
	Compare  func(now, written T) Change
	// Write writes the status, and Renew renews the Lease.
	Write func(context.Context, T) error
	Renew func(context.Context) error
	// Renewed is when the Lease was created, zero if it already existed.
	Renewed time.Time
}

// run reports until ctx ends or an error is a Stop. It logs every error: the agents' loggers omit repetitions.
func (r Reporter[T]) run(ctx context.Context, log *slog.Logger, statuses <-chan T) error {
	// written is nil while the object's content is not known.
	var written *T
	var wroteAt, renewAt time.Time
	// Agents that start at the same time should not write at the same time.
	next := func(last time.Time) time.Time { return last.Add(wait.Jitter(r.Interval*9/10, 0.2)) }
	if !r.Renewed.IsZero() {
		renewAt = next(r.Renewed)
	}
	retry := retries(writeRetry, writeRetryMost)
	pace := rate.NewLimiter(rate.Every(changePace), burst)
	for {
		var status T
		select {
		case <-ctx.Done():
			return nil
		case status = <-statuses:
		}
		change := Changed
		if written != nil {
			change = r.Compare(status, *written)
		}
		// Others decide how often this agent's state changes, and each write is sent to many.
		write := change == Changed && pace.Allow() || change == Measured && time.Since(wroteAt) >= r.Interval
		renew := !time.Now().Before(renewAt)
		var err error
		if write {
			written = nil
			if err = request(ctx, func(ctx context.Context) error { return r.Write(ctx, status) }); err == nil {
				written, wroteAt = &status, time.Now()
			}
		}
		if renew && err == nil {
			if err = request(ctx, r.Renew); err == nil {
				renewAt = next(time.Now())
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, new(Stop)):
			return err
		case err == nil && (write || renew):
			retry = retries(writeRetry, writeRetryMost)
		case err != nil:
			log.Error("cannot report", "error", err)
			if pause := retry.Step(); written == nil {
				failure.Pause(ctx, pause)
			} else {
				renewAt = time.Now().Add(pause) // a missing Lease must not delay the status
			}
		}
	}
}

func request(ctx context.Context, send func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return send(ctx)
}

// ChangedByHalf reports whether a measured time has changed by a factor of two.
func ChangedByHalf(now, before int64) bool { return now > 2*before || before > 2*now }

// Condition returns a condition of a status.
func Condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

// Truncate truncates a message to the length that a status has room for.
func Truncate(message string) string {
	const end = "…"
	if len(message) > v1alpha1.MaxMessageLength {
		return strings.ToValidUTF8(message[:v1alpha1.MaxMessageLength-len(end)], "") + end
	}
	return message
}

// ApplyStatus applies the status of one of our objects, by kind and name. With a resourceVersion, it returns a
// conflict if the object has changed or been replaced since. Without one, a replacement of that name gets the status:
// an API server does not compare the UID.
func ApplyStatus(ctx context.Context, c client.Client, kind string, obj client.Object, status any, manager string) error {
	meta := map[string]any{"name": obj.GetName()}
	if version := obj.GetResourceVersion(); version != "" {
		meta["resourceVersion"] = version
	}
	raw, _ := json.Marshal(map[string]any{ // all that a status contains can be encoded
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind, "metadata": meta, "status": status,
	})
	return c.Status().Patch(ctx, obj, client.RawPatch(types.ApplyPatchType, raw), client.FieldOwner(manager), client.ForceOwnership)
}

// Lease is an agent's heartbeat.
type Lease struct {
	Client client.Client
	// Name is the object's name, Holder the agent's pod, and Manager the field manager.
	Name, Holder, Manager string
	// UID is the UID of the object to renew, so that no other object of that name is renewed. It is empty where the CLI
	// creates the object.
	UID types.UID
	// Pod is the agent's pod where Holder is its node.
	Pod string
	// Measurements is written with each renewal, unless it is nil.
	Measurements atomic.Pointer[v1alpha1.Measurements]
	// DelayMonitor measures whether the agent gets a processor in time.
	DelayMonitor DelayMonitor
	// Owner is the object with which the Lease is deleted, nil where the CLI creates and removes it.
	Owner *applymeta.OwnerReferenceApplyConfiguration
}

// Renew renews the Lease. It returns a conflict if the Lease with the UID is gone, and an invalid error if another
// one has replaced it.
func (l *Lease) Renew(ctx context.Context) error {
	if _, err := l.apply(ctx, client.ForceOwnership); err != nil {
		return fmt.Errorf("renew Lease %s/%s: %w", v1alpha1.Namespace, l.Name, err)
	}
	return nil
}

// Claim creates the Lease, or takes over the one of the same holder, and returns its UID. It returns a conflict if
// another one holds it.
func (l *Lease) Claim(ctx context.Context) (types.UID, error) { return l.apply(ctx) }

// apply writes the Lease. The renewal time is by the agent's own clock.
func (l *Lease) apply(ctx context.Context, opts ...client.ApplyOption) (types.UID, error) {
	notes := map[string]string{v1alpha1.AnnotationVersion: version.String()}
	if m := l.Measurements.Load(); m != nil {
		notes[v1alpha1.AnnotationMeasurements] = m.String()
	}
	if percent := l.DelayMonitor.Starved(); percent >= minStarved {
		notes[v1alpha1.AnnotationStarved] = strconv.Itoa(percent)
	}
	if l.Pod != "" {
		notes[v1alpha1.AnnotationPod] = l.Pod
	}
	lease := coordination.Lease(l.Name, v1alpha1.Namespace).WithAnnotations(notes).
		WithSpec(coordination.LeaseSpec().WithHolderIdentity(l.Holder).WithRenewTime(metav1.NewMicroTime(time.Now())))
	if l.Owner != nil {
		lease.WithOwnerReferences(l.Owner).WithLabels(map[string]string{v1alpha1.LabelManagedBy: v1alpha1.FieldManager})
	}
	if l.UID != "" {
		lease.WithUID(l.UID)
	}
	if err := l.Client.Apply(ctx, lease, append(opts, client.FieldOwner(l.Manager))...); err != nil {
		return "", err
	}
	return ptr.Deref(lease.UID, ""), nil
}

const (
	// beatEvery is the interval of a DelayMonitor's checks, and beats how many of them count.
	beatEvery, beats = time.Second, 60
	// minStarved is the percentage from which a Lease reports it.
	minStarved = 20
)

// DelayMonitor measures how late an agent runs: how long it waits for a processor when it is due. The cause may be its
// own limit or a busy machine. It needs no help from the kernel. The zero value is punctual.
type DelayMonitor struct {
	mu     sync.Mutex
	delays []time.Duration
}

// Watch checks until ctx ends.
func (p *DelayMonitor) Watch(ctx context.Context) {
	for slept := time.Now(); failure.Pause(ctx, beatEvery); slept = time.Now() {
		p.record(time.Since(slept) - beatEvery)
	}
}

func (p *DelayMonitor) record(late time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delays = append(p.delays[max(0, len(p.delays)+1-beats):], late)
}

// Starved returns how late the agent was at the last checks, in percent of the time between two. One long delay
// counts as one, however long it was.
func (p *DelayMonitor) Starved() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var late time.Duration
	for _, l := range p.delays {
		late += min(max(l, 0), beatEvery)
	}
	return int(100 * late / (beats * beatEvery))
}

// Stop is an error that ends the loop.
type Stop struct{ Reason error }

// Error returns the text of the reason.
func (s Stop) Error() string { return s.Reason.Error() }

// Unwrap returns the reason.
func (s Stop) Unwrap() error { return s.Reason }

// retries returns the pauses between attempts after a failure.
func retries(initial, limit time.Duration) wait.Backoff {
	return wait.Backoff{Duration: initial, Factor: 2, Jitter: 0.2, Steps: 64, Cap: limit}
}

// longestPause is the longest pause between attempts to reach an API server.
const longestPause = 5 * time.Second

// DialPauses returns the pauses between attempts to reach an API server, with jitter.
func DialPauses() wait.Backoff { return retries(200*time.Millisecond, longestPause) }

// Retry calls run until it returns nil, ctx ends, or the error is one that a retry cannot fix. It returns that error. It
// logs every attempt: the agents' loggers omit repetitions.
func Retry(ctx context.Context, log *slog.Logger, run func(context.Context) error) error {
	retry := DialPauses()
	for {
		start := time.Now()
		err := run(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil || !isTransient(err) {
			return err
		}
		if time.Since(start) > longestPause {
			retry = DialPauses() // it worked in between
		}
		log.Warn("retrying", "error", err)
		failure.Pause(ctx, retry.Step())
	}
}

// RunForever calls run again each time that it returns, until ctx ends. name describes run in errors.
func RunForever(ctx context.Context, log *slog.Logger, name string, run func(context.Context) error) {
	_ = Retry(ctx, log, func(ctx context.Context) error { return Stop{fmt.Errorf("%s: %w", name, run(ctx))} })
}

// isTransient reports whether a retry may fix an error. It may fix errors of the API server and of the network to it,
// and a Stop. Errors of the kernel or the configuration are for a person who looks at the pod.
func isTransient(err error) bool {
	return errors.As(err, new(apierrors.APIStatus)) || errors.As(err, new(*url.Error)) ||
		errors.As(err, new(Stop)) || errors.Is(err, context.DeadlineExceeded)
}
