// Command liqonetctl connects the pod networks of Kubernetes clusters. It is
// also installed as kubectl-liqonet, which makes it `kubectl liqonet`.
package main

import (
	"context"
	"os"

	"github.com/liqonet/liqonet/pkg/cli"
)

func main() {
	ctx, cancel := cli.WithSignals(context.Background())
	code := cli.Run(ctx, os.Args[1:], cli.Streams{Out: os.Stdout, Err: os.Stderr})
	cancel()
	os.Exit(code)
}
