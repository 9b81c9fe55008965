package kube

import (
	"context"
)

// Reporter is told what is being done, as it is done.
type Reporter interface {
	// Step does what it is given, and shows its beginning, end and failure.
	Step(ctx context.Context, name string, do func(context.Context) error) error
}
