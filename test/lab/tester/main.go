// Tester is the workload of the lab's test pods: a server that tells its
// clients where it sees them come from, and the client that asks it. It is linked
// statically into an image without anything else.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage:
  tester pause                     wait for a signal
  tester serve [flags]             answer on TCP, UDP and HTTP
  tester call PROTOCOL ADDRESS     send, and print the answer as a JSON line;
                                   PROTOCOL: tcp, udp, http (ADDRESS:PORT), icmp (ADDRESS)
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tester:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return fmt.Errorf("no command")
	}
	switch args[0] {
	case "pause":
		// The pod's first process: it also reaps, if processes are shared.
		signal.Ignore(syscall.SIGCHLD)
		<-ctx.Done()
		return nil
	case "serve":
		return serve(ctx, args[1:])
	case "call":
		return call(ctx, args[1:], os.Stdout)
	default:
		fmt.Fprint(os.Stderr, usage)
		return fmt.Errorf("unknown command %q", args[0])
	}
}

// seen is what a server says about a client.
type seen struct {
	// Hostname is the server's, which is the pod's name.
	Hostname string `json:"hostname"`
	// Source is the client's address and port as the server sees them.
	Source string `json:"source"`
}
