// Command liqonetctl connects the pod networks of Kubernetes clusters. It is also installed as kubectl-liqonet, for `kubectl liqonet`.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/liqonet/liqonet/pkg/cli"
)

func main() {
	// The first signal cancels the command, which then rolls back. The second one kills the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(cli.Run(ctx, os.Args[1:], cli.Streams{Out: os.Stdout, Err: os.Stderr}))
}
