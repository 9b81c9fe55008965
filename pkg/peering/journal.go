package peering

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/manifests"
	"github.com/liqonet/liqonet/pkg/plan"
)

const (
	// beatInterval is how often a command that runs says so in its journal, beatSilence
	// how long it may say nothing before others take it for interrupted.
	beatInterval = time.Second
	beatSilence  = 3 * time.Second

	annotationBeat  = "liqonet.io/beat"
	annotationClaim = "liqonet.io/claim"
	journalKey      = "changes.json"
	journalPrefix   = "journal-"
)

// journal has the objects as they were before a command changed them. It is kept in
// a Secret, so that the next command can put back what an interrupted one
// changed. No other Secret is ever in it: what is in these is never changed. Agents may
// write ConfigMaps, but no Secrets: a command must not take instructions from them.
type journal struct {
	cluster *Cluster
	// created says that objects which were not there before are noted too. They are
	// where the peering has worked: otherwise all objects of the peering are removed.
	created bool

	mu      sync.Mutex
	changes []change
	object  *corev1.Secret // nil before start

	beating sync.WaitGroup
	stop    context.CancelFunc // nil before start
	// holds ends with the reason when somebody has taken the Secret away, or another command has its own there.
	holds context.Context
}

// change is what was, or is going to be, done to one object. Without Before it was
// not there.
type change struct {
	Before map[string]any `json:"before,omitempty"`
	After  map[string]any `json:"after"`
}

// start creates the journal's Secret, and keeps saying that its command runs.
func (j *journal) start(ctx context.Context, peering, claim string) error {
	if j.object != nil {
		return nil
	}
	obj := manifests.Journal(journalPrefix+peering+"-"+claim, peering)
	obj.Annotations[annotationClaim] = claim
	if err := j.begin(ctx, obj); err != nil && !apierrors.IsAlreadyExists(err) {
		return j.cluster.fail("write down what is changed", uninstallingIfTerminating(err))
	}
	return nil
}

// begin creates a Secret that a command changes for as long as it runs.
func (j *journal) begin(ctx context.Context, obj *corev1.Secret) error {
	if err := j.cluster.Client.Create(ctx, obj, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return err
	}
	j.object = obj
	ctx, j.stop = context.WithCancel(context.WithoutCancel(ctx))
	holds, lose := context.WithCancelCause(ctx)
	j.holds = holds
	j.beating.Go(func() {
		_ = wait.PollUntilContextCancel(ctx, beatInterval, false, func(ctx context.Context) (done bool, err error) {
			err = j.patch(ctx, func(obj *corev1.Secret) { obj.Annotations[annotationBeat] = time.Now().String() })
			if isLost(err) {
				lose(err)
				return true, nil
			}
			return false, nil // one that is not written is followed by others
		})
	})
	return nil
}

// errTakenOver says that another command goes on as if this one had been killed.
var errTakenOver = fmt.Errorf("another command has taken this one for killed, as its clusters heard nothing of it for %s", beatSilence)

// isLost says that a command has lost what it works on to another one.
func isLost(err error) bool {
	return errors.Is(err, errUnpeered) || errors.Is(err, errUninstalling) || errors.Is(err, errTakenOver)
}

// whileLocked returns a context that ends, with the reason, when a lock is lost.
func whileLocked(ctx context.Context, locks ...*journal) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	for _, lock := range locks {
		if lock.holds != nil {
			context.AfterFunc(lock.holds, func() { cancel(context.Cause(lock.holds)) })
		}
	}
	return ctx, func() { cancel(context.Canceled) }
}

// lock says that the command with this claim replaces agents or their keys, unless another one does: then it returns false. A
// command that was killed keeps nobody off. The next one for the same peering, if that is named, removes what it has left.
func (j *journal) lock(ctx context.Context, claim, peering string) (bool, error) {
	for {
		mark := manifests.ReplacingMark()
		all := client.MatchingLabels(maps.Clone(mark.Labels))
		mark.Annotations[annotationClaim] = claim
		if peering != "" {
			mark.Labels[v1alpha1.LabelPeering] = peering
		}
		err := j.begin(ctx, mark)
		if !apierrors.IsAlreadyExists(err) {
			return err == nil, err
		}
		working, dead, err := j.cluster.journals(ctx, all, "")
		if err != nil || len(working) > 0 {
			return false, err
		}
		for i := range dead {
			if err := j.cluster.breakLock(ctx, dead[i]); err != nil {
				return false, err
			}
		}
		if len(dead) > 0 {
			continue
		}
		now, err := get[corev1.Secret](ctx, j.cluster, mark.Namespace, mark.Name)
		if err != nil {
			return false, err
		}
		if now != nil && (!isOurs(now) || now.Annotations[annotationClaim] == "") {
			return false, &Error{
				Kind: Usage, Cluster: j.cluster.Name, Doing: "look whether another command replaces keys or agents", Err: fmt.Errorf("a Secret %s is there, and liqonet has not made it", mark.Name),
				Hint: fmt.Sprintf("%s -n %s delete secret %s", j.cluster.Kubectl, mark.Namespace, mark.Name),
			}
		}
	}
}

