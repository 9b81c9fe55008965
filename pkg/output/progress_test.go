package output

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/liqonet/liqonet/test/kit"
)

func TestPlainProgress(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, nil)
	_, ok := p.(PlainProgress)
	kit.FatalIf(t, !ok, "a buffer is no terminal: %T", p)
	kit.CheckNoError(t, p.Step(t.Context(), "One", func(context.Context) error { return nil }))
	failed := errors.New("failed")
	kit.FailsWith(t, p.Step(t.Context(), "Two", func(context.Context) error { return failed }), failed)
	kit.Check(t, "String", out.String(), "One ...\nTwo ...\nTwo failed after 0.0 s\n")
}
