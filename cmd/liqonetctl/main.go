// Command liqonetctl connects the pod networks of Kubernetes clusters. It is also installed as kubectl-liqonet, for `kubectl liqonet`.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/liqonet/liqonet/pkg/cli"
)

// impatience is the time after the first signal from which another one kills the process. Until then, it may be the same one: a user presses
// Ctrl-C twice, or closes the terminal.
const impatience = 2 * time.Second

func main() {
	// The first signal cancels the command, which then rolls back or removes what it has created.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as with nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // the reader of the output may end while there is something to remove
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-signals
		cancel()
		for first := time.Now(); ; {
			if <-signals; time.Since(first) >= impatience {
				os.Exit(cli.ExitInterrupted)
			}
		}
	}()
	os.Exit(cli.Run(ctx, os.Args[1:], cli.Streams{Out: os.Stdout, Err: os.Stderr}))
}