// breakLock deletes the lock of a command that was killed, unless that has changed it since: then it works.
func (c *Cluster) breakLock(ctx context.Context, lock client.Object) error {
	uid, version := lock.GetUID(), lock.GetResourceVersion()
	is := client.Preconditions{UID: &uid, ResourceVersion: &version}
	if err := c.Client.Delete(ctx, lock, is); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return c.fail("delete "+describe(lock), err)
	}
	return nil
}

// unlock takes locks away, also where ctx has ended. One that cannot be is taken for that of a command that was killed.
func unlock(ctx context.Context, locks []*journal) {
	ctx, cancel := withTime(ctx)
	defer cancel()
	for _, lock := range locks {
		_ = lock.end(ctx) // the next command removes it
	}
}

// patch changes the Secret where it is. It does not create it again: if somebody
// has deleted it, the peering is being removed.
func (j *journal) patch(ctx context.Context, change func(*corev1.Secret)) error {
	obj := j.object.DeepCopy()
	change(obj)
	err := j.cluster.Client.Patch(ctx, obj, client.MergeFrom(j.object), client.FieldOwner(v1alpha1.FieldManager))
	switch {
	case apierrors.IsNotFound(err):
		return errUnpeered
	case err == nil && obj.UID != j.object.UID:
		return errTakenOver
	}
	return err
}

// note writes down changes before they are made.
func (j *journal) note(ctx context.Context, changes ...change) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	noted := len(j.changes)
	for _, ch := range changes {
		// Definitions are changed by addition only, and are large.
		if (ch.Before != nil || j.created) && !isDefinition(ch.object()) {
			j.changes = append(j.changes, ch)
		}
	}
	if len(j.changes) == noted || j.object == nil {
		return nil // without the Secret there is nothing yet that could be lost
	}
	raw, err := json.Marshal(j.changes)
	if err == nil {
		err = j.patch(ctx, func(obj *corev1.Secret) { obj.Data = map[string][]byte{journalKey: raw} })
	}
	return j.cluster.fail("write down what is changed", err)
}

// end deletes the Secret: what was changed is to stay, or is put back.
func (j *journal) end(ctx context.Context) error {
	j.silence()
	if j.object == nil {
		return nil
	}
	// Another command may have taken this one for killed, and made its own.
	err := j.cluster.Client.Delete(ctx, j.object, client.Preconditions{UID: &j.object.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return j.cluster.fail("delete "+describe(j.object), err)
	}
	j.object = nil
	return nil
}

// silence stops saying that the command runs.
func (j *journal) silence() {
	if j.stop != nil {
		j.stop()
		j.beating.Wait()
	}
}

// newChange is what applying an object does to the one that is there: to the fields
// that are applied.
func newChange(live, want *unstructured.Unstructured) change {
	ch := change{After: runtime.DeepCopyJSON(want.Object)}
	if live.GetResourceVersion() != "" {
		ch.Before = runtime.DeepCopyJSON(reduce(live.Object, want.Object).(map[string]any))
	}
	// Hosts may be exposed, or hidden, meanwhile.
	unstructured.RemoveNestedField(ch.Before, "spec", "local", "hosts")
	unstructured.RemoveNestedField(ch.After, "spec", "local", "hosts")
	return ch
}

func (c change) object() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: c.After}
}

// shared says that the object belongs to no single peering.
func (c change) shared() bool {
	obj := c.object()
	return obj.GetLabels()[v1alpha1.LabelPeering] == "" && obj.GetKind() != "Peering"
}

// undo puts back what was changed, the last first. An object that is not as it was
// left by the change is somebody else's by now, and stays. It goes on where
// something cannot be put back.
func (c *Cluster) undo(ctx context.Context, changes []change) error {
	var errs []error
	for _, ch := range slices.Backward(changes) {
		errs = append(errs, retryOnConflict(func() error { return c.undoOne(ctx, ch) }))
	}
	return errors.Join(errs...)
}

func (c *Cluster) undoOne(ctx context.Context, ch change) error {
	_, live, err := c.read(ctx, ch.object())
	if err != nil {
		return err
	}
	switch {
	case !contains(live.Object, ch.After):
		return nil
	case ch.Before == nil:
		return c.delete(ctx, live)
	}
	back := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(ch.Before)}
	back.SetResourceVersion(live.GetResourceVersion())
	if back.GetKind() == "DaemonSet" {
		manifests.KeepOverlayKeys(back, live) // others may use one that was added since
	}
	if hosts, ok, _ := unstructured.NestedFieldCopy(live.Object, "spec", "local", "hosts"); ok {
		if err := unstructured.SetNestedField(back.Object, hosts, "spec", "local", "hosts"); err != nil {
			return err
		}
	}
	return c.write(ctx, back)
}

