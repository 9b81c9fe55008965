package kube

import (
	"context"
)

// Reporter shows the progress of a command.
type Reporter interface {
	// Step runs do, and reports its start, its end and its error.
	Step(ctx context.Context, name string, do func(context.Context) error) error
}

// Quiet is a Reporter that shows nothing.
type Quiet struct{}

// Step runs do.
func (Quiet) Step(ctx context.Context, _ string, do func(context.Context) error) error {
	return do(ctx)
}

// Quietly runs a step without reporting it.
func Quietly(ctx context.Context, _ string, until func(context.Context) error) error {
	return until(ctx)
}
