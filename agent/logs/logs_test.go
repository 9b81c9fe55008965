package logs

import (
	"bytes"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
	"github.com/liqonet/liqonet/test/kit"
)

// newLines returns the lines since the last call, without their times.
func newLines(t *testing.T, out *bytes.Buffer) (lines []string) {
	t.Helper()
	stamp := regexp.MustCompile(`^time=[0-9T:.-]+Z `)
	for line := range strings.Lines(out.String()) {
		kit.ErrorIf(t, !stamp.MatchString(line), "%q has no time", line)
		lines = append(lines, strings.TrimSpace(stamp.ReplaceAllString(line, "")))
	}
	out.Reset()
	return lines
}

func TestNoLineIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := New(&out, &slog.LevelVar{})
		check := func(want ...string) {
			t.Helper()
			kit.Check(t, "new lines", newLines(t, &out), want)
		}
		for range 5 {
			log.Error("cannot apply", "error", "no link")
			log.With("error", "no link").Error("cannot apply") // the same line
			log.Error("cannot apply", "error", "no route")
			log.WithGroup("g").Error("cannot apply", "error", "no link")
			log.Warn("cannot apply", "error", "no link")
			log.Debug("cannot apply")
			time.Sleep(time.Minute)
		}
		check(`level=ERROR msg="cannot apply" error="no link"`, `level=ERROR msg="cannot apply" error="no route"`,
			`level=ERROR msg="cannot apply" g.error="no link"`, `level=WARN msg="cannot apply" error="no link"`)
		time.Sleep(repeatInterval)
		log.Error("cannot apply", "error", "no link")
		log.Error("cannot apply", "error", "no link")
		check(`level=ERROR msg="cannot apply" error="no link" repeated=9`)
		time.Sleep(2 * repeatInterval)
		log.Error("cannot apply", "error", "no link")
		check(`level=ERROR msg="cannot apply" error="no link" repeated=1`)
		time.Sleep(repeatInterval)
		log.Error("cannot apply", "error", "no link")
		check(`level=ERROR msg="cannot apply" error="no link"`)
	})
}

// However many different lines there are, few are remembered.
func TestMemoryIsBounded(t *testing.T) {
	var out bytes.Buffer
	log := New(&out, &slog.LevelVar{})
	h := log.Handler().(handler)
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for j := range cacheSize {
				log.Info("line", "number", fmt.Sprint(i, j))
			}
		})
	}
	group.Wait()
	if n := h.lines.logged.Len(); n != cacheSize {
		t.Errorf("%d lines are remembered", n)
	}
	if n := len(newLines(t, &out)); n != 4*cacheSize {
		t.Errorf("%d lines", n)
	}
}

func TestLevel(t *testing.T) {
	var out bytes.Buffer
	l := &Level{}
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: l})) // it repeats lines
	if err := l.Set("loud"); err == nil || l.String() != "info" {
		t.Errorf("the flag takes any level: %v, %s", err, l)
	}
	kit.NoError(t, l.Set("warn"))
	for i, tt := range []struct{ annotation, want string }{
		{"", "warn"},
		{"debug", "debug"},
		{"loud", "debug"},
		{"DEBUG", "debug"},
		{"info+2", "debug"},
		{"error", "error"},
		{"", "warn"},
	} {
		l.UpdateFrom(log, map[string]string{v1alpha1.AnnotationLogLevel: tt.annotation})
		kit.ErrorIf(t, l.String() != tt.want, "step %d, %q: level %s, want %s", i, tt.annotation, l, tt.want)
		log.Log(t.Context(), l.Level(), "at the level", "step", i)
		log.Log(t.Context(), l.Level()-1, "below the level", "step", i)
		l.UpdateFrom(log, map[string]string{v1alpha1.AnnotationLogLevel: tt.annotation})
		text := out.String()
		out.Reset()
		changesNothing := strings.Count(text, "changes nothing")
		kit.ErrorIf(t, strings.Contains(text, "below") || !strings.Contains(text, "at the level") || (changesNothing == 1) != (i > 1 && i < 5),
			"step %d: %s", i, text)
	}
}