// undoRanges gives the peer the ranges back that it had before they were changed.
// They were kept free for it.
func (c *Cluster) undoRanges(ctx context.Context, peerID string) error {
	_, err := c.updateLedger(ctx, func(cn *v1alpha1.ClusterNetwork) error {
		entry := plan.Allocation(cn, peerID)
		if entry == nil || entry.Previous == nil {
			return errUnchanged
		}
		entry.Pods, entry.ExternalCIDR, entry.Previous = entry.Previous.Pods, entry.Previous.ExternalCIDR, nil
		return nil
	})
	if errors.Is(err, errUninstalling) {
		return nil
	}
	return err
}

// undoInterrupted puts back what other commands than that with the claim changed, which work on this peering no
// more. With sharedOnly it leaves out the peering's own objects.
func (c *Cluster) undoInterrupted(ctx context.Context, peerID, peering, claim string, sharedOnly bool) error {
	_, dead, err := c.journals(ctx, ofPeering(peering), claim)
	if err != nil {
		return err
	}
	for _, found := range slices.Backward(dead) {
		if found.GetName() == manifests.ReplacingMark().Name { // nothing is noted in it
			if err := c.breakLock(ctx, found); err != nil {
				return err
			}
			continue
		}
		obj, err := get[corev1.Secret](ctx, c, v1alpha1.Namespace, found.GetName())
		if err != nil {
			return err
		}
		if obj == nil {
			continue // another command has put it back
		}
		var changes []change
		if raw := obj.Data[journalKey]; len(raw) > 0 {
			if err := json.Unmarshal(raw, &changes); err != nil {
				return c.fail("read "+describe(obj), err)
			}
		}
		if sharedOnly {
			changes = slices.DeleteFunc(changes, func(ch change) bool { return !ch.shared() })
		}
		if !sharedOnly {
			if err := c.undoRanges(ctx, peerID); err != nil {
				return err
			}
		}
		if err := c.undo(ctx, changes); err != nil {
			return err
		}
		if err := c.delete(ctx, obj); err != nil {
			return err
		}
	}
	return nil
}

// ofPeering are the labels of a peering's objects, such as journals.
func ofPeering(peering string) client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelPeering: peering}
}

// journals are those with the labels, the oldest first, without those with the claim. Those of commands that were interrupted do not
// change for a while. Only this machine's clock is used. What is in them is not read: keys are Secrets with these labels, too.
func (c *Cluster) journals(ctx context.Context, labels client.MatchingLabels, but string) (working, dead []client.Object, err error) {
	list := func() ([]client.Object, error) {
		secrets, err := c.ours(ctx, secretNames(), labels)
		return slices.DeleteFunc(secrets, func(m client.Object) bool {
			isJournal := strings.HasPrefix(m.GetName(), journalPrefix) || m.GetName() == manifests.ReplacingMark().Name
			claim := m.GetAnnotations()[annotationClaim]
			return !isJournal || claim == "" || claim == but
		}), err
	}
	first, err := list()
	if err != nil || len(first) == 0 {
		return nil, nil, err
	}
	select {
	case <-time.After(beatSilence):
	case <-ctx.Done():
		return nil, nil, c.fail("look whether another command works on the same", context.Cause(ctx))
	}
	again, err := list()
	if err != nil {
		return nil, nil, err
	}
	slices.SortStableFunc(again, func(a, b client.Object) int { return a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time) })
	for _, now := range again {
		if slices.ContainsFunc(first, func(b client.Object) bool {
			return b.GetUID() == now.GetUID() && b.GetResourceVersion() == now.GetResourceVersion()
		}) {
			dead = append(dead, now)
		} else {
			working = append(working, now)
		}
	}
	return working, dead, nil
}

// isWorking says that the command with this claim works on the peering.
func (c *Cluster) isWorking(ctx context.Context, peering, claim string) (bool, error) {
	working, _, err := c.journals(ctx, ofPeering(peering), "")
	return slices.ContainsFunc(working, func(j client.Object) bool { return j.GetAnnotations()[annotationClaim] == claim }), err
}

// reduce is have without the fields that like does not have. Lists are whole:
// their items need not be of the same order.
func reduce(have, like any) any {
	h, ok := have.(map[string]any)
	l, isMap := like.(map[string]any)
	if !ok || !isMap {
		return have
	}
	out := map[string]any{}
	for k, v := range l {
		if had, ok := h[k]; ok {
			if out[k] = had; !isWhole(k) {
				out[k] = reduce(had, v)
			}
		}
	}
	return out
}
