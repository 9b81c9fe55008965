// Package probe runs the task of one probe pod (see pkg/probe), and writes the results to standard output. It needs
// neither an API server nor files.
//
// Out of scope: interpreting the results (pkg/verify, pkg/doctor).
package probe

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	lop "github.com/samber/lo/parallel"

	"github.com/liqonet/liqonet/pkg/probe"
)

// Run runs a task. If the task serves or watches, it ends with the context.
func Run(ctx context.Context, task probe.Task, out io.Writer) error {
	lines := json.NewEncoder(out)
	say := func(l probe.Line) { _ = lines.Encode(l) } // nothing else could receive the error
	if err := run(ctx, task, say); err != nil {
		say(probe.Line{Error: err.Error()})
		return err
	}
	return nil
}

func run(ctx context.Context, task probe.Task, emit func(probe.Line)) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if task.Watch != nil {
		end, watchErr := watch(*task.Watch)
		if watchErr != nil {
			return watchErr
		}
		defer func() {
			watched, endErr := end()
			emit(probe.Line{Result: &probe.Result{Counters: watched}})
			err = errors.Join(err, endErr)
		}()
	}
	if task.Serve != nil {
		if err := serve(ctx, task.Token, *task.Serve); err != nil {
			return err
		}
	}
	emit(probe.Line{Ready: true})
	if len(task.Calls) > 0 {
		before := gatewayDrops(ctx, task.Gateways)
		answers := lop.Map(task.Calls, func(c probe.Call, _ int) probe.Answer { return call(ctx, task.Token, c) })
		after := gatewayDrops(ctx, task.Gateways)
		emit(probe.Line{Result: &probe.Result{Answers: answers, Gateways: gatewayIncreases(before, after)}})
	}
	if task.Bench != nil {
		speed, err := bench(ctx, task.Token, *task.Bench)
		if err != nil {
			return err
		}
		emit(probe.Line{Result: &probe.Result{Speed: speed}})
	}
	if task.Kernel != nil {
		emit(probe.Line{Result: &probe.Result{Kernel: readKernel(ctx, *task.Kernel)}})
	}
	if task.Serve != nil || task.Watch != nil {
		<-ctx.Done()
	}
	return nil
}
