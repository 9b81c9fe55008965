package node

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/liqonet/liqonet/agent/history"
)

// A peer is reached while any plane is. That it is not reached at first is no news.
func TestReachedIsNoted(t *testing.T) {
	var log bytes.Buffer
	first, second := &prober{gateway: gateway{peering: "b"}}, &prober{gateway: gateway{peering: "b", plane: 1}}
	a := &agent{
		history: history.New(&history.Record{Log: slog.New(slog.NewTextHandler(&log, nil))}),
		probers: map[probeKey]*prober{{plane: 0}: first, {plane: 1}: second},
	}
	for i, tt := range []struct {
		first, second bool
		want          string
	}{
		{false, false, ""},
		{true, false, `to=reached`},
		{false, true, ""},
		{false, false, `to="not reached"`},
		{false, false, ""},
		{true, true, `to=reached`},
	} {
		first.ready, second.ready = tt.first, tt.second
		a.noteReached()
		if got := log.String(); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("step %d: %q, want %q", i, got, tt.want)
		}
		log.Reset()
	}
	clear(a.probers)
	if a.noteReached(); log.Len() > 0 || len(a.reached) > 0 {
		t.Errorf("a peering that is gone: %s, %v", &log, a.reached)
	}
}
