package gateway

import (
	"bytes"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liqonet/liqonet/agent/history"
	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/pkg/metrics"
	"github.com/liqonet/liqonet/test/kit"
)

// notes returns the recorded changes, from the log.
func notes(log *bytes.Buffer) (out []string) {
	line := regexp.MustCompile(`msg="(.*) has changed" .*from=(\S*) to=(\S*) reason="?(.*?)"?$`)
	for text := range strings.Lines(log.String()) {
		if m := line.FindStringSubmatch(strings.TrimSpace(text)); m != nil {
			out = append(out, strings.Join(m[1:], ","))
		}
	}
	log.Reset()
	return out
}

// Each change is recorded once, with its reason.
func TestChangesAreNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &bytes.Buffer{}
		n := &recorder{peering: "b", index: 1, record: history.New(&history.Record{Log: slog.New(slog.NewTextHandler(log, nil))})}
		s := v1alpha1.PlaneStatus{NodeName: "w1"}
		for _, step := range []struct {
			state, why, endpoint string
			mtu                  int32
			after                time.Duration
			want                 []string
		}{
			{metrics.Down, "early", "", 0, 0, []string{`plane,"",starting,the gateway runs on node w1`}},
			{metrics.Down, "early", "", 0, startGrace / 2, nil},
			{metrics.Up, "answers", "192.0.2.1:1", 1440, time.Second, []string{"plane,starting,up,answers"}},
			{metrics.Up, "answers", "192.0.2.1:1", 1440, time.Hour, nil},
			{metrics.Down, "no answer for 0.3 s", "192.0.2.1:1", 1440, 0, []string{"plane,up,down,no answer for 0.3 s"}},
			{metrics.Down, "no answer for 0.9 s", "192.0.2.1:1", 1440, 0, nil},
			{metrics.Leaving, "the peer's gateway ends", "192.0.2.1:1", 1440, 0, nil},
			{metrics.Up, "answers", "192.0.2.2:1", 1400, 0, []string{
				"plane,down,up,answers", "MTU,1440,1400,the MTU that both sides support has changed",
				"endpoint,192.0.2.1:1,192.0.2.2:1,WireGuard sends to another address of the peer",
			}},
		} {
			time.Sleep(step.after)
			s.Endpoint, s.MTU = step.endpoint, step.mtu
			n.update("uid", s, step.state, step.why)
			kit.Check(t, fmt.Sprintf("%s, %s", step.state, step.why), notes(log), step.want)
		}
		n.update("another", s, metrics.Down, "never")
		time.Sleep(startGrace)
		n.update("another", s, metrics.Down, "never")
		n.leave()
		n.leave()
		want := []string{`plane,"",starting,the gateway runs on node w1`, "plane,starting,down,never", "plane,down,leaving,this gateway ends"}
		kit.Check(t, "notes", notes(log), want)
	})
}

// A change of a condition's status is recorded. The first status is recorded only if it is not the usual initial one.
func TestConditionsAreNoted(t *testing.T) {
	log := &bytes.Buffer{}
	n := &recorder{peering: "b", record: history.New(&history.Record{Log: slog.New(slog.NewTextHandler(log, nil))})}
	for _, tt := range []struct {
		kind          string
		before, after metav1.ConditionStatus
		want          []string
		bad           bool
	}{
		{v1alpha1.ConditionConnected, "", "True", []string{`Connected,"",True,why`}, false},
		{v1alpha1.ConditionConnected, "", "False", nil, false},
		{v1alpha1.ConditionConnected, "True", "True", nil, false},
		{v1alpha1.ConditionConnected, "True", "False", []string{"Connected,True,False,why"}, true},
		{v1alpha1.ConditionDegraded, "False", "True", []string{"Degraded,False,True,why"}, true},
		{v1alpha1.ConditionDegraded, "True", "False", []string{"Degraded,True,False,why"}, false},
		{v1alpha1.ConditionRedundant, "True", "False", []string{"Redundant,True,False,why"}, true},
	} {
		var before *metav1.Condition
		if tt.before != "" {
			before = &metav1.Condition{Type: tt.kind, Status: tt.before}
		}
		n.noteCondition(before, metav1.Condition{Type: tt.kind, Status: tt.after, Message: "why"})
		warned := strings.Contains(log.String(), "level=WARN")
		if diff := cmp.Diff(tt.want, notes(log)); diff != "" || warned != tt.bad {
			t.Errorf("%s from %q to %s: warned %t, %s", tt.kind, tt.before, tt.after, warned, diff)
		}
	}
}

// quiet returns a recorder that logs nothing.
func quiet() recorder {
	return recorder{record: history.New(&history.Record{Log: slog.New(slog.DiscardHandler)})}
}
