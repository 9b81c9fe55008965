package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// mostWait is how many seconds commands on different peerings of one cluster may wait for each other.
const mostWait = 1.0

// abandonedLock is that of a command that was killed on another machine.
const abandonedLock = `
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: liqonet-cluster
  namespace: kube-system
  labels: {app.kubernetes.io/managed-by: liqonet}
  annotations: {liqonet.io/running: 3s}
spec: {holderIdentity: upgrade of somebody@elsewhere (12345678)}
`

// Commands on two peerings of one cluster, at the same time, do not wait for each other for more than a second. The one exception is who
// removes the last peering: it waits for whoever still works in the cluster.
func TestPairsDoNotWaitForEachOther(t *testing.T) {
	begin(t)
	ctx := t.Context() // there are many commands
	hub, b, c, third := fx.alpha, fx.beta, fx.gamma, fx.delta
	both := func(verbB, verbC string, permitted func(commandWait) bool) {
		t.Helper()
		var commands sync.WaitGroup
		for i, args := range [][]string{{verbB, hub.Name, b.Name}, {verbC, hub.Name, c.Name}} {
			commands.Go(func() {
				for _, w := range inTerminal(t, ctx, args...) {
					t.Logf("%s waited: %+v", strings.Join(args, " "), w)
					if w.seconds > mostWait && !permitted(w) {
						t.Errorf("%s, number %d of two at the same time, waited in %s for %s: %.1f s", strings.Join(args, " "), i+1, w.cluster, w.holder, w.seconds)
					}
				}
			})
		}
		commands.Wait()
		if t.Failed() {
			t.FailNow()
		}
	}
	never := func(commandWait) bool { return false }
	both("peer", "peer", never)
	both("unpeer", "unpeer", func(w commandWait) bool { return w.cluster == hub.Name && strings.HasPrefix(w.holder, "unpeer of ") })

	// With a third peering, nobody removes the last one of the hub.
	mustLiqonet(t, ctx, "peer", hub.Name, third.Name)
	both("peer", "peer", never)
	both("unpeer", "unpeer", never)
	both("peer", "peer", never)
	both("unpeer", "peer", never)
	both("peer", "unpeer", never)

	// Waits are seen: a lock that nobody renews is free after 6 s.
	apply(t, ctx, hub, abandonedLock)
	waits := inTerminal(t, ctx, "unpeer", hub.Name, b.Name)
	if len(waits) == 0 || waits[0].seconds <= mostWait || waits[0].cluster != hub.Name || waits[0].holder != "upgrade of somebody@elsewhere (12345678)" {
		t.Errorf("of a lock that is held, unpeer says %+v", waits)
	}
	mustLiqonet(t, ctx, "unpeer", hub.Name, third.Name)
	checkNothingLeft(t, ctx)
}

// commandWait is what a command says of a lock that it has waited for.
type commandWait struct {
	cluster, holder string
	seconds         float64
}

var (
	escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)
	waited  = regexp.MustCompile(`[✓✗] (\S+): waiting for (.+?), which has run for .+? (\d+\.\d) s`)
)

// inTerminal runs the CLI, which has to succeed, and returns the locks that it has waited for. It tells the time of each step in a terminal only.
func inTerminal(t *testing.T, ctx context.Context, args ...string) (waits []commandWait) {
	t.Helper()
	shown, terminal, err := openTerminal()
	if err != nil {
		t.Error(err)
		return nil
	}
	defer func() { _ = shown.Close() }()
	cmd := command(ctx, "", args...)
	cmd.SysProcAttr = nil // this goroutine's thread may end before the command
	cmd.Env = append(cmd.Env, "TERM=xterm")
	cmd.Stderr = terminal
	var all bytes.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = all.ReadFrom(shown) // its end is an error
	}()
	err = cmd.Run()
	_ = terminal.Close()
	<-read
	text := escapes.ReplaceAllString(all.String(), "")
	if err != nil {
		t.Errorf("kubectl liqonet %s: %v\n%s", strings.Join(args, " "), err, text)
	}
	for _, m := range waited.FindAllStringSubmatch(text, -1) {
		seconds, _ := strconv.ParseFloat(m[3], 64) // it matches
		waits = append(waits, commandWait{m[1], m[2], seconds})
	}
	if !strings.Contains(text, "✓ ") {
		t.Errorf("kubectl liqonet %s says of no step how long it took:\n%s", strings.Join(args, " "), text)
	}
	return waits
}

// openTerminal opens a terminal, and what shows its contents. It is wide enough for each line.
func openTerminal() (shown, terminal *os.File, err error) {
	if shown, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	fd := int(shown.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 250})
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		_ = shown.Close()
	}
	return shown, terminal, err
}
