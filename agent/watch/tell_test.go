package watch_test

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/liqonet/liqonet/agent/watch"
)

func TestTell(t *testing.T) {
	for _, tt := range []struct {
		name   string
		err    error
		before string
		tried  bool
		want   string
		logged bool
	}{
		{name: "nothing", before: "x", tried: true},
		{name: "news", err: errors.New("x"), before: "y", want: "x", logged: true},
		{name: "the same", err: errors.New("x"), before: "x", want: "x"},
		{name: "the same, once more", err: errors.New("x"), before: "x", tried: true, want: "x", logged: true},
	} {
		var b bytes.Buffer
		got := watch.Tell(slog.New(slog.NewTextHandler(&b, nil)), tt.err, tt.before, tt.tried)
		if got != tt.want || (b.Len() > 0) != tt.logged {
			t.Errorf("%s: told %q, logged %q", tt.name, got, b.String())
		}
	}
}
