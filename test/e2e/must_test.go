package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
)

// must returns the value of a function, and ends the test if it failed.
func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		try(t, err)
		return v
	}
}

// errOf is the error of a function of which nothing else counts.
func errOf[T any](_ T, err error) error { return err }

// try ends the test if something failed without which the rest says nothing.
func try(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// report fails the test if something failed.
func report(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// expect fails the test with a message unless something is true.
func expect(t testing.TB, isTrue bool, format string, args ...any) {
	t.Helper()
	if !isTrue {
		t.Errorf(format, args...)
	}
}

// require ends the test with a message unless something is true.
func require(t testing.TB, isTrue bool, format string, args ...any) {
	t.Helper()
	if !isTrue {
		t.Fatalf(format, args...)
	}
}

// kubectl returns what kubectl says of a cluster. It has to succeed.
func (c *cluster) kubectl(t testing.TB, ctx context.Context, args ...string) string {
	t.Helper()
	return must(c.Run(ctx, "", args...))(t)
}

// apply has kubectl apply a manifest.
func apply(t testing.TB, ctx context.Context, c *cluster, manifest string) {
	t.Helper()
	must(c.Run(ctx, manifest, "apply", "-f", "-"))(t)
}

// unless is the reason for what is not true, for eventually.
func unless(isTrue bool, format string, args ...any) string {
	if isTrue {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// why is the text of an error, if there is one.
func why(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// none fails the test if something was found, which is said with what it is.
func none(t testing.TB, found, format string, args ...any) {
	t.Helper()
	if found != "" {
		t.Errorf("%s:\n%s", fmt.Sprintf(format, args...), found)
	}
}

// runs runs a program. Its error has what the program says.
func runs(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
	}
	return nil
}
