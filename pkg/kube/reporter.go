package kube

import (
	"context"
)

// Reporter is told what is being done, as it is done.
type Reporter interface {
	// Step does what it is given, and shows its beginning, end and failure.
	Step(ctx context.Context, name string, do func(context.Context) error) error
}

// Quiet is a Reporter that shows nothing.
type Quiet struct{}

// Step does the step.
func (Quiet) Step(ctx context.Context, _ string, do func(context.Context) error) error {
	return do(ctx)
}

// Quietly waits without a word. Where the time is over, the error says for whom.
func Quietly(ctx context.Context, _ string, until func(context.Context) error) error {
	return until(ctx)
}
