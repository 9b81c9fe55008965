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
	// LongestSilence is how long a cluster may answer nothing until a command on it and another one gives up: it holds locks in that one, too.
	LongestSilence = 20 * time.Second
	// askingTime is how long one question may take, asksAtLeast how many have to stay without an answer: this process may have been stopped.
	askingTime  = 3 * time.Second
	asksAtLeast = 3
)

type silentKey struct{}

// WhileAnswering is a context that ends, with an Error, when the cluster has answered nothing for [longestSilence], and the cluster with that in mind.
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

// awaitSilence returns when the cluster has answered nothing for [longestSilence], or ctx ends. Any answer counts.
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

// endsWith is a context that also ends when another one does, for the same reason.
func endsWith(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

// IsAbandoned says that a command leaves what it has begun to the next one: another command has overtaken it, or a cluster does not answer.
func IsAbandoned(ctx context.Context) bool {
	return errors.As(context.Cause(ctx), new(*Error)) || lock.Lost(ctx) != nil
}

// Apart is a context for what is done in one cluster, whatever another one answers. It needs that cluster's locks only, and ends when that one
// does not answer. It lasts beyond the command's own time.
func (c *Cluster) Apart(ctx context.Context, atMost time.Duration) (context.Context, context.CancelFunc) {
	return forLonger(lock.In(ctx, c.ID), atMost, c.Answers)
}

// forLonger is a context that lasts beyond ctx, until the end of another one, if there is any.
func forLonger(ctx context.Context, atMost time.Duration, until context.Context) (context.Context, context.CancelFunc) {
	if until == nil {
		until = context.Background()
	}
	ctx, stop := endsWith(context.WithoutCancel(ctx), until)
	ctx, cancel := context.WithTimeoutCause(ctx, atMost, fmt.Errorf("not done after %s", atMost))
	return ctx, func() { cancel(); stop() }
}
