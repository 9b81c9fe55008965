// Package probe does the task of one probe pod (see pkg/probe), and says on standard
// output what it has found out. It needs neither an API server nor files.
//
// Out of scope: what it means (pkg/peering).
package probe

import (
	"context"
	"encoding/json"
	"io"
	"sync"

	"github.com/liqonet/liqonet/pkg/probe"
)

// Run does a task. One that serves ends with the context.
func Run(ctx context.Context, task probe.Task, out io.Writer) error {
	say := &speaker{to: json.NewEncoder(out)}
	if err := run(ctx, task, say); err != nil {
		say.line(probe.Line{Error: err.Error()})
		return err
	}
	return nil
}

func run(ctx context.Context, task probe.Task, say *speaker) error {
	if task.Serve != nil {
		serving, err := serve(ctx, task.Token, *task.Serve)
		if err != nil {
			return err
		}
		defer serving()
	}
	say.line(probe.Line{Ready: true})
	if len(task.Calls) > 0 {
		say.line(probe.Line{Result: &probe.Result{Answers: callAll(ctx, task.Token, task.Calls)}})
	}
	if task.Kernel != nil {
		say.line(probe.Line{Result: &probe.Result{Kernel: readKernel(ctx, *task.Kernel)}})
	}
	if task.Serve != nil {
		<-ctx.Done()
	}
	return nil
}

// speaker writes lines, of which no two are mixed.
type speaker struct {
	mu sync.Mutex
	to *json.Encoder
}

func (s *speaker) line(l probe.Line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.to.Encode(l) // nobody else could be told
}
