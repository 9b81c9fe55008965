package services

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/fakeapi"
	"github.com/liqonet/liqonet/test/kit"
)

// One controller works at a time. When it ends, the other one takes over.
func TestControllersTakeTurns(t *testing.T) {
	server := kit.Must(fakeapi.New(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: v1alpha1.ServicesName}},
	))(t)
	server.Unplayed = true
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	api := &rest.Config{Host: server.URL}
	began := make(chan string, 3)
	var working atomic.Int32
	start := func(ctx context.Context, name string) <-chan error {
		ended := make(chan error, 1)
		go func() {
			ended <- asLeader(ctx, Config{PodName: name, Log: slog.New(slog.DiscardHandler)}, api, func(ctx context.Context) error {
				kit.ErrorIf(t, working.Add(1) > 1, "two controllers work at the same time")
				began <- name
				<-ctx.Done()
				working.Add(-1)
				return nil
			})
		}()
		return ended
	}
	patient := kit.Timeout(t, 10*leaseDuration)
	next := func(want string) {
		t.Helper()
		select {
		case name := <-began:
			kit.Check(t, "the one that works", name, want)
		case <-patient.Done():
			t.Fatalf("%s does not work", want)
		}
	}
	first, endFirst := context.WithCancel(t.Context())
	second, endSecond := context.WithCancel(t.Context())
	defer endSecond()
	endedFirst := start(first, "first")
	next("first")
	endedSecond := start(second, "second")
	endFirst()
	kit.NoError(t, <-endedFirst)
	next("second")
	endSecond()
	kit.NoError(t, <-endedSecond)
	broken := errors.New("broken")
	err := asLeader(t.Context(), Config{PodName: "third", Log: slog.New(slog.DiscardHandler)}, api, func(context.Context) error { return broken })
	kit.FailsWith(t, err, broken)
}
