package e2e

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stopped is how long a command is stopped: far longer than its locks last.
const stopped = time.Minute

// TestStopped stops commands at one of their writes for a minute, in which others change what they work on. When such a command
// continues, it changes nothing of what the other one has decided, and says by whom it was overtaken.
func TestStopped(t *testing.T) {
	a, b, random := fx.gamma, fx.delta, random(t)
	peer, unpeer := peerAndUnpeer(a, b)
	const image = "IMAGE"
	all := []struct {
		first, then []string
		// writes is how many the first one has at least, without those of its end.
		writes int
	}{
		{peer, unpeer, leastWrites},
		{unpeer, peer, 10},
		{[]string{"rotate-keys", a.Name, b.Name}, unpeer, 12},
		{[]string{"rotate-keys", a.Name, b.Name}, peer, 12},
		{[]string{"upgrade", a.Name, b.Name, "--agent-image", image}, unpeer, 4},
		{[]string{"upgrade", a.Name, b.Name, "--agent-image", image}, []string{"rotate-keys", a.Name, b.Name}, 4},
	}
	for _, i := range sample(random, len(all), 1) {
		tt := all[i]
		t.Run(tt.first[0]+", overtaken by "+tt.then[0], func(t *testing.T) {
			ctx := begin(t)
			if tt.first[0] != "peer" {
				mustLiqonet(t, ctx, peer...)
			}
			first := strings.Split(strings.ReplaceAll(strings.Join(tt.first, " "), image, agentImage("the-same")), " ")
			if tt.first[0] == "upgrade" {
				sameImage(t, ctx, a, b)
			}
			d := signalAfterWrites(t, syscall.SIGSTOP, a, b)
			cmd, errs := d.start(t, ctx, 1+random.IntN(tt.writes), first...)
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case write := <-d.reached:
				t.Logf("%v is stopped after %s", first, write)
			case err := <-ended:
				t.Fatalf("%v has fewer writes: %v\n%s", first, err, errs)
			}
			minute := time.After(stopped)
			mustLiqonet(t, ctx, tt.then...)
			<-minute
			try(t, cmd.Process.Signal(syscall.SIGCONT))
			select {
			case err := <-ended:
				exit := (*exec.ExitError)(nil)
				expect(t, errors.As(err, &exit) && exit.ExitCode() == exitBusy, "%v ended with %v, want exit code %d\n%s", first, err, exitBusy, errs)
				want := "overtaken by " + tt.then[0] + " of "
				expect(t, strings.Contains(errs.String(), want), "%v does not say %q\n%s", first, want, errs)
			case <-time.After(20 * time.Second):
				t.Errorf("%v goes on\n%s", first, errs)
			}
			if tt.then[0] != "unpeer" {
				checkPair(t, ctx, a, b)
				checkBothPlanes(t, ctx, a, b)
				would := mustLiqonet(t, ctx, append(slices.Clone(peer), "--dry-run")...)
				r := mustLiqonet(t, ctx, peer...)
				expect(t, strings.Contains(r.stdout, "nothing was changed"),
					"the next peer says\n%s\nA dry run before said\n%s", r.stdout, would.stdout)
				mustLiqonet(t, ctx, unpeer...)
			}
			checkNothingLeft(t, ctx)
		})
	}
}
