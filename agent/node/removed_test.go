package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

var (
	errGoing        = errors.New("it exists, and is being deleted")
	errAbsent       = apierrors.NewNotFound(schema.GroupResource{}, "")
	errUnauthorized = apierrors.NewUnauthorized("")
	errForbidden    = apierrors.NewForbidden(schema.GroupResource{}, "", nil)
)

// answers is a reader. It maps names of objects to errors, and Peering to that of the list. All other objects exist.
type answers map[string]error

func (a answers) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	err := a[key.Name]
	if errors.Is(err, errGoing) {
		obj.SetDeletionTimestamp(new(metav1.Now()))
		return nil
	}
	return err
}

func (a answers) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return a["Peering"]
}

// refusing returns answers that are all the same error.
func refusing(err error) answers {
	return answers{v1alpha1.NodeAgentName: err, v1alpha1.Namespace: err, "Peering": err}
}

func TestRemoved(t *testing.T) {
	const (
		own, pod  = "n1", "liqonet-node-x"
		set       = "DaemonSet " + v1alpha1.NodeAgentName
		namespace = "Namespace " + v1alpha1.Namespace
	)
	silent := errors.New("no answer")
	for _, tt := range []struct {
		name string
		// live are the API server's answers, and cached those of the cache, nil if it is empty.
		live, cached answers
		want         string
	}{
		{name: "restarted"},
		{name: "DaemonSet gone", live: answers{v1alpha1.NodeAgentName: errAbsent}, want: set + " is gone"},
		{name: "DaemonSet being deleted", live: answers{v1alpha1.NodeAgentName: errGoing}, want: set + " is being deleted"},
		{name: "namespace gone", live: answers{v1alpha1.NodeAgentName: silent, v1alpha1.Namespace: errAbsent}, want: namespace + " is gone"},
		{name: "namespace being deleted", live: answers{v1alpha1.Namespace: errGoing}, want: namespace + " is being deleted"},
		{name: "definitions gone", live: answers{"Peering": errAbsent}, want: "the kind Peering is gone"},
		{name: "installed again", cached: answers{v1alpha1.NodeAgentName: errAbsent}},
		{name: "no answer", live: refusing(silent), cached: answers{own: errAbsent}},
		{name: "force-deleted", live: refusing(errUnauthorized), cached: answers{pod: errAbsent}},
		{name: "being deleted for longer than its token lives", live: refusing(errUnauthorized), cached: answers{pod: errGoing}},
		{
			name: "cut off, or without account", live: refusing(errUnauthorized), cached: answers{},
			want: "this agent's account is gone, or its pod ended while it was cut off from its cluster",
		},
		{name: "not allowed", live: refusing(errForbidden), cached: answers{}},
		{name: "refused, nothing seen", live: refusing(errUnauthorized)},
		{name: "not allowed, nothing seen", live: refusing(errForbidden)},
		{name: "refused, DaemonSet gone", live: refusing(errUnauthorized), cached: answers{v1alpha1.NodeAgentName: errAbsent}, want: set + " is gone"},
		{name: "refused, namespace being deleted", live: refusing(errUnauthorized), cached: answers{v1alpha1.Namespace: errGoing}, want: namespace + " is being deleted"},
		{name: "refused, NodeNetwork gone", live: refusing(errUnauthorized), cached: answers{own: errAbsent}, want: "NodeNetwork " + own + " is gone"},
		{name: "not allowed, DaemonSet being deleted", live: refusing(errForbidden), cached: answers{v1alpha1.NodeAgentName: errGoing}, want: set + " is being deleted"},
		{name: "not allowed, NodeNetwork gone", live: refusing(errForbidden), cached: answers{own: errAbsent}, want: "NodeNetwork " + own + " is gone"},
		{name: "one not allowed", live: answers{v1alpha1.NodeAgentName: errForbidden}, cached: answers{v1alpha1.NodeAgentName: errGoing}, want: set + " is being deleted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			last := lastView{own: own, pod: pod}
			if tt.cached != nil {
				last.Reader = tt.cached
			}
			if got := removalReason(t.Context(), tt.live, last); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// An agent whose pod was force-deleted has to end, and sees its pod disappear, at about the same time. In either
// order, it leaves the kernel unchanged.
func TestPodSeenToGoLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := lastView{late{answers{}, time.Now().Add(podEndTimeout / 2)}, "n1", "liqonet-node-x"}
		if why := removalReason(t.Context(), refusing(errUnauthorized), last); why != "" {
			t.Errorf("it cleans the node: %s", why)
		}
	})
}

// late is a view in which the agent's pod disappears at a given time.
type late struct {
	answers
	gone time.Time
}

func (l late) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if _, ok := obj.(*corev1.Pod); ok && time.Now().After(l.gone) {
		return errAbsent
	}
	return l.answers.Get(ctx, key, obj, opts...)
}
