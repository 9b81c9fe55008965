// Package logs creates the agents' loggers: structured lines with levels, without repetitions, and a level that can
// change while the agent runs.
//
// Out of scope: what is worth logging, and where it goes.
package logs

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/lru"

	"github.com/liqonet/liqonet/pkg/api/v1alpha1"
)

const (
	// repeatInterval is how long a line is not repeated.
	repeatInterval = 10 * time.Minute
	// cacheSize is how many lines are remembered, each by its hash.
	cacheSize = 1024
	// timeFormat is the format of slog.TextHandler.
	timeFormat = "2006-01-02T15:04:05.000Z07:00"
)

// New returns a logger that writes lines as slog.TextHandler does. It omits a line that equals one of the last ten
// minutes, except for its time. When the line is written again, "repeated" counts the omitted ones.
func New(out io.Writer, level slog.Leveler) *slog.Logger {
	s := &lines{out: out, seed: maphash.MakeSeed(), logged: lru.New(cacheSize)}
	return slog.New(handler{slog.NewTextHandler(&s.line, &slog.HandlerOptions{Level: level}), s})
}

// handler formats records, without their time, into the buffer that all handlers of a logger share.
type handler struct {
	slog.Handler
	lines *lines
}

type lines struct {
	mu     sync.Mutex
	out    io.Writer
	line   bytes.Buffer
	seed   maphash.Seed
	logged *lru.Cache
}

// logged is when a line was last written, and how often it was omitted since.
type logged struct {
	at       time.Time
	repeated int
}

// Handle writes the record, unless it is a repetition.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	l := h.lines
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	r.Time = time.Time{}
	l.line.Reset()
	if err := h.Handler.Handle(ctx, r); err != nil {
		return err
	}
	key, more := maphash.Bytes(l.seed, l.line.Bytes()), ""
	if before, ok := l.logged.Get(key); ok {
		before := before.(*logged)
		if now.Sub(before.at) < repeatInterval {
			before.repeated++
			return nil
		}
		if before.repeated > 0 {
			more = fmt.Sprintf(" repeated=%d", before.repeated)
		}
	}
	l.logged.Add(key, &logged{at: now})
	_, err := fmt.Fprintf(l.out, "time=%s %s%s\n", now.UTC().Format(timeFormat), bytes.TrimSuffix(l.line.Bytes(), []byte("\n")), more)
	return err
}

// WithAttrs returns a handler with more attributes.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.lines}
}

// WithGroup returns a handler whose attributes are in a group.
func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.lines}
}

// Level is the minimum level that an agent logs: that of its flag, or else of the annotation of an object that it
// watches. It implements pflag.Value, and its zero value is info.
type Level struct {
	slog.LevelVar
	flag slog.Level
	// annotation is the last value of the annotation.
	annotation string
}

// String returns the level.
func (l *Level) String() string { return strings.ToLower(l.Level().String()) }

// Type returns the type that --help shows.
func (l *Level) Type() string { return "level" }

// Set sets the level of the flag.
func (l *Level) Set(name string) error {
	level, err := parse(name)
	if err == nil {
		l.flag = level
		l.LevelVar.Set(level)
	}
	return err
}

// UpdateFrom sets the level to that of the annotation, or of the flag if the annotation is empty. It ignores an unknown
// level, and logs that once. It must not be called concurrently.
func (l *Level) UpdateFrom(log *slog.Logger, annotations map[string]string) {
	name := annotations[v1alpha1.AnnotationLogLevel]
	if name == l.annotation {
		return
	}
	l.annotation = name
	level, err := l.flag, error(nil)
	if name != "" {
		level, err = parse(name)
	}
	if err != nil {
		log.Warn("the annotation "+v1alpha1.AnnotationLogLevel+" changes nothing", "error", err)
		return
	}
	l.LevelVar.Set(level)
	log.Log(context.Background(), level, "lines are logged from this level on")
}

func parse(name string) (level slog.Level, err error) {
	if !slices.Contains(v1alpha1.LogLevels(), name) {
		return level, fmt.Errorf("%.32q is not one of %s", name, strings.Join(v1alpha1.LogLevels(), ", "))
	}
	err = level.UnmarshalText([]byte(name))
	return level, err
}
