package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liqonet/liqonet/pkg/lock"
)

const (
	// LongestSilence is how long a cluster may be unresponsive before commands on two clusters abort.
	LongestSilence = 20 * time.Second
	// askingTime is the timeout of one probe, asksAtLeast the minimum of failed probes: this process may have been suspended.
	askingTime  = 3 * time.Second
	asksAtLeast = 3
)

type silentKey struct{}

// WhileAnswering returns a context that ends, with an Error, once the cluster is unresponsive, and a copy of the
// cluster with it.
func (c *Cluster) WhileAnswering(ctx context.Context) (watched *Cluster, answering context.Context, stop context.CancelFunc) {
	answers, end := context.WithCancelCause(context.WithoutCancel(ctx))
	before, isAny := ctx.Value(silentKey{}).(context.Context)
	if !isAny {
		before = context.Background()
	}
	silent, _ := endsWith(before, answers)
	answering, _ = endsWith(context.WithValue(ctx, silentKey{}, silent), answers)
	go func() {
		c.awaitSilence(answers)
		end(c.Errorf(
			Busy, "wait for its API server", "run the command again when it answers (try: "+c.Kubectl+" cluster-info)",
			"it has answered nothing for %s", LongestSilence,
		))
	}()
	own := *c
	own.Answers = answers
	return &own, answering, func() { end(context.Canceled) }
}

// awaitSilence returns once the cluster has been unresponsive for [LongestSilence], or ctx ends. Any response counts.
func (c *Cluster) awaitSilence(ctx context.Context) {
	answered, unanswered := time.Now(), 0
	for unanswered < asksAtLeast || time.Since(answered) < LongestSilence {
		select {
		case <-time.After(lock.Renewal):
		case <-ctx.Done():
			return
		}
		asked := time.Now()
		asking, cancel := context.WithTimeout(ctx, askingTime)
		err := c.Client.Get(asking, types.NamespacedName{Name: metav1.NamespaceSystem}, &corev1.Namespace{})
		cancel()
		if unanswered++; err == nil || errors.As(err, new(apierrors.APIStatus)) {
			answered, unanswered = asked, 0
		}
	}
}

// endsWith returns a context that also ends when other does, with the same cause.
func endsWith(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

// IsAbandoned reports whether to leave the rest to the next command: a lock was taken over, or a cluster is
// unresponsive.
func IsAbandoned(ctx context.Context) bool {
	return errors.As(context.Cause(ctx), new(*Error)) || lock.Lost(ctx) != nil
}

// Apart returns a context for changes in one cluster, even if another one is unresponsive. It outlives the command's
// own timeout, needs only that cluster's locks, and ends when that cluster is unresponsive.
func (c *Cluster) Apart(ctx context.Context, atMost time.Duration) (context.Context, context.CancelFunc) {
	return forLonger(lock.In(ctx, c.ID), atMost, c.Answers)
}

// forLonger returns a context that outlives ctx, and ends with until unless that is nil.
func forLonger(ctx context.Context, atMost time.Duration, until context.Context) (context.Context, context.CancelFunc) {
	if until == nil {
		until = context.Background()
	}
	ctx, stop := endsWith(context.WithoutCancel(ctx), until)
	ctx, cancel := context.WithTimeoutCause(ctx, atMost, fmt.Errorf("not done after %s", atMost))
	return ctx, func() { cancel(); stop() }
}
